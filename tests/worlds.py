"""Small environments with known answers, and a few helpers to run and compare what is trained on them."""

import copy
import hashlib

import gymnasium as gym
import numpy as np
import torch

from ding_lite.collector import Collector
from ding_lite.config import compile_config
from ding_lite.envs.in_process import InProcessVectorEnv
from ding_lite.envs.recorder import EpisodeRecorder
from ding_lite.policies import PPOPolicy
from ding_lite.registry import POLICY_REGISTRY
from ding_lite.testing import MatchEnv

SPACES = gym.spaces


class CountingEnv(gym.Env):
    """Shows (episode, step) and pays 10 * episode + step; ends as ``script`` says, over and over.

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


class AliasingEnv(CountingEnv):
    """Returns the same array every time, and overwrites it."""

    def __init__(self, script=((3, "truncated"),)):
        super().__init__(script)
        self.shown = np.zeros(2, np.float32)

    def obs(self):
        self.shown[:] = self.episode, self.count
        return self.shown


class SeededEnv(gym.Env):
    """All of an episode follows from its seed and its actions; it ends in each of the three ways."""

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


class SeededTree(SeededEnv):
    action_space = SPACES.Dict(
        move=SPACES.Discrete(3), push=SPACES.Tuple([SPACES.MultiBinary(2), SPACES.Box(-1.0, 1.0, (1,))])
    )


class UnseededEnv(SeededEnv):
    """Not deterministic: it draws from a generator that no seed reaches."""

    def obs(self):
        return np.random.default_rng().random(3)


class LengthEnv(gym.Env):
    """Every episode is ``length`` steps long and pays 1 a step."""

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
    """Has no legal action after so many steps."""

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


class RaisingEnv(LengthEnv):
    """Raises at its step number ``at``, counted over episodes."""

    def __init__(self, at=40):
        super().__init__()
        self.at, self.steps = at, 0

    def step(self, action):
        self.steps += 1
        if self.steps == self.at:
            raise ZeroDivisionError("the world has ended")
        return super().step(action)


class MatchBox(MatchEnv):
    def __init__(self):
        super().__init__(SPACES.Box(-2.0, 2.0, (2,), np.float32))


class MatchTree(MatchEnv):
    def __init__(self):
        force = SPACES.Box(-1.0, 1.0, (1,), np.float32)
        super().__init__(SPACES.Dict(force=force, move=SPACES.Discrete(3, start=-1)))


class HalveReward(gym.RewardWrapper):
    def __init__(self, env, share=0.5):
        super().__init__(env)
        self.share = share

    def reward(self, reward):
        return reward * self.share


def vector_of(make, num_envs, **options):
    """Returns ``num_envs`` environments ``make(index)``, stepped in this process."""
    return InProcessVectorEnv(lambda index: EpisodeRecorder(make(index)), num_envs, **options)


def policy_for(envs, seed=0, **policy):
    """Returns a small PPO policy for the spaces of ``envs``; ``policy`` is laid over its config."""
    user = {"env": {"type": CountingEnv}, "policy": policy}
    cfg = compile_config(user).values.policy
    return PPOPolicy(cfg, envs.obs_space, envs.action_space, seed=seed)


def trainee(kind, world=SeededEnv, n_sample=64, envs=4, seed=0, autoreset="same_step", cls=None, **policy):
    """Returns a small policy of this kind, and a collector of rollouts for it."""
    policy = merged({"type": kind, "collect": {"n_sample": n_sample}, "learn": {"batch_size": 16}}, policy)
    policy = merged({"model": {"encoder_hidden_size_list": [8, 8]}}, policy)
    cfg = compile_config({"env": {"type": world, "collector_env_num": envs}, "policy": policy}).values.policy
    vector = vector_of(lambda index: world(), envs, autoreset=autoreset)
    trained = (cls or POLICY_REGISTRY.get(kind))(cfg, vector.obs_space, vector.action_space, seed=seed)
    return trained, Collector(vector, trained.collect_mode, n_sample, cfg.collect.n_episode)


def random_actions(space, num_envs, rng):
    """Returns a batch of random actions in the form that a VectorEnv takes."""
    if isinstance(space, SPACES.Dict):
        return {name: random_actions(child, num_envs, rng) for name, child in space.spaces.items()}
    if isinstance(space, SPACES.Tuple):
        return {str(i): random_actions(child, num_envs, rng) for i, child in enumerate(space.spaces)}
    if isinstance(space, SPACES.Discrete):
        return rng.integers(space.start, space.start + space.n, num_envs)
    if isinstance(space, SPACES.MultiBinary):
        return rng.integers(0, 2, (num_envs, *space.shape)).astype(np.int8)
    return rng.uniform(-1, 1, (num_envs, *space.shape)).astype(np.float32)


def copy_of(transition):
    """Returns a transition whose arrays no later step overwrites."""
    return copy.deepcopy(transition)


def same_tree(a, b):
    """Returns whether two trees are alike, bit for bit: keys, dtypes, shapes and values."""
    return digest(a) == digest(b)


def digest(tree):
    """Returns a hash of a tree of dicts, lists, arrays, tensors and numbers; a nan is itself."""
    hasher = hashlib.sha256()
    _feed(hasher, tree)
    return hasher.hexdigest()


def _feed(hasher, value):
    if isinstance(value, dict):
        for key in sorted(value, key=lambda k: (type(k).__name__, k)):
            hasher.update(f"{{{key!r}:".encode())
            _feed(hasher, value[key])
        hasher.update(b"}")
    elif isinstance(value, (list, tuple)):
        for item in value:
            hasher.update(b"[")
            _feed(hasher, item)
        hasher.update(b"]")
    elif isinstance(value, (np.ndarray, torch.Tensor)):
        array = value.detach().numpy() if isinstance(value, torch.Tensor) else value
        hasher.update(f"{array.dtype}{array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    else:
        hasher.update(f"{type(value).__name__} {value!r}".encode())


class MatchUnsorted(MatchEnv):
    """Its Dict spaces list their keys in an order of their own."""

    def __init__(self):
        move, force = SPACES.Discrete(2), SPACES.Box(-1.0, 1.0, (1,), np.float32)
        super().__init__(SPACES.Dict(move=move, force=force))


class ShownTwice(gym.Env):
    """A MatchEnv whose observation is a Dict with its keys out of order, of different sizes."""

    def __init__(self):
        self.inner = MatchEnv()
        self.action_space = self.inner.action_space
        self.observation_space = SPACES.Dict(
            what=self.inner.observation_space, again=SPACES.Box(-1.0, 1.0, (1,), np.float32)
        )

    def obs(self, flat):
        return {"what": flat, "again": flat[:1]}

    def reset(self, *, seed=None, options=None):
        obs, info = self.inner.reset(seed=seed)
        return self.obs(obs), info

    def step(self, action):
        obs, *rest = self.inner.step(action)
        return (self.obs(obs), *rest)


def small_config(world="CartPole-v1", **others):
    """Returns a config whose iterations take some hundredths of a second; ``others`` is laid over it."""
    base = {
        "max_env_step": 1536,
        "env": {
            **({"env_id": world} if isinstance(world, str) else {"type": world}),
            "collector_env_num": 4,
            "evaluator_env_num": 2,
            "n_evaluator_episode": 2,
        },
        "policy": {
            "model": {"encoder_hidden_size_list": [16]},
            "learn": {"epoch_per_collect": 2, "batch_size": 64, "compile": False},
            "collect": {"n_sample": 256},
            "eval": {"eval_freq": 0},
        },
        "checkpoint": {"freq": 0},
        "logger": {"tensorboard": False},
    }
    return merged(base, others)


def merged(below, above):
    """Returns nested dicts laid over others."""
    out = dict(below)
    for name, value in above.items():
        both = isinstance(value, dict) and isinstance(out.get(name), dict)
        out[name] = merged(out[name], value) if both else value
    return out
