"""How a run uses this machine's cores and memory."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator

import gymnasium as gym
import torch

from ding_lite.envs.worker_process import cores
from ding_lite.models.encoders import is_image, observation_leaves

# Names and numbers of glibc's <malloc.h>.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4
GROWTH = 2**26  # bytes that the heap grows by


def use_threads(wanted: int | str, obs_space: gym.Space) -> None:
    """Sets torch's CPU threads; "auto": 1 for vectors, whose matrices are small, every core for images."""
    if isinstance(wanted, str):
        wanted = cores() if any(is_image(leaf) for _, leaf in observation_leaves(obs_space)) else 1
    torch.set_num_threads(wanted)


@contextlib.contextmanager
def leaving_cores(busy: int) -> Iterator[None]:
    """Lets torch compute, inside, on those cores alone that ``busy`` others leave it; on one at least."""
    threads = torch.get_num_threads()
    left = min(threads, max(1, cores() - busy)) if busy else threads
    if left == threads:
        yield
        return
    torch.set_num_threads(left)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether memory could not be had; torch has no class of its own for that on the CPU."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    words = ("DefaultCPUAllocator", "Storage size calculation overflowed", "Maximum allowed dimension")
    return isinstance(error, (RuntimeError, ValueError)) and any(word in str(error) for word in words)


def keep_freed_memory() -> bool:
    """Makes glibc keep the memory that is freed for what is allocated next; returns whether it is glibc.

    Activations come and go with every minibatch. By default large ones go back to the system each time, which
    zeroes their pages anew: a quarter of the time of a gradient step on images.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:  # not Linux, or musl
        return False
    options = {M_MMAP_MAX: 0, M_TRIM_THRESHOLD: 2**31 - 1, M_TOP_PAD: GROWTH}
    return all([mallopt(name, value) for name, value in options.items()])
