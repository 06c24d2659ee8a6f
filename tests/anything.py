"""Spaces of every kind, and an environment over any pair of them; imported by workers: no torch here."""

from __future__ import annotations

import copy

import gymnasium as gym
import numpy as np
from gymnasium import spaces

ACTIONS = {
    "discrete": spaces.Discrete(3, start=-2),
    "multi-discrete": spaces.MultiDiscrete([2, 3]),
    "multi-binary": spaces.MultiBinary(3),
    "box": spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, np.inf], np.float32)),
    "box-float64": spaces.Box(-2.0, 2.0, (1,), np.float64),
    "tree": spaces.Dict(
        move=spaces.Discrete(2),
        arm=spaces.Tuple([spaces.Box(-1, 1, (2,), np.float32), spaces.MultiBinary(2)]),
    ),
}
BOUNDED = spaces.Box(-1.0, 3.0, (2,), np.float32)
VARIANTS = {
    "tanh-normal": (BOUNDED, dict(box_distribution="tanh_normal")),
    "beta": (BOUNDED, dict(box_distribution="beta")),
    "conditioned": (BOUNDED, dict(sigma_type="conditioned", bound_type="soft")),
    "fixed": (BOUNDED, dict(sigma_type="fixed", fixed_sigma_value=0.5)),
}
OBSERVATIONS = {
    "box": spaces.Box(-1, 1, (3,), np.float32),
    "box-float64": spaces.Box(-np.inf, np.inf, (2, 2), np.float64),
    "box-int": spaces.Box(0, 9, (4,), np.int32),
    "bool-grid": spaces.Box(np.zeros((10, 10, 4), bool), np.ones((10, 10, 4), bool), dtype=np.bool_),
    "image-hwc": spaces.Box(0, 255, (36, 40, 3), np.uint8),
    "image-chw": spaces.Box(0, 255, (3, 36, 40), np.uint8),
    "discrete": spaces.Discrete(5, start=1),
    "multi-discrete": spaces.MultiDiscrete([2, 4]),
    "multi-binary": spaces.MultiBinary(4),
    "nested": spaces.Dict(
        zoo=spaces.Tuple([spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float32)]),
        ape=spaces.Dict(eye=spaces.Box(0, 255, (12, 12, 1), np.uint8)),
    ),
}


class Anything(gym.Env):
    """Random observations, by the seed of an episode; it has 5 steps, and is terminated or truncated."""

    def __init__(self, observation="box", action="discrete", mask=False):
        self.observation_space = copy.deepcopy(OBSERVATIONS[observation])  # with a generator of its own
        self.action_space = ACTIONS.get(action) or VARIANTS[action][0]
        self.mask = mask

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        self.t, self.is_terminated = 0, bool(self.np_random.integers(2))
        return self.observation_space.sample(), self.info()

    def info(self):
        if not self.mask:
            return {}
        self.legal = self.np_random.random(self.action_space.n) < 0.4
        self.legal[self.np_random.integers(self.action_space.n)] = True
        return {"action_mask": self.legal.astype(np.int8)}

    def step(self, action):
        if isinstance(self.action_space, spaces.Discrete):
            action = np.int64(action)
            assert not self.mask or self.legal[action - self.action_space.start], "an illegal action"
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        self.t += 1
        over = self.t >= 5
        obs = self.observation_space.sample()
        return obs, 1.0, over and self.is_terminated, over and not self.is_terminated, self.info()
