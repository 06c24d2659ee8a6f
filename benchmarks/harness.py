"""Runs a process timed from outside, keeps results in CSV files, and writes tables into Markdown."""

from __future__ import annotations

import csv
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
DOCUMENTS = (HERE / "RESULTS.md", HERE / "notes" / "learning.md")  # that have generated sections


class Process(NamedTuple):
    """A process that has ended well: its time, the memory of the largest process below it, its output."""

    seconds: float
    peak_mib: float
    output: str


def run(command: Sequence[str], threads: int = 1) -> Process:
    """Runs a command and waits for its end.

    Raises:
        RuntimeError: if it fails, with the end of its standard error.
    """
    path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONWARNINGS": "ignore", "PYTHONPATH": path}
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        began = time.perf_counter()
        process = subprocess.Popen(command, stdout=output, stderr=errors, env=env)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        output_text, error_text = (file.read() for file in (output, errors) if not file.seek(0))
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}:\n{error_text[-4000:]}")
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return Process(seconds, usage.ru_maxrss / unit, output_text)


def read(file: Path) -> list[dict[str, Any]]:
    """Returns the lines of a results file; fields that are numbers are floats, empty fields are left out."""
    if not file.exists():
        return []
    with file.open(newline="") as stream:
        return [
            {
                name: _number(text) if name not in ("row", "commit") else text
                for name, text in line.items()
                if text
            }
            for line in csv.DictReader(stream)
        ]


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def append(file: Path, lines: Sequence[dict[str, Any]]) -> None:
    """Adds lines to a results file, whose first line names the columns."""
    with file.open(newline="") as stream:
        columns = next(csv.reader(stream))
    with file.open("a", newline="") as stream:
        csv.DictWriter(stream, columns, lineterminator="\n").writerows(lines)


def measured_here() -> dict[str, str]:
    """Returns commit, machine and date, which every result has."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, cwd=HERE).stdout.strip()
    return {"commit": commit, "machine": machine(), "date": time.strftime("%Y-%m-%d")}


def machine() -> str:
    """Returns a description of the machine."""
    import torch

    gpu = [torch.cuda.get_device_name()] if torch.cuda.is_available() else []
    cores = f"{os.cpu_count()} cores"
    return ", ".join([*gpu, cores, platform.machine(), f"Python {platform.python_version()}"])


def put(section: str, lines: Sequence[str], documents: Sequence[Path] = DOCUMENTS) -> None:
    """Replaces the lines between the markers of a section, in the document that has them.

    Raises:
        ValueError: if not exactly one document has them.
    """
    begin, end = marks(section)
    found = [file for file in documents if begin in file.read_text()]
    if len(found) != 1:
        names = ", ".join(file.name for file in documents)
        raise ValueError(f"one of {names} must have the lines {begin} and {end}; {len(found)} have them")
    document = found[0]
    before, rest = document.read_text().split(begin)
    document.write_text(f"{before}{begin}\n" + "\n".join(lines) + f"\n{end}{rest.split(end)[1]}")


def marks(section: str) -> tuple[str, str]:
    """Returns the lines before and after what is generated."""
    return f"<!-- {section}: begin -->", f"<!-- {section}: end -->"
