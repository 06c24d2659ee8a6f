"""Checkpoints: a folder of JSON and safetensors that is either whole or not there.

    state.json           the state tree; each array in it is named, not held
    tensors.safetensors  the arrays
    config.json          the resolved config
    manifest.json        format version, and size and SHA-256 of every other file and of its own body

Written under a temporary name, synced, read back, and only then renamed. Loading one that anyone made
never runs code: nothing is unpickled, imported or executed. See SECURITY.md.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ding_lite.durable import read_bounded, replace_folder, sync_folder, write_synced
from ding_lite.errors import CheckpointError
from ding_lite.schema import Key
from ding_lite.types import Progress

FORMAT_VERSION = 1
MANIFEST, STATE, TENSORS, CONFIG = "manifest.json", "state.json", "tensors.safetensors", "config.json"
FILES = (STATE, TENSORS, CONFIG)
MAX_JSON_BYTES = 2**26  # parsed JSON takes some thirty times its size: 2 GB at the worst
MAX_FAILURES = 3
ABANDONED = "abandoned"  # folder in ckpt/ for what a run that went back has left behind
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
            write_synced(temporary / name, data)
        sync_folder(temporary)
        _verified_files(temporary)  # a disk may swallow what it cannot hold: the old one goes only now
        replace_folder(temporary, folder)
        sync_folder(folder.parent)
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
    if arrays:
        raise CheckpointError(f"checkpoint {folder}: {STATE} names none of the arrays {sorted(arrays)[:3]}")
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
    if (path / "config.json").is_file():
        raise CheckpointError(
            f"{path} is a run without a checkpoint: it ended before its first save. A lower checkpoint.freq "
            "(in env steps) saves earlier"
        )
    raise CheckpointError(
        f"{path} is neither a run nor a checkpoint: expected {path / 'ckpt' / name} or {path / MANIFEST}"
    )


def checkpoints_of(run: Path) -> dict[Path, int]:
    """Returns the checkpoints of a run with their iterations, the newest first; none is verified yet.

    One whose iteration cannot be read has -1 and comes first, so that it is not passed over in silence.
    Of equals ``last`` comes first: it was written last.
    """
    ours = re.compile(r"last|best|iteration_\d+|\.\w+\.old")  # and what a script has saved
    folders = [
        folder
        for folder in (run / "ckpt").glob("*")
        if folder.is_dir()
        and not folder.name.endswith(".tmp")
        and (ours.fullmatch(folder.name) or (folder / MANIFEST).is_file())
    ]
    found = {folder: _iteration_of(folder) for folder in folders}
    return dict(sorted(found.items(), key=lambda x: (x[1] >= 0, -x[1], x[0].name != "last", x[0].name)))


def _iteration_of(folder: Path) -> int:
    """Returns the iteration that a checkpoint claims, without reading its arrays; -1 if it cannot be told."""
    try:
        return int(json.loads(read_bounded(folder / STATE, MAX_JSON_BYTES))["progress"]["iteration"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return -1


DUMP = "dump"  # beside ckpt/, since it is none


class CheckpointKeeper:
    """The folder ``ckpt`` of a run: ``last``, ``best``, and the newest snapshots ``iteration_*``.

    Args:
        folder: of the run.
        config: saved with every checkpoint.
        keep: how many snapshots.
        freq, keep_freq: env steps between saves of ``last``, and between snapshots; 0: none.
    """

    def __init__(
        self, folder: Path, config: Mapping[str, Any], keep: int, freq: int = 0, keep_freq: int = 0
    ) -> None:
        self.folder, self.config, self.keep = folder / "ckpt", config, keep
        self.freq, self.keep_freq, self._failures = freq, keep_freq, 0

    def save_due(self, progress: Progress, is_best: bool, state: Callable[[], Mapping[str, Any]]) -> str:
        """Saves what this turn calls for; a disk that is full now may have room the next time.

        Returns:
            what went wrong; the checkpoints are as before then.

        Raises:
            CheckpointError: at the third failure in a row, or where another try is of no use.
        """
        try:
            if is_best:
                self.save("best", state())
            if progress.crossed(self.freq):
                self.save("last", state())
                self._failures = 0
            if progress.crossed(self.keep_freq):
                self.snapshot(progress.iteration, state())
        except CheckpointError as error:
            self._failures += 1
            if self._failures == MAX_FAILURES or not isinstance(error.__cause__, OSError):
                raise
            return (
                f"WARNING: {error}. What was saved before is whole and training goes on, until "
                f"{MAX_FAILURES} saves in a row have failed (this is number {self._failures})"
            )
        return ""

    def save(self, name: str, state: Mapping[str, Any]) -> Path:
        """Saves ``ckpt/<name>`` and returns its path."""
        save_checkpoint(self.folder / name, state, self.config)
        return self.folder / name

    def dump(self, error: BaseException) -> None:
        """Keeps the gradient step that an error comes with in ``dump`` of the run, and tells it so."""
        state = getattr(error, "dump", None)
        if state is None:
            return
        folder = self.folder.parent / DUMP
        try:
            save_checkpoint(folder, state, self.config)
            told = f"ding_lite.testing.replay_step({str(folder)!r}) takes the step again"
        except CheckpointError as second:
            told = f"the step could not be kept: {second}"
        error.args = (f"{error}. {told}",)

    def snapshot(self, iteration: int, state: Mapping[str, Any]) -> None:
        """Saves a snapshot and removes the oldest ones."""
        self.save(f"iteration_{iteration:08d}", state)
        for old in sorted(self.folder.glob("iteration_*"))[: -self.keep]:
            shutil.rmtree(old, ignore_errors=True)

    def abandon_after(self, iteration: int) -> list[str]:
        """Moves the checkpoints past ``iteration``, and those that say none, to ``ckpt/abandoned``.

        A run that goes on from an earlier one takes another way: a newer checkpoint is not of that way,
        and the oldest snapshots would be pruned for it.
        """
        moved = []
        for folder, reached in checkpoints_of(self.folder.parent).items():
            if reached < 0 or reached > iteration:
                target = self.folder / ABANDONED / folder.name
                target.parent.mkdir(exist_ok=True)
                shutil.rmtree(target, ignore_errors=True)
                folder.rename(target)
                moved.append(folder.name)
        return moved

    def name_of(self, name: str) -> str | None:
        """Returns ``"ckpt/<name>"`` if there is one."""
        return f"ckpt/{name}" if (self.folder / name).is_dir() else None


def _verified_files(folder: Path) -> dict[str, bytes]:
    manifest = _parse_manifest(folder)
    contents = {}
    for name in FILES:
        said = manifest["files"][name]
        limit = None if name == TENSORS else MAX_JSON_BYTES
        try:
            contents[name] = read_bounded(folder / name, limit, expected=said["bytes"])
        except OSError as error:
            raise CheckpointError(f"checkpoint {folder}: {name} {error}") from error
        if _sha256(contents[name]) != said["sha256"]:
            raise CheckpointError(f"checkpoint {folder}: {name} is damaged (its checksum does not match)")
    return contents


def _parse_manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(read_bounded(folder / MANIFEST, MAX_JSON_BYTES))
        claimed = manifest.pop("sha256")
        version, files = manifest["format_version"], manifest["files"]
        sizes = [files[name]["bytes"] for name in FILES]
        intact = claimed == _sha256(_canonical(manifest)) and len(sizes) == len(files)
        if not all(type(size) is int for size in sizes):
            raise ValueError("a size is not a whole number")
    except OSError as error:
        raise CheckpointError(f"checkpoint {folder}: {MANIFEST} {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, MemoryError) as error:
        raise CheckpointError(f"{folder / MANIFEST} is not the manifest of a checkpoint: {error}") from error
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


def _put_arrays(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    """Returns the state tree, with its arrays in their places; each is used up, and may be used once."""
    if isinstance(value, dict):
        if ARRAY in value:
            # Read-only otherwise: it lies in the bytes of the file.
            return arrays.pop(value[ARRAY]).reshape(value["shape"]).copy()
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
