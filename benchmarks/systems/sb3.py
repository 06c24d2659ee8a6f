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
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack, VecNormalize

from systems import Done, UpdateCounter, Work


def train(work: Work, steps: int) -> Done:
    """Trains."""
    updates = UpdateCounter()
    model = _model(work)
    model.learn(steps)
    return Done(model.num_timesteps, updates.count, sum(p.numel() for p in model.policy.parameters()))


def train_recurrent(work: Work, steps: int) -> Done:
    """Trains sb3-contrib's RecurrentPPO: an LSTM each for policy and value, before their layers."""
    from sb3_contrib import RecurrentPPO

    updates = UpdateCounter()
    policy = dict(net_arch=dict(pi=list(work.hidden), vf=list(work.hidden)), lstm_hidden_size=work.lstm)
    model = RecurrentPPO(
        "MlpLstmPolicy",
        make_vec_env(work.env_id, work.envs),
        n_steps=work.rollout,
        batch_size=work.batch,
        n_epochs=work.epochs,
        learning_rate=work.learning_rate,
        ent_coef=0.01,
        policy_kwargs=policy,
        device="cpu",
    )
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
    return Done(model.num_timesteps)


def _model(work: Work) -> PPO:
    images = work.name == "breakout"
    widths = dict(net_arch=dict(pi=list(work.hidden), vf=list(work.hidden)))
    return PPO(
        "CnnPolicy" if images else "MlpPolicy",
        _atari(work) if images else make_vec_env(work.env_id, work.envs),
        n_steps=work.rollout,
        batch_size=work.batch or work.samples,
        n_epochs=work.epochs or 1,
        learning_rate=work.learning_rate,
        clip_range=0.1 if images else 0.2,
        ent_coef=0.01 if work.env_id != "HalfCheetah-v5" else 0.0,
        policy_kwargs={} if images else widths,
        device="cpu",
    )


def _atari(work: Work) -> VecEnv:
    """Returns environments as rl-zoo makes them: with Stable-Baselines3's wrappers, all in this process."""
    gym.register_envs(importlib.import_module("ale_py"))
    return VecFrameStack(make_atari_env(work.env_id, work.envs), 4)


def _zoo_model(envs: VecEnv, row: Any, seed: int) -> PPO:
    """Returns PPO with a row of zoo.py."""
    torch.set_num_threads(1)
    network: dict[str, Any] = {}
    if row.keys:  # Hopper's
        widths = dict(pi=[256, 256], vf=[256, 256])
        network = dict(log_std_init=-2, ortho_init=False, activation_fn=torch.nn.ReLU, net_arch=widths)
    settings = dict(row.sb3)
    if row.linear:
        rate, clip = settings["learning_rate"], settings["clip_range"]
        settings |= dict(learning_rate=lambda left: left * rate, clip_range=lambda left: left * clip)
    return PPO("MlpPolicy", envs, **settings, policy_kwargs=network, seed=seed, device="cpu")


def zoo_return(env_id: str, row: Any, seed: int, episodes: int) -> float:
    """Returns the mean return of greedy episodes after training with a row of zoo.py."""
    no_images = {"render_mode": None}
    envs: Any = make_vec_env(env_id, row.envs, seed=seed, env_kwargs=no_images)
    of_play: Any = make_vec_env(env_id, 1, seed=seed + 1, env_kwargs=no_images)
    if row.normalize:
        envs = VecNormalize(envs, gamma=row.sb3["gamma"])
        of_play = VecNormalize(of_play, training=False, norm_reward=False)
    model = _zoo_model(envs, row, seed)
    model.learn(row.steps)
    if row.normalize:
        of_play.obs_rms = envs.obs_rms
    return _mean(model, of_play, episodes)


def _mean(model: PPO, envs: VecEnv, episodes: int) -> float:
    mean, _ = evaluate_policy(model, envs, episodes, deterministic=True)
    return float(mean)  # type: ignore[arg-type]


class StopWhenSolved(BaseCallback):
    """Plays greedy episodes every ``every`` env steps, after an update; a second evaluation confirms."""

    def __init__(self, envs: VecEnv, every: int, episodes: int, value: float) -> None:
        super().__init__()
        self.envs, self.every, self.episodes, self.value = envs, every, episodes, value
        self.solved, self.evaluated = False, 0

    def _on_rollout_start(self) -> None:
        if self.num_timesteps // self.every > self.evaluated:
            self.evaluated = self.num_timesteps // self.every
            results = (_mean(self.model, self.envs, self.episodes) for _ in range(2))  # type: ignore[arg-type]
            self.solved = all(result >= self.value for result in results)

    def _on_step(self) -> bool:
        return not self.solved


def solve(seed: int, folder: str) -> None:
    """Trains on CartPole-v1 until it is solved, and writes result.json into a new folder."""
    from zoo import SOLVED, TO_SOLVE

    envs = make_vec_env("CartPole-v1", TO_SOLVE.envs)
    callback = StopWhenSolved(make_vec_env("CartPole-v1", TO_SOLVE.envs, seed=seed + 1000), **SOLVED)
    model = _zoo_model(envs, TO_SOLVE, seed)
    model.learn(TO_SOLVE.steps, callback=callback)
    # The last step, in which the callback stops training, does not count.
    taken = model.num_timesteps - TO_SOLVE.envs * callback.solved
    Path(folder).mkdir()
    (Path(folder) / "result.json").write_text(json.dumps({"env_step": taken, "solved": callback.solved}))
