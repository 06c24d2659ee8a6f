"""Trains with one library, and prints greedy returns along the way, played by code outside of all libraries.

    python -m systems.curve ARM ENV_ID SEED

A line is one evaluation: {"env_step", "cpu_s", "return"}; cpu_s are CPU seconds of training alone.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from systems.tasks import TASKS, Task, register

POINTS = 20  # evaluations, evenly over the env steps
EPISODES, LAST = 10, 100  # of one evaluation, and of the final one


class Watch:
    """Evaluates when its next point is reached, and keeps its own time out of the training's."""

    def __init__(self, env_id: str, steps: int, seed: int) -> None:
        self.env_id, self.steps, self.seed = env_id, steps, seed
        self.points, self.began = 0, time.process_time()

    def __call__(self, act: Callable[[np.ndarray], np.ndarray], env_step: int, last: bool = False) -> None:
        """Evaluates ``act``, which maps observations (B, ...) to actions (B, ...), if a point is reached."""
        points = POINTS if last else env_step * POINTS // self.steps
        if points == self.points or (points == POINTS and not last):
            return
        now, self.points = time.process_time(), points
        value = mean_return(act, self.env_id, LAST if last else EPISODES, 10_000 * self.seed + 100 * points)
        print(json.dumps({"env_step": env_step, "cpu_s": round(now - self.began, 2), "return": value}))
        self.began += time.process_time() - now


def mean_return(act: Callable[[np.ndarray], np.ndarray], env_id: str, episodes: int, seed: int) -> float:
    """Returns the mean return of episodes with the seeds ``seed``, ``seed + 1``, ..., played side by side."""
    envs = gym.make_vec(env_id, episodes, vectorization_mode="sync")
    obs, _ = envs.reset(seed=list(range(seed, seed + episodes)))
    returns, running = np.zeros(episodes), np.ones(episodes, bool)
    while running.any():
        obs, reward, terminated, truncated, _ = envs.step(act(obs))
        returns += running * reward
        running &= ~(terminated | truncated)
    envs.close()
    return float(returns.mean())


def ding_lite(env_id: str, task: Task, seed: int) -> None:
    """Trains with the settings of a task."""
    from ding_lite import compile_config

    config = compile_config(dict(env=dict(env_id=env_id), policy=dict(type="ppo")), task.keys())
    _train(config, env_id, task, seed)


def defaults(env_id: str, task: Task, seed: int) -> None:
    """Trains with the settings of a task, but with the value loss that is the default here."""
    from ding_lite import compile_config

    keys = task.keys()
    del keys["policy.learn.value_norm"]
    config = compile_config(dict(env=dict(env_id=env_id), policy=dict(type="ppo")), keys)
    _train(config, env_id, task, seed)


def out_of_the_box(env_id: str, task: Task, seed: int) -> None:
    """Trains with what ``ding-lite train --env ID`` begins with."""
    from ding_lite.run.settings import config_for

    keys = {"max_env_step": task.steps, "policy.eval.eval_freq": 0}
    _train(config_for(env_id, overrides=keys), env_id, task, seed)


def _train(config: Any, env_id: str, task: Task, seed: int) -> None:
    from ding_lite import SerialPipeline

    config = config.replaced({"logger.trackers": []})
    with tempfile.TemporaryDirectory() as parent:
        watch = Watch(env_id, task.steps, seed)
        pipeline = SerialPipeline(config, seed=seed, folder=f"{parent}/run")
        act = pipeline.policy.act
        for progress in pipeline:
            watch(act, progress.env_step)
        watch(act, pipeline.progress.env_step, last=True)


def stable_baselines3(env_id: str, task: Task, seed: int) -> None:
    """Trains Stable-Baselines3's PPO with the settings of a task."""
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    from systems.sb3 import zoo_model

    watch = Watch(env_id, task.steps, seed)
    envs: Any = make_vec_env(env_id, task.envs, seed=seed, env_kwargs=dict(render_mode=None))
    if task.normalize:
        envs = VecNormalize(envs, gamma=task.sb3["gamma"])
    model = zoo_model(envs, task, seed)

    def act(obs: np.ndarray) -> np.ndarray:
        return model.predict(envs.normalize_obs(obs) if task.normalize else obs, deterministic=True)[0]

    class Evaluations(BaseCallback):
        def _on_step(self) -> bool:
            return True

        def _on_rollout_start(self) -> None:
            watch(act, self.num_timesteps)

    model.learn(task.steps, callback=Evaluations())
    watch(act, model.num_timesteps, last=True)


def tianshou(env_id: str, task: Task, seed: int) -> None:
    """Trains Tianshou's PPO with the settings of a task."""
    from tianshou.data import Batch, Collector, VectorReplayBuffer
    from tianshou.env import DummyVectorEnv
    from tianshou.utils.torch_utils import policy_within_training_step

    from systems.tianshou_ppo import algorithm_for

    watch, sb3, rollout = Watch(env_id, task.steps, seed), task.sb3, task.envs * task.sb3["n_steps"]
    np.random.seed(seed)
    torch.manual_seed(seed)
    envs = DummyVectorEnv([lambda: gym.make(env_id) for _ in range(task.envs)])
    envs.seed(seed)
    algorithm = algorithm_for(envs.observation_space[0], envs.action_space[0], task)
    policy = algorithm.policy
    collector: Any = Collector(policy, envs, VectorReplayBuffer(rollout, task.envs))
    collector.reset()

    @torch.no_grad()
    def act(obs: np.ndarray) -> np.ndarray:
        return policy.map_action(policy(Batch(obs=obs, info={})).act)

    for env_step in range(0, task.steps, rollout):
        watch(act, env_step)
        if task.linear:
            algorithm.eps_clip = sb3["clip_range"] * (1 - env_step / task.steps)
        with policy_within_training_step(policy):
            collector.collect(n_step=rollout)
            algorithm.update(collector.buffer, sb3["batch_size"], sb3["n_epochs"])
        collector.reset_buffer(keep_statistics=True)
    watch(act, env_step + rollout, last=True)


ARMS = {arm.__name__: arm for arm in (ding_lite, stable_baselines3, defaults, out_of_the_box, tianshou)}

if __name__ == "__main__":
    torch.set_num_threads(1)
    register(sys.argv[2])
    ARMS[sys.argv[1]](sys.argv[2], TASKS[sys.argv[2]], int(sys.argv[3]))
