"""The library against the algorithms written from their formulas, on random configurations.

``sweep`` makes one case per seed. The daily tests compare a few cases. The slow ones compare 600 cases, and
check that the comparison finds faults planted in the library.
"""

import itertools
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch

from reference import ranks, sweep
from reference.distributions import distribution
from reference.faults import FAULTS
from reference.recording import ACTION_SPACES, Mismatch

ALL = 600  # cases
DAILY = range(0, 50, 5)  # of all kinds
DAILY_FAULTS = ("no gamma in delta", "the value clip is no maximum")
TRIED = 10  # cases that may show a fault
TIES = 4  # number of cases that may differ because they are too near to a corner of a loss: see sweep.TIE

# Mechanisms, each of which must occur in at least OFTEN cases: else the agreement would not test it.
OFTEN = 20
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
    if outcome.tie is not None:
        pytest.skip(f"float32 may go another way here: {outcome.tie}")
    assert outcome.difference is None


@pytest.mark.slow
def test_many_cases_agree_with_the_reference_and_use_every_mechanism_and_option():
    found = [sweep.compare(sweep.random_case(seed)) for seed in range(ALL)]
    assert [(o.seed, o.difference) for o in found if o.disagrees] == []
    assert [(o.seed, o.difference, o.tie) for o in found if o.tie is not None][TIES:] == []
    happened = Counter(what for outcome in found for what in outcome.seen)
    assert {what: happened[what] for what in MECHANISMS if happened[what] < OFTEN} == {}
    drawn = Counter((name, str(value)) for outcome in found for name, value in outcome.chosen.items())
    offered = {(name, value) for name, own in sweep.Chooser.offered.items() for value in own}
    assert {option: drawn[option] for option in offered if drawn[option] < 5} == {}


@pytest.mark.parametrize(
    "fault",
    [pytest.param(f, id=f.name, marks=[] if f.name in DAILY_FAULTS else pytest.mark.slow) for f in FAULTS],
)
def test_the_comparison_finds_a_planted_fault(fault):
    cases = (case for case in map(sweep.random_case, range(ALL)) if fault.shows(case))
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
@pytest.mark.parametrize(("count", "seeds"), [(2, range(24)), (4, range(24, 32))])
def test_ranks_do_together_what_one_process_does(count, seeds, tmp_path):
    found = launched(count, tmp_path, seeds)
    assert [(o.seed, o.difference) for o in found if o.disagrees] == []


@pytest.mark.slow
def test_ranks_that_learn_alone_are_found(tmp_path):
    assert all(outcome.disagrees for outcome in launched(2, tmp_path, range(4), "alone"))


def random_parameters(name, box, rng):
    """Returns the parameters (1, ...) of a distribution over a space with one leaf."""
    if name != "box":
        sizes = {"discrete": 3, "multi_discrete": 5, "multi_binary": 3}
        return torch.tensor(rng.normal(size=(1, sizes[name])))
    if box == "beta":
        return {key: torch.tensor(1.5 + rng.random((1, 2))) for key in ("alpha", "beta")}
    return {"mu": torch.tensor(rng.normal(size=(1, 2))), "sigma": torch.tensor(0.4 + rng.random((1, 2)))}


def every_action(name, space, box):
    """Returns a grid of actions (M, ...), and the volume of environment actions of each grid cell, (M,)."""
    if name != "box":
        sizes = {"discrete": (3,), "multi_discrete": (2, 3), "multi_binary": (2, 2, 2)}[name]
        actions = torch.tensor(list(np.ndindex(*sizes)))
        return actions[:, 0] if name == "discrete" else actions, torch.ones(len(actions))
    low, high = (0.0, 1.0) if box == "beta" else (-8.0, 8.0)
    edges = np.linspace(low, high, 301)
    middle, width = (edges[1:] + edges[:-1]) / 2, np.diff(edges)
    actions = torch.cartesian_prod(*[torch.tensor(middle)] * 2)
    share = torch.cartesian_prod(*[torch.tensor(width)] * 2).prod(-1)
    if box == "normal":
        return actions, share
    whole = float(np.prod(space.high.astype(float) - space.low))
    slope = (1 - torch.tanh(actions) ** 2).prod(-1) / 4 if box == "tanh_normal" else 1.0
    return actions, share * whole * slope


@pytest.mark.parametrize(
    ("name", "box"),
    [
        *(("discrete", ""), ("multi_discrete", ""), ("multi_binary", "")),
        *(("box", "normal"), ("box", "tanh_normal"), ("box", "beta")),
    ],
)
def test_entropy_and_kl_of_the_reference_are_sums_over_all_actions(name, box):
    rng, space = np.random.default_rng(0), ACTION_SPACES[name]
    p, q = (distribution(space, box, random_parameters(name, box, rng), None) for _ in range(2))
    actions, share = every_action(name, space, box)

    if box:
        log_p, log_q = p.log_prob(actions), q.log_prob(actions)
    else:  # one row per index
        log_p, log_q = (torch.cat([dist.log_prob(a[None]) for a in actions]) for dist in (p, q))
    of = log_p.exp() * share
    assert float(of.sum()) == pytest.approx(1, abs=1e-4)
    assert -float((of * log_p).sum()) == pytest.approx(float(p.entropy()[0]), abs=1e-3)
    assert float((of * (log_p - log_q)).sum()) == pytest.approx(float(p.kl(q)[0]), abs=1e-3)


def test_actions_that_are_not_legal_have_no_part_in_entropy_and_kl():
    logit, mask = torch.tensor([[0.3, 9.0, -0.2]], dtype=torch.float64), torch.tensor([[True, False, True]])
    space, two = ACTION_SPACES["discrete"], gym.spaces.Discrete(2)
    p, q = (distribution(space, "", x, mask) for x in (logit, 2 * logit))
    legal_p, legal_q = (distribution(two, "", x[:, [0, 2]], None) for x in (logit, 2 * logit))
    assert torch.allclose(p.entropy(), legal_p.entropy())
    assert torch.allclose(p.kl(q), legal_p.kl(legal_q))
    with pytest.raises(Mismatch, match="illegal"):
        p.log_prob(torch.tensor([1]))
