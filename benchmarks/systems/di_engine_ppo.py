"""DI-engine's PPO: the loop of its serial_pipeline_onpolicy, without evaluations and checkpoints."""

from __future__ import annotations

import logging
import os
import tempfile
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from ding.config import compile_config
from ding.envs import BaseEnv, BaseEnvManager, BaseEnvTimestep
from ding.policy import PPOPolicy
from ding.worker import BaseLearner, SampleSerialCollector
from easydict import EasyDict
from tensorboardX import SummaryWriter
from torch import nn

from systems import HIDDEN, Done, UpdateCounter, Work


class CartPole(BaseEnv):
    """CartPole-v1 of gymnasium; DI-engine's is v0, of a gym version that fails with current NumPy."""

    def __init__(self, cfg: Any) -> None:
        self._env = gym.make(cfg.env_id)
        self.observation_space, self.action_space = self._env.observation_space, self._env.action_space
        self.reward_space = gym.spaces.Box(0.0, 1.0, (1,), np.float32)
        self._seed: int | None = None

    def seed(self, seed: int, dynamic_seed: bool = True) -> None:
        self._seed = seed

    def reset(self) -> np.ndarray:
        obs, _ = self._env.reset(seed=self._seed)
        self._seed, self._return = None, 0.0
        return np.asarray(obs, np.float32)

    def step(self, action: np.ndarray) -> BaseEnvTimestep:
        obs, reward, terminated, truncated, info = self._env.step(action.item())
        self._return += reward
        if terminated or truncated:
            info["eval_episode_return"] = self._return
        return BaseEnvTimestep(obs, np.array([reward], np.float32), terminated or truncated, info)

    def close(self) -> None:
        self._env.close()

    def __repr__(self) -> str:
        return "CartPole-v1"


def train(work: Work, steps: int) -> Done:
    """Trains on CartPole."""
    logging.disable(logging.WARNING)
    updates = UpdateCounter()
    os.chdir(tempfile.mkdtemp())  # DI-engine writes below the working directory
    cfg = compile_config(
        EasyDict(exp_name="run", env=dict(), policy=_config(work)),
        BaseEnvManager,
        PPOPolicy,
        BaseLearner,
        SampleSerialCollector,
        save_cfg=False,
        renew_dir=False,
    )
    make = partial(CartPole, EasyDict(env_id=work.env_id))
    envs = BaseEnvManager([make] * work.envs, BaseEnvManager.default_config())
    envs.seed(0)
    policy = PPOPolicy(cfg.policy, enable_field=["learn", "collect"])
    logger = SummaryWriter("log")
    learner = BaseLearner(cfg.policy.learn.learner, policy.learn_mode, logger, exp_name=cfg.exp_name)
    collector = SampleSerialCollector(
        cfg.policy.collect.collector, envs, policy.collect_mode, logger, exp_name=cfg.exp_name
    )
    learner.call_hook("before_run")
    learned_from = 0
    for _ in range(work.iterations(steps)):
        # The collector waits for whole trajectories: without drop_extra an iteration is a third larger.
        samples = collector.collect(train_iter=learner.train_iter, drop_extra=True)
        learner.train(samples, collector.envstep)
        learned_from += len(samples)
    parameters = sum(p.numel() for p in policy.learn_mode.get_attribute("learn_model").parameters())
    return Done(learned_from, updates.count, parameters)


def _config(work: Work) -> dict[str, Any]:
    first, second = HIDDEN
    return dict(
        cuda=False,
        action_space="discrete",
        recompute_adv=False,
        model=dict(
            obs_shape=4,
            action_shape=2,
            action_space="discrete",
            share_encoder=False,
            encoder_hidden_size_list=[first],  # the heads have one hidden layer each
            actor_head_hidden_size=second,
            critic_head_hidden_size=second,
            actor_head_layer_num=1,
            critic_head_layer_num=1,
            activation=nn.Tanh(),
        ),
        learn=dict(
            epoch_per_collect=work.epochs,
            batch_size=work.batch,
            learning_rate=work.learning_rate,
            value_norm=False,
            entropy_weight=0.01,
            learner=dict(hook=dict(save_ckpt_after_iter=10**9, log_show_after_iter=10**9)),
        ),
        collect=dict(n_sample=work.samples, unroll_len=1, discount_factor=0.99, gae_lambda=0.95),
    )
