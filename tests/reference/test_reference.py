"""The library against the algorithms written from their formulas, on random configurations.

``sweep`` makes one case per seed. The daily tests compare 40 cases, the slow ones 150, ``make learn`` 600.
Slow tests also check that the comparison finds faults planted in the library.
"""

import itertools
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from reference import ranks, sweep
from reference.faults import FAULTS

ALL = range(150)  # cases
DAILY = range(13, 53)  # which use every mechanism
DAILY_FAULTS = ("no gamma in delta", "the value clip is no maximum")
TRIED = 10  # cases that may show a fault
TIES = 1  # number of cases that may differ because they are too near to a corner of a loss: see sweep.TIE

# Mechanisms, each of which must occur in at least OFTEN cases: else the agreement would not test it.
OFTEN = 5
MECHANISMS = (
    *("terminated", "truncated", "filler", "filler in row 0"),
    *("the clip", "the dual clip", "the value clip", "the straight part of smooth L1", "target_kl"),
    *("grad_clip_type=clip_norm", "grad_clip_type=clip_value", "log sigma at its bound"),
    *("the observation clip", "the reward clip", "V-trace", "the weight bound"),
    *("a sample alone joins a minibatch", "the last pass is cut short", "a rollout makes room"),
    *("too little to draw", "the auxiliary phase", "the auxiliary phase, again", "an intrinsic reward"),
    "another learning rate",
    *("kl_type=exact", "kl_type=k1", "kl_type=k2", "kl_type=k3", "a hidden state of an open episode"),
)


@pytest.mark.parametrize("seed", DAILY)
def test_the_library_agrees_with_the_reference(seed):
    outcome = sweep.compare(sweep.random_case(seed))
    assert outcome.difference is None, outcome.tie


@pytest.mark.slow
def test_many_cases_agree_with_the_reference_and_use_every_mechanism_and_option():
    found = [sweep.compare(sweep.random_case(seed)) for seed in ALL]
    assert [(o.seed, o.difference) for o in found if o.disagrees] == []
    assert [(o.seed, o.difference, o.tie) for o in found if o.tie is not None][TIES:] == []
    happened = Counter(what for outcome in found for what in outcome.seen)
    assert {what: happened[what] for what in MECHANISMS if happened[what] < OFTEN} == {}
    assert set(MECHANISMS) <= set().union(*(found[seed].seen for seed in DAILY))
    drawn = Counter((name, str(value)) for outcome in found for name, value in outcome.chosen.items())
    offered = {(name, value) for name, own in sweep.Chooser.offered.items() for value in own}
    assert offered - drawn.keys() == set()


@pytest.mark.parametrize(
    "fault",
    [pytest.param(f, id=f.name, marks=[] if f.name in DAILY_FAULTS else pytest.mark.slow) for f in FAULTS],
)
def test_the_comparison_finds_a_planted_fault(fault):
    cases = (case for case in map(sweep.random_case, ALL) if fault.shows(case))
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
@pytest.mark.parametrize(("count", "seeds"), [(2, range(12)), (4, range(12, 16))])
def test_ranks_do_together_what_one_process_does(count, seeds, tmp_path):
    found = launched(count, tmp_path, seeds)
    assert [(o.seed, o.difference) for o in found if o.disagrees] == []


@pytest.mark.slow
def test_ranks_that_learn_alone_are_found(tmp_path):
    assert all(outcome.disagrees for outcome in launched(2, tmp_path, range(2), "alone"))
