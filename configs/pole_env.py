"""CartPole with a pole of another length."""

from __future__ import annotations

import gymnasium as gym
from gymnasium.envs.classic_control import CartPoleEnv


def cartpole(length: float = 0.5) -> gym.Env:
    """CartPole-v1 whose pole has the half-length ``length``; gymnasium's own is 0.5."""
    env = gym.make("CartPole-v1")
    pole = env.unwrapped
    assert isinstance(pole, CartPoleEnv)
    pole.length = length
    pole.polemass_length = pole.masspole * length
    return env
