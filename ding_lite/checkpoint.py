"""Checkpoints: a folder of JSON and safetensors that is either whole or not there.

    state.json           the state tree; each array in it is named, not held
    tensors.safetensors  the arrays
    config.json          the resolved config
    manifest.json        format version, and size and SHA-256 of every other file and of its own body

Written under a temporary name, synced, and renamed. Loading one that anyone made never runs code:
nothing is unpickled, imported or executed.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ding_lite.errors import CheckpointError
from ding_lite.schema import Key

FORMAT_VERSION = 1
MANIFEST, STATE, TENSORS, CONFIG = "manifest.json", "state.json", "tensors.safetensors", "config.json"
FILES = (STATE, TENSORS, CONFIG)
MAX_JSON_BYTES = 2**28
ARRAY = "__array__"  # {"__array__": name} in state.json stands for an array

CHECKPOINT_CONFIG: dict[str, Any] = dict(
    freq=Key(50_000, low=0),  # env steps between saves of ckpt/last; 0: only at the end
    keep_freq=Key(0, low=0),  # env steps between snapshots ckpt/iteration_*; 0: none
    keep=Key(3, low=1),  # snapshots kept, the newest
)


def save_checkpoint(folder: Path, state: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Writes ``state`` to ``folder``, replacing what is there without a moment in which neither is.

    Raises:
        CheckpointError: if it cannot be written; what was there is untouched.
    """
    from safetensors.numpy import save

    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        for left_over in folder.parent.glob(f".{folder.name}.*.tmp"):  # of a process that was killed
            shutil.rmtree(left_over, ignore_errors=True)
        temporary.mkdir(parents=True)
        arrays: dict[str, np.ndarray] = {}
        tree = _pull_arrays(state, "", arrays)
        contents = {
            STATE: json.dumps(tree, indent=1).encode(),
            TENSORS: save(arrays),
            CONFIG: json.dumps(config, indent=1).encode(),
        }
        body = {
            "format_version": FORMAT_VERSION,
            "files": {n: {"bytes": len(b), "sha256": _sha256(b)} for n, b in contents.items()},
        }
        manifest = {**body, "sha256": _sha256(_canonical(body))}
        contents[MANIFEST] = json.dumps(manifest, indent=1).encode()
        for name, data in contents.items():
            _write_synced(temporary / name, data)
        _sync_folder(temporary)
        _replace_folder(temporary, folder)
        _sync_folder(folder.parent)
    except OSError as error:
        raise CheckpointError(f"checkpoint {folder} cannot be written: {error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def load_checkpoint(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns ``(state, config)`` of a checkpoint, verified; arrays are NumPy's.

    Raises:
        CheckpointError: if a file is missing, damaged, foreign, or of a newer format.
    """
    from safetensors.numpy import load

    contents = _verified_files(Path(folder))
    try:
        arrays = load(contents[TENSORS])
        state = _put_arrays(json.loads(contents[STATE]), arrays)
        config = json.loads(contents[CONFIG])
    except Exception as error:
        raise CheckpointError(f"checkpoint {folder}: {type(error).__name__}: {error}") from error
    if not isinstance(state, dict) or not isinstance(config, dict):
        raise CheckpointError(f"checkpoint {folder}: {STATE} and {CONFIG} must hold objects")
    return state, config


def find_checkpoint(path: Path, name: str) -> Path:
    """Returns the checkpoint folder that ``path`` means: itself, or the one called ``name`` of a run.

    Raises:
        CheckpointError: if there is none.
    """
    path = Path(path)
    names = (name, "last") if name == "best" else (name,)  # a run may have been evaluated never yet
    for folder in (path, *(path / "ckpt" / one for one in names)):
        if (folder / MANIFEST).is_file():
            return folder
    raise CheckpointError(
        f"{path} is neither a run nor a checkpoint: expected {path / 'ckpt' / name} or "
        f"{path / MANIFEST}. Was the run stopped before its first save?"
    )


class CheckpointKeeper:
    """The folder ``ckpt`` of a run: ``last``, ``best``, and the newest snapshots ``iteration_*``.

    Args:
        folder: of the run.
        config: saved with every checkpoint.
        keep: how many snapshots.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any], keep: int) -> None:
        self.folder, self.config, self.keep = folder / "ckpt", config, keep

    def save(self, name: str, state: Mapping[str, Any]) -> Path:
        """Saves ``ckpt/<name>`` and returns its path."""
        save_checkpoint(self.folder / name, state, self.config)
        return self.folder / name

    def snapshot(self, iteration: int, state: Mapping[str, Any]) -> None:
        """Saves a snapshot and removes the oldest ones."""
        self.save(f"iteration_{iteration:08d}", state)
        for old in sorted(self.folder.glob("iteration_*"))[: -self.keep]:
            shutil.rmtree(old, ignore_errors=True)

    def name_of(self, name: str) -> str | None:
        """Returns ``"ckpt/<name>"`` if there is one."""
        return f"ckpt/{name}" if (self.folder / name).is_dir() else None


