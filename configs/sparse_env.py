"""Environments whose reward is 0 until something is reached."""

from __future__ import annotations

from typing import Any

import gymnasium as gym


class _OnlyAtTheTop(gym.Wrapper):
    def step(self, action: Any) -> Any:
        obs, _, terminated, truncated, info = self.env.step(action)
        return obs, float(terminated), terminated, truncated, info


def sparse_mountaincar(env_id: str = "MountainCar-v0") -> gym.Env:
    """MountainCar with a reward of 1 at the top, and 0 elsewhere; an episode has at most 200 steps.

    A policy of random actions does not reach the top in 200 steps.
    """
    return _OnlyAtTheTop(gym.make(env_id))
