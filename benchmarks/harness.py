"""What all measurements share: a process timed from outside, results in CSV files, tables in Markdown."""

from __future__ import annotations

import argparse
import csv
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
README = HERE.parent / "README.md"
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
    path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONWARNINGS": "ignore", "PYTHONPATH": path}
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        began = time.perf_counter()
        process = subprocess.Popen([sys.executable, *words], stdout=output, stderr=errors, env=env)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        output_text, error_text = (file.read() for file in (output, errors) if not file.seek(0))
    if process.returncode:
        raise RuntimeError(f"{' '.join(words)} ended with {process.returncode}:\n{error_text[-4000:]}")
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return Process(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / unit, output_text)


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
        document.write_text(f"{before}{begin}\n" + "\n".join(lines) + f"\n{end}{rest.split(end)[1]}")
