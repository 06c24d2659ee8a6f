"""Environments that each break the contract in one way, and ``Sound``, the correct one that they derive from.

Worker processes import this module: it imports nothing heavy.
"""

import os
import time

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv


class Sound(gym.Env):
    """Keeps the whole contract: its length is random, and decides whether it is terminated or truncated."""

    observation_space = spaces.Box(-10.0, 10.0, (2,), np.float32)
    action_space = spaces.Discrete(3, start=-1)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count, self.length = 0, int(self.np_random.integers(3, 9))
        return self.obs(), {}

    def step(self, action):
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        self.count += 1
        over = self.count >= self.length
        return self.obs(), self.reward(), over and self.length % 2 == 0, over and self.length % 2 == 1, {}

    def obs(self):
        return np.array([min(self.count, 10), self.np_random.random()], np.float32)

    def reward(self):
        return float(self.np_random.random())


# ---- making and spaces


class WholeBoxAction(Sound):
    action_space = spaces.Box(0, 5, (2,), np.int64)


class IntegerKeys(Sound):
    observation_space = spaces.Dict({0: Sound.observation_space, 1: spaces.Discrete(3)})


class EmptyPart(Sound):
    observation_space = spaces.Dict(pose=Sound.observation_space, bag=spaces.Dict())


# ---- the old API, and exceptions


class OldStep(Sound):
    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated or truncated, info


class Raises(Sound):
    taken = 0

    def step(self, action):
        self.taken += 1
        return super().step(action) if self.taken < 20 else {}["key"]


class Hangs(Raises):
    def step(self, action):
        return super().step(action) if self.taken < 19 else time.sleep(3600)


class Dies(Raises):
    def step(self, action):
        return super().step(action) if self.taken < 19 else os._exit(7)


# ---- observations


class OutOfRange(Sound):
    observation_space = spaces.Tuple([spaces.Discrete(2), spaces.MultiDiscrete([9, 9])])

    def obs(self):
        return self.count, np.array([0, 0])


# ---- seeds


class NoSeed(Sound):
    """Draws from an unseeded generator."""

    def obs(self):
        return np.random.default_rng().random(2, np.float32)


class Remembers(Sound):
    """Returns the number of episodes so far as its first observation."""

    episodes = 0

    def reset(self, *, seed=None, options=None):
        self.episodes += 1
        _, info = super().reset(seed=seed)
        return np.array([self.episodes % 10, 0], np.float32), info


class AlwaysTheSame(Sound):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=1)


# ---- ends


class FailsToClose(Sound):
    def close(self):
        raise RuntimeError("no window")


class NeverEnds(Sound):
    def step(self, action):
        return (*super().step(action)[:2], False, False, {})


class OldDone(Sound):
    """Returns terminated=True at its own time limit, as environments with a single ``done`` flag did."""

    def __init__(self, length=6):
        self.own_length = length

    def step(self, action):
        return (*super().step(action)[:2], self.count >= self.own_length, False, {})


# ---- actions


class Pushed(Sound):
    action_space = spaces.Box(-2.0, 2.0, (2,), np.float32)


class Masked(Sound):
    """Refuses actions that its mask forbids."""

    action_space = spaces.Discrete(3)
    observation_space = spaces.Dict(action_mask=spaces.Box(0, 1, (3,), np.int8), pose=Sound.observation_space)

    def obs(self):
        self.mask = np.zeros(3, np.int8)
        self.mask[self.np_random.integers(3)] = 1
        return {"action_mask": self.mask.copy(), "pose": super().obs()}

    def step(self, action):
        assert self.mask[action], "an illegal action"
        return super().step(action)


# ---- faults that only a vector environment shows


class OneGeneratorForAll(Sound):
    """All environments of a process draw from the generator of the one that was reset last."""

    common = None

    def reset(self, *, seed=None, options=None):
        OneGeneratorForAll.common = np.random.default_rng(seed)
        return super().reset(seed=seed)

    def obs(self):
        return np.array([self.count, self.common.random()], np.float32)


class KnowsItsProcess(Sound):
    """Returns a reward only in the process ``home``."""

    def __init__(self, home):
        self.home = home

    def reward(self):
        return float(os.getpid() == self.home)


class UnseededCarts(CartPoleVectorEnv):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=None, options=options)


# ---- what trains badly, or needs a key


class Numbers(Pushed):
    """Actions are wide, rewards 0; of the observations one is large, one leaves its Box, two never change."""

    observation_space = spaces.Dict(
        large=spaces.Box(-np.inf, np.inf, (2,)),
        image=spaces.Box(0, 65535, (4, 4, 1), np.uint16),
        outside=spaces.Box(-1, 1, (1,)),
        still=spaces.Discrete(3),
        film=spaces.Box(0, 255, (2, 4, 4, 3), np.uint8),
    )
    action_space = spaces.Box(0, 512, (1,))

    def obs(self):
        random = self.np_random.random()
        image, film = (
            np.full(self.observation_space[name].shape, 65535 * random) for name in ("image", "film")
        )
        return {
            "large": np.array([2e5 * random, 7], np.float32),
            "image": image.astype(np.uint16),
            "outside": np.array([3 * random], np.float32),
            "still": 1,
            "film": np.zeros_like(film, np.uint8),
        }

    def reward(self):
        return 0.0

    def action_masks(self):
        return np.ones(1, bool)


class NormalizedCarts(gym.wrappers.vector.NormalizeObservation):
    def __init__(self, num_envs):
        super().__init__(CartPoleVectorEnv(num_envs))


class MaskInInfo(Sound):
    def reset(self, *, seed=None, options=None):
        obs, info = super().reset(seed=seed)
        return obs, {**info, "action_mask": np.ones(2, np.int8)}


class Levels(Sound):
    """A seed draws three levels, of which each episode plays one."""

    def reset(self, *, seed=None, options=None):
        out = super().reset(seed=seed)
        if seed is not None:
            self.levels = self.np_random.random(3)
        self.level = self.np_random.choice(self.levels)
        return out


class Alone(Sound):
    """Exists once in a process."""

    lives = 0

    def __init__(self, ends=False):
        if Alone.lives and ends:
            os._exit(9)
        assert not Alone.lives, "the port is in use"
        Alone.lives += 1

    def close(self):
        Alone.lives -= 1


class NanLater(Sound):
    """Its number 500 of all is nan: in none of the first 100 steps."""

    calls = 0

    def obs(self):
        self.calls += 1
        return super().obs() if self.calls < 150 else np.full(2, np.nan, np.float32)
