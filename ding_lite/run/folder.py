"""A run's folder and the files in it, which are written while the run trains.

config.json   {config, source, imports}    metrics.csv   one row per iteration
log.txt       messages, with times         episodes.csv  one row per episode
git.txt       commit and changes           result.json   how the run ended
ckpt/         last, best, iteration_*

Trackers add tb/ and others, with trackers*.json (run.trackers); logger.video_freq adds videos/.
"""

from __future__ import annotations

import contextlib
import csv
import glob
import io
import json
import math
import os
import platform
import re
import shutil
import signal
import subprocess
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from ding_lite.envs.vector import Episode
from ding_lite.errors import CheckpointError, ConfigError
from ding_lite.run.atomic_files import (
    ANY_BYTES,
    MAX_TEXT_BYTES,
    is_locked,
    open_locked,
    read_bounded,
    refuse_links,
    regular,
    remove,
    write_whole,
)
from ding_lite.run.misnamed import is_run

ENDED = ("solved", "finished")  # statuses of a run that has reached its stop value or its limit
LOGS = {"config.json", "episodes.csv", "git.txt", "log.txt", "metrics.csv", "result.json", "tb"}
FOLDERS = ("ckpt", "ckpt/abandoned", "tb", "videos", "wandb")  # in which files are written or removed
MAX_HEADER = 2**17  # characters of the header of a CSV file
OWNER_MARK = "  process "  # precedes the process that writes a log, in the lines of the log


@contextlib.contextmanager
def new_run_folder(exp_name: str, exact: bool, base: Path = Path()) -> Iterator[Path]:
    """Creates the folder of a new run, and removes it if the block ends with an error.

    The folder of a run that failed before its first iteration is replaced: it has nothing to continue from.

    Args:
        exp_name: a path if ``exact``, else a name under ``runs/``, with a suffix ``_2``, ``_3``, ... if the
            name is taken.
        exact: whether the user named the folder itself.
        base: of a path that is not absolute.

    Raises:
        ConfigError: if the folder exists (``exact``), or cannot be created or written to.
    """
    wanted = base / exp_name if exact else base / "runs" / exp_name
    new_parents = [parent for parent in wanted.parents if not parent.exists()]
    folder = wanted
    number = 1
    while True:
        try:
            folder.mkdir(parents=True)
            break
        except FileExistsError as error:
            if _never_trained(folder):
                shutil.rmtree(folder)
                continue
            if exact and is_locked(folder / "log.txt"):
                raise in_use(folder) from error
            if exact and not is_run(folder):
                raise ConfigError(
                    f"{folder} exists and is not a run; choose another --exp-name, such as runs/my_run"
                ) from error
            if exact:
                raise ConfigError(
                    f"run folder {folder} exists; choose another --exp-name, continue the run with --resume, "
                    "or remove the folder"
                ) from error
            number += 1
            folder = wanted.with_name(f"{wanted.name}_{number}")
        except OSError as error:
            raise ConfigError(f"run folder {folder} cannot be created: {error}") from error
    try:
        yield folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        for parent in new_parents:
            with contextlib.suppress(OSError):  # another process has put something there
                parent.rmdir()
        raise


def _never_trained(folder: Path) -> bool:
    """Returns whether a folder has only the logs of a run that ended in its first iteration."""
    result = read_result(folder)
    ended_at_once = result.get("status") in ("failed", "interrupted") and result.get("iterations") == 0
    return ended_at_once and {entry.name for entry in folder.iterdir()} <= LOGS


def later_runs(folder: Path) -> list[Path]:
    """Returns the runs that :func:`new_run_folder` made because ``folder`` was taken, in their order."""
    found = {}
    for path in folder.parent.glob(f"{glob.escape(folder.name)}_*"):
        number = path.name.removeprefix(f"{folder.name}_")
        if number.isdecimal() and is_run(path):
            found[int(number)] = path
    return [found[number] for number in sorted(found)]


def read_result(folder: Path) -> dict[str, Any]:
    """Returns the content of result.json; empty if there is none, or it is damaged."""
    try:
        return dict(json.loads(read_bounded(folder / "result.json")))
    except (OSError, ValueError, TypeError, RecursionError):
        return {}


def ended_by_hook(result: Mapping[str, Any]) -> bool:
    """Returns whether the run of a result.json has ended in order before its limit, as hooks end one.

    The error is then the reason that the hook gave, and not a signal or an exception.
    """
    reason = str(result.get("error") or "")
    by_user = reason in signal.Signals.__members__ or reason.startswith("KeyboardInterrupt")
    return result.get("status") == "interrupted" and bool(reason) and not by_user


