"""Trains several runs at a time, and follows them by the files that they write.

A :class:`Training` is one of them. :class:`Crew` starts the next one as soon as one has ended.
"""

from __future__ import annotations

import contextlib
import csv
import os
import signal as signals
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ding_lite.errors import ENDING
from ding_lite.run.display import score_text
from ding_lite.run.folder import ENDED, read_result
from ding_lite.tools.jobs import INTERRUPTED, Place, Running
from ding_lite.tools.runs import SCORE

POLL_SECONDS = 0.1
KILLED = tuple(-number for number in ENDING)  # exit codes
SECONDS_TO_END = 5.0  # for a training after the second Ctrl-C, before it is killed


@dataclass
class Training:
    """One run of several.

    Attributes:
        name: in lines and tables, such as "seed 3".
        seed: of the run.
        folder: of the run.
        arguments: of ``ding-lite`` that train it.
        max_env_step: of the run, for its bar.
        env_step: reached so far.
        episode_return: of its recent episodes; None before one has ended.
        evaluations: ``(env_step, mean return)`` so far.
        status: "not started", "running", "pruned", or that of its result.json.
        code: its exit code; None before it has ended.
        error: why it failed; "" if it did not.
        result: content of its result.json.
    """

    name: str
    seed: int
    folder: Path
    arguments: Sequence[str]
    max_env_step: int
    env_step: int = 0
    episode_return: float | None = None
    evaluations: list[tuple[int, float]] = field(default_factory=list)
    status: str = "not started"
    code: int | None = None
    error: str = ""
    result: dict[str, Any] = field(default_factory=dict)
    _running: Running | None = field(default=None, init=False)
    _rows: Rows | None = field(default=None, init=False)
    _is_stopped: bool = field(default=False, init=False)

    @property
    def score(self) -> float | None:
        """Returns the mean return of its last evaluation if it has ended in order, else None."""
        return self.result.get("eval_value") if self.is_complete else None

    @property
    def last_evaluation(self) -> float | None:
        """Returns the mean return of its last evaluation so far; None before one."""
        return self.evaluations[-1][1] if self.evaluations else self.score

    @property
    def is_complete(self) -> bool:
        """Returns whether it has reached its limit, solved the task, or was ended by a hook."""
        return self.status in ENDED or (self.code == 0 and ended_by_hook(self.result))

    @property
    def is_running(self) -> bool:
        """Returns whether it was started and has not ended."""
        return self._running is not None

    def start(self, place: Place) -> None:
        """Starts it, unless a hook has ended it; what it has done in an earlier session is no event."""
        self.status = "running"
        self._rows = Rows(self.folder / "metrics.csv")
        self._read_rows()
        if ended_by_hook(read_result(self.folder)):
            self._conclude(0, "")
        else:
            self._running = place.start(self.arguments, self.folder)

    def stop(self, signal: str, status: str = "") -> None:
        """Sends a signal; without effect if it does not run.

        Args:
            signal: "SIGINT" or "SIGTERM": it ends after its iteration and saves; a second "SIGINT": at once.
            status: that it has when it has ended, instead of "interrupted".
        """
        if self._running is not None:
            self._is_stopped = True
            self.status = status or self.status
            self._running.send(signal)

    def follow(self) -> Iterator[str]:
        """Reads what it has written since the last call; yields a line for each event."""
        if self._running is not None:
            code = self._running.poll()  # first, so that the rows below are all rows if it has ended
            for env_step, value in self._read_rows():
                yield f"{env_step:>9,} steps  evaluation {score_text(value)}"
            if code is not None:
                self._conclude(code, self._running.error())
        if self._running is None:
            yield self._ending()

    def _read_rows(self) -> list[tuple[int, float]]:
        """Reads the new rows of metrics.csv; returns the new evaluations."""
        assert self._rows is not None
        known = len(self.evaluations)
        for row in self._rows.new():
            self.env_step = int(row["env_step"])
            if row.get("collect/episode_return"):
                self.episode_return = float(row["collect/episode_return"])
            if row.get(SCORE):
                self.evaluations.append((self.env_step, float(row[SCORE])))
        return self.evaluations[known:]

    def _conclude(self, code: int, error: str) -> None:
        self._running = None
        self.code = code
        self.error = error
        self.result = read_result(self.folder)
        if self._is_stopped and code in KILLED:  # before it had handlers of its own
            code = self.code = INTERRUPTED[0]
        if code not in (0, *INTERRUPTED):  # result.json may be missing, or be that of an earlier session
            self.status = "failed"
            return
        if self.status != "pruned" or code == 0:
            self.status = self.result.get("status", "interrupted")
            if code and self.status in ("failed", *ENDED):  # in an earlier session
                self.status = "interrupted"
        self.env_step = self.result.get("env_step", self.env_step)

    def _ending(self) -> str:
        if self.status == "failed":
            return f"failed: {self.error}"
        seconds = self.result.get("wall_time_s", 0.0)
        text = f"{self.status} after {self.env_step:,} env steps and {seconds:.1f} s"
        return text if self.score is None else f"{text}, evaluation {score_text(self.score)}"


