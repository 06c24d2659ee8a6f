"""Environments that are solved only by remembering earlier observations."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np


class RepeatFirst(gym.Env):
    """The first observation shows one of ``symbols``; each of ``length`` steps asks for it (as in POPGym).

    The return is the share of right answers. A policy without memory knows only the first one; it guesses
    the others, and has a mean return of about 1 / symbols.
    """

    def __init__(self, length: int = 20, symbols: int = 4) -> None:
        self.length = length
        self.symbols = symbols
        self.observation_space = gym.spaces.Box(-1, 1, (symbols + 1,), np.float32)
        self.action_space = gym.spaces.Discrete(symbols)

    def _obs(self) -> np.ndarray:
        obs = np.zeros(self.symbols + 1, np.float32)
        if self.t == 0:
            obs[self.symbol] = 1
        obs[-1] = self.np_random.uniform(-1, 1)  # noise, so that no two episodes look alike
        return obs

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        self.symbol = int(self.np_random.integers(self.symbols))
        return self._obs(), {}

    def step(self, action: int) -> Any:
        self.t += 1
        reward = float(action == self.symbol) / self.length
        return self._obs(), reward, self.t == self.length, False, {}


class TMaze(gym.Env):
    """A corridor of ``length`` cells. The first cell shows which way to turn at its end (Bakker, 2001).

    Actions: forward, up, down. The return is 4 for the right turn and -0.1 for the wrong one, less 0.1 for
    each step that does not move. A policy without memory turns at random, for a mean return of 1.95.
    """

    observation_space = gym.spaces.Box(0, 1, (4,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def __init__(self, length: int = 20) -> None:
        self.length = length

    def _obs(self) -> np.ndarray:
        at_start, at_end = self.x == 0, self.x == self.length
        return np.array([at_start and self.up, at_start and not self.up, not at_end, at_end], np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.x = self.t = 0
        self.up = bool(self.np_random.integers(2))
        return self._obs(), {}

    def step(self, action: int) -> Any:
        self.t += 1
        if self.x == self.length and action:
            return self._obs(), 4.0 if (action == 1) == self.up else -0.1, True, False, {}
        moves = self.x < self.length and action == 0
        self.x += moves
        return self._obs(), 0.0 if moves else -0.1, False, self.t >= 3 * self.length, {}


def cartpole_without_velocities(env_id: str = "CartPole-v1") -> gym.Env:
    """CartPole whose observation has the two positions and not their velocities."""
    env = gym.make(env_id)
    space = env.observation_space
    assert isinstance(space, gym.spaces.Box)
    positions = gym.spaces.Box(space.low[::2], space.high[::2], dtype=np.float32)
    return gym.wrappers.TransformObservation(env, lambda obs: obs[::2], positions)
