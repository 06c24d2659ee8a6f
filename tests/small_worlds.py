"""Small environments with known results. Worker processes import this module: it imports nothing heavy."""

import gymnasium as gym
import numpy as np

from ding_lite.envs.recorder import EpisodeRecorder

SPACES = gym.spaces
# Arguments of CountingEnv for two environments.
SCRIPTS = (((2, "terminated"), (3, "truncated")), ((3, "both"), (1, "truncated"), (1, "terminated")))


class CountingEnv(gym.Env):
    """Observes (episode, step), with reward 10 * episode + step; repeats the episodes of ``script``.

    ``script`` holds (length, end) for each episode, where end is "terminated", "truncated" or "both".
    """

    observation_space = SPACES.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = SPACES.Discrete(3)

    def __init__(self, script=((3, "terminated"),)):
        self.script = script
        self.episode, self.count, self.seeds = -1, 0, []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.episode, self.count = self.episode + 1, 0
        return self.obs(), {}

    def step(self, action):
        self.count += 1
        length, end = self.script[self.episode % len(self.script)]
        over = self.count >= length
        terminated, truncated = over and end != "truncated", over and end != "terminated"
        return self.obs(), float(10 * self.episode + self.count), terminated, truncated, {}

    def obs(self):
        return np.array([self.episode, self.count], np.float32)


class SpoiledEnv(CountingEnv):
    """A CountingEnv whose call number ``at`` (0 is the first reset) returns ``spoil(result)``."""

    def __init__(self, at, spoil, script=((3, "terminated"),)):
        super().__init__(script)
        self.at, self.spoil, self.calls = at, spoil, -1

    def _maybe(self, result):
        self.calls += 1
        return self.spoil(result) if self.calls == self.at else result

    def reset(self, *, seed=None, options=None):
        return self._maybe(super().reset(seed=seed))

    def step(self, action):
        return self._maybe(super().step(action))


class Indexed(CountingEnv):
    """Observes its step, which the third step moves out of its range, and two indices with other starts."""

    observation_space = SPACES.Dict(at=SPACES.Discrete(3), two=SPACES.MultiDiscrete([2, 4], start=[-1, 0]))

    def __init__(self, shown=(), end="terminated"):
        super().__init__(((3, end),))
        self.shown = dict(shown)

    def obs(self):
        sound = {"at": min(self.count, 2), "two": np.array([-1, self.count])}
        return sound | self.shown if self.count == 3 else sound


class SeededEnv(gym.Env):
    """An episode is decided by its seed and its actions; it is terminated, truncated or both."""

    observation_space = SPACES.Box(-np.inf, np.inf, (3,), np.float64)
    action_space = SPACES.Discrete(3)
    longest = 9

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.length = int(self.np_random.integers(1, self.longest + 1))
        self.end = int(self.np_random.integers(3))
        self.count, self.total = 0, 0.0
        return self.obs(), {}

    def step(self, action):
        self.count += 1
        flat = np.asarray(SPACES.flatten(self.action_space, action), np.float64)
        self.total += float(flat @ np.arange(1, len(flat) + 1))
        over = self.count >= self.length
        reward = self.total + float(self.np_random.random())
        return self.obs(), reward, over and self.end != 0, over and self.end != 1, {}

    def obs(self):
        return np.array([self.count, self.total, self.np_random.random()])


class SeededBox(SeededEnv):
    action_space = SPACES.Box(-1.0, 1.0, (2,), np.float32)


class SeededMulti(SeededEnv):
    action_space = SPACES.MultiDiscrete([2, 3])


class SeededTree(SeededEnv):
    action_space = SPACES.Dict(
        move=SPACES.Discrete(3), push=SPACES.Tuple([SPACES.MultiBinary(2), SPACES.Box(-1.0, 1.0, (1,))])
    )


class UnseededEnv(SeededEnv):
    """Not deterministic: draws from an unseeded generator."""

    def obs(self):
        return np.random.default_rng().random(3)


class LengthEnv(gym.Env):
    """Every episode has ``length`` steps and a reward of 1 per step."""

    observation_space = SPACES.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = SPACES.Discrete(2)

    def __init__(self, length=5):
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.array([self.np_random.random()], np.float32), {}

    def step(self, action):
        self.count += 1
        return np.array([self.count], np.float32), 1.0, self.count >= self.length, False, {}


class StuckEnv(LengthEnv):
    """Has no legal action after ``after`` steps of an episode."""

    observation_space = SPACES.Dict(at=LengthEnv.observation_space, action_mask=SPACES.MultiBinary(2))

    def __init__(self, after=3):
        super().__init__()
        self.after = after

    def reset(self, **kwargs):
        obs, info = super().reset(**kwargs)
        return {"at": obs, "action_mask": np.ones(2, np.int8)}, info

    def step(self, action):
        obs, *rest = super().step(action)
        return ({"at": obs, "action_mask": np.full(2, self.count < self.after, np.int8)}, *rest)


class HalveReward(gym.RewardWrapper):
    def reward(self, reward):
        return reward / 2


class SameAction(gym.ActionWrapper):
    def action(self, action):
        return action


def scripted(index):
    return EpisodeRecorder(CountingEnv(SCRIPTS[index % len(SCRIPTS)]))


class RecordingEnv(SeededEnv):
    """A SeededEnv that appends the repr of its argument to a file when it is made."""

    def __init__(self, file, value):
        super().__init__()
        with open(file, "a") as stream:
            stream.write(f"{value!r}\n")