def claim(folder: Path) -> TextIO:
    """Opens the log of a run and locks it, which reserves the whole folder for this process.

    Removes the temporary files of a process that was killed.

    Raises:
        ConfigError: if another process holds the lock, or the folder cannot be written to.
    """
    try:
        refuse_links(*(folder / name for name in FOLDERS))
        log = open_locked(folder / "log.txt")
    except BlockingIOError as error:
        raise in_use(folder) from error
    except OSError as error:
        raise ConfigError(f"run folder {folder} cannot be written to: {error}") from error
    for leftover in (*folder.glob(".*.tmp"), *folder.glob("ckpt/.*.tmp")):
        remove(leftover)
    return log


def in_use(folder: Path) -> ConfigError:
    """Returns the error for a folder whose lock is held; it names the process that its log names."""
    text = read_bounded(folder / "log.txt", MAX_TEXT_BYTES).decode(errors="replace")
    owners = re.findall(rf"^[\d: -]{{19}}{OWNER_MARK}(\d+.*)$", text, re.MULTILINE)
    owner = owners[-1] if owners else "(unknown)"
    if owner.split()[0] == str(os.getpid()):
        return ConfigError(
            f"run folder {folder} is in use by another pipeline of this program: close() that one first"
        )
    return ConfigError(
        f"run folder {folder} is in use by process {owner}: two runs would mix their rows and checkpoints. "
        "Wait for the process, stop it, or choose another --exp-name"
    )


