"""Environments with methods that a run calls. Worker processes import this module: nothing heavy is in it."""

import sys
import threading

import gymnasium as gym
import numpy as np

from ding_lite.envs.recorder import EpisodeRecorder
from ding_lite.errors import EnvContractError


class Levels(gym.Env):
    """Observes its level, which takes effect at once, the level at the episode's start, and the step."""

    observation_space = gym.spaces.Box(-1e3, 1e3, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)
    length = 7

    def __init__(self):
        self.level, self.name, self.steps, self.began = 0, "", 0, 0

    def set_level(self, level, name=""):
        self.level, self.name = level, name
        return level * 10

    def get(self):
        return self.level, self.name

    def fail(self):
        raise OSError("no such level")

    def refuse(self):
        raise EnvContractError("levels are from 0 to 9")

    def leave(self):
        sys.exit(3)

    def lock(self):
        return threading.Lock()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.began = 0, self.level
        return self._obs(), {}

    def step(self, action):
        self.steps += 1
        return self._obs(), float(self.level + self.began), self.steps == self.length, False, {}

    def _obs(self):
        return np.array([self.level, self.began, self.steps], np.float32)


def make(index):
    return EpisodeRecorder(Levels())
