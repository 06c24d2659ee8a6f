"""Commands in processes of their own, which find the modules of the tests."""

import os
import subprocess
import sys
import time
from pathlib import Path


def start(*words, cwd, python=()):
    """Starts ``ding-lite`` with these words, and Python with its own."""
    paths = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        [sys.executable, *python, "-m", "ding_lite", *map(str, words)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run(*words, cwd):
    """Runs ``ding-lite``, and returns its exit code, output and errors."""
    process = start(*words, cwd=cwd)
    output, errors = process.communicate(timeout=600)
    return process.returncode, output, errors


def until(condition, process=None, seconds=300):
    """Waits for a condition, while a process runs."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)
