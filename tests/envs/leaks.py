"""Checks that a test leaves no process, file descriptor or block of shared memory behind."""

import contextlib
import gc
import os
from collections import Counter
from pathlib import Path

import pytest


def process_state(pid):
    """Returns (parent's pid, state letter) of a process; (0, "X") if it does not exist."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0, "X"
    return int(fields[1]), fields[0]


def children():
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [pid for pid in pids if process_state(pid)[0] == os.getpid()]


def descriptors():
    kinds = Counter()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor of the listing itself
            kinds[os.readlink(f"/proc/self/fd/{fd}")] += 1
    return kinds


@pytest.fixture(autouse=True)
def no_leaks():
    gc.collect()
    others, open_before, blocks = children(), descriptors(), sorted(os.listdir("/dev/shm"))
    yield
    gc.collect()
    assert children() == others
    assert descriptors() - open_before == Counter()
    assert sorted(os.listdir("/dev/shm")) == blocks


def alive(pid):
    return process_state(pid)[1] not in "XZ"
