"""What all measurements share: a process timed from outside, results in CSV files, tables in Markdown."""

from __future__ import annotations

import argparse
import csv
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
README = HERE.parent / "README.md"
SLICE = 0.2  # seconds that a process runs before the next one's turn
DOCUMENTS = (HERE / "RESULTS.md", HERE / "notes" / "learning.md", README)  # that have generated sections


class Process(NamedTuple):
    """A process that has ended well: its time, the memory of the largest process below it, its output."""

    seconds: float
    cpu_seconds: float
    peak_mib: float
    output: str


def python(words: Sequence[str], threads: int = 1) -> Process:
    """Runs Python with arguments, and waits for its end.

    Raises:
        RuntimeError: if it fails, with the end of its standard error.
    """
    (result,) = by_turns([(words, threads)])
    if isinstance(result, RuntimeError):
        raise result
    return result


def by_turns(calls: Sequence[tuple[Sequence[str], int]]) -> list[Process | RuntimeError]:
    """Runs Python with each of these arguments and threads, and waits for all ends.

    Several processes run by turns of ``SLICE`` seconds: a machine whose speed changes is as fast for all. The
    seconds of a process are those in which it ran.
    """
    runs: list[_Run] = []
    try:
        for words, threads in calls:
            runs.append(_Run(words, threads, is_alone=len(calls) == 1))
        while waiting := [run for run in runs if run.result is None]:
            for run in waiting:
                run.proceed(SLICE if len(waiting) > 1 else None)
        return [run.result for run in runs if run.result is not None]
    finally:
        for run in runs:
            run.end()


class _Run:
    """A process of Python, with those that it starts; it waits for its turn, unless it is alone."""

    def __init__(self, words: Sequence[str], threads: int, is_alone: bool) -> None:
        path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
        env = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONWARNINGS": "ignore", "PYTHONPATH": path}
        self.words, self.seconds = words, 0.0
        self.result: Process | RuntimeError | None = None
        self.files = stdout, stderr = [tempfile.TemporaryFile("w+") for _ in range(2)]  # noqa: SIM115
        command = [sys.executable, *words]
        self.process = subprocess.Popen(
            command, stdout=stdout, stderr=stderr, env=env, start_new_session=True
        )
        if not is_alone:
            os.killpg(self.process.pid, signal.SIGSTOP)

    def proceed(self, seconds: float | None) -> None:
        """Lets it run for so long, or until its end."""
        began, pid = time.perf_counter(), self.process.pid
        os.killpg(pid, signal.SIGCONT)
        ended, status, usage = os.wait4(pid, 0 if seconds is None else os.WNOHANG)
        while not ended and time.perf_counter() - began < seconds:
            time.sleep(0.001)
            ended, status, usage = os.wait4(pid, os.WNOHANG)
        if not ended:
            os.killpg(pid, signal.SIGSTOP)
        self.seconds += time.perf_counter() - began
        if ended:
            self.process.returncode = os.waitstatus_to_exitcode(status)
            self.result = self._result(usage)

    def _result(self, usage: Any) -> Process | RuntimeError:
        output, errors = (file.read() for file in self.files if not file.seek(0))
        if self.process.returncode:
            words = " ".join(self.words)
            return RuntimeError(f"{words} ended with {self.process.returncode}:\n{errors[-4000:]}")
        unit = 2**20 if sys.platform == "darwin" else 2**10
        return Process(self.seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / unit, output)

    def end(self) -> None:
        """Kills it if it has not ended, and removes its files."""
        if self.process.returncode is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        for file in self.files:
            file.close()


def read(file: Path) -> list[dict[str, Any]]:
    """Returns the lines of a results file; fields that are numbers are floats, empty fields are left out."""
    with file.open(newline="") as stream:
        return [
            {name: _value(name, text) for name, text in line.items() if text}
            for line in csv.DictReader(stream)
        ]


def _value(name: str, text: str) -> float | str:
    try:
        return text if name in ("row", "commit") else float(text)
    except ValueError:
        return text


def append(file: Path, lines: Iterable[dict[str, Any]]) -> None:
    """Adds lines to a results file, whose first line names the columns."""
    with file.open(newline="") as stream:
        columns = next(csv.reader(stream))
    with file.open("a", newline="") as stream:
        csv.DictWriter(stream, columns, lineterminator="\n").writerows(lines)


def measured_here() -> dict[str, str]:
    """Returns commit, machine and date, which every result has."""
    import torch

    command = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, cwd=HERE).stdout.strip()
    gpu = [torch.cuda.get_device_name()] if torch.cuda.is_available() else []
    parts = [*gpu, f"{os.cpu_count()} cores", platform.machine(), f"Python {platform.python_version()}"]
    return {"commit": commit, "machine": ", ".join(parts), "date": time.strftime("%Y-%m-%d")}


def parser(
    description: str | None, names: Collection[str], others: Collection[str] = ()
) -> argparse.ArgumentParser:
    """Returns a parser of --write and of what to measure: names, or others that the help does not list."""

    def known(name: str) -> str:
        if name not in (*names, *others):
            raise argparse.ArgumentTypeError(f"unknown row {name!r}; there are {', '.join(names)}")
        return name

    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=description, formatter_class=formatter)
    parser.add_argument("rows", nargs="*", metavar="ROW", type=known, help=f"of {', '.join(names)}")
    parser.add_argument("--write", action="store_true", help="measure nothing: only write what is stored")
    return parser


def table(*rows: Sequence[str]) -> list[str]:
    """Returns the lines of a table, whose first row has the names of the columns."""
    first, *others = (f"| {' | '.join(row)} |" for row in rows)
    return [first, "|" + "---|" * len(rows[0]), *others]


def marks(section: str) -> tuple[str, str]:
    """Returns the lines before and after what is generated."""
    return f"<!-- {section}: begin -->", f"<!-- {section}: end -->"


def put(sections: dict[str, list[str]]) -> None:
    """Replaces the lines between the marks of each section, in the document that has them."""
    for section, lines in sections.items():
        begin, end = marks(section)
        (document,) = (file for file in DOCUMENTS if begin in file.read_text())
        before, rest = document.read_text().split(begin)
        generated = "".join(f"{line}\n" for line in lines)
        document.write_text(f"{before}{begin}\n{generated}{end}{rest.split(end)[1]}")
