"""A run's folder and the files in it, which are written while the run trains.

config.json   {config, source, versions}    metrics.csv   one row per iteration
log.txt       messages, with times          episodes.csv  one row per episode
git.txt       commit and changes            result.json   how the run ended
ckpt/         last, best, iteration_*       tb/           events for TensorBoard

A lock on the file ``.lock`` keeps a second process from writing to the folder.
"""

from __future__ import annotations

import contextlib
import csv
import itertools
import json
import math
import os
import platform
import re
import shutil
import subprocess
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from importlib import metadata
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ding_lite.errors import CheckpointError, ConfigError, ContractError, counted
from ding_lite.run.checkpoint import Checkpoints, checkpoints_of, opened, read_json, replacing, write_whole
from ding_lite.run.hooks import Hook
from ding_lite.run.progress import COUNTERS

ENDED = ("solved", "finished")  # statuses of a run that has reached its stop value or its limit
LOCK = ".lock"


def new_run_folder(wanted: Path, exact: bool, lines: list[str], after_error: ExitStack) -> Path:
    """Creates the folder of a new run, and returns its path.

    Args:
        wanted: its path.
        exact: True: the folder must not exist, or its run ended before its first checkpoint, and it is used
            again. False: a suffix ``_2``, ``_3``, ... is added if it exists.
        lines: for the user; one is added if a folder is used again.
        after_error: removes the new folder when it is closed.

    Raises:
        ConfigError: if the folder exists (``exact``).
        OSError: if it cannot be created.
    """
    if exact and is_replaceable(wanted):
        lines.append(f"{wanted} is used again: the last run there ended before its first checkpoint")
        return wanted
    for number in itertools.count(1):
        folder = wanted if number == 1 else wanted.with_name(f"{wanted.name}_{number}")
        with contextlib.suppress(FileExistsError):
            folder.mkdir(parents=True)
            after_error.callback(shutil.rmtree, folder, ignore_errors=True)
            return folder
        if exact:
            break
    raise ConfigError(f"run folder {wanted} exists: choose another --exp-name, use --resume, or remove it")


def is_replaceable(folder: Path) -> bool:
    """Returns whether a folder has a run that has ended before its first checkpoint."""
    is_run = not folder.is_symlink() and (folder / LOCK).is_file()
    return is_run and not checkpoints_of(folder) and not is_locked(folder)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Locks a run's folder against other pipelines, of this process and of others.

    The lock is released when the process ends, whatever signal ends it.

    Raises:
        ConfigError: if the folder is locked.
        CheckpointError: if it cannot be written to.
    """
    with writing_to(folder):
        try:
            # Waits, because is_locked takes the lock for a moment.
            lock = _lock_of(folder).acquire(timeout=0.5, poll_interval=0.02)
        except Timeout as error:
            raise ConfigError(
                f"run folder {folder} is in use: two runs would mix their rows and checkpoints. Wait for the "
                "other process, or close() the other pipeline"
            ) from error
    with lock:
        yield


@contextlib.contextmanager
def writing_to(folder: Path) -> Iterator[None]:
    """Turns an OSError of a block, such as of a full disk, into a CheckpointError."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"run folder {folder} cannot be written to: {error}") from error


def is_locked(folder: Path) -> bool:
    """Returns whether a pipeline, of this process or another, writes to a run's folder."""
    try:
        if (folder / LOCK).exists():
            _lock_of(folder).acquire(timeout=0).lock.release()
    except OSError as error:  # any other OSError: another user's folder
        return isinstance(error, Timeout)
    return False


def _lock_of(folder: Path) -> FileLock:
    """Returns the lock of a folder. Locking empties its file: a link, or a file with content, is refused."""
    opened(folder / LOCK, "a", largest=0).close()
    return FileLock(folder.absolute() / LOCK)


def read_result(folder: Path) -> dict[str, Any]:
    """Returns the content of result.json; empty if there is none, or it is damaged."""
    try:
        return dict(read_json(folder / "result.json"))
    except (OSError, ValueError, TypeError, RecursionError):
        return {}


class CsvFile:
    """A CSV file to which rows are appended; a new column is added to the rows that are already there.

    Args:
        file: continued if it exists.
        env_step: rows after this env step are dropped.

    Raises:
        CheckpointError: if a line is not a row of numbers; the file stays as it is.
    """

    def __init__(self, file: Path, env_step: float) -> None:
        self.file = file
        try:
            self._begin([], env_step)
        except (ValueError, KeyError, csv.Error) as error:
            raise CheckpointError(f"{file.name} has a damaged line ({error}): mend or move it") from error

    def write(self, rows: Sequence[Mapping[str, float]]) -> None:
        """Appends rows and passes them to the operating system."""
        columns = list(dict.fromkeys([*self._columns, *(name for row in rows for name in row)]))
        if columns != self._columns:
            self.close()
            self._begin(columns, math.inf)
        self._writer.writerows(rows)
        self._stream.flush()

    def _begin(self, columns: list[str], env_step: float) -> None:
        """Rewrites the file with the rows up to an env step, without a torn last line; opens it to append.

        Args:
            columns: new columns; empty: the columns of the file.
            env_step: rows after it are dropped.

        Raises:
            ValueError, KeyError, csv.Error: if a line is not a row of numbers; the file stays as it is.
        """
        opened(self.file, "a").close()  # creates it if it is missing
        with (
            opened(self.file, "r") as old,
            replacing(self.file) as place,
            place.open("w", encoding="utf-8", newline="") as new,
        ):
            rows = csv.DictReader((line for line in old if line.endswith("\n")), strict=True)
            self._columns = columns or list(rows.fieldnames or [])
            writer = csv.DictWriter(new, self._columns, lineterminator="\n")
            if self._columns:
                writer.writeheader()
            for row in rows:
                if None in row or None in row.values():  # csv's mark of too many or too few cells
                    raise ValueError(f"line {rows.line_num} has another number of cells than the first one")
                if float(row["env_step"]) <= env_step:
                    writer.writerow(row)
        self._stream = opened(self.file, "a")
        self._writer = csv.DictWriter(self._stream, self._columns, lineterminator="\n")

    def close(self) -> None:
        self._stream.close()


