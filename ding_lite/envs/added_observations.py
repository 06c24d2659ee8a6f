"""Wrappers that add a branch to the observation, which becomes a Dict with ``observation``.

They tell a policy what it cannot see: the time, its own last actions, the last reward. A policy with memory
(``policy.model.rnn``) then knows what its actions have led to.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from ding_lite.config.registry import WRAPPER_REGISTRY
from ding_lite.envs.masks import branches_of, with_branch
from ding_lite.errors import ConfigError

STEP_COUNT = "step_count"
PREVIOUS_ACTION = "previous_action"
PREVIOUS_REWARD = "previous_reward"


class AddedObservation(gym.Wrapper):
    """The base class: adds one branch to the observation.

    Args:
        env: its observation becomes the Dict's "observation", unless it is a Dict already.
        name: of the branch.
        space: of the branch.
    """

    def __init__(self, env: gym.Env, name: str, space: gym.spaces.Box) -> None:
        super().__init__(env)
        self.name = name
        branches = branches_of(env.observation_space)
        if name in branches:
            raise ConfigError(f"env.wrappers: the observation already has the key {name!r}")
        self.observation_space = gym.spaces.Dict({**branches, name: space})

    def begin(self) -> None:
        """Begins an episode."""
        raise NotImplementedError

    def take(self, action: Any, reward: float) -> None:
        """Takes a step."""
        raise NotImplementedError

    def added(self) -> np.ndarray:
        """Returns the branch of the current observation, an array of its own."""
        raise NotImplementedError

    def reset(self, **kwargs: Any) -> Any:
        self.begin()
        obs, info = self.env.reset(**kwargs)
        return with_branch(obs, self.name, self.added()), info

    def step(self, action: Any) -> Any:
        obs, reward, *rest = self.env.step(action)
        self.take(action, float(reward))
        return (with_branch(obs, self.name, self.added()), reward, *rest)


@WRAPPER_REGISTRY.register("step_counter")
class StepCounter(AddedObservation):
    """Adds ``step_count``, the number of steps since the reset.

    An agent whose episodes are truncated after a fixed time needs the count to estimate values
    (arXiv:1712.00378). It is not needed to record lengths: episodes.csv has the length of every episode.

    Args:
        env: to be wrapped.
        horizon: the count is divided by it; by default the environment's own step limit, or 1 without one.
    """

    def __init__(self, env: gym.Env, horizon: int | None = None) -> None:
        super().__init__(env, STEP_COUNT, gym.spaces.Box(0.0, np.inf, (1,), np.float32))
        limit = env.spec.max_episode_steps if env.spec is not None else None
        self.horizon = horizon or limit or 1

    def begin(self) -> None:
        self.count = 0

    def take(self, action: Any, reward: float) -> None:
        self.count += 1

    def added(self) -> np.ndarray:
        return np.array([self.count / self.horizon], np.float32)


@WRAPPER_REGISTRY.register("previous_action")
class PreviousAction(AddedObservation):
    """Adds ``previous_action``: the last actions, oldest first, each flattened; zeros before the first ones.

    A discrete action is flattened to one number for each choice, which is 1 for the one that was taken.

    Args:
        env: to be wrapped.
        count: number of actions.
    """

    def __init__(self, env: gym.Env, count: int = 1) -> None:
        if count < 1:
            raise ConfigError(f"env.wrappers: previous_action: count={count}; it must be at least 1")
        size = count * gym.spaces.flatdim(env.action_space)
        super().__init__(env, PREVIOUS_ACTION, gym.spaces.Box(-np.inf, np.inf, (size,), np.float32))
        self._last = np.zeros(size, np.float32)

    def begin(self) -> None:
        self._last = np.zeros_like(self._last)

    def take(self, action: Any, reward: float) -> None:
        flat = np.asarray(gym.spaces.flatten(self.env.action_space, action), np.float32)
        self._last = np.concatenate([self._last[len(flat) :], flat])

    def added(self) -> np.ndarray:
        return self._last.copy()


@WRAPPER_REGISTRY.register("previous_reward")
class PreviousReward(AddedObservation):
    """Adds ``previous_reward``: the last reward, as the wrappers before this one have changed it.

    It is 0 at the first step.
    """

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env, PREVIOUS_REWARD, gym.spaces.Box(-np.inf, np.inf, (1,), np.float32))

    def begin(self) -> None:
        self._reward = 0.0

    def take(self, action: Any, reward: float) -> None:
        self._reward = reward

    def added(self) -> np.ndarray:
        return np.array([self._reward], np.float32)
