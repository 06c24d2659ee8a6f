"""Tianshou's PPO with the settings of a task, and the networks and initial weights of Stable-Baselines3."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import torch
from tianshou.algorithm import PPO
from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory, LRSchedulerFactoryLinear
from tianshou.utils.net.common import Net
from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic
from torch import nn
from torch.distributions import Categorical, Independent, Normal

from systems.tasks import Task


def algorithm_for(obs_space: gym.spaces.Box, action_space: Any, task: Task) -> Any:
    """Returns Tianshou's PPO. Its loss of the value is that of Stable-Baselines3."""
    assert not task.normalize, "it scales rewards in another way"
    bodies = [Net(state_shape=obs_space.shape, hidden_sizes=[64, 64], activation=nn.Tanh) for _ in range(2)]
    nets: list[Any]
    if isinstance(action_space, gym.spaces.Discrete):
        actor = DiscreteActor(preprocess_net=bodies[0], action_shape=action_space.n, softmax_output=False)
        nets, dist_fn = [actor, DiscreteCritic(preprocess_net=bodies[1])], _categorical
    else:
        of_normal = dict(action_shape=action_space.shape, unbounded=True)
        actor = ContinuousActorProbabilistic(preprocess_net=bodies[0], **of_normal)
        nets, dist_fn = [actor, ContinuousCritic(preprocess_net=bodies[1])], _normal
        nn.init.zeros_(actor.sigma_param)  # log sigma
    for net, gain in zip(nets, (0.01, 1.0), strict=True):
        layers = [layer for layer in net.modules() if isinstance(layer, nn.Linear)]
        for layer in layers:
            nn.init.orthogonal_(layer.weight, gain if layer is layers[-1] else math.sqrt(2))
            nn.init.zeros_(layer.bias)
    sb3 = task.sb3
    optim = AdamOptimizerFactory(lr=sb3["learning_rate"], eps=1e-5)
    if task.linear:
        schedule = LRSchedulerFactoryLinear(1, task.steps, task.envs * sb3["n_steps"])
        optim = optim.with_lr_scheduler_factory(schedule)
    policy = ProbabilisticActorPolicy(
        actor=nets[0],
        dist_fn=dist_fn,
        deterministic_eval=True,
        action_space=action_space,
        action_scaling=False,
        action_bound_method=None,
    )
    names = ("vf_coef", "ent_coef", "max_grad_norm", "gae_lambda", "gamma")
    same = {name: sb3[name] for name in names}
    return PPO(policy=policy, critic=nets[1], optim=optim, eps_clip=sb3["clip_range"], **same)


def _categorical(logits: torch.Tensor) -> Any:
    return Categorical(logits=logits)


def _normal(output: tuple[torch.Tensor, torch.Tensor]) -> Any:
    return Independent(Normal(*output), 1)
