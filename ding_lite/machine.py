"""How a run uses this machine's cores and memory."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator

import gymnasium as gym
import torch

from ding_lite.envs.worker_process import cores
from ding_lite.errors import ConfigError, DingLiteError
from ding_lite.models.encoders import is_image, observation_leaves

# Names and numbers of glibc's <malloc.h>.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4
GROWTH = 2**26  # bytes that the heap grows by
# What torch and NumPy say of sizes that no memory has.
TOO_LARGE = (
    "DefaultCPUAllocator",
    "Storage size calculation overflowed",
    "Maximum allowed dimension",
    "array is too big",
)


def chosen_device(name: str, cuda: bool | None) -> torch.device:
    """Returns the device that a config's ``policy.device`` and ``policy.cuda`` ask for.

    Raises:
        ConfigError: if there is none such.
    """
    if cuda and name == "auto":
        name = "cuda"
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() and cuda is not False else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda", "mps"):
        raise ConfigError(f"policy.device: {name!r} is not one of auto, cpu, cuda, cuda:N, mps")
    count = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= count:
        raise ConfigError(
            f"policy.device: {name!r} was asked for, and torch sees {count} CUDA devices; "
            "use device='auto' or 'cpu'"
        )
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("policy.device: 'mps' was asked for, and torch has none here; use 'cpu'")
    return device


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


def out_of_memory(error: BaseException) -> str:
    """Returns in one line which memory ``error`` could not have; nothing where that is not what it says.

    On the CPU torch has no class of its own for that, and neither has NumPy for arrays beyond all memory.
    """
    if isinstance(error, DingLiteError) or not isinstance(error, (MemoryError, RuntimeError, ValueError)):
        return ""
    said = str(error).strip() or type(error).__name__
    found = isinstance(error, (MemoryError, torch.OutOfMemoryError)) or any(
        word in said for word in TOO_LARGE
    )
    return said.splitlines()[0][:200] if found else ""


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
