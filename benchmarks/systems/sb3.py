"""Stable-Baselines3's PPO; its policy and value networks are separate for vectors, one for images."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv, VecFrameStack

from systems import HIDDEN, Done, UpdateCounter, Work
from systems.sleeping import Sleeping
from systems.tasks import SOLVED, TO_SOLVE, WIDE, Task


def train(work: Work, steps: int) -> Done:
    """Trains; with an LSTM sb3-contrib's RecurrentPPO, which has one each for policy and value."""
    updates = UpdateCounter()
    model = _model(work)
    model.learn(steps)
    return Done(model.num_timesteps, updates.count, sum(p.numel() for p in model.policy.parameters()))


def collect(work: Work, steps: int) -> Done:
    """Collects rollouts with their advantages, without learning."""
    model = _model(work)
    _, callback = model._setup_learn(steps)
    callback.on_training_start({}, {})
    assert model.env is not None
    while model.num_timesteps < steps:
        assert model.collect_rollouts(model.env, callback, model.rollout_buffer, work.rollout)
    model.env.close()
    return Done(model.num_timesteps)


def _model(work: Work) -> PPO:
    images = work.name == "breakout"
    policy: dict[str, Any] = {} if images else dict(net_arch=dict(pi=HIDDEN, vf=HIDDEN))
    kind, network = PPO, "CnnPolicy" if images else "MlpPolicy"
    if work.lstm:
        from sb3_contrib import RecurrentPPO

        kind, network, policy["lstm_hidden_size"] = RecurrentPPO, "MlpLstmPolicy", work.lstm
    return kind(
        network,
        _envs(work),
        n_steps=work.rollout,
        batch_size=work.batch or work.samples,
        n_epochs=work.epochs or 1,
        learning_rate=work.learning_rate,
        clip_range=0.1 if images else 0.2,
        ent_coef=0.01 if work.env_id != "HalfCheetah-v5" else 0.0,
        policy_kwargs=policy,
        device="cpu",
    )


def _envs(work: Work) -> VecEnv:
    """Returns environments in this process, as rl-zoo makes them, but those that sleep in processes."""
    if work.name == "breakout":
        gym.register_envs(importlib.import_module("ale_py"))
        return VecFrameStack(make_atari_env(work.env_id, work.envs), 4)
    if work.name == "sleeping":
        return make_vec_env(work.env_id, work.envs, wrapper_class=Sleeping, vec_env_cls=SubprocVecEnv)
    return make_vec_env(work.env_id, work.envs)


def zoo_model(envs: VecEnv, task: Task, seed: int, **tuned: Any) -> PPO:
    """Returns PPO with a task of rl-zoo, and with further arguments."""
    torch.set_num_threads(1)
    network: dict[str, Any] = {}
    if task.others == WIDE:  # rl-zoo's policy_kwargs for MuJoCo
        widths = dict(pi=[256, 256], vf=[256, 256])
        network = dict(log_std_init=-2, ortho_init=False, activation_fn=torch.nn.ReLU, net_arch=widths)
    settings = dict(task.sb3)
    if task.linear:
        rate, clip = settings["learning_rate"], settings["clip_range"]
        settings |= dict(learning_rate=lambda left: left * rate, clip_range=lambda left: left * clip)
    arguments = settings | dict(policy_kwargs=network) | tuned
    return PPO("MlpPolicy", envs, **arguments, seed=seed, device="cpu")


def _mean(model: Any, envs: VecEnv, episodes: int) -> float:
    return float(evaluate_policy(model, envs, episodes, deterministic=True)[0])  # type: ignore[arg-type]


class StopWhenSolved(BaseCallback):
    """Plays greedy episodes every ``every`` env steps, after an update; a second evaluation confirms."""

    def __init__(self, envs: VecEnv, every: int, episodes: int, value: float) -> None:
        super().__init__()
        self.envs, self.every, self.episodes, self.value = envs, every, episodes, value
        self.solved, self.evaluated = False, 0

    def _on_rollout_start(self) -> None:
        if self.num_timesteps // self.every > self.evaluated:
            self.evaluated = self.num_timesteps // self.every
            results = (_mean(self.model, self.envs, self.episodes) for _ in range(2))
            self.solved = all(result >= self.value for result in results)

    def _on_step(self) -> bool:
        return not self.solved


def solve(seed: int, folder: str) -> None:
    """Trains on CartPole-v1 until it is solved, and writes result.json into a new folder."""
    envs = make_vec_env("CartPole-v1", TO_SOLVE.envs)
    callback = StopWhenSolved(make_vec_env("CartPole-v1", TO_SOLVE.envs, seed=seed + 1000), **SOLVED)
    model = zoo_model(envs, TO_SOLVE, seed)
    model.learn(TO_SOLVE.steps, callback=callback)
    # The last step, in which the callback stops training, does not count.
    taken = model.num_timesteps - TO_SOLVE.envs * callback.solved
    Path(folder).mkdir()
    (Path(folder) / "result.json").write_text(json.dumps({"env_step": taken, "solved": callback.solved}))