def ended_by_hook(result: Mapping[str, Any]) -> bool:
    """Returns whether the run of a result.json has ended in order before its limit, as hooks end one.

    The error is then the reason that the hook gave, and not a signal or an exception.
    """
    reason = str(result.get("error") or "")
    by_user = reason in signals.Signals.__members__ or reason.startswith(("KeyboardInterrupt", "SystemExit"))
    return result.get("status") == "interrupted" and bool(reason) and not by_user


class Rows:
    """Reads the rows that another process appends to a CSV file.

    The file is replaced when it gets a column, or when a resumed run cuts it; it is then read again, and rows
    up to the last env step are left out.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._seen: tuple[int, bytes] = (-1, b"")  # inode and header of the file that is being read
        self._offset = 0
        self._last = -1

    def new(self) -> list[dict[str, str]]:
        """Returns the complete rows since the last call, by their columns."""
        with contextlib.suppress(FileNotFoundError), open(self._file, "rb") as stream:
            header = stream.readline()
            seen = (os.fstat(stream.fileno()).st_ino, header)
            if seen != self._seen:
                self._seen = seen
                self._offset = len(header)
            stream.seek(self._offset)
            text = stream.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._offset += len(whole)
            return self._parsed(header.decode(), whole.decode())
        return []

    def _parsed(self, header: str, lines: str) -> list[dict[str, str]]:
        rows = csv.DictReader(lines.splitlines(), next(csv.reader([header]), []))
        new = [row for row in rows if int(row["env_step"]) > self._last]
        if new:
            self._last = int(new[-1]["env_step"])
        return new


class Board:
    """Shows several runs; this base class shows nothing."""

    def say(self, text: str) -> None:
        """Shows a line."""

    def show(self, running: Sequence[Training]) -> None:
        """Shows the progress of the runs that train now."""


def _ignore(training: Training) -> None:
    """Does nothing."""


class Crew:
    """Trains runs, a number of them at a time.

    Args:
        place: where they run.
        jobs: number of runs at a time.
        board: shows the progress.

    Attributes:
        failures: the runs that failed, in the order in which they did.
        stopped_by: name of the signal that ended the work; "" if none did.
    """

    def __init__(self, place: Place, jobs: int, board: Board) -> None:
        self.place = place
        self.jobs = jobs
        self.board = board
        self.failures: list[Training] = []
        self.stopped_by = ""
        self._running: list[Training] = []

    @property
    def exit_code(self) -> int:
        """Returns the exit code of the first run that failed, or 0; that of a killed run is 1."""
        return max(self.failures[0].code or 1, 1) if self.failures else 0

    def request_stop(self, signal: str) -> None:
        """Ends all runs after their iterations, each saved; safe to call from a signal handler."""
        self.stopped_by = signal

    def train(
        self,
        trainings: Iterable[Training],
        on_evaluation: Callable[[Training], None] = _ignore,
        on_end: Callable[[Training], None] = _ignore,
    ) -> None:
        """Trains all runs; a run that fails does not end the others.

        Args:
            trainings: the runs; one is taken as soon as there is a place for it.
            on_evaluation: called after each evaluation of a run.
            on_end: called when a run has ended.

        Raises:
            KeyboardInterrupt: at a second Ctrl-C; all runs have been ended at once.
        """
        source = iter(trainings)
        is_stopping = False
        try:
            while True:
                if self.stopped_by and not is_stopping:
                    is_stopping = True
                    for training in self._running:
                        training.stop(self.stopped_by)
                if not is_stopping:
                    self._start_next(source)
                if not self._running:
                    return
                for training in self._running[:]:
                    self._follow(training, on_evaluation, on_end)
                self.board.show(self._running)
                time.sleep(POLL_SECONDS)
        except BaseException:
            self._end_at_once()
            raise

    def _start_next(self, source: Iterator[Training]) -> None:
        while len(self._running) < self.jobs and not self.stopped_by:
            training = next(source, None)
            if training is None:
                return
            training.start(self.place)
            self._running.append(training)
            self.board.say(f"{training.name}: started, {training.folder}")

    def _follow(
        self,
        training: Training,
        on_evaluation: Callable[[Training], None],
        on_end: Callable[[Training], None],
    ) -> None:
        known = len(training.evaluations)
        for event in training.follow():
            self.board.say(f"{training.name}: {event}")
        if len(training.evaluations) > known:
            on_evaluation(training)
        if not training.is_running:
            self._running.remove(training)
            if training.status == "failed":
                self.failures.append(training)
            on_end(training)

    def _end_at_once(self) -> None:
        """Ends all runs without waiting for their iterations."""
        for _ in range(2):  # the first asks a training to end, the second interrupts its iteration
            for training in self._running:
                training.stop("SIGINT")
            time.sleep(POLL_SECONDS)  # two signals at once may arrive as one
        deadline = time.monotonic() + SECONDS_TO_END
        while self._running and time.monotonic() < deadline + SECONDS_TO_END:
            for training in self._running[:]:
                if time.monotonic() > deadline:
                    training.stop("SIGKILL")
                self._follow(training, _ignore, _ignore)
            time.sleep(POLL_SECONDS)
