"""CPU threads and memory of the process that a run trains in."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import gymnasium as gym
import torch
from threadpoolctl import threadpool_limits

from ding_lite.envs.workers.cores import cores
from ding_lite.models.encoders import has_image

# Options of glibc's mallopt, from <malloc.h>.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4
HEAP_GROWTH = 2**26  # bytes
# Torch's threads before the first open run, then those of each open run; NumPy's are restored after the last.
TORCH: dict[object, int] = {}
NUMPY = ExitStack()


@contextlib.contextmanager
def threads(num_threads: int | str, obs_space: gym.Space) -> Iterator[None]:
    """Sets torch's CPU threads to the config key ``num_threads`` in a block, and NumPy's to 1.

    NumPy's matrices are small here. With more threads, which wait for each other, NumPy takes three times as
    long, and ten times as long on a busy machine. Of several open runs the newest decides, and the numbers
    from before the first one are restored after the last one.

    Args:
        num_threads: a number, or "auto": 1 for vector observations, whose matrices are small; for images the
            number of cores, at most torch's number before the block (OMP_NUM_THREADS).
        obs_space: space of the observations.
    """
    if not TORCH:
        TORCH[None] = torch.get_num_threads()
        NUMPY.enter_context(threadpool_limits(1, user_api="blas"))
    if isinstance(num_threads, str):
        num_threads = min(cores(), TORCH[None]) if has_image(obs_space) else 1
    run = object()
    TORCH[run] = num_threads
    torch.set_num_threads(num_threads)
    try:
        yield
    finally:
        del TORCH[run]
        torch.set_num_threads([*TORCH.values()][-1])
        if len(TORCH) == 1:
            TORCH.clear()
            NUMPY.close()


@contextlib.contextmanager
def torch_defaults() -> Iterator[list[str]]:
    """Resets torch's default dtype and device in a block: an environment's module may have changed them.

    Yields lines for the user.
    """
    dtype, device = torch.get_default_dtype(), torch.get_default_device()
    if dtype == torch.float32 and device.type in ("cpu", "meta"):
        yield []
        return
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    try:
        yield [
            f"torch's default dtype and device ({dtype}, {device}) are float32 and cpu while the run is "
            "open; with env.manager.type=subprocess the environments keep their own"
        ]
    finally:
        torch.set_default_dtype(dtype)
        torch.set_default_device(device)


def keep_freed_memory() -> None:
    """Makes glibc reuse freed memory instead of returning it to the system; lasts as long as the process.

    Every minibatch allocates and frees its activations. By default glibc returns large blocks to the system,
    which zeroes their pages at the next allocation: a quarter of the time of a gradient step on images.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:  # musl has none
        for option, value in {M_MMAP_MAX: 0, M_TRIM_THRESHOLD: 2**31 - 1, M_TOP_PAD: HEAP_GROWTH}.items():
            mallopt(option, value)
