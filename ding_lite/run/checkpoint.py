"""Checkpoints: one safetensors file each, which is either complete or absent.

The metadata in its header are a JSON text: the state tree, with names in place of arrays, and the config of
the run. The last array is a SHA-256 over everything before it. A file is written under a temporary name,
synced, and then renamed. While a run trains, a thread writes it from a copy of the state's arrays; a fork
would copy a large process.

Loading a checkpoint from any source never runs code: nothing is unpickled, imported or executed. See
SECURITY.md.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from ding_lite.errors import CheckpointError, error_text

SUFFIX = ".safetensors"
SNAPSHOT = "iteration_"  # and eight digits, so that names sort by iteration
LARGEST_JSON = 2**24  # bytes: a config is some kB, and one with large arrays in env.kwargs some MB
ARRAY = "__array__"  # the tree has {"__array__": name} in place of an array
METADATA = "ding_lite"  # the key of the text in the metadata of safetensors
BITS = 256  # of the digest, as booleans: safetensors sorts arrays by dtype, booleans last, then by name


class Checkpoint(NamedTuple):
    """A checkpoint that was read: its file, the state tree, and the data beside it: config, spaces, ..."""

    file: Path
    state: dict[str, Any]
    saved: dict[str, Any]


def packed(state: Mapping[str, Any], config: Mapping[str, Any], copy: bool) -> tuple[dict[str, Any], str]:
    """Returns the contents of a checkpoint: its arrays by their names, and its text.

    Args:
        state, config: to save.
        copy: whether the arrays are copied; otherwise they share the memory of ``state``.

    Raises:
        CheckpointError: if the state has a value that cannot be saved.
    """
    arrays: dict[str, Any] = {}
    content = {"state": _without_arrays(state, "state", arrays), "config": config}
    if copy:
        arrays = {name: array.copy() for name, array in arrays.items()}
    return arrays, json.dumps(content)


def write(file: Path, arrays: Mapping[str, Any], text: str) -> None:
    """Writes what :func:`packed` returned; a checkpoint that is already there is replaced atomically.

    Raises:
        CheckpointError: if it cannot be written; an old checkpoint then stays as it is.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as temporary:
            save_file({**arrays, "sha256": np.zeros(BITS, bool)}, temporary, {METADATA: text})
            with temporary.open("r+b") as stream:
                _, digest = _digests_of(stream)
                stream.seek(-BITS, os.SEEK_END)
                stream.write(digest)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"checkpoint {file} cannot be written: {error}") from error