class CsvFile:
    """A CSV file to which rows are appended; a new column is added to the rows that are already there.

    Args:
        file: continued if it exists.
        first_columns: columns of a new file.
    """

    def __init__(self, file: Path, first_columns: Iterable[str]) -> None:
        self.file = file
        self.columns = list(first_columns)
        if os.path.lexists(file):
            with open(file, newline="", errors=ANY_BYTES, opener=regular) as stream:
                first = stream.readline(MAX_HEADER)
            header = next(csv.reader([first] if first else []), self.columns)
            if self.columns[0] in header:
                self.columns = header
            else:  # it is damaged: the run goes on without it
                file.replace(file.with_name(f"{file.name}.damaged"))
        self._open()
        if not os.fstat(self._stream.fileno()).st_size:  # new, or emptied by a power failure
            self._stream.write(_csv_line(self.columns))
            self._stream.flush()

    def _open(self) -> None:
        self._stream = open(self.file, "a", newline="", opener=regular)  # noqa: SIM115 - until close()

    def _lines(self, keepends: bool) -> list[str]:
        self._stream.close()
        return read_bounded(self.file, MAX_TEXT_BYTES).decode(errors=ANY_BYTES).splitlines(keepends)

    def write(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Appends rows and passes them to the operating system."""
        rows = list(rows)
        new_columns = [name for row in rows for name in row if name not in self.columns]
        if new_columns:
            self._add_columns(list(dict.fromkeys(new_columns)))
        lines = (_csv_line([_csv_cell(row.get(column)) for column in self.columns]) for row in rows)
        self._stream.write("".join(lines))
        self._stream.flush()

    def _add_columns(self, new_columns: list[str]) -> None:
        lines = self._lines(keepends=False)
        padding = "," * len(new_columns)
        self.columns += new_columns
        body = "".join(f"{line}{padding}\n" for line in lines[1:])
        write_whole(self.file, _csv_line(self.columns) + body)
        self._open()

    def cut_after(self, last: float) -> float | None:
        """Drops the rows past the env step ``last``, and a torn last row; keeps the other bytes.

        Returns:
            the env step of the last row that is left; None if there is none.
        """
        lines = self._lines(keepends=True)
        index = self.columns.index("env_step")
        complete = [line for line in lines[1:] if line.endswith("\n")]  # a crash may tear the last row
        whole = [line for line in complete if line.count(",") >= index]
        kept = [line for line in whole if _number(line.split(",")[index]) <= last]
        write_whole(self.file, "".join(lines[:1] + kept))
        self._open()
        return _number(kept[-1].split(",")[index]) if kept else None

    def close(self) -> None:
        self._stream.close()


def _csv_line(cells: Iterable[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


def _csv_cell(value: Any) -> str:
    if value is None:
        return ""
    return repr(value) if isinstance(value, float) else str(value)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("inf")  # a row torn by a crash is dropped with those past the checkpoint


class RunLogger:
    """Writes the files of one run.

    Args:
        folder: an existing folder.
        log: log of the folder, from :func:`claim`.
        config: contents of config.json.
        columns: columns of metrics.csv that are known in advance; others are added when they first appear.
        resume_at: env step that a resumed run continues from; later rows are dropped. None for a new run.

    Attributes:
        missing: what rows of metrics.csv a resumed run lacks before that step, for the user; "" if none.

    Raises:
        ConfigError: if the folder cannot be written to.
    """

    def __init__(
        self,
        folder: Path,
        log: TextIO,
        config: Mapping[str, Any],
        columns: Iterable[str] = (),
        resume_at: int | None = None,
    ) -> None:
        self.folder = folder
        self._log = log
        self._log_status = os.fstat(log.fileno())
        self._place = place = folder.absolute()  # an environment may change the working directory
        self._files = contextlib.ExitStack()
        self._files.callback(log.close)
        self.missing = ""
        try:
            self.metrics = CsvFile(place / "metrics.csv", ["env_step", "train_iter", "iteration", *columns])
            self._files.callback(self.metrics.close)
            self.episodes = CsvFile(place / "episodes.csv", ["env_step", "return", "length"])
            self._files.callback(self.episodes.close)
            if resume_at is None:
                write_whole(place / "git.txt", _git_state())
            else:
                last = self.metrics.cut_after(resume_at)
                if resume_at and (last is None or last < resume_at):
                    self.missing = (
                        f"WARNING: {folder / 'metrics.csv'} ends at env step {int(last or 0):,}, before the "
                        f"checkpoint at {resume_at:,}: the rows between are lost"
                    )
                self.episodes.cut_after(resume_at)
            write_whole(place / "config.json", json.dumps(config, indent=2) + "\n")
        except OSError as error:
            self.close()
            raise ConfigError(f"run folder {folder} cannot be written to: {error}") from error

    def check_place(self) -> None:
        """Refuses to write to a folder that is no longer that of this run, such as a later run's of its name.

        Raises:
            CheckpointError: if the folder was removed, moved or replaced.
        """
        try:
            is_same = os.path.samestat(self._log_status, (self._place / "log.txt").stat())
        except OSError:
            is_same = False
        if not is_same:
            raise CheckpointError(
                f"run folder {self.folder} was removed, moved or replaced while the run trained: nothing "
                "more is written"
            )

    def write_owner(self) -> None:
        """Writes the id of this process to log.txt; :func:`claim` tells it to other processes."""
        self.log(f"{OWNER_MARK.strip()} {os.getpid()} on {platform.node()}")

    def log(self, text: str) -> None:
        """Writes lines to log.txt, each with the time; a full disk does not end the run here."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        with contextlib.suppress(OSError, ValueError):  # the next row of metrics.csv raises
            self._log.write("".join(f"{stamp}  {line}\n" for line in text.splitlines()))
            self._log.flush()

    def write_traceback(self, error: BaseException) -> None:
        """Writes the traceback of an error and of its causes, in this process or a worker, to log.txt."""
        self.log("".join(traceback.format_exception(error)))

    def write_iteration(self, env_step: int, row: Mapping[str, Any], episodes: Iterable[Episode]) -> None:
        """Writes one iteration: its row of metrics, and its finished episodes.

        Raises:
            CheckpointError: if they cannot be written, for example on a full disk.
        """
        episode_rows = [
            {
                **episode.info,  # a key of the user's replaces no column
                "env_step": env_step,
                "return": episode.episode_return,
                "length": episode.length,
            }
            for episode in episodes
        ]
        self.check_place()
        try:
            self.metrics.write([row])
            self.episodes.write(episode_rows)
        except OSError as error:
            raise CheckpointError(
                f"run folder {self.folder} cannot be written to: {error}. Free some disk space, and continue "
                f"from the last checkpoint, if there was one: --resume {self.folder}"
            ) from error

    def forget_result(self) -> None:
        """Removes result.json."""
        (self._place / "result.json").unlink(missing_ok=True)

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Writes result.json, complete or not at all.

        Raises:
            CheckpointError: if it cannot be written.
        """
        self.check_place()
        file = self._place / "result.json"
        try:
            write_whole(file, json.dumps(_with_null(result), indent=2, allow_nan=False) + "\n")
        except OSError as error:
            raise CheckpointError(f"{file} cannot be written: {error}") from error

    def close(self) -> None:
        """Closes all files; a second call has no effect."""
        with contextlib.suppress(OSError, ValueError):  # a failed write was reported
            self._files.close()


def _with_null(result: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a result with None in place of nan and infinity, which JSON lacks."""
    return {name: None if isinstance(x, float) and not math.isfinite(x) else x for name, x in result.items()}


def _git_state() -> str:
    """Returns the commit and the changes of the working directory, or the reason why there are none."""
    texts = []
    for command in (["rev-parse", "HEAD"], ["status", "--short"], ["diff", "HEAD"]):
        try:
            done = subprocess.run(
                ["git", *command], capture_output=True, text=True, errors="replace", timeout=10,
                env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"no git state: {error}\n"
        if done.returncode:
            return "not in a git repository\n"
        texts.append(done.stdout.strip())
    return "\n\n".join(text for text in texts if text) + "\n"