class RunFolder(Hook):
    """Writes the files of one run.

    Args:
        folder: of the run, locked by this process.
        saved: what checkpoints contain beside the state: the content of config.json, and what
            :mod:`ding_lite.run.load` needs to build the policy.
        keep: number of snapshots to keep.
        resume_at: env step that a resumed run continues from; later rows are dropped. None for a new run.

    Raises:
        CheckpointError: if the folder cannot be written to, as on a full disk, or a CSV file is damaged.
    """

    def __init__(self, folder: Path, saved: Mapping[str, Any], keep: int, resume_at: int | None) -> None:
        self.folder = folder
        self.place = place = folder.absolute()  # an environment may change the working directory
        self._row = resume_at or 0  # env step of the last row
        last_step = -1 if resume_at is None else resume_at
        with writing_to(folder), ExitStack() as files:
            for name in ("ckpt", "tb", "videos"):
                if (place / name).is_symlink():
                    raise OSError(f"{name} is a link: another user may have made the folder")
            # Temporary files of a process that was killed.
            for leftover in (*place.glob(".*.tmp"), *place.glob("ckpt/.*.tmp")):
                leftover.unlink()
            self.checkpoints = files.enter_context(closing(Checkpoints(place / "ckpt", saved, keep)))
            self._log = files.enter_context(opened(place / "log.txt", "a"))
            self._metrics = files.enter_context(closing(CsvFile(place / "metrics.csv", last_step)))
            self._episodes = files.enter_context(closing(CsvFile(place / "episodes.csv", last_step)))
            # If this session is killed, no file says how it ended.
            (place / "result.json").unlink(missing_ok=True)
            if resume_at is None:
                changes = _git("rev-parse", "HEAD") + _git("status", "--short") + _git("diff", "HEAD")
                write_whole(place / "git.txt", changes)
            settings = {name: saved[name] for name in ("config", "source", "former")}
            settings["versions"] = versions()
            write_whole(place / "config.json", json.dumps(settings, indent=2) + "\n")
            self._files = files.pop_all()

    def close(self) -> None:
        """Closes the files once the checkpoints are written."""
        with contextlib.suppress(OSError):  # a failed write was reported
            self._files.close()

    def say(self, line: str) -> None:
        """Writes a line, or several, to log.txt with the time; a full disk does not end the run here."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        with contextlib.suppress(OSError, ValueError):  # the next row of metrics.csv raises
            self._log.write("".join(f"{stamp}  {part}\n" for part in line.splitlines()))
            self._log.flush()

    def after_iter(self, pipeline: Any) -> None:
        """Writes one iteration: its row of metrics, and the episodes that ended.

        Raises:
            CheckpointError: if they cannot be written, for example on a full disk.
            ContractError: if a metric, such as one of a hook, is not a number.
        """
        progress = pipeline.progress
        row = {name: getattr(progress, name) for name in COUNTERS}
        for name, value in list(progress.metrics.items()):
            try:
                row[name] = float(value)
            except (TypeError, ValueError, RuntimeError):
                del progress.metrics[name]  # at the end of the run the others are written
                raise ContractError(f"metric {name!r}: expected a number, got {value!r:.60}") from None
        episodes = []
        for episode in progress.episodes:
            own = {"env_step": progress.env_step, "return": episode.episode_return, "length": episode.length}
            episodes.append(own | episode.info)
        with writing_to(self.folder):
            self._metrics.write([row])
            self._episodes.write(episodes)
        self._row = progress.env_step

    def after_run(self, pipeline: Any) -> None:
        """Writes result.json, and the traceback of an error to log.txt."""
        if pipeline.error is not None:
            self.say("".join(traceback.format_exception(pipeline.error)))
        if self._row < pipeline.progress.env_step and not isinstance(pipeline.error, CheckpointError):
            self.after_iter(pipeline)  # an evaluation or a hook has failed
        result = {
            name: None if isinstance(x, float) and not math.isfinite(x) else x
            for name, x in pipeline.result().items()
        }
        with writing_to(self.folder):
            write_whole(self.place / "result.json", json.dumps(result, indent=2, allow_nan=False) + "\n")


def versions(*packages: str) -> dict[str, str]:
    """Returns the versions that results depend on, the versions of other ``packages``, and the processor."""
    cpu = platform.processor()
    with contextlib.suppress(OSError, IndexError):  # Linux has the processor's name here
        cpu = re.findall(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())[0]
    installed: dict[str, str] = {}
    for name in ("ding_lite", "torch", "numpy", "gymnasium", *packages):
        with contextlib.suppress(metadata.PackageNotFoundError):  # ding_lite, in a clone
            installed[name] = metadata.version(name)
    cores = counted(os.cpu_count() or 1, "core")
    return installed | {"python": platform.python_version(), "cpu": f"{cpu or platform.machine()}, {cores}"}


def _git(*arguments: str) -> str:
    """Returns what a command of git says about the working directory; "" outside of a repository."""
    command = ["git", "--no-optional-locks", *arguments]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=10).stdout
    return ""
