"""Off-policy PPO: what is drawn, how often, and what it is weighed by."""

from __future__ import annotations

import itertools

import pytest
import torch
from small_worlds import SeededEnv, SeededTree
from worlds import digest, trainee

from ding_lite import ConfigError
from ding_lite.trees import map_tree, to_dict

BATCH, N_SAMPLE, ENVS = 16, 60, 3
REUSED = {  # four iterations of data, each with some steps on it
    "learn": {"update_per_collect": 5, "learning_rate": 0.02, "adv_norm": False},
    "other": {"replay_buffer": {"max_use": 100, "max_staleness": 3, "replay_buffer_size": 10_000}},
}


def make(kind="ppo_offpolicy", world=SeededEnv, autoreset="same_step", **policy):
    """Returns (policy, collect); every transition of what ``collect()`` returns has a ``mark`` of its own."""
    policy, collector = trainee(kind, world, N_SAMPLE, ENVS, autoreset=autoreset, **policy)
    count = itertools.count()

    def collect():
        rollout = collector.collect()
        rollout.mark = 1000 * next(count) + torch.arange(rollout.valid.numel()).view(rollout.valid.shape)
        return rollout

    return policy, collect


def spied(policy):
    """Returns a list that the marks of every minibatch of the loss are appended to."""
    seen, plain = [], policy.policy_loss
    policy.policy_loss = lambda batch: (seen.append(batch.mark.tolist()), plain(batch))[1]
    return seen


def test_nothing_of_a_transition_changes_while_it_is_in_the_buffer():
    """The collector's arrays are overwritten meanwhile."""
    policy, collect = make(**REUSED, autoreset="next_step", world=SeededTree)
    first = None
    for _ in range(4):
        rollout = collect()
        first = map_tree(torch.clone, to_dict(rollout)) if first is None else first
        policy.learn_mode.forward(rollout)
        oldest = policy.replay.rollouts[0]
        if oldest.iteration == 0:
            kept = to_dict(oldest.rollout)
            assert [name for name in first if digest(kept[name]) != digest(first[name])] == []
    assert len(policy.replay.rollouts) == 3


@pytest.mark.parametrize("learn", [{"update_per_collect": 7}, {"reuse": 2.0}, {"proximal": "behaviour"}])
def test_a_key_of_off_policy_learning_is_refused_on_policy(learn):
    with pytest.raises(ConfigError, match=rf"policy\.learn\.{next(iter(learn))}.*on_policy"):
        make("ppo", learn=learn)
    make("ppo", on_policy=False, learn=learn)