def load_checkpoint(file: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns ``(state, config)`` of a checkpoint; arrays are NumPy arrays.

    Raises:
        CheckpointError: if the file cannot be read, is damaged, or is not a checkpoint.
    """
    try:
        with opened(Path(file)) as stream:
            saved, computed = _digests_of(stream)
        if saved != computed:
            raise CheckpointError("it is damaged (its checksum does not match), or no checkpoint")
        with safe_open(file, "numpy") as contents:
            content = json.loads(contents.metadata()[METADATA])
            arrays = {name: contents.get_tensor(name) for name in contents.keys()}  # noqa: SIM118
        state, config = _with_arrays(content["state"], arrays), content["config"]
        if not (isinstance(state, dict) and isinstance(config, dict)):
            raise CheckpointError("its state and its config must be JSON objects")
    except Exception as error:  # a forged file can make any step fail in any way
        raise CheckpointError(f"checkpoint {file}: {error_text(error):.500}") from error
    return state, config


def _digests_of(stream: IO[bytes]) -> tuple[bytes, bytes]:
    """Returns the digest at the end of a file, as booleans, and the digest of all bytes before it."""
    with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data, memoryview(data)[:-BITS] as view:
        digest = np.frombuffer(hashlib.sha256(view).digest(), np.uint8)
        return data[-BITS:], np.unpackbits(digest).tobytes()


def find_checkpoint(path: str | Path, name: str | None = None) -> Path:
    """Returns the file of a checkpoint.

    Args:
        path: the file, with or without its suffix, or the folder of a run.
        name: of a checkpoint of the run. None: "best", or "last" if the run was not evaluated yet.

    Raises:
        CheckpointError: if there is no such checkpoint, or ``name`` is set and the path is a file.
    """
    path = Path(path)
    files = [path, Path(f"{path}{SUFFIX}")] if name is None else []
    files += [path / "ckpt" / f"{stem}{SUFFIX}" for stem in ((name,) if name else ("best", "last"))]
    for file in filter(Path.is_file, files):
        return file
    saved = ", ".join(file.stem for file in checkpoints_of(path))
    known = f"it has {saved}" if saved else "name the folder of a run, or a checkpoint in it"
    fault = f"has no checkpoint {name or 'best'!r}" if path.exists() else "does not exist"
    raise CheckpointError(f"{path} {fault}; {known}")


def load_of_run(path: str | Path, name: str | None = None) -> Checkpoint:
    """Returns the checkpoint that :func:`find_checkpoint` finds.

    Raises:
        CheckpointError: if there is none, or it is damaged; the message names the next older one.
    """
    file = find_checkpoint(path, name)
    try:
        return Checkpoint(file, *load_checkpoint(file))
    except CheckpointError as error:
        known = checkpoints_of(file.parent.parent)
        older = known[known.index(file) + 1 :] if file in known else []
        offer = f". The next older one is {older[0]}" if older else ""
        raise CheckpointError(f"{error}{offer}") from error


def newest_of_run(path: Path) -> tuple[Checkpoint, list[str]]:
    """Returns the checkpoint that a run continues from, and lines about damaged ones.

    Args:
        path: of a run, whose newest undamaged checkpoint is used, or of the checkpoint to use.

    Raises:
        CheckpointError: if there is no undamaged one.
    """
    if not path.is_dir():
        return load_of_run(path), []
    damaged, found = list[str](), dict[int, Checkpoint]()
    for file in checkpoints_of(path):
        try:
            checkpoint = Checkpoint(file, *load_checkpoint(file))
            found.setdefault(checkpoint.state.get("progress", {}).get("iteration", 0), checkpoint)
            if file.stem == "last":
                break
        except (CheckpointError, AttributeError, TypeError) as error:
            damaged.append(f"WARNING: skipped: {error}")
    if found:
        return found[max(found)], damaged
    reason = "\n  ".join(damaged) or "it is no run, or ended before its first save"
    raise CheckpointError(f"{path} has no undamaged checkpoint to continue from: {reason}")


def checkpoints_of(run: Path) -> list[Path]:
    """Returns the checkpoints of a run, the newest first: ``last``, the snapshots, ``best``, others."""

    def age(file: Path) -> tuple[bool, bool, bool, str]:
        name = file.stem
        return name == "last", name.startswith(SNAPSHOT), name == "best", name

    return sorted(filter(Path.is_file, (run / "ckpt").glob(f"[!.]*{SUFFIX}")), key=age, reverse=True)


class Checkpoints:
    """Writes the folder ``ckpt`` of a run: ``last``, ``best``, and the newest snapshots ``iteration_*``.

    Args:
        folder: ``ckpt``.
        config: saved with every checkpoint.
        keep: number of snapshots to keep.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any], keep: int) -> None:
        self.folder = folder
        self.config = config
        self.keep = keep
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ding_lite checkpoint")
        self._saving: Future[None] | None = None

    def save(self, names: Iterable[str], state: Mapping[str, Any], wait: bool = False) -> None:
        """Saves one state under several names, in this order; a thread writes the files, unless ``wait``.

        Raises:
            CheckpointError: if the state cannot be saved, or an earlier save has failed.
        """
        self.wait()
        contents = packed(state, self.config, copy=not wait)  # the state may change meanwhile
        if wait:  # also while the interpreter exits, when no thread can begin
            self._write(list(names), *contents)
        else:
            self._saving = self._thread.submit(self._write, list(names), *contents)

    def wait(self) -> None:
        """Waits until the checkpoints are written.

        Raises:
            CheckpointError: if one could not be written; an old file of its name then stays as it is.
        """
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.result()

    def _write(self, names: list[str], arrays: Mapping[str, Any], text: str) -> None:
        for name in names:
            write(self.folder / f"{name}{SUFFIX}", arrays, text)
        for old in sorted(self.folder.glob(f"{SNAPSHOT}*{SUFFIX}"))[: -self.keep]:
            old.unlink(missing_ok=True)

    def remove_after(self, iteration: int) -> bool:
        """Removes snapshots and the best checkpoint if they are past ``iteration``, where a run is resumed.

        Returns whether the best one was removed.
        """
        for file in self.folder.glob(f"{SNAPSHOT}*{SUFFIX}"):
            if file.stem > f"{SNAPSHOT}{iteration:08d}":
                file.unlink()
        best, is_past = self.folder / f"best{SUFFIX}", False
        with contextlib.suppress(CheckpointError):  # missing, or damaged: it stays
            is_past = load_checkpoint(best)[0]["progress"]["iteration"] > iteration
        if is_past:
            best.unlink()
        return is_past

    def close(self) -> None:
        """Ends the thread when the checkpoints are written."""
        self._thread.shutdown()


