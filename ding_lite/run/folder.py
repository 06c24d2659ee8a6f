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
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import IO, Any

from filelock import FileLock, Timeout

from ding_lite.errors import CheckpointError, ConfigError, counted
from ding_lite.run.checkpoint import Checkpoints, checkpoints_of, opened, read_json, replacing, write_whole
from ding_lite.run.display import evaluation_line
from ding_lite.run.hooks import Hook

ENDED = ("solved", "finished")  # statuses of a run that has reached its stop value or its limit
LOCK = ".lock"


@contextlib.contextmanager
def new_run_folder(wanted: Path, exact: bool, lines: list[str]) -> Iterator[Path]:
    """Creates the folder of a new run, and removes it if the block ends with an error.

    Args:
        wanted: its path.
        exact: whether it must not exist, but for a run without a checkpoint, which begins anew; otherwise the
            folder may get a suffix ``_2``, ``_3``, ...
        lines: for the user; one is added if a run begins anew.

    Raises:
        ConfigError: if the folder exists (``exact``).
        OSError: if it cannot be created.
    """
    folder = wanted
    if exact and is_replaceable(folder):
        lines.append(f"{folder} begins anew: the last run there ended before its first checkpoint")
        yield folder
        return
    for number in itertools.count(2):
        try:
            folder.mkdir(parents=True)
            break
        except FileExistsError as error:
            if exact:
                raise ConfigError(
                    f"run folder {folder} exists; choose another --exp-name, continue the run with --resume, "
                    "or remove the folder"
                ) from error
            folder = wanted.with_name(f"{wanted.name}_{number}")
    try:
        yield folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def is_replaceable(folder: Path) -> bool:
    """Returns whether a folder has a run that has ended before its first checkpoint."""
    is_run = not folder.is_symlink() and all((folder / name).is_file() for name in (LOCK, "log.txt"))
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
            # is_locked has the lock for a moment.
            held = _lock_of(folder).acquire(timeout=0.5, poll_interval=0.02)
        except Timeout as error:
            raise ConfigError(
                f"run folder {folder} is in use: two runs would mix their rows and checkpoints. Wait for the "
                "other process, or close() the other pipeline"
            ) from error
    with held:
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
    except Timeout:
        return True
    except OSError:  # the folder of another user
        pass
    return False


def _lock_of(folder: Path) -> FileLock:
    """Returns the lock of a folder. To lock it empties the file, which must be empty: no link to another."""
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
        env_step: last one whose rows are kept.
        lines: for the user; one is added if the file is not as this class writes it, and is set aside.
    """

    def __init__(self, file: Path, env_step: float, lines: list[str]) -> None:
        self.file = file
        self.columns: list[str] = []
        try:
            self._stream = self._cut_after(env_step)
        except (ValueError, csv.Error) as error:
            aside = file.with_name(f"{file.stem}_damaged_{time.time_ns()}.csv")
            lines.append(
                f"WARNING: {file.name} has a damaged line ({error}). It is now {aside.name}, and a new "
                f"{file.name} begins"
            )
            file.rename(aside)
            self.columns = []
            self._stream = self._cut_after(env_step)

    def write(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Appends rows of numbers and passes them to the operating system."""
        rows = list(rows)
        columns = list(dict.fromkeys([*self.columns, *(name for row in rows for name in row)]))
        if columns != self.columns:
            self.columns = columns
            self._stream.close()
            self._stream = self._cut_after(math.inf)
        cells = (
            [x if x is None or isinstance(x, int) else float(x) for x in map(row.get, self.columns)]
            for row in rows
        )
        csv.writer(self._stream, lineterminator="\n").writerows(cells)
        self._stream.flush()

    def _cut_after(self, env_step: float) -> IO[str]:
        """Writes the rows anew up to an env step, with all columns, without a last one that a crash tore.

        Returns:
            the stream to append to.

        Raises:
            ValueError, csv.Error: if a line is not a row of numbers; the file stays as it is.
        """
        opened(self.file, "a").close()  # it may be new
        with (
            opened(self.file, "r") as old,
            replacing(self.file) as place,
            place.open("w", encoding="utf-8") as new,
        ):
            rows = csv.reader((line for line in old if line.endswith("\n")), strict=True)
            writer = csv.writer(new, lineterminator="\n")
            columns = next(rows, [])
            self.columns = self.columns or columns
            if self.columns:
                writer.writerow(self.columns)
            for row in rows:
                if len(row) != len(columns):
                    raise ValueError(f"line {rows.line_num}: {len(row)} cells for {len(columns)} columns")
                if float(row[columns.index("env_step")]) <= env_step:
                    writer.writerow(row + [""] * (len(self.columns) - len(columns)))
        return opened(self.file, "a")

    def close(self) -> None:
        self._stream.close()


