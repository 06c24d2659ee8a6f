"""Runs whole processes, timed from outside, with the memory of the largest process of their tree."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from work import Done

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Process:
    """Result of a process. ``output`` is its standard output; ``skipped`` is the reason if it did not run."""

    seconds: float
    peak_mib: float
    output: str
    skipped: str = ""


def run(command: Sequence[str], threads: int = 1) -> Process:
    """Runs a command and waits for its end.

    Raises:
        RuntimeError: if it fails, with the end of its standard error.
    """
    env = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONWARNINGS": "ignore"}
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


def run_system(row: str, name: str, steps: int, threads: int) -> tuple[Process, Done | None]:
    """Runs a system of a row; returns None for ``Done`` if it was skipped, with the reason in the process."""
    process = run([sys.executable, str(HERE / "run_system.py"), row, name, str(steps)], threads)
    answer = json.loads(process.output.splitlines()[-1])
    if "skipped" in answer:
        return Process(process.seconds, process.peak_mib, process.output, answer["skipped"]), None
    return process, Done(**answer)
