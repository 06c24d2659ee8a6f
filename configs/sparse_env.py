"""Environments whose reward is found only by exploring."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np


class DeepSea(gym.Env):
    """A dive through ``size`` x ``size`` cells to a treasure in the last corner (arXiv:1908.03568).

    Each step goes one row down, and to the left or to the right; which action goes right differs between
    cells. A step to the right costs 0.01 / size, and the treasure is worth 1. Only the policy that
    always goes right gets it, for a return of 0.99; random actions find it in one of 2**size episodes.
    """

    def __init__(self, size: int = 20) -> None:
        self.size = size
        self.observation_space = gym.spaces.Box(0, 1, (size * size,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.right = np.random.default_rng(0).integers(0, 2, (size, size))  # the same in all environments

    def _obs(self) -> np.ndarray:
        obs = np.zeros(self.size * self.size, np.float32)
        if self.row < self.size:
            obs[self.row * self.size + self.column] = 1
        return obs

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.row = self.column = 0
        return self._obs(), {}

    def step(self, action: int) -> Any:
        goes_right = action == self.right[self.row, self.column]
        reward = -0.01 / self.size if goes_right else 0.0
        if goes_right and self.row == self.column == self.size - 1:
            reward += 1.0
        self.column = min(max(self.column + (1 if goes_right else -1), 0), self.size - 1)
        self.row += 1
        return self._obs(), reward, self.row == self.size, False, {}
