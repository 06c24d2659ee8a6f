"""A run's folder: everything a run leaves behind, written as it happens.

config.json   {config, source}             metrics.csv   one row an iteration
log.txt       what was said, with times    episodes.csv  one row an episode
git.txt       commit and changes           tb/           for TensorBoard
ckpt/         last, best, iteration_*      result.json   how it ended
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import os
import platform
import shutil
import subprocess
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from ding_lite.durable import open_locked, replacing
from ding_lite.errors import CheckpointError, ConfigError
from ding_lite.schema import Key
from ding_lite.tensorboard import EventFile
from ding_lite.types import Episode

LOGGER_CONFIG: dict[str, Any] = dict(
    freq=Key(5_000, low=1),  # env steps between rows in TensorBoard (metrics.csv has every iteration)
    tensorboard=True,
)
PROCESS = "  process "  # before who writes a log, in its lines


def run_name_faults(name: str, path: str) -> list[str]:
    """Returns what keeps the text ``name`` from being that of a folder under ``runs/``, a line each."""
    try:
        unusable = b"\0" in name.encode()
    except UnicodeEncodeError:  # half of a pair of surrogates
        unusable = True
    if unusable:
        return [f"{path}: {name!r} cannot be the name of a folder"]
    inside = Path(name)
    if name and (inside.is_absolute() or ".." in inside.parts or not inside.parts):
        return [
            f"{path}: expected the name of a folder under runs/, got {name!r}; a path to anywhere else is "
            "given on the command line (--exp-name DIR)"
        ]
    return []


@contextlib.contextmanager
def new_run_folder(exp_name: str, exact: bool) -> Iterator[Path]:
    """Creates the folder of a new run; if the block ends by an error, nothing of it is left.

    Args:
        exp_name: a path as given if ``exact``, else a name under ``runs/`` that gets ``_2``, ``_3``, ...
            where it is taken.
        exact: whether the user named this very folder.

    Raises:
        ConfigError: if it exists (``exact``), or cannot be created or written to.
    """
    wanted = Path(exp_name) if exact else Path("runs") / exp_name
    made = [parent for parent in wanted.parents if not parent.exists()]
    folder, number = wanted, 1
    while True:
        try:
            folder.mkdir(parents=True)
            break
        except FileExistsError as error:
            if exact:
                raise ConfigError(
                    f"run folder {folder} exists; choose another --exp-name, go on with it by --resume, "
                    "or remove it"
                ) from error
            number += 1
            folder = wanted.with_name(f"{wanted.name}_{number}")
        except OSError as error:
            raise ConfigError(f"run folder {folder} cannot be created: {error}") from error
    try:
        yield folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        for parent in made:
            with contextlib.suppress(OSError):  # somebody else has put something there
                parent.rmdir()
        raise


def claim(folder: Path) -> TextIO:
    """Opens the log of a run for this process alone; who has it is free to write to the whole folder.

    What a process that was killed has left half written there is removed.

    Raises:
        ConfigError: if another process has it, or it cannot be written to.
    """
    file = folder / "log.txt"
    try:
        log = open_locked(file)
    except BlockingIOError as error:
        owners = [line for line in file.read_text(errors="replace").splitlines() if PROCESS in line]
        owner = owners[-1].partition(PROCESS)[2] if owners else "another one"
        raise ConfigError(
            f"run folder {folder} is in use by process {owner}: two runs would mix their rows and "
            "checkpoints. Wait for it, stop it, or choose another --exp-name"
        ) from error
    except OSError as error:
        raise ConfigError(f"run folder {folder} cannot be written to: {error}") from error
    for left in (*folder.glob(".*.tmp"), *folder.glob("ckpt/.*.tmp")):
        left.unlink() if left.is_file() else shutil.rmtree(left, ignore_errors=True)
    return log


class CsvFile:
    """A CSV file that grows by rows; a column that turns up late is added to all of it.

    Args:
        file: is continued where it exists.
        keep: rows for which it is false are dropped from an existing file.
    """

    def __init__(self, file: Path, first_columns: Iterable[str]) -> None:
        self.file = file
        self.columns = list(first_columns)
        if file.exists():
            with file.open(newline="") as stream:
                self.columns = next(csv.reader(stream), self.columns)
        else:
            file.write_text(_line(self.columns))
        self._stream = file.open("a", newline="")

    def write(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Appends rows and hands them to the operating system."""
        rows = list(rows)
        new = [name for row in rows for name in row if name not in self.columns]
        if new:
            self._widen(list(dict.fromkeys(new)))
        self._stream.write("".join(_line([_cell(row.get(c)) for c in self.columns]) for row in rows))
        self._stream.flush()

    def _widen(self, new: list[str]) -> None:
        self._stream.close()
        lines = self.file.read_text().splitlines()
        padding = "," * len(new)
        self.columns += new
        body = "".join(f"{line}{padding}\n" for line in lines[1:])
        with replacing(self.file) as temporary:
            temporary.write_text(_line(self.columns) + body)
        self._stream = self.file.open("a", newline="")

    def cut_after(self, column: str, last: float) -> None:
        """Drops the rows whose ``column`` is above ``last``, keeping the others byte for byte."""
        self._stream.close()
        lines = self.file.read_text().splitlines(keepends=True)
        index = self.columns.index(column)
        whole = [line for line in lines[1:] if line.endswith("\n")]  # the last may have been torn
        kept = [line for line in whole if _number(line.split(",")[index]) <= last]
        with replacing(self.file) as temporary:
            temporary.write_text("".join(lines[:1] + kept))
        self._stream = self.file.open("a", newline="")

    def close(self) -> None:
        self._stream.close()


