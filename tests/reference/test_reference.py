"""The library against the algorithms written from their formulas, on random configurations.

``sweep`` makes one case per seed. The daily tests compare 40 cases, the slow ones 60, ``make learn`` 600.
Others check that the comparison finds faults planted in the library.
"""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cases import slow_but

from reference import ranks, sweep
from reference.faults import FAULTS

DAILY_FAULTS = ("no gamma in delta", "the value clip is no maximum")
TRIED = 10  # cases that may show a fault
TIES = 1  # number of cases that may differ because they are too near to a corner of a loss: see sweep.TIE


@pytest.mark.parametrize("seed", range(40))
def test_the_library_agrees_with_the_reference(seed):
    outcome = sweep.compare(sweep.random_case(seed))
    assert outcome.difference is None, outcome.tie


@pytest.mark.slow
def test_more_cases_agree_and_all_of_them_use_every_mechanism():
    found = [sweep.compare(sweep.random_case(seed)) for seed in range(60)]
    assert [(o.seed, o.difference) for o in found if o.disagrees] == []
    assert [(o.seed, o.difference, o.tie) for o in found if o.tie is not None][TIES:] == []
    assert set(sweep.MECHANISMS) - set().union(*(outcome.seen for outcome in found)) == set()


@pytest.mark.parametrize(
    "fault",
    slow_but([fault for fault in FAULTS if fault.name in DAILY_FAULTS], FAULTS),
    ids=lambda fault: fault.name,
)
def test_the_comparison_finds_a_planted_fault(fault):
    cases = (case for case in map(sweep.random_case, range(150)) if fault.shows(case))
    with fault.planted():
        assert any(sweep.compare(case).disagrees for case in itertools.islice(cases, TRIED))


def launched(count, folder, seeds, fault="none"):
    """Returns the outcomes of cases that ``count`` real processes share."""
    program = Path(ranks.__file__)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
    paths = [str(program.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [*command, program, folder, fault, *map(str, seeds)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [ranks.compare(folder, seed, count) for seed in seeds]


@pytest.mark.slow
def test_ranks_do_together_what_one_process_does(tmp_path):
    found = launched(2, tmp_path, range(8))
    assert [(o.seed, o.difference) for o in found if o.disagrees] == []


@pytest.mark.slow
def test_ranks_that_learn_alone_are_found(tmp_path):
    assert all(outcome.disagrees for outcome in launched(2, tmp_path, range(2), "alone"))
