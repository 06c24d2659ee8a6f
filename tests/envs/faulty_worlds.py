"""Small environments with known results, and environments that fail on purpose, for the tests of workers.

Workers import this module to unpickle them.
"""

import os
import signal
import subprocess
import sys
import time

import gymnasium as gym
import numpy as np
from ding_lite.envs.faulty import FaultyEnv
from gymnasium import spaces

from ding_lite.envs.recorder import EpisodeRecorder


def total(action):
    """Returns the sum of all numbers of an action of any space."""
    if isinstance(action, (dict, tuple)):
        return sum(total(part) for part in (action.values() if isinstance(action, dict) else action))
    return float(np.sum(action))


class Counting(gym.Env):
    """Counts its steps up to a length drawn from its seed; the length decides how the episode ends.

    The observation is a dict with seed, step and last action, so that any mix-up shows.
    """

    observation_space = spaces.Dict(
        {
            "count": spaces.Box(-np.inf, np.inf, (3,), np.float64),
            "image": spaces.Box(0, 255, (2, 2), np.uint8),
            "pair": spaces.Tuple([spaces.Discrete(100), spaces.MultiBinary(2)]),
        }
    )

    def __init__(self, index, actions="discrete"):
        self.index = index
        self.action_space = {
            "discrete": spaces.Discrete(5),
            "box": spaces.Box(-1, 1, (2,), np.float32),
            "tuple": spaces.Tuple([spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float32)]),
            "dict": spaces.Dict({"a": spaces.MultiDiscrete([2, 3]), "b": spaces.Discrete(4)}),
        }[actions]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seed = seed
        self.count, self.last = 0, 0.0
        self.length = int(self.np_random.integers(1, 9))
        return self._obs(), {}

    def step(self, action):
        self.last = total(action)
        self.count += 1
        done = self.count >= self.length
        both, odd = self.length % 4 == 0, self.length % 2 == 1
        reward = self.last + float(self.np_random.random())
        return self._obs(), reward, done and (odd or both), done and (not odd or both), {"won": odd}

    def _obs(self):
        return {
            "count": np.array([self.seed % 1000, self.count, self.last], np.float64),
            "image": np.full((2, 2), self.count, np.uint8),
            "pair": (self.count % 100, np.array([self.index % 2, 1], np.int8)),
        }


def counting(actions, index):
    return EpisodeRecorder(Counting(index, actions), ("won",))


class Faulty(gym.Env):
    """Environment 1 fails at ``where`` (init, reset, step: its second one, close), in the manner ``how``."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Discrete(10)

    def __init__(self, index, where, how):
        self.index, self.where, self.how = index, where, how
        self.count = 0
        self._maybe("init")

    def _maybe(self, place):
        if place != self.where or self.index != 1:
            return
        if self.how == "raise":
            raise ValueError(f"broken in {place}")
        if self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "exit":
            os._exit(3)
        if self.how == "sys.exit":
            sys.exit(0)
        if self.how == "hang":
            time.sleep(1000)
        if self.how == "slow":
            time.sleep(0.6)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        self._maybe("reset")
        return self._obs(0), {}

    def step(self, action):
        self.count += 1
        if self.count == 2:
            self._maybe("step")
        wrong = self.where == "shape" and self.index == 1
        obs = np.zeros(3, np.float32) if wrong else self._obs(action)
        return obs, float(action), False, False, {}

    def _obs(self, action):
        return np.array([self.count, action], np.float32)

    def close(self):
        self._maybe("close")


def faulty(where, how, index):
    return EpisodeRecorder(Faulty(index, where, how))


class Witness(gym.Env):
    """Observes its process: whether torch is imported, whether SIGINT is ignored, the number of threads."""

    observation_space = spaces.Box(-1, 1000, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        heavy = float("torch" in sys.modules)
        ignores = float(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)
        return np.array([heavy, ignores, float(os.environ["OMP_NUM_THREADS"]), 0], np.float32), {}

    def step(self, action):
        return np.zeros(4, np.float32), 0.0, False, False, {}


def witness(index):
    return EpisodeRecorder(Witness())


class TooWide(Counting):
    observation_space = spaces.Dict({"count": spaces.Box(0, 1, (4,))})


def uneven(index):
    return EpisodeRecorder(Counting(index) if index < 2 else TooWide(index))


def drifting(index):
    """Not deterministic: an open episode cannot be restored."""
    env = Counting(index)
    env._obs = lambda: {
        "count": np.random.default_rng().random(3),
        "image": np.zeros((2, 2), np.uint8),
        "pair": (0, np.zeros(2, np.int8)),
    }
    return EpisodeRecorder(env)


class Marked(gym.Env):
    """Observes its episode (by its seed) and its step; the reward is the step."""

    observation_space = spaces.Box(0, 1e8, (2,), np.float32)
    action_space = spaces.Discrete(5)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.name, self.count = seed % 10_000_000, 0  # exact in float32
        self.length, self.cut = int(self.np_random.integers(1, 30)), bool(self.np_random.integers(2))
        return self._obs(), {}

    def step(self, action):
        self.count += 1
        over = self.count >= self.length
        return self._obs(), float(self.count), over and not self.cut, over and self.cut, {}

    def _obs(self):
        return np.array([self.name, self.count], np.float32)


def marked(faults, index):
    return FaultyEnv(EpisodeRecorder(Marked()), **faults, index=index)


class Clocked(gym.Env):
    """Takes 10 ms per step, and observes when the step began and ended."""

    observation_space = spaces.Box(0, np.inf, (2,), np.float64)
    action_space = spaces.Discrete(5)
    step_s = 0.01

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2), {}

    def step(self, action):
        began = time.monotonic()
        time.sleep(self.step_s)
        return np.array([began, time.monotonic()]), 0.0, False, False, {}


def clocked(index):
    return EpisodeRecorder(Clocked())


class Wide(gym.Env):
    """Has observations of any size; each episode is truncated at its first step."""

    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, size):
        self.observation_space = spaces.Box(0, 1, (size,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(self.observation_space.shape, np.float32), {}

    def step(self, action):
        return np.ones(self.observation_space.shape, np.float32), 0.0, False, True, {}


class Spawns(Marked):
    """Starts a child process, as a simulator would, and writes its id into a file."""

    def __init__(self, folder):
        pid = subprocess.Popen(["sleep", "1000"]).pid
        (folder / f"{os.getpid()}").write_text(str(pid))


def spawning(folder, index):
    return EpisodeRecorder(Spawns(folder))


def made_once(folder, index):
    """Makes an environment the first time, and raises the second time."""
    (folder / f"{index}").touch(exist_ok=False)
    return EpisodeRecorder(Marked())
