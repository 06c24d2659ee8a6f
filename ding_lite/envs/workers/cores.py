"""Counts CPU cores and divides them between worker processes and torch."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path

CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # of a container (version 2): microseconds in each period


def cores() -> int:
    """Returns how many CPU cores this process may use; ranks on the same machine share its cores equally.

    A container's quota counts, as ``docker run --cpus=2`` sets it: more threads would wait for each other.
    """
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):  # there is no such file, or it says "max"
        quota, period = map(int, CPU_QUOTA.read_text().split())
        count = min(count, math.ceil(quota / period))
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if "TORCHELASTIC_RUN_ID" in os.environ else 1
    return max(1, count // ranks)


def leaving_cores(busy: int) -> contextlib.AbstractContextManager[None]:
    """Limits torch to the cores that ``busy`` other processes leave free, but to no fewer than one."""
    return torch_threads(max(1, cores() - busy), at_most=True)


@contextlib.contextmanager
def torch_threads(number: int, at_most: bool = False) -> Iterator[None]:
    """Sets the number of torch's CPU threads in a block; ``at_most``: never to more than before."""
    import torch  # here, because workers import this module and must not import torch

    before = torch.get_num_threads()
    torch.set_num_threads(min(before, number) if at_most else number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
