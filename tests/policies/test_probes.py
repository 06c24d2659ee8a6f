"""Probe environments: each isolates one thing that learning needs, and has a known answer.

The first five are Andy Jones' (andyljones.com/posts/rl-debugging.html); the others tell truncation from
termination, and catch observations that are aliased.
"""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from ding_lite import SerialPipeline

GAMMA = 0.9


class Probe(gym.Env):
    """One step, one action, observation 0, reward 1; subclasses change one thing each."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(1)
    length, end = 1, "terminated"

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        self.obs = self.first()
        return self.shown(), {}

    def first(self):
        return 0.0

    def next(self):
        return self.obs

    def shown(self):
        return np.array([self.obs], np.float32)

    def reward(self, action):
        return 1.0

    def step(self, action):
        reward = self.reward(int(action))
        self.t += 1
        self.obs = self.next()
        over = self.t >= self.length
        return self.shown(), reward, over and self.end == "terminated", over and self.end == "truncated", {}


class Seen(Probe):
    """2: reward = observation: the value depends on it."""

    def first(self):
        return float(self.np_random.choice([-1.0, 1.0]))

    def reward(self, action):
        return self.obs


class Delayed(Probe):
    """3: two steps, reward at the end: V(0) = gamma."""

    length = 2

    def reward(self, action):
        return float(self.t == 1)

    def next(self):
        return 1.0


class Truncated(Probe):
    """6: reward 1 for ever, cut after 5 steps: V = 1 / (1 - gamma)."""

    length, end = 5, "truncated"


class Terminated(Truncated):
    """7: the same, but the task ends: the finite sum, by the step that the observation shows."""

    end = "terminated"

    def first(self):
        return -1.0

    def next(self):
        return self.obs + 0.4


class Aliased(Seen):
    """13: the same array is returned, and overwritten, every time."""

    def shown(self):
        if not hasattr(self, "array"):
            self.array = np.zeros(1, np.float32)
        self.array[0] = self.obs
        return self.array


def train(env, tmp_path, steps=6_000, **env_options):
    config = dict(
        max_env_step=steps,
        env=dict(type=env, n_evaluator_episode=8, **env_options),
        policy=dict(
            recompute_adv=False,
            learn=dict(
                learning_rate=5e-3, batch_size=64, epoch_per_collect=6, value_norm=False, adv_norm=False
            ),
            collect=dict(n_sample=512, discount_factor=GAMMA),
            eval=dict(eval_freq=0),
        ),
    )
    pipeline = SerialPipeline(config, folder=tmp_path / "run")
    for _ in pipeline:
        pass
    return pipeline


def value(pipeline, *obs):
    return pipeline.policy.values(torch.tensor(obs, dtype=torch.float32).unsqueeze(-1)).tolist()


def test_value_depends_on_the_observation_even_if_its_array_is_reused(tmp_path):
    assert value(train(Aliased, tmp_path), -1.0, 1.0) == pytest.approx([-1.0, 1.0], abs=0.1)


@pytest.mark.slow
def test_value_of_a_delayed_reward_is_discounted(tmp_path):
    assert value(train(Delayed, tmp_path), 0.0, 1.0) == pytest.approx([GAMMA, 1.0], abs=0.1)


def test_a_truncated_episode_still_has_a_future(tmp_path):
    found = value(train(Truncated, tmp_path, steps=20_000), 0.0)
    assert found == pytest.approx([1 / (1 - GAMMA)], rel=0.1)


class CutCalledEnd(Truncated):
    """The negative control of 6: the same world, with its cut reported as an end."""

    end = "terminated"


@pytest.mark.slow
def test_a_cut_reported_as_an_end_loses_its_future(tmp_path):
    found = value(train(CutCalledEnd, tmp_path, steps=20_000), 0.0)
    assert found != pytest.approx([1 / (1 - GAMMA)], rel=0.5)


@pytest.mark.slow
def test_a_terminated_episode_has_none(tmp_path):
    found = value(train(Terminated, tmp_path, steps=20_000), -1.0)[0]
    finite = (1 - GAMMA**5) / (1 - GAMMA)
    assert found == pytest.approx(finite, rel=0.1)