def _line(cells: Iterable[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return repr(value) if isinstance(value, float) else str(value)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("inf")  # a row torn by a crash goes with those past the checkpoint


class RunLogger:
    """Writes the files of one run.

    Args:
        folder: exists already.
        log: of that folder, from :func:`claim`.
        config: what ``config.json`` says.
        columns: of metrics.csv, as far as they are known; one that turns up later is added to all rows.
        resume_at: of a run that goes on, the env step it goes on from: later rows are dropped.

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
        self.folder, self._log = folder, log
        options = config["config"]["logger"]
        self.freq, self._next_tensorboard = options["freq"], 0
        try:
            self.metrics = CsvFile(folder / "metrics.csv", ["env_step", "train_iter", "iteration", *columns])
            self.episodes = CsvFile(folder / "episodes.csv", ["env_step", "return", "length"])
            if resume_at is None:
                (folder / "git.txt").write_text(_git_state())
            else:
                self.metrics.cut_after("env_step", resume_at)
                self.episodes.cut_after("env_step", resume_at)
            with replacing(folder / "config.json") as temporary:
                temporary.write_text(json.dumps(config, indent=2) + "\n")
            purge = None if resume_at is None else resume_at + 1
            self._tensorboard = EventFile(folder / "tb", purge) if options["tensorboard"] else None
        except OSError as error:
            log.close()
            raise ConfigError(f"run folder {folder} cannot be written to: {error}") from error

    def sign(self) -> None:
        """Writes who writes here, for :func:`claim`."""
        self.say(f"{PROCESS.strip()} {os.getpid()} on {platform.node()}")

    def say(self, text: str) -> None:
        """Writes lines to log.txt, each with the time."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        with contextlib.suppress(OSError, ValueError):  # words are not worth a run; the rows will tell
            self._log.write("".join(f"{stamp}  {line}\n" for line in text.splitlines()))
            self._log.flush()

    def explain(self, error: BaseException) -> None:
        """Writes a traceback to log.txt, with those of its causes: of an environment, also in a worker."""
        self.say("".join(traceback.format_exception(error)))

    def write(self, env_step: int, row: Mapping[str, Any], episodes: Iterable[Episode]) -> None:
        """Writes one iteration: its row of metrics, and its finished episodes.

        Raises:
            CheckpointError: if they cannot be written, as on a full disk.
        """
        finished = [
            {"env_step": env_step, "return": e.episode_return, "length": e.length, **e.info} for e in episodes
        ]
        try:
            self.metrics.write([row])
            self.episodes.write(finished)
        except OSError as error:
            raise CheckpointError(
                f"run folder {self.folder} cannot be written to: {error}. Make room, and go on from the last "
                f"checkpoint, if there was one by then: --resume {self.folder}"
            ) from error
        evaluated = any(name.startswith("eval/") for name in row)
        if self._tensorboard is not None and (evaluated or env_step >= self._next_tensorboard):
            self._next_tensorboard = env_step + self.freq
            try:
                self._tensorboard.write(env_step, {name: x for name, x in row.items() if "/" in name})
            except OSError as error:  # the rows are in metrics.csv
                self.say(f"WARNING: {self.folder / 'tb'} cannot be written: {error}; nothing more is")
                self._close(self._tensorboard)
                self._tensorboard = None

    def result(self, result: Mapping[str, Any]) -> None:
        """Writes result.json, whole or not at all."""
        try:
            with replacing(self.folder / "result.json") as temporary:
                temporary.write_text(json.dumps(_finite(result), indent=2, allow_nan=False) + "\n")
        except OSError as error:
            raise CheckpointError(f"{self.folder / 'result.json'} cannot be written: {error}") from error

    def close(self) -> None:
        for part in (self.metrics, self.episodes, self._log, self._tensorboard):
            if part is not None:
                self._close(part)

    @staticmethod
    def _close(part: Any) -> None:
        with contextlib.suppress(OSError, ValueError):  # said where it was written; or closed already
            part.close()


def _finite(result: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a result with null for numbers that JSON does not have."""
    bad = {name for name, x in result.items() if isinstance(x, float) and not math.isfinite(x)}
    return {name: None if name in bad else x for name, x in result.items()}


def _git_state() -> str:
    """Returns the commit of the working directory and what differs from it, or why there is none."""
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
