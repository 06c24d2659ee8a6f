"""Threads and memory of a run's process: what torch and the system say of them."""

import os
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch

from ding_lite.envs.worker_process import cores
from ding_lite.errors import ConfigError
from ding_lite.machine import leaving_cores, out_of_memory, use_threads

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


@pytest.mark.parametrize(
    ("threads", "busy", "left"), [(8, 0, 8), (8, 2, 6), (8, 7, 1), (8, 9, 1), (3, 2, 3), (1, 0, 1), (1, 1, 1)]
)
def test_cores_that_others_use_are_left_to_them(threads, busy, left, monkeypatch):
    monkeypatch.setattr("ding_lite.machine.cores", lambda: 8)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        with leaving_cores(busy):
            assert torch.get_num_threads() == left
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "MemoryError"),
        (MemoryError("Unable to allocate 1 TiB\nhere"), "Unable to allocate 1 TiB"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory"),
            "DefaultCPUAllocator: can't allocate memory",
        ),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), ""),
        (ConfigError("DefaultCPUAllocator, says the environment"), ""),
        (KeyboardInterrupt(), ""),
    ],
)
def test_only_missing_memory_is_told_as_that(error, said):
    assert out_of_memory(error) == said


def test_memory_that_torch_and_numpy_cannot_have_is_told():
    for take in (
        lambda: torch.empty(2**62),
        lambda: np.zeros(2**50),
        lambda: np.zeros((10**9, 10**9, 10**9)),
    ):
        with pytest.raises((MemoryError, RuntimeError, ValueError)) as caught:
            take()
        assert out_of_memory(caught.value)


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
    assert faults(keep=True) < pages / 5  # glibc may let go of one of the ten blocks


def idle_seconds(**environment):
    """CPU time that torch's threads take in 20 ms of sleep after a call, in the mean."""
    code = (
        "import ding_lite, time, torch\n"
        "torch.set_num_threads(2)\n"
        "x, spent = torch.ones(2**20), 0.0\n"
        "for _ in range(20):\n"
        "    x + 1\n"
        "    began = time.process_time(); time.sleep(0.02); spent += time.process_time() - began\n"
        "print(spent / 20)"
    )
    plain = {name: x for name, x in os.environ.items() if not name.startswith(("GOMP_", "OMP_"))}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**plain, **environment})
    return float(done.stdout)


def has_gnu_openmp():
    """Whether this torch has GNU's; conda's has another."""
    return sys.platform == "linux" and "libgomp" in Path("/proc/self/maps").read_text()


@pytest.mark.skipif(cores() < 2, reason="threads that share a core do not wait on it")
@pytest.mark.skipif(not has_gnu_openmp(), reason="it is GNU's OpenMP that is told")
def test_threads_with_nothing_to_do_let_go_of_their_core():
    whole_sleep = idle_seconds(GOMP_SPINCOUNT="3000000000")  # what the user says goes, and it can be seen
    assert whole_sleep > 10e-3
    assert idle_seconds() < whole_sleep / 4
    assert idle_seconds(OMP_WAIT_POLICY="active") > whole_sleep / 2
