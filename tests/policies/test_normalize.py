"""When each scale takes in a rollout: rewards before their advantages, values before the first epoch."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from anything import Anything
from small_worlds import SeededBox, SeededEnv
from worlds import finished, merged, small_config, trainee

from ding_lite import PPOPolicy, SerialPipeline
from ding_lite.rl.scales import RewardScale

GAMMA = 0.9
SCALED = dict(normalize=dict(reward=True), collect=dict(discount_factor=GAMMA))


def copies(collector, count):
    """Returns ``count`` rollouts; the collector writes each of them over the one before."""
    found = []
    for _ in range(count):
        rollout = collector.collect()
        found.append(type(rollout)({name: field.clone() for name, field in rollout.items()}))
    return found


@pytest.mark.parametrize("rollouts", [1, 3])
def test_rollouts_are_in_the_scale_once_before_they_are_learned_from(rollouts):
    policy, collector = trainee("ppo", SeededEnv, **SCALED)
    collected = copies(collector, rollouts)
    count, std = policy.reward_scale.count, float(policy.reward_scale.std)
    for rollout in collected:
        policy.learn_mode.forward(rollout)
    assert (policy.reward_scale.count, float(policy.reward_scale.std)) == (count, std)
    assert count == sum(int(rollout.valid.sum()) for rollout in collected)


def test_a_policy_with_its_own_credit_has_a_reward_scale_in_time():
    class OneStep(PPOPolicy):
        def _get_train_sample(self, rollout):
            rollout.value = torch.zeros_like(rollout.reward)
            rollout.advantage = rollout.value_target = self.reward_scale(rollout.reward)
            return rollout

    policy, collector = trainee("ppo", SeededEnv, cls=OneStep, **SCALED)
    (rollout,) = copies(collector, 1)
    std = float(policy.reward_scale.std)
    assert abs(std - 1) > 0.1
    torch.testing.assert_close(rollout.advantage, rollout.reward / std)
    policy.learn_mode.forward(rollout)
    assert policy.reward_scale.count == 64


def test_a_discount_that_a_script_changes_counts_for_every_scale_and_advantage():
    rnd = dict(intrinsic=dict(type="rnd", encoder_hidden_size_list=[8]))
    policy, collector = trainee("ppo", SeededEnv, **merged(SCALED, rnd))
    (rollout,) = copies(collector, 1)
    found = [(policy.reward_scale.running_return, policy.intrinsic.credit(rollout)[0])]
    policy.cfg.collect.update(discount_factor=0.5, gae_lambda=0.2)
    policy.reward_scale.running_return = None
    policy._prepare_rollout(rollout)
    found.append((policy.reward_scale.running_return, policy.intrinsic.credit(rollout)[0]))
    assert all((one != other).any() for one, other in zip(*found, strict=True))


def test_no_return_runs_on_over_a_row_that_is_not_valid():
    """An open episode may have been lost with its worker before such a row."""
    policy, collector = trainee("ppo", SeededEnv, **merged(SCALED, {"normalize": {"reward_discount": 1.0}}))
    (rollout,) = copies(collector, 1)
    scale = policy.reward_scale = RewardScale()
    steps = len(rollout.reward)
    rollout.reward = torch.ones_like(rollout.reward)
    rollout.terminated = rollout.truncated = torch.zeros_like(rollout.valid)
    rollout.valid = (torch.arange(steps) % 2 == 0)[:, None].expand_as(rollout.valid).clone()
    policy._prepare_rollout(rollout)
    assert (scale.count, scale.mean, scale.var) == (4 * steps / 2, 1.0, 0.0)
    assert scale.running_return.tolist() == [0.0] * 4
    rollout.valid = (torch.arange(steps) > 0)[:, None].expand_as(rollout.valid).clone()
    scale.running_return[:] = 100.0
    policy._prepare_rollout(rollout)
    assert scale.running_return.tolist() == [steps - 1.0] * 4


def test_a_first_reward_after_a_rollout_without_any_is_of_unit_scale():
    """The std of no reward at all is 1e-4; to divide the first reward by it gave thousands."""

    class Late(SeededEnv):
        def step(self, action):
            obs, _, *rest = super().step(action)
            self.steps = getattr(self, "steps", 0) + 1
            return obs, float(self.steps > 16), *rest

    _, collector = trainee("ppo", Late, n_sample=64, envs=4, **SCALED)
    first, second = copies(collector, 2)
    assert (first.reward == 0).all()
    assert (second.reward == 1).all()
    assert second.advantage.abs().max() < 50


def test_observations_begin_with_random_steps_and_go_on_from_there(tmp_path):
    config = small_config(SeededBox, policy=dict(normalize=dict(obs=True, obs_samples=100)))
    pipeline = SerialPipeline(config, folder=tmp_path / "run")
    (stats,) = pipeline.policy.obs_norm.stats.values()
    assert (stats.count, pipeline.progress.env_step) == (100, 0), "random steps are counted apart"
    assert stats.mean[0] > 0.5, "the first number counts the steps of an episode"
    for progress in pipeline:
        assert stats.count == 100 + progress.env_step


def test_random_steps_for_an_intrinsic_reward_leave_the_scale_that_weights_brought(tmp_path):
    config = small_config(SeededBox, policy=dict(normalize=dict(obs="initial", obs_samples=100)))
    finished(SerialPipeline(config, folder=tmp_path / "first"))
    config = merged(config, {"seed": 5, "policy": {"intrinsic": {"type": "rnd"}}})
    with SerialPipeline(config, folder=tmp_path / "second", init_from=tmp_path / "first") as pipeline:
        (stats,), (of_reward,) = (norm.stats.values() for norm in pipeline.policy.obs_norms)
    assert stats.count == of_reward.count == 100
    assert not np.allclose(stats.mean, of_reward.mean), "of other steps"


@pytest.mark.parametrize(("kind", "steps"), [("box", 1000), ("image-hwc", 0), ("box-int", 1000)])
def test_random_steps_are_for_observations_that_are_scaled(kind, steps):
    policy, _ = trainee("ppo", partial(Anything, kind), normalize=dict(obs=True))
    assert policy.warm_up_steps == steps
