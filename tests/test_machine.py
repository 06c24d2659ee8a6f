"""Threads and memory of a run's process: what torch and the system say of them."""

import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
import torch

from ding_lite.envs.worker_process import cores
from ding_lite.machine import use_threads

VECTOR, IMAGE = gym.spaces.Box(-1, 1, (4,)), gym.spaces.Box(0, 255, (8, 8, 3), np.uint8)


@pytest.mark.parametrize(
    ("wanted", "space", "threads"), [("auto", VECTOR, 1), ("auto", IMAGE, cores()), (3, VECTOR, 3)]
)
def test_images_get_every_core_and_vectors_one(wanted, space, threads):
    before = torch.get_num_threads()
    try:
        use_threads(wanted, space)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


def faults(keep):
    """Pages that the system zeroes while 64 MiB are made and let go ten times, once the heap has grown."""
    code = (
        "import resource, torch; from ding_lite.machine import keep_freed_memory\n"
        f"if {keep}: assert keep_freed_memory()\n"
        "count = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "for _ in range(10): torch.ones(2**24)\n"  # a small block between two large ones may cost some
        "before = count()\n"
        "for _ in range(10): torch.ones(2**24)\n"
        "print(count() - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's")
def test_memory_that_is_freed_is_not_zeroed_anew():
    pages = 10 * 2**26 // 4096
    assert faults(keep=False) > pages / 4  # huge pages may spare some of them
    assert faults(keep=True) < pages / 100
