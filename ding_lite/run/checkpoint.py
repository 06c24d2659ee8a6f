"""Checkpoints: folders of JSON and safetensors that are either complete or absent.

    state.json           the state tree, with a name in the place of each array
    tensors.safetensors  the arrays
    config.json          the resolved config
    manifest.json        format version, and size and SHA-256 of every other file and of its own body

A checkpoint is written under a temporary name, synced, read back, and then renamed. While a run trains, a
thread does so, from the contents that the files had when the save began. Loading a checkpoint from any source
never runs code: nothing is unpickled, imported or executed. See SECURITY.md.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from ding_lite.errors import CheckpointError
from ding_lite.run.atomic_files import (
    MAX_JSON_BYTES,
    read_bounded,
    refuse_links,
    remove,
    replace_folder,
    sync_folder,
    write_synced,
)
from ding_lite.run.folder import ENDED, read_result
from ding_lite.run.misnamed import what_is_there
from ding_lite.run.progress import Progress

FORMAT_VERSION = 1
MANIFEST, STATE, TENSORS, CONFIG = "manifest.json", "state.json", "tensors.safetensors", "config.json"
FILES = (STATE, TENSORS, CONFIG)
MAX_FAILURES = 3  # failed saves in a row that end a run
LINKED_FROM = 2**24  # bytes from which on a file that another checkpoint has is not written again
ABANDONED = "abandoned"  # folder in ckpt/ for checkpoints past the one that a run was resumed from
ARRAY = "__array__"  # {"__array__": name} in state.json stands for an array


def save_checkpoint(folder: Path, state: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Writes ``state`` to ``folder``; a checkpoint that is already there is replaced atomically.

    Raises:
        CheckpointError: if it cannot be written. A checkpoint that is already there stays as it is.
    """
    write_checkpoint(folder, packed(state, config))


def packed(state: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, bytes]:
    """Returns the contents of a checkpoint's files, by name; they have copies of the arrays of ``state``.

    Raises:
        CheckpointError: if the state has a value that cannot be saved.
    """
    from safetensors.numpy import save

    arrays: dict[str, np.ndarray] = {}
    tree = _pull_arrays(state, "", arrays)
    return {
        STATE: json.dumps(tree, indent=1).encode(),
        TENSORS: save(arrays),
        CONFIG: json.dumps(config, indent=1).encode(),
    }