def _verified_files(folder: Path) -> dict[str, bytes]:
    manifest = _parse_manifest(folder)
    contents = {}
    for name in FILES:
        file, said = folder / name, manifest["files"][name]
        if file.is_symlink() or not file.is_file():
            raise CheckpointError(f"checkpoint {folder}: {name} is missing")
        size = file.stat().st_size
        if size != said["bytes"]:
            raise CheckpointError(
                f"checkpoint {folder}: {name} has {size} bytes, its manifest says {said['bytes']}"
            )
        contents[name] = file.read_bytes()
        if _sha256(contents[name]) != said["sha256"]:
            raise CheckpointError(f"checkpoint {folder}: {name} is damaged (its checksum does not match)")
    return contents


def _parse_manifest(folder: Path) -> dict[str, Any]:
    file = folder / MANIFEST
    try:
        if file.stat().st_size > MAX_JSON_BYTES:
            raise ValueError("it is too large")
        manifest = json.loads(file.read_bytes())
        claimed = manifest.pop("sha256")
        version, files = manifest["format_version"], manifest["files"]
        entries = [(files[name]["bytes"], files[name]["sha256"]) for name in FILES]
        intact = claimed == _sha256(_canonical(manifest)) and len(entries) == len(files)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{file} is not the manifest of a checkpoint: {error}") from error
    if not intact:
        raise CheckpointError(f"checkpoint {folder}: {MANIFEST} is damaged (its checksum does not match)")
    if version != FORMAT_VERSION:
        raise CheckpointError(
            f"checkpoint {folder} has the format version {version}, this ding_lite reads {FORMAT_VERSION}"
        )
    return manifest


def _pull_arrays(value: Any, path: str, arrays: dict[str, np.ndarray]) -> Any:
    """Returns the JSON form of a state tree and moves its arrays out; types that JSON lacks are errors."""
    if isinstance(value, Mapping):
        return {
            _key(k, path): _pull_arrays(v, f"{path}.{k}" if path else str(k), arrays)
            for k, v in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_pull_arrays(v, f"{path}.{i}", arrays) for i, v in enumerate(value)]
    if hasattr(value, "detach"):  # a torch tensor; torch itself need not be imported here
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
        name = f"{len(arrays):06d}"
        arrays[name] = np.ascontiguousarray(value)
        # safetensors has no 0-d arrays in every version: the shape is kept beside the name.
        return {ARRAY: name, "shape": list(value.shape)}
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise CheckpointError(f"the state at {path!r} is a {type(value).__name__}, which cannot be saved")


def _put_arrays(value: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    if isinstance(value, dict):
        if ARRAY in value:
            # Read-only otherwise: it lies in the bytes of the file.
            return arrays[value[ARRAY]].reshape(value["shape"]).copy()
        return {_unkey(k): _put_arrays(v, arrays) for k, v in value.items()}
    return [_put_arrays(v, arrays) for v in value] if isinstance(value, list) else value


def _key(key: Any, path: str) -> str:
    """Returns a key as JSON can have it: Adam's state is keyed by the numbers of parameters."""
    if isinstance(key, int) and not isinstance(key, bool):
        return f"#{key}"
    if not isinstance(key, str) or key.startswith("#") or key == ARRAY:
        raise CheckpointError(f"the state at {path!r} has the key {key!r}, which cannot be saved")
    return key


def _unkey(key: str) -> str | int:
    return int(key[1:]) if key.startswith("#") else key


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _canonical(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()


def _write_synced(file: Path, data: bytes) -> None:
    with file.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def _sync_folder(folder: Path) -> None:
    """Makes renames inside ``folder`` survive a power loss; Windows has no such call."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _replace_folder(new: Path, old: Path) -> None:
    if not old.exists():
        new.rename(old)
    elif _exchange(new, old):
        shutil.rmtree(new)
    else:
        # Without an atomic exchange the old one waits aside until the new one is in place.
        aside = old.with_name(f".{old.name}.old")
        shutil.rmtree(aside, ignore_errors=True)
        old.rename(aside)
        new.rename(old)
        shutil.rmtree(aside, ignore_errors=True)


def _exchange(a: Path, b: Path) -> bool:
    """Swaps two folders in one step, where the system can (Linux: renameat2, RENAME_EXCHANGE)."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    at_cwd, exchange = -100, 2
    return renameat2(at_cwd, os.fsencode(a), at_cwd, os.fsencode(b), exchange) == 0


@contextlib.contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """Yields a temporary path that becomes ``file`` when the block ends without an error."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        with temporary.open("rb") as stream:
            os.fsync(stream.fileno())
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)
