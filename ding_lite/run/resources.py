"""CPU threads and memory of the process that a run trains in."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator

import gymnasium as gym
import torch

from ding_lite.envs.workers.cores import cores
from ding_lite.errors import ConfigError, DingLiteError
from ding_lite.models.encoders import has_image

# Options of glibc's mallopt, from <malloc.h>.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4
HEAP_GROWTH = 2**26  # bytes
# Parts of the messages of torch and NumPy for sizes that exceed any memory. They raise no class of their own
# for these on the CPU.
TOO_LARGE = (
    "DefaultCPUAllocator",
    "Storage size calculation overflowed",
    "Maximum allowed dimension",
    "array is too big",
)


def thread_count(num_threads: int | str, obs_space: gym.Space) -> int:
    """Returns the number of torch's CPU threads that the config key ``num_threads`` asks for.

    Args:
        num_threads: a number, or "auto": 1 for vector observations, whose matrices are small, and every core
            where an observation is an image, but not more than the variable OMP_NUM_THREADS allows.
        obs_space: space of the observations.
    """
    if not isinstance(num_threads, str):
        return num_threads
    if not has_image(obs_space):
        return 1
    allowed = os.environ.get("OMP_NUM_THREADS", "")
    return min(cores(), max(1, int(allowed))) if allowed.isdigit() else cores()


_tuned = 0  # number of open blocks of tuned_process
_threads_before = 0  # torch's threads before the first of them


@contextlib.contextmanager
def tuned_process(num_threads: int) -> Iterator[None]:
    """Sets torch's CPU threads and keeps freed memory; the last open block restores the number of threads.

    :func:`keep_freed_memory` stays in effect: glibc has no call that reads or undoes its options.
    """
    global _tuned, _threads_before
    set_threads = torch.set_num_threads  # at the exit of the interpreter, the module may be gone
    if not _tuned:
        _threads_before = torch.get_num_threads()
    _tuned += 1
    keep_freed_memory()
    set_threads(num_threads)
    try:
        yield
    finally:
        _tuned -= 1
        if not _tuned:
            set_threads(_threads_before)


def keep_freed_memory() -> None:
    """Makes glibc reuse freed memory instead of returning it to the system; lasts as long as the process.

    Every minibatch allocates and frees its activations. By default glibc returns large blocks to the system,
    which zeroes their pages again at the next allocation: a quarter of the time of a gradient step on images.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:  # musl has none
        for option, value in {M_MMAP_MAX: 0, M_TRIM_THRESHOLD: 2**31 - 1, M_TOP_PAD: HEAP_GROWTH}.items():
            mallopt(option, value)


@contextlib.contextmanager
def explained_memory_errors(activity: str, advice: str) -> Iterator[None]:
    """Turns an error about missing memory, on any device, into a ConfigError that says what to lower.

    Args:
        activity: what the block does, as in "out of memory while <activity>".
        advice: the keys to lower, as a sentence.

    Raises:
        ConfigError: if the block runs out of memory. Other errors pass through.
    """
    try:
        yield
    except (MemoryError, RuntimeError, ValueError) as error:
        message = memory_error_message(error)
        if message is None:
            raise
        raise ConfigError(f"out of memory while {activity}: {message}. {advice}") from error


def memory_error_message(error: BaseException) -> str | None:
    """Returns the first line of an error about missing memory, or None for any other error."""
    if isinstance(error, DingLiteError) or not isinstance(error, (MemoryError, RuntimeError, ValueError)):
        return None
    text = str(error).strip() or type(error).__name__
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or any(part in text for part in TOO_LARGE):
        return text.splitlines()[0][:200]
    return None
