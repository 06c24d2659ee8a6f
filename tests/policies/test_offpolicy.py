"""Off-policy PPO: what is drawn, how often, and what it is weighed by."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from small_worlds import SeededBox, SeededEnv, SeededTree
from worlds import digest, merged, trainee

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
    policy.slopes = lambda: None  # which stand for the losses
    return seen


@pytest.mark.parametrize("proximal", ["decoupled", "behaviour"])
@pytest.mark.parametrize("world", [SeededEnv, SeededBox, SeededTree])
def test_ratios_and_weights_of_fresh_and_of_older_samples(world, proximal):
    learn = {"proximal": proximal, "weight_bound": 1.05}
    policy, collect = make(world=world, autoreset="next_step", **merged(REUSED, {"learn": learn}))
    mu = {}
    for _ in range(4):
        rollout = collect()
        mu |= zip(rollout.mark.flatten().tolist(), rollout.log_prob.flatten().tolist(), strict=True)
        if len(mu) < 4 * N_SAMPLE:
            policy.learn_mode.forward(rollout)
    policy.replay.push(rollout)
    policy.set_proximal(policy.replay)
    assert [policy.replay.age(stored) for stored in policy.replay.rollouts] == [3, 2, 1, 0]
    ages = set()
    for batch in policy.minibatches(policy.replay).batches:
        log_pi = policy.distribution(batch.obs, policy.model.compute_actor(batch.obs)).log_prob(batch.action)
        ratio = (log_pi - batch.log_prob).exp().detach()
        fresh = batch.mark >= 3000
        torch.testing.assert_close(ratio[fresh], torch.ones(int(fresh.sum())), atol=2e-5, rtol=0)
        of_mu = torch.tensor([mu[mark] for mark in batch.mark.tolist()])
        weight = (log_pi.detach() - of_mu).exp()
        if proximal == "decoupled":
            torch.testing.assert_close(ratio, torch.ones_like(ratio), atol=2e-5, rtol=0)
            torch.testing.assert_close(batch.policy_weight, weight.clamp(max=1.05), rtol=1e-4, atol=0)
            assert torch.equal(batch.policy_weight[fresh], torch.ones(int(fresh.sum())))
        else:
            assert batch.policy_weight is None
            torch.testing.assert_close(ratio, weight, rtol=1e-4, atol=0)
            assert not torch.isclose(ratio[~fresh], torch.ones(1), atol=1e-4).all()
        ages |= set((3 - batch.mark // 1000).tolist())
    assert ages == {0, 1, 2, 3}


def test_metrics_of_the_buffer_are_those_counted_by_hand():
    policy, collect = make(autoreset="next_step", **REUSED)
    for _ in range(3):
        policy.learn_mode.forward(collect())
    start, rollout = copy.deepcopy(policy), collect()
    told = policy.learn_mode.forward(rollout)
    ages, ratios = [], []
    start.replay.push(rollout)
    for stored in start.replay.rollouts:
        log_prob = start.over_rollout(start.log_prob, stored.rollout, stored.rollout.action)
        ratio = (log_prob - stored.rollout.log_prob).exp()[stored.rollout.valid]
        age = start.replay.age(stored)
        outside = float(((ratio - 1).abs() > 0.2).float().mean())
        assert (outside > 0) == (age > 0)
        ages += [age] * len(ratio)
        ratios.append(ratio)
    ratio = torch.cat(ratios)
    outside = ((ratio - 1).abs() > 0.2).float().mean()
    assert told["buffer_outside_clip"] == pytest.approx(float(outside), abs=1e-6)
    assert told["buffer_ratio_mean"] == pytest.approx(float(ratio.mean()), rel=1e-5)
    assert told["buffer_ratio_max"] == pytest.approx(float(ratio.max()), rel=1e-5)
    assert told["buffer_age"] == pytest.approx(sum(ages) / len(ages))
    assert told["buffer_samples"] == len(ages)


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


REFUSED = {
    "max_use 0": ({"other": {"replay_buffer": {"max_use": 0}}}, r"max_use.*at least 1"),
    "a bound below that of fresh samples": ({"learn": {"weight_bound": 0.5}}, r"weight_bound.*at least 1"),
    "epochs": ({"learn": {"epoch_per_collect": 3}}, r"learn\.epoch_per_collect.*on_policy"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_config_that_cannot_work_is_refused_saying_why(name):
    policy, message = REFUSED[name]
    with pytest.raises(ConfigError, match=message):
        make("ppo_offpolicy", **policy)


@pytest.mark.parametrize("learn", [{"update_per_collect": 7}, {"reuse": 2.0}, {"proximal": "behaviour"}])
def test_a_key_of_off_policy_learning_is_refused_on_policy(learn):
    with pytest.raises(ConfigError, match=rf"policy\.learn\.{next(iter(learn))}.*on_policy"):
        make("ppo", learn=learn)
    make("ppo", on_policy=False, learn=learn)
