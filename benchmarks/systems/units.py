"""Tasks in other units: rewards, observations and actions are multiplied; what is learned stays the same."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import RescaleAction, TransformObservation, TransformReward

FORMS = {
    "as it is": {},
    "rewards x 0.001": dict(reward=0.001),
    "rewards x 1,000": dict(reward=1000.0),
    "observations x 100 + 300": dict(scale=100.0, offset=300.0),
    "actions in +-2,000": dict(action=2000.0),
}


def make(
    env_id: str, reward: float = 1.0, scale: float = 1.0, offset: float = 0.0, action: float = 0.0
) -> gym.Env[Any, Any]:
    """Returns an environment of gymnasium in other units.

    Args:
        env_id: of gymnasium.
        reward: rewards are multiplied with it.
        scale, offset: observations are multiplied with the one, and the other is added.
        action: if it is not 0, actions are between -action and action.
    """
    env = gym.make(env_id)
    if reward != 1.0:
        env = TransformReward(env, lambda value: reward * float(value))
    if (scale, offset) != (1.0, 0.0):
        space = env.observation_space
        assert isinstance(space, gym.spaces.Box)
        bounds = (np.float64(edge) * scale + offset for edge in (space.low, space.high))
        low, high = (edge.astype(np.float32) for edge in bounds)
        env = TransformObservation(
            env,
            lambda obs: (np.asarray(obs, np.float64) * scale + offset).astype(np.float32),
            gym.spaces.Box(low, high, dtype=np.float32),
        )
    if action:
        env = RescaleAction(env, np.float32(-action), np.float32(action))
    return env