def opened(file: Path, mode: str = "rb", largest: float = math.inf) -> IO[Any]:
    """Opens a file of a run's folder, which another user may have made, to read it or to append to it.

    Args:
        mode: as in ``open``.
        largest: largest size of an existing file, in bytes.

    Raises:
        OSError: if it is a link, a pipe or a device, or too large, or if ``ckpt`` is a link.
    """
    is_link = file.is_symlink() or (file.parent.name == "ckpt" and file.parent.is_symlink())
    if is_link or (file.exists() and (not file.is_file() or file.stat().st_size > largest)):
        size = f", or larger than {largest / 2**20:g} MiB" if largest < math.inf else ""
        raise OSError(f"{file} is a link, a pipe or a device{size}")
    options: dict[str, Any] = {} if "b" in mode else {"newline": "", "encoding": "utf-8"}
    return open(file, mode, **options)


def read_json(file: Path) -> Any:
    """Returns the data in a JSON file of a run's folder.

    Raises:
        OSError, ValueError, RecursionError: if it cannot be read.
    """
    with opened(file, largest=LARGEST_JSON) as stream:
        return json.loads(stream.read())


@contextlib.contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """Yields a temporary path; after the block its file is synced and replaces ``file``, or a link there."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        with temporary.open("r+b") as stream:
            os.fsync(stream.fileno())
        os.replace(temporary, file)
        if os.name == "posix":  # syncs the name, too
            folder = os.open(file.parent, os.O_RDONLY)
            os.fsync(folder)
            os.close(folder)
    finally:
        temporary.unlink(missing_ok=True)


def write_whole(file: Path, data: bytes | str) -> None:
    """Writes a file that is never incomplete on the disk; replaces an old one, or a link in its place."""
    with replacing(file) as temporary:
        temporary.write_bytes(data.encode() if isinstance(data, str) else data)


def map_state(function: Callable[[Any], Any], tree: Any) -> Any:
    """Returns a state tree with ``function(leaf)`` in place of each leaf."""
    if isinstance(tree, Mapping):
        return {key: map_state(function, value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [map_state(function, value) for value in tree]
    return function(tree)


def on_host(leaf: Any) -> Any:
    """Returns a tensor as a NumPy array, and any other leaf as it is; torch is not imported here."""
    return leaf.detach().cpu().numpy() if hasattr(leaf, "detach") else leaf


def _without_arrays(value: Any, path: str, arrays: dict[str, np.ndarray]) -> Any:
    """Returns the JSON form of a state tree, and puts its arrays into ``arrays``.

    Args:
        value: a tree, or a part of one.
        path: of the part in the tree.
        arrays: the arrays so far, by their names.

    Raises:
        CheckpointError: for a type that JSON lacks.
    """
    if isinstance(value, Mapping):
        return {
            _json_key(key, path): _without_arrays(part, f"{path}.{key}", arrays)
            for key, part in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_without_arrays(part, f"{path}.{i}", arrays) for i, part in enumerate(value)]
    value = on_host(value)
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiub" and value.itemsize <= 8:
        name = f"{len(arrays):06d} {path}"
        arrays[name] = value.astype(value.dtype.newbyteorder("<"), "C", copy=False)
        return {ARRAY: name}
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise CheckpointError(f"{path} is a {type(value).__name__}, which cannot be saved")


def _with_arrays(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    """Returns the state tree with its arrays, which are removed from ``arrays``: none may be named twice."""
    if isinstance(value, dict):
        if ARRAY in value:
            return arrays.pop(value[ARRAY])
        parts = {key: _with_arrays(part, arrays) for key, part in value.items()}
        return {int(key[1:]) if key.startswith("#") else key: part for key, part in parts.items()}
    return [_with_arrays(part, arrays) for part in value] if isinstance(value, list) else value


def _json_key(key: Any, path: str) -> str:
    """Returns a key as text; "#" marks an int, such as a parameter's number in torch's optimiser states."""
    if isinstance(key, int) and not isinstance(key, bool):
        return f"#{key}"
    if not isinstance(key, str) or key.startswith("#") or key == ARRAY:
        raise CheckpointError(f"{path} has the key {key!r}, which cannot be saved")
    return key
