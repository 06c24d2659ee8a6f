"""Tianshou 2's PPO: its trainer, without evaluations, progress bar and checks of its buffer."""

from __future__ import annotations

import logging
from typing import Any

import gymnasium as gym
import torch
from tianshou.algorithm import PPO
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy, ProbabilisticActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, CollectStats, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OnPolicyTrainerParams
from tianshou.utils.net.common import Net
from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic
from torch import nn

from systems import Done, UpdateCounter, Work


def train(work: Work, steps: int) -> Done:
    """Trains on vectors, with discrete actions or a Box."""
    logging.disable(logging.INFO)
    updates = UpdateCounter()
    envs = DummyVectorEnv([lambda: gym.make(work.env_id) for _ in range(work.envs)])
    policy, critic = _networks(work, gym.make(work.env_id))
    discrete = isinstance(policy, DiscreteActorPolicy)
    algorithm = PPO(
        policy=policy,
        critic=critic,
        optim=AdamOptimizerFactory(lr=work.learning_rate, eps=1e-5),
        ent_coef=0.01 if discrete else 0.0,
        max_grad_norm=0.5,
        max_batchsize=work.samples,
    )
    collector = Collector[CollectStats](
        algorithm,
        envs,
        VectorReplayBuffer(work.samples, work.envs),
        raise_on_nan_in_buffer=False,
    )
    result = algorithm.run_training(
        OnPolicyTrainerParams(
            training_collector=collector,
            max_epochs=1,
            epoch_num_steps=work.iterations(steps) * work.samples,
            collection_step_num_env_steps=work.samples,
            update_step_num_repetitions=work.epochs,
            batch_size=work.batch,
            verbose=False,
            show_progress=False,
        )
    )
    parameters = sum(p.numel() for p in algorithm.parameters())
    return Done(result.train_step, updates.count, parameters)


def _networks(work: Work, env: gym.Env) -> tuple[Any, nn.Module]:
    """Returns policy and critic, with separate layers."""
    (size,) = env.observation_space.shape or ()
    policy_net, value_net = (
        Net(state_shape=(size,), hidden_sizes=work.hidden, activation=nn.Tanh) for _ in range(2)
    )
    if isinstance(env.action_space, gym.spaces.Discrete):
        actor = DiscreteActor(
            preprocess_net=policy_net, action_shape=env.action_space.n, softmax_output=False
        )
        critic: nn.Module = DiscreteCritic(preprocess_net=value_net)
        return DiscreteActorPolicy(actor=actor, action_space=env.action_space), critic
    gaussian = ContinuousActorProbabilistic(
        preprocess_net=policy_net, action_shape=env.action_space.shape, unbounded=True
    )
    policy = ProbabilisticActorPolicy(
        actor=gaussian, dist_fn=_independent_normal, action_space=env.action_space, action_scaling=False
    )
    return policy, ContinuousCritic(preprocess_net=value_net)


def _independent_normal(parameters: tuple[torch.Tensor, torch.Tensor]) -> torch.distributions.Distribution:
    return torch.distributions.Independent(torch.distributions.Normal(*parameters), 1)