def write_checkpoint(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Writes :func:`packed` contents and their manifest to ``folder``, as :func:`save_checkpoint` does."""
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    body = {
        "format_version": FORMAT_VERSION,
        "written_by": _this_version(),
        "files": {name: {"bytes": len(data), "sha256": _sha256(data)} for name, data in contents.items()},
    }
    manifest = json.dumps({**body, "sha256": _sha256(_canonical(body))}, indent=1).encode()
    try:
        for leftover in folder.parent.glob(f".{folder.name}.*.tmp"):  # from a process that was killed
            remove(leftover)
        is_first = not folder.parent.exists()
        temporary.mkdir(parents=True)
        has_large = any(len(data) >= LINKED_FROM for data in contents.values())
        others = _files_of_others(folder) if has_large else {}
        _write_files(temporary, {**contents, MANIFEST: manifest}, others)
        replace_folder(temporary, folder)
        sync_folder(folder.parent)
        if is_first:
            sync_folder(folder.parent.parent)
    except OSError as error:
        raise CheckpointError(f"checkpoint {folder} cannot be written: {error}") from error
    finally:
        remove(temporary)


@functools.cache
def _this_version() -> str:
    try:
        return f"ding_lite {metadata.version('ding_lite')}"
    except metadata.PackageNotFoundError:  # a checkout that is not installed
        return "a ding_lite that is not installed"


def _write_files(folder: Path, contents: Mapping[str, bytes], others: Mapping[str, Path]) -> None:
    """Writes the files of a checkpoint and reads them back, since some full disks report no error.

    A large file that another checkpoint of the run has is linked to it, and so is on the disk once: ``best``
    and ``last`` of one iteration share the memory of PPG's auxiliary phase. Small ones are written again:
    then damage to one checkpoint leaves the other whole.

    Args:
        folder: of the checkpoint.
        contents: of the files, by their names.
        others: large files of other checkpoints, by the SHA-256 in their manifests.
    """
    for name, data in contents.items():
        twin = others.get(_sha256(data)) if len(data) >= LINKED_FROM else None
        try:
            if twin is not None and read_bounded(twin, len(data)) == data:  # it may be damaged
                os.link(twin, folder / name)
                continue
        except OSError:  # it has been removed, or the file system has no links
            pass
        write_synced(folder / name, data)
    sync_folder(folder)
    _verified_files(folder)


def _files_of_others(folder: Path) -> dict[str, Path]:
    """Returns the arrays of the checkpoints beside ``folder``, by their SHA-256."""
    found = {}
    for manifest in folder.parent.glob(f"*/{MANIFEST}"):
        try:
            found[_parse_manifest(manifest.parent)["files"][TENSORS]["sha256"]] = manifest.parent / TENSORS
        except CheckpointError:
            continue
    return found


def load_checkpoint(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns ``(state, config)`` of a checkpoint after verifying it; arrays are NumPy arrays.

    Raises:
        CheckpointError: if a file is missing, damaged, not of a checkpoint, or of a newer format.
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
        raise CheckpointError(f"checkpoint {folder}: {STATE} and {CONFIG} must hold JSON objects")
    return state, config


def find_checkpoint(path: Path, name: str) -> Path:
    """Returns ``path`` if it is a checkpoint, or the checkpoint called ``name`` if it is a run.

    "last" stands in for a missing "best", since a run may not have been evaluated yet.

    Raises:
        CheckpointError: if there is no such checkpoint.
    """
    try:
        return _found_checkpoint(path, name)
    except PermissionError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def _found_checkpoint(path: Path, name: str) -> Path:
    names = (name, "last") if name == "best" else (name,)
    for folder in (path, *(path / "ckpt" / candidate for candidate in names)):
        if os.path.lexists(folder / MANIFEST):
            return folder
    saved = sorted(manifest.parent.name for manifest in path.glob(f"ckpt/*/{MANIFEST}"))
    if saved:
        raise CheckpointError(f"{path} has no checkpoint {name!r}; it has {', '.join(saved)}")
    if read_result(path).get("status") in ENDED:
        raise CheckpointError(f"{path} is a finished run whose checkpoints have been removed")
    if (path / "config.json").is_file():
        raise CheckpointError(
            f"{path} is a run without a checkpoint: it ended before its first save. Begin it anew; a lower "
            "checkpoint.freq (in env steps) saves earlier"
        )
    raise CheckpointError(
        what_is_there(path)
        or f"{path} is neither a run nor a checkpoint: expected {path / 'ckpt' / name} or {path / MANIFEST}"
    )


def load_of_run(path: Path, name: str) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    """Returns ``(folder, state, config)`` of the checkpoint that :func:`find_checkpoint` finds.

    Raises:
        CheckpointError: as there, and as :func:`load_checkpoint`; for a damaged ``best`` the message names
            ``last``, which may be whole.
    """
    folder = find_checkpoint(path, name)
    try:
        return folder, *load_checkpoint(folder)
    except CheckpointError as error:
        last = folder.with_name("last")
        if folder in (path, last) or not (last / MANIFEST).is_file():
            raise
        raise CheckpointError(f"{error}. The run has another checkpoint: {last}") from error


def damage_of(folder: Path) -> str:
    """Returns what is wrong with the files of a checkpoint, or ""; reads them all."""
    try:
        _verified_files(folder)
    except CheckpointError as error:
        return str(error)
    return ""


def checkpoints_of(run: Path) -> dict[Path, int]:
    """Returns the checkpoints of a run with their iterations, the newest first, without verifying them.

    A checkpoint whose iteration cannot be read has -1 and comes first, so that it is reported as damaged.
    Among checkpoints of one iteration ``last`` comes first, since it was written last.
    """
    reserved_names = re.compile(r"last|best|iteration_\d+|\.\w+\.old")
    iterations = {
        folder: _iteration_of(folder)
        for folder in (run / "ckpt").glob("*")
        if folder.is_dir()
        and not folder.name.endswith(".tmp")
        # A script may save checkpoints under names of its own.
        and (reserved_names.fullmatch(folder.name) or (folder / MANIFEST).is_file())
    }

    def order(folder: Path) -> tuple[bool, int, bool, str]:
        iteration = iterations[folder]
        return iteration >= 0, -iteration, folder.name != "last", folder.name

    return {folder: iterations[folder] for folder in sorted(iterations, key=order)}


def _iteration_of(folder: Path) -> int:
    """Returns the iteration in a checkpoint's state.json, or -1 if it cannot be read; reads no arrays."""
    try:
        return int(json.loads(_read(folder, STATE))["progress"]["iteration"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return -1


class CheckpointKeeper:
    """Writes the folder ``ckpt`` of a run: ``last``, ``best``, and the newest snapshots ``iteration_*``.

    Args:
        folder: folder of the run.
        config: saved with every checkpoint.
        keep: number of snapshots to keep.
        freq: env steps between saves of ``last``; 0 saves at the end only.
        keep_freq: env steps between snapshots; 0 makes none.

    Attributes:
        best_is_saved: whether the save that :meth:`begin_save` began last has written ``best``, even if
            another of its checkpoints failed.
        check_place: raises CheckpointError if the folder is no longer that of the run; called before a save.
    """

    def __init__(
        self, folder: Path, config: Mapping[str, Any], keep: int, freq: int = 0, keep_freq: int = 0
    ) -> None:
        self.folder = folder / "ckpt"
        self.config = config
        self.keep = keep
        self.freq = freq
        self.keep_freq = keep_freq
        self._failures = 0  # saves in a row
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ding_lite checkpoint")
        self._saving: Future[None] | None = None  # the save that begin_save() began
        self.best_is_saved = False
        self.check_place: Callable[[], None] = lambda: None

    def due(self, progress: Progress) -> list[str]:
        """Returns the names of the checkpoints that are due after the last iteration, but ``best``."""
        names = ["last"] if progress.crossed(self.freq) else []
        if progress.crossed(self.keep_freq):
            names.append(f"iteration_{progress.iteration:08d}")
        return names

    def begin_save(self, names: Sequence[str], state: Mapping[str, Any]) -> None:
        """Begins to save checkpoints of one state, in this order; a thread writes them.

        Args:
            names: of the checkpoints.
            state: of the run. It may change while the thread writes.

        Raises:
            CheckpointError: if the state cannot be saved at all.
        """
        self.wait()
        self.best_is_saved = False
        self._saving = self._thread.submit(self._write, names, packed(state, self.config))

    def _write(self, names: Sequence[str], contents: Mapping[str, bytes]) -> None:
        """Writes checkpoints of one state, in this order, and removes the oldest snapshots."""
        self.check_place()
        for name in names:
            write_checkpoint(self.folder / name, contents)
            self.best_is_saved |= name == "best"
        for old in sorted(self.folder.glob("iteration_*"))[: -self.keep]:
            remove(old)

    def outcome(self, finish: bool) -> str | None:
        """Reports how the save ended that :meth:`begin_save` began.

        Args:
            finish: whether to wait for its end; otherwise a save that still runs is not reported.

        Returns:
            A warning if a save failed that may succeed later, as on a full disk; older checkpoints stay as
            they are. None if there is nothing to report.

        Raises:
            CheckpointError: at the third failure in a row.
        """
        saving = self._saving
        if saving is None or not (finish or saving.done()):
            return None
        self._saving = None
        try:
            saving.result()
        except CheckpointError as error:
            self._failures += 1
            earlier = "earlier checkpoints are complete" if self.saved() else "there is no earlier checkpoint"
            if self._failures == MAX_FAILURES:
                advice = "continue with --resume" if self.saved() else "begin the run anew"
                raise CheckpointError(
                    f"{error}; {MAX_FAILURES} saves in a row have failed; {earlier}. Make room, then {advice}"
                ) from error
            return (
                f"WARNING: {error}; {earlier}. Training goes on, until {MAX_FAILURES} saves in a row have "
                f"failed (this is number {self._failures})"
            )
        self._failures = 0
        return None

    def wait(self) -> None:
        """Waits until the checkpoints that are due are written; :meth:`outcome` tells whether that failed."""
        if self._saving is not None:
            futures.wait([self._saving])

    def save(self, name: str, state: Mapping[str, Any]) -> Path:
        """Saves ``ckpt/<name>``, and returns its path when it is written."""
        self.wait()
        self.check_place()
        save_checkpoint(self.folder / name, state, self.config)
        return self.folder / name

    def close(self) -> None:
        """Waits until all checkpoints are written."""
        self._thread.shutdown()

    def abandon_after(self, iteration: int) -> list[str]:
        """Moves the checkpoints past ``iteration``, and unreadable ones, to ``ckpt/abandoned/N``.

        A run that is resumed from an earlier checkpoint diverges from its later ones. If they stayed, the
        next resume would continue from them, and they would displace new snapshots. N is a new number each
        time, since the best policy of a user may be among them.

        Returns:
            The names of the checkpoints that were moved, below ``ckpt``.

        Raises:
            CheckpointError: if they cannot be moved.
        """
        later = [folder for folder, at in self.saved().items() if at < 0 or at > iteration]
        if not later:
            return []
        try:
            aside = self.folder / ABANDONED
            number = 1 + max((int(f.name) for f in aside.glob("*") if f.name.isdecimal()), default=0)
            (aside / str(number)).mkdir(parents=True)
            return [str(f.rename(aside / str(number) / f.name).relative_to(self.folder)) for f in later]
        except OSError as error:
            raise CheckpointError(
                f"the checkpoints past iteration {iteration} cannot be moved to {aside}: {error}"
            ) from error

    def saved(self) -> dict[Path, int]:
        """Returns the checkpoints of the run, as :func:`checkpoints_of`."""
        return checkpoints_of(self.folder.parent)

    def name_of(self, name: str) -> str | None:
        """Returns ``"ckpt/<name>"``, or None if there is no such checkpoint."""
        return f"ckpt/{name}" if (self.folder / name).is_dir() else None


def _verified_files(folder: Path) -> dict[str, bytes]:
    """Returns the contents of a checkpoint's files, whose sizes and checksums match its manifest."""
    manifest = _parse_manifest(folder)
    contents = {}
    for name in FILES:
        entry = manifest["files"][name]
        limit = None if name == TENSORS else MAX_JSON_BYTES
        contents[name] = _read(folder, name, limit, entry["bytes"])
        if _sha256(contents[name]) != entry["sha256"]:
            raise CheckpointError(f"checkpoint {folder}: {name} is damaged (its checksum does not match)")
    return contents


def _read(folder: Path, name: str, limit: int | None = MAX_JSON_BYTES, size: int | None = None) -> bytes:
    """Returns a file of a checkpoint, which is neither a link nor in a folder that is one."""
    try:
        refuse_links(folder, *([folder.parent] if folder.parent.name == "ckpt" else []))
        return read_bounded(folder / name, limit, expected=size)
    except OSError as error:
        raise CheckpointError(f"checkpoint {folder.name}: {error}") from error


def _parse_manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(_read(folder, MANIFEST))
        checksum = manifest.pop("sha256")
        version = manifest["format_version"]
        files = manifest["files"]
        sizes = [files[name]["bytes"] for name in FILES]
        intact = checksum == _sha256(_canonical(manifest)) and len(sizes) == len(files)
        if not all(type(size) is int for size in sizes):
            raise ValueError("a size is not a whole number")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, MemoryError) as error:
        raise CheckpointError(f"{folder / MANIFEST} is not the manifest of a checkpoint: {error}") from error
    if not intact:
        raise CheckpointError(f"checkpoint {folder}: {MANIFEST} is damaged (its checksum does not match)")
    if version != FORMAT_VERSION:
        writer = manifest.get("written_by", "another ding_lite")
        raise CheckpointError(
            f"checkpoint {folder} has the format version {version!r:.20} (written by {writer!s:.40}), and "
            f"this is {_this_version()}, which reads {FORMAT_VERSION}; upgrade ding_lite"
        )
    return manifest


def refuse_unsaveable(state: Any) -> None:
    """Raises CheckpointError if a state has a value that cannot be saved."""
    _pull_arrays(state, "", {})


def _pull_arrays(value: Any, path: str, arrays: dict[str, np.ndarray]) -> Any:
    """Returns the JSON form of a state tree, and puts its arrays into ``arrays``.

    Args:
        value: a tree, or a part of one.
        path: path of the part in the tree, for messages.
        arrays: the arrays so far, by their names.

    Raises:
        CheckpointError: for a type that JSON lacks.
    """
    if isinstance(value, Mapping):
        return {
            _json_key(key, path): _pull_arrays(part, f"{path}.{key}" if path else str(key), arrays)
            for key, part in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_pull_arrays(part, f"{path}.{i}", arrays) for i, part in enumerate(value)]
    if hasattr(value, "detach"):  # a torch tensor; this module does not import torch
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
        name = f"{len(arrays):06d}"
        arrays[name] = np.ascontiguousarray(value)
        # Some versions of safetensors lack 0-d arrays, so the shape is saved here.
        return {ARRAY: name, "shape": list(value.shape)}
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise CheckpointError(f"the state at {path!r} is a {type(value).__name__}, which cannot be saved")


def _put_arrays(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    """Returns the state tree with its arrays, which are removed from ``arrays``: each may be named once."""
    if isinstance(value, dict):
        if ARRAY in value:
            array = arrays.pop(value[ARRAY]).reshape(value["shape"])
            return array.copy()  # the original is a read-only view of the bytes of the file
        return {_original_key(key): _put_arrays(part, arrays) for key, part in value.items()}
    return [_put_arrays(part, arrays) for part in value] if isinstance(value, list) else value


def _json_key(key: Any, path: str) -> str:
    """Returns a key as text: the optimiser's state is keyed by the numbers of its parameters."""
    if isinstance(key, int) and not isinstance(key, bool):
        return f"#{key}"
    if not isinstance(key, str) or key.startswith("#") or key == ARRAY:
        raise CheckpointError(f"the state at {path!r} has the key {key!r}, which cannot be saved")
    return key


def _original_key(key: str) -> str | int:
    return int(key[1:]) if key.startswith("#") else key


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _canonical(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
