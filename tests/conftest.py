"""One-thread torch, and on the path this folder, that of tests' environments and that of shipped configs."""

import gc
import os
import signal
import sys
import tempfile
from pathlib import Path

# NumPy's threads spin on the core of the other of two test processes: the whole suite took twice as long.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", f"{tempfile.gettempdir()}/hypothesis")  # not here

import pytest
import torch
from hypothesis import settings

sys.path += [str(Path(__file__).parents[1] / "configs"), str(Path(__file__).parent / "envs")]
torch.set_num_threads(1)
gc.disable()  # until all tests are collected; see below
# Properties: the same examples in each run. The slow tests try more of them.
settings.register_profile("daily", derandomize=True, deadline=None, database=None, max_examples=50)
settings.register_profile("slow", settings.get_profile("daily"), max_examples=200)
settings.load_profile("daily")
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests' own runs are told to end by it, under nohup too


def pytest_collection_modifyitems(items):
    """Skips tests that need a GPU where there is none."""
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="it needs a GPU, and there is none"))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish():
    """Excludes torch and all tests from garbage collection, which saves a fifth of the time."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True, scope="session")
def interruptible():
    """SIGINT raises KeyboardInterrupt, in commands that tests start too, where ``nohup ... &`` ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