class RunFolder(Hook):
    """Writes the files of one run.

    Args:
        folder: of the run, locked by this process.
        saved: what its checkpoints keep beside the state: the content of config.json, and what
            :class:`~ding_lite.run.load` needs to build the policy.
        keep: number of snapshots to keep.
        resume_at: env step that a resumed run continues from; later rows are dropped. None for a new run.
        lines: for the user; those about damaged files are added.

    Raises:
        CheckpointError: if the folder cannot be written to, as on a full disk.
    """

    def __init__(
        self, folder: Path, saved: Mapping[str, Any], keep: int, resume_at: int | None, lines: list[str]
    ) -> None:
        self.folder = folder
        self.place = place = folder.absolute()  # an environment may change the working directory
        self._row = 0  # iteration of the last row
        kept = -1 if resume_at is None else resume_at
        with writing_to(folder), contextlib.ExitStack() as files:
            for name in ("ckpt", "tb", "videos"):
                if (place / name).is_symlink():
                    raise OSError(f"{name} is a link: another user may have made the folder")
            # Of a process that was killed.
            for leftover in (*place.glob(".*.tmp"), *place.glob("ckpt/.*.tmp")):
                leftover.unlink()
            self.checkpoints = Checkpoints(place / "ckpt", saved, keep)
            files.callback(self.checkpoints.close)
            self._log = files.enter_context(opened(place / "log.txt", "a"))
            self._metrics, self._episodes = (
                files.enter_context(contextlib.closing(CsvFile(place / name, kept, lines)))
                for name in ("metrics.csv", "episodes.csv")
            )
            # If this session is killed, no file says how it ended.
            (place / "result.json").unlink(missing_ok=True)
            if resume_at is None:
                changes = _git("rev-parse", "HEAD") + _git("status", "--short") + _git("diff", "HEAD")
                write_whole(place / "git.txt", changes)
            settings = {"config": saved["config"], "source": saved["source"], "versions": versions()}
            write_whole(place / "config.json", json.dumps(settings, indent=2) + "\n")
            self._files = files.pop_all()

    def close(self) -> None:
        """Closes the files, when the checkpoints are written."""
        with contextlib.suppress(OSError):  # a failed write was reported
            self._files.close()

    def log(self, text: str) -> None:
        """Writes lines to log.txt, each with the time; a full disk does not end the run here."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        with contextlib.suppress(OSError, ValueError):  # the next row of metrics.csv raises
            self._log.write("".join(f"{stamp}  {line}\n" for line in text.splitlines()))
            self._log.flush()

    def say(self, line: str) -> None:
        self.log(line)

    def before_run(self, pipeline: Any) -> None:
        self._row = pipeline.progress.iteration

    def after_iter(self, pipeline: Any) -> None:
        """Writes one iteration: its row of metrics, and the episodes that ended.

        Raises:
            CheckpointError: if they cannot be written, for example on a full disk.
        """
        progress = pipeline.progress
        counters = {name: getattr(progress, name) for name in ("env_step", "train_iter", "iteration")}
        episodes = []
        for episode in progress.episodes:
            own = {"env_step": progress.env_step, "return": episode.episode_return, "length": episode.length}
            episodes.append(own | episode.info | own)  # keys of info come last, and replace no other
        with writing_to(self.folder):
            self._metrics.write([{**counters, **progress.metrics}])
            self._episodes.write(episodes)
        self._row = progress.iteration
        if progress.evaluation is not None:
            self.log(evaluation_line(progress))

    def after_run(self, pipeline: Any) -> None:
        """Writes result.json, and the traceback of an error to log.txt."""
        if pipeline.error is not None:
            self.log("".join(traceback.format_exception(pipeline.error)))
        if self._row < pipeline.progress.iteration and not isinstance(pipeline.error, CheckpointError):
            self.after_iter(pipeline)  # an evaluation or a hook has failed
        result = {
            name: None if isinstance(x, float) and not math.isfinite(x) else x
            for name, x in pipeline.result().items()
        }
        try:
            write_whole(self.place / "result.json", json.dumps(result, indent=2, allow_nan=False) + "\n")
        except OSError as error:
            pipeline.say(f"WARNING: {self.folder / 'result.json'} cannot be written: {error}")
        self.log(pipeline.summary())


def versions(*packages: str) -> dict[str, str]:
    """Returns the versions that numbers depend on, those of more packages, and the processor."""
    names = ("ding_lite", "torch", "numpy", "gymnasium", *packages)
    cpu = platform.processor()
    with contextlib.suppress(OSError, IndexError):  # Linux has its name here
        cpu = re.findall(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())[0]
    machine = {
        "python": platform.python_version(),
        "cpu": f"{cpu or platform.machine()}, {counted(os.cpu_count() or 1, 'core')}",
    }
    found: dict[str, str] = {}
    for name in names:
        with contextlib.suppress(
            metadata.PackageNotFoundError
        ):  # ding_lite, in a clone that is not installed
            found[name] = metadata.version(name)
    return found | machine


def _git(*arguments: str) -> str:
    """Returns what a command of git says about the working directory; "" outside of a repository."""
    env = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    options: dict[str, Any] = {"text": True, "errors": "replace", "timeout": 10, "env": env}
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        return str(subprocess.run(["git", *arguments], capture_output=True, **options).stdout)
    return ""
