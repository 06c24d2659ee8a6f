"""Environments that are solved only by remembering what an earlier observation showed."""

import gymnasium as gym
import numpy as np


class RepeatFirst(gym.Env):
    """The first observation shows one of ``symbols``; each of ``length`` steps asks for it (as in POPGym).

    The return is the share of right answers. A policy without memory knows only the first one; it guesses
    the others, and has a mean return of about 1 / symbols.
    """

    def __init__(self, length=20, symbols=4):
        self.length, self.symbols = length, symbols
        self.observation_space = gym.spaces.Box(-1, 1, (symbols + 1,), np.float32)
        self.action_space = gym.spaces.Discrete(symbols)

    def _obs(self):
        obs = np.zeros(self.symbols + 1, np.float32)
        if self.t == 0:
            obs[self.symbol] = 1
        obs[-1] = self.np_random.uniform(-1, 1)  # noise, so that no two episodes look alike
        return obs

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.symbol = 0, int(self.np_random.integers(self.symbols))
        return self._obs(), {}

    def step(self, action):
        self.t += 1
        return self._obs(), float(action == self.symbol) / self.length, self.t == self.length, False, {}


class TMaze(gym.Env):
    """A corridor of ``length`` cells. The first cell says which way to turn at its end (Bakker, 2002).

    Actions: forward, up, down. Return: 4 for the right turn, -0.1 for the wrong one and for each step that
    does not move.
    """

    def __init__(self, length=20):
        self.length = length
        self.observation_space = gym.spaces.Box(0, 1, (4,), np.float32)
        self.action_space = gym.spaces.Discrete(3)

    def _obs(self):
        at_start, at_end = self.x == 0, self.x == self.length
        return np.array([at_start and self.up, at_start and not self.up, not at_end, at_end], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.t, self.up = 0, 0, bool(self.np_random.integers(2))
        return self._obs(), {}

    def step(self, action):
        self.t += 1
        late = self.t >= 3 * self.length
        if self.x < self.length:
            if action == 0:
                self.x += 1
            return self._obs(), 0.0 if action == 0 else -0.1, False, late, {}
        if action == 0:
            return self._obs(), -0.1, False, late, {}
        return self._obs(), 4.0 if (action == 1) == self.up else -0.1, True, False, {}
