"""Helpers to train on small environments and to compare results."""

import copy
import csv
import functools
import hashlib
import json

import gymnasium as gym
import numpy as np
import torch
from small_worlds import CountingEnv, SeededEnv

from ding_lite.config.compile import compile_config
from ding_lite.config.registry import POLICY_REGISTRY
from ding_lite.data.collector import Collector
from ding_lite.envs.in_process import InProcessVectorEnv
from ding_lite.envs.native import NativeVectorEnv
from ding_lite.envs.recorder import EpisodeRecorder
from ding_lite.policies import PPOPolicy
from ding_lite.run.checkpoint import load_checkpoint, packed, write

AUTORESET = ("same_step", "next_step", "disabled")  # gymnasium's; the library's own vectors are "same_step"


def vector_of(make, num_envs, autoreset="same_step", **options):
    """Returns ``num_envs`` environments ``make(index)``, stepped in this process; "next_step" has fillers."""
    if autoreset == "same_step":
        return InProcessVectorEnv(lambda index: EpisodeRecorder(make(index)), num_envs, **options)
    makers = [functools.partial(make, index) for index in range(num_envs)]
    mode = gym.vector.AutoresetMode[autoreset.upper()]
    return NativeVectorEnv(gym.vector.SyncVectorEnv(makers, autoreset_mode=mode), **options)


def policy_for(envs, seed=0, **policy):
    """Returns a small PPO policy for the spaces of ``envs``; ``policy`` overrides its config."""
    user = {"env": {"type": CountingEnv}, "policy": merged({"learn": {"epoch_per_collect": 2}}, policy)}
    cfg = compile_config(user).values.policy
    return PPOPolicy(cfg, envs.obs_space, envs.action_space, seed=seed)


def trainee(kind, world=SeededEnv, n_sample=64, envs=4, seed=0, autoreset="same_step", cls=None, **policy):
    """Returns a small policy of this kind and a collector for it."""
    policy = merged({"type": kind, "collect": {"n_sample": n_sample}, "learn": {"batch_size": 16}}, policy)
    policy = merged({"model": {"encoder_hidden_size_list": [8, 8]}}, policy)
    cfg = compile_config({"env": {"type": world, "collector_env_num": envs}, "policy": policy}).values.policy
    vector = vector_of(lambda index: world(), envs, autoreset=autoreset)
    trained = (cls or POLICY_REGISTRY.get(kind))(cfg, vector.obs_space, vector.action_space, seed=seed)
    return trained, Collector(vector, trained, n_sample)


def copy_of(transition):
    """Returns a deep copy of a transition, which later steps do not overwrite."""
    return copy.deepcopy(transition)


def same_tree(a, b):
    """Returns whether two trees have the same keys, dtypes, shapes and values, bit for bit."""
    return digest(a) == digest(b)


def save_checkpoint(file, state, config):
    write(file, *packed(state, config, copy=False))


def digest(tree):
    """Returns a hash of a tree of dicts, lists, arrays, tensors and numbers; a nan equals itself."""
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


def small_config(world="CartPole-v1", **others):
    """Returns a config whose iterations take a few hundredths of a second; ``others`` overrides its keys."""
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
            "learn": {"epoch_per_collect": 2, "batch_size": 64, "value_norm": True},
            "collect": {"n_sample": 256},
            "eval": {"eval_freq": 0},
        },
        "checkpoint": {"freq": 0},
        "logger": {"trackers": []},
    }
    return merged(base, others)


def merged(below, above):
    """Returns nested dicts ``below`` with the values of ``above`` in their place."""
    out = dict(below)
    for name, value in above.items():
        both = isinstance(value, dict) and isinstance(out.get(name), dict)
        out[name] = merged(out[name], value) if both else value
    return out


def section(**env):
    """Returns the section ``env`` of a config with these keys."""
    return compile_config({"env": env}).values.env


def finished(pipeline):
    """Trains to the end, and returns the pipeline."""
    for _ in pipeline:
        pass
    return pipeline


def until(pipeline, iteration):
    """Trains to an iteration, stops as a script would, by ``break``, and returns the pipeline."""
    for progress in pipeline:
        if progress.iteration == iteration:
            break
    return pipeline


def return_on_cartpole(policy, seed):
    """Returns the return of a policy in the episode that begins from a seed."""
    env, total, over = gym.make("CartPole-v1"), 0.0, False
    obs, _ = env.reset(seed=seed)
    while not over:
        obs, reward, terminated, truncated, _ = env.step(policy.act(obs))
        total, over = total + reward, terminated or truncated
    return total


def result_of(run):
    """Returns what a run's result.json has."""
    return json.loads((run / "result.json").read_text())


def rows_of(run, name="metrics.csv"):
    """Returns the rows of a table of a run."""
    with (run / name).open(newline="") as stream:
        return list(csv.DictReader(stream))


def state_of(run):
    """Returns a hash of each part of the state in a run's last checkpoint, without the clock."""
    state, _ = load_checkpoint(run / "ckpt" / "last.safetensors")
    assert state.pop("wall_time") > 0
    return {part: digest(value) for part, value in state.items()}


def timeless_rows(run):
    """Returns the rows of a run's metrics.csv without the clock."""
    return [{name: x for name, x in row.items() if not name.startswith("time/")} for row in rows_of(run)]
