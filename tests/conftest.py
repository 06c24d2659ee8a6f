"""One-thread torch, and on the path this folder, that of tests' environments and that of shipped configs."""

import gc
import os
import signal
import sys
from pathlib import Path

# NumPy's threads spin on the core of the other of two test processes: the whole suite took twice as long.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
import torch

sys.path += [str(Path(__file__).parents[1] / "configs"), str(Path(__file__).parent / "envs")]
torch.set_num_threads(1)
gc.disable()  # until all tests are collected
# Their tests take long, so they begin first: else one process works at the end while another waits.
LONG = (
    *("cli/test_cli", "cli/test_seeds", "envs/workers/test_ray", "ranks/", "reference/", "tools/test_sweep"),
    *("test_benchmarks", "test_combinations", "test_docs", "test_examples"),
)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests' own runs are told to end by it, under nohup too


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items):
    """Skips tests that need a GPU where there is none, and lets long tests begin first.

    Keeps ``k`` cases of a test with ``@pytest.mark.daily(k)`` in the daily run; the others are slow.
    """
    mark(items)
    result = yield  # where the tests of this run are selected
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))
    if processes > 1:
        items[:] = spread(items, processes)
    return result


@pytest.hookimpl(trylast=True)
def pytest_collection_finish():
    """Excludes torch, the tests and all else that lives as long as the process from garbage collection."""
    gc.freeze()
    gc.enable()


def spread(items, processes):
    """Returns the tests in an order in which each process begins with its share of the long files.

    Each process takes an equally long part of the list, and gives of its end to one that has none left.
    """
    long, short, order = {}, [], []
    for item in items:
        file = item.nodeid.partition("::")[0].removeprefix("tests/")
        (long.setdefault(file, []) if file.startswith(LONG) else short).append(item)
    for k in range(processes):
        order += [item for tests in list(long.values())[k::processes] for item in tests]
        room = max(0, len(items) * (k + 1) // processes - len(order))
        order, short = order + short[:room], short[room:]
    return order


def mark(items):
    without_gpu = pytest.mark.skip(reason="it needs a GPU, and there is none")
    cases = {}
    for item in items:
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(without_gpu)
        if item.get_closest_marker("daily"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for group in cases.values():
        (kept,) = group[0].get_closest_marker("daily").args
        daily = {len(group) * k // kept for k in range(kept)}
        for number, item in enumerate(group):
            if number not in daily:
                item.add_marker("slow")


@pytest.fixture(scope="session")
def warm():
    """A process that real commands are forked from."""
    from processes import warm

    return warm()


@pytest.fixture(autouse=True, scope="session")
def interruptible():
    """SIGINT raises KeyboardInterrupt, in commands that tests start too, where ``nohup ... &`` ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
