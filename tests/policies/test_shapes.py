"""Shapes of a distribution that would broadcast in a loss are refused when the policy is built."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from worlds import policy_for, vector_of

from ding_lite.errors import ContractError
from ding_lite.rl.distributions import LOG_2PI, Normal
from ding_lite.testing import MatchEnv


class LogProbs(Normal):
    def log_prob(self, action):
        z = (action - self.mu) / self.sigma
        return -0.5 * (z * z + LOG_2PI) - self.sigma.log()


class Entropies(Normal):
    def entropy(self):
        return 0.5 * (1 + LOG_2PI) + self.sigma.log()


class MeanKl(Normal):
    def kl(self, other):
        return super().kl(other).mean()


class OverRows(Normal):
    def entropy(self):
        return (0.5 * (1 + LOG_2PI) + self.sigma.log()).sum(0)


class Flat(Normal):
    def sample(self, generator=None):
        return super().sample(generator)[..., 0]


class FlatMode(Normal):
    def mode(self):
        return self.mu[..., 0]


class FlatActions(Normal):
    @staticmethod
    def to_bounds(action, low, high):
        return action[..., 0]


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        (LogProbs, r"LogProbs.log_prob must .*here \(5,\); got \(5, 1\)"),
        (Entropies, r"Entropies.entropy must .*here \(5,\); got \(5, 1\)"),
        (MeanKl, r"MeanKl.kl must .*here \(5,\); got \(\)"),
        (OverRows, r"OverRows.entropy must .*here \(5,\); got \(1,\)"),
        (Flat, r"Flat.sample must .*here \(5, 1\).*; got \(5,\)"),
        (FlatMode, r"FlatMode.mode must .*here \(5, 1\).*; got \(5,\)"),
        (FlatActions, r"VAC\): actor_head.to_env must .*here \(5, 1\).*; got \(5,\)"),
    ],
)
def test_shapes_that_would_broadcast_are_refused_when_the_policy_is_built(wrong, what, nested):
    """An action of one dimension hides them: (N, 1) and (N,) give (N, N), whose mean is a number."""
    box = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
    space = gym.spaces.Dict(one=gym.spaces.Discrete(2), two=box) if nested else box
    envs = vector_of(lambda index: MatchEnv(space), 2)
    with pytest.raises(ContractError, match=what):
        policy_for(envs, model=dict(box_distribution=wrong))
    policy_for(envs, model=dict(box_distribution=Normal))


@pytest.mark.parametrize("limit", [np.inf, np.finfo(np.float32).max])
def test_observations_without_bounds_can_be_checked(limit):
    class Unbounded(MatchEnv):
        def __init__(self):
            super().__init__(gym.spaces.MultiBinary(2))
            self.observation_space = gym.spaces.Box(-limit, limit, (2,), np.float32)

    policy_for(vector_of(lambda index: Unbounded(), 2), model=dict(activation="relu"))
