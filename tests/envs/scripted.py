"""One environment for the tests of vectors. Worker processes import this module: nothing heavy is in it."""

import os
import signal
import subprocess
import sys
import time

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from ding_lite.envs.recorder import EpisodeRecorder

ACTIONS = {
    "discrete": spaces.Discrete(5),
    "box": spaces.Box(-1, 1, (2,), np.float32),
    "tuple": spaces.Tuple([spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float32)]),
    "dict": spaces.Dict(a=spaces.MultiDiscrete([2, 3]), b=spaces.Discrete(4)),
}
TREE = spaces.Dict(
    count=spaces.Box(-np.inf, np.inf, (3,), np.float64),
    image=spaces.Box(0, 255, (2, 2), np.uint8),
    pair=spaces.Tuple([spaces.Discrete(100), spaces.MultiBinary(2)]),
)


class Scripted(gym.Env):
    """Its seed decides an episode: a name, a length of 1 to 8 steps, and whether it ends, is cut, or both.

    Observes (name, step, sum of the last action), so that any mix-up shows; the reward is the step.

    Args:
        index: of the environment.
        actions: kind of the action space.
        tree: whether the observation is a tree.
        fault: what happens at the steps ``at`` of an episode (0 is the reset, "make" and "close" are calls):
            a word for :meth:`fail`, or a function of the result of the call, which is returned.
        chance: probability of the fault at any other call.
        only: number of the environment that fails; None: all.
        once: a folder; a fault of ``at`` happens once over all processes.
    """

    def __init__(
        self, index=0, actions="discrete", tree=False, fault="", at=(), chance=0.0, only=None, once=None
    ):
        self.index, self.tree = index, tree
        self.fault, self.at, self.chance, self.once = fault, at, chance, once
        self.fails = only is None or only == index
        self.observation_space = TREE if tree else spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = ACTIONS[actions]
        self.level, self.levels = 0, []
        self.fail("make")

    def fail(self, call, result=None):
        """Returns the result of a call, with the fault if it is due."""
        due = call in self.at and self.is_first(call)
        if not (
            self.fails
            and (due or (self.chance and call in range(10**6) and self.faults.random() < self.chance))
        ):
            return result
        if callable(self.fault):
            return self.fault(result)
        if self.fault == "raise":
            raise ValueError(f"broken in {call}")
        if self.fault == "sys.exit":
            sys.exit(0)
        if self.fault == "exit":
            os._exit(3)
        if self.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault == "hang":
            time.sleep(1000)
        return result

    def is_first(self, call):
        try:
            if self.once:
                (self.once / f"{self.index} {call}").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.faults = np.random.default_rng(seed)
        self.name, self.count, self.last = int(self.np_random.integers(10**6)), 0, 0.0
        self.length, self.end = int(self.np_random.integers(1, 9)), int(self.np_random.integers(3))
        self.levels.append(self.level)
        return self.fail(0, (self.obs(), {}))

    def step(self, action):
        self.count += 1
        self.last = total(action)
        over = self.count >= self.length
        flags = over and self.end != 1, over and self.end != 0
        return self.fail(self.count, (self.obs(), float(self.count), *flags, {"won": self.end == 0}))

    def obs(self):
        numbers = np.array([self.name, self.count, self.last], np.float64)
        if not self.tree:
            return numbers.astype(np.float32)
        image = np.full((2, 2), self.count, np.uint8)
        return {
            "count": numbers,
            "image": image,
            "pair": (self.count, np.array([self.index % 2, 1], np.int8)),
        }

    def close(self):
        self.fail("close")

    # ---- methods that a run may call

    def set_level(self, level):
        self.level = level
        return level * 10 + self.index

    def refuse(self):
        raise OSError("no such level")

    def process(self):
        """What a worker is: its id, whether torch is imported and SIGINT ignored, and its threads."""
        ignores = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        return os.getpid(), "torch" in sys.modules, ignores, os.environ["OMP_NUM_THREADS"]


def total(action):
    """Returns the sum of all numbers of an action of any space."""
    if isinstance(action, (dict, tuple)):
        return sum(total(part) for part in (action.values() if isinstance(action, dict) else action))
    return float(np.sum(action))


def world(**options):
    """Returns what makes environment number i."""
    return lambda index: EpisodeRecorder(Scripted(index, **options), ("won",))


class Spawning(Scripted):
    """Starts a child process, as a simulator would."""

    def __init__(self, index, folder):
        super().__init__(index)
        (folder / f"{index}").write_text(str(subprocess.Popen(["sleep", "1000"]).pid))
