"""Stable-Baselines3's PPO; its policy and value networks are separate for vectors, one for images."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import gymnasium as gym
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv, VecFrameStack
from work import Done, Work

from systems.counting import UpdateCounter


def train(work: Work, steps: int, *, our_envs: bool = False) -> Done:
    """Trains; with ``our_envs`` Atari uses ding_lite's wrappers in worker processes."""
    updates = UpdateCounter()
    model = _model(work, our_envs)
    model.learn(steps)
    return Done(model.num_timesteps, updates.count, sum(p.numel() for p in model.policy.parameters()))


def collect(work: Work, steps: int) -> Done:
    """Collects rollouts with their advantages, without learning."""
    model = _model(work, our_envs=False)
    _, callback = model._setup_learn(steps)
    callback.on_training_start({}, {})
    while model.num_timesteps < steps:
        assert model.collect_rollouts(model.env, callback, model.rollout_buffer, work.rollout)
    return Done(model.num_timesteps)


def _model(work: Work, our_envs: bool) -> PPO:
    images = work.name == "breakout"
    widths = dict(net_arch=dict(pi=list(work.hidden), vf=list(work.hidden)))
    return PPO(
        "CnnPolicy" if images else "MlpPolicy",
        _atari(work, our_envs) if images else make_vec_env(work.env_id, work.envs),
        n_steps=work.rollout,
        batch_size=work.batch or work.samples,
        n_epochs=work.epochs or 1,
        learning_rate=work.learning_rate,
        clip_range=0.1 if images else 0.2,
        ent_coef=0.01 if work.env_id != "HalfCheetah-v5" else 0.0,
        policy_kwargs={} if images else widths,
        device="cpu",
    )


def _atari(work: Work, our_envs: bool) -> VecEnv:
    gym.register_envs(importlib.import_module("ale_py"))
    if not our_envs:  # like rl-zoo: Stable-Baselines3's wrappers, all in this process
        return VecFrameStack(make_atari_env(work.env_id, work.envs), 4)
    make = functools.partial(_our_env, work.env_id)
    return SubprocVecEnv([functools.partial(make, index) for index in range(work.envs)])


def _our_env(env_id: str, index: int) -> Any:
    from ding_lite.config.compile import compile_config
    from ding_lite.envs.make import make_env

    config = compile_config(dict(env=dict(env_id=env_id, wrappers=["atari"])))
    return make_env(config.values.env, index=index)


class StopWhenSolved(BaseCallback):
    """Plays greedy episodes every ``every`` env steps, after an update; a second evaluation confirms."""

    def __init__(self, every: int, episodes: int, value: float, envs: VecEnv) -> None:
        super().__init__()
        self.every, self.episodes, self.value, self.envs = every, episodes, value, envs
        self.solved, self.evaluated = False, 0

    def _on_rollout_start(self) -> None:
        if self.num_timesteps // self.every > self.evaluated:
            self.evaluated = self.num_timesteps // self.every
            self.solved = self._mean() >= self.value and self._mean() >= self.value

    def _mean(self) -> float:
        mean, _ = evaluate_policy(self.model, self.envs, self.episodes, deterministic=True)
        return float(mean)  # type: ignore[arg-type]

    def _on_step(self) -> bool:
        return not self.solved


def solve(work: Work, steps: int, *, seed: int, every: int, episodes: int, value: float) -> Done:
    """Trains with rl-zoo's settings for CartPole until it is solved."""
    callback = StopWhenSolved(every, episodes, value, make_vec_env(work.env_id, work.envs, seed=seed + 1000))
    model = PPO(
        "MlpPolicy",
        make_vec_env(work.env_id, work.envs),
        n_steps=work.rollout,
        batch_size=work.batch,
        n_epochs=work.epochs,
        gae_lambda=0.8,
        gamma=0.98,
        ent_coef=0.0,
        learning_rate=lambda left: work.learning_rate * left,
        clip_range=lambda left: 0.2 * left,
        seed=seed,
        device="cpu",
    )
    model.learn(steps, callback=callback)
    # The last step, in which the callback stops training, does not count.
    taken = model.num_timesteps - (work.envs if callback.solved else 0)
    return Done(taken)
