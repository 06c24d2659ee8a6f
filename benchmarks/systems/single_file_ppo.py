"""PPO as one file in CleanRL's manner, written for this benchmark: SyncVectorEnv, torch, nothing else."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from systems import HIDDEN, Done, UpdateCounter, Work


def train(work: Work, steps: int) -> Done:
    """Trains on discrete actions."""
    updates = UpdateCounter()
    envs = gym.vector.SyncVectorEnv(
        [lambda: gym.make(work.env_id) for _ in range(work.envs)],
        autoreset_mode=gym.vector.AutoresetMode.SAME_STEP,
    )
    actor, critic = _network(2), _network(1)
    parameters = [*actor.parameters(), *critic.parameters()]
    adam = torch.optim.Adam(parameters, lr=work.learning_rate, eps=1e-5)
    shape = work.rollout, work.envs
    obs_store = torch.zeros(*shape, 4)
    actions = torch.zeros(shape, dtype=torch.long)
    log_probs, rewards, dones, values = (torch.zeros(shape) for _ in range(4))
    obs = torch.as_tensor(envs.reset(seed=0)[0])
    for _ in range(work.iterations(steps)):
        for t in range(work.rollout):
            obs_store[t] = obs
            with torch.no_grad():
                dist = torch.distributions.Categorical(logits=actor(obs))
                actions[t] = dist.sample()
                log_probs[t], values[t] = dist.log_prob(actions[t]), critic(obs)[:, 0]
            following, reward, terminated, truncated, _ = envs.step(actions[t].numpy())
            obs = torch.as_tensor(following)
            rewards[t], dones[t] = torch.as_tensor(reward), torch.as_tensor(terminated | truncated)
        with torch.no_grad():
            advantage = gae(rewards, dones, values, critic(obs)[:, 0])
        data = [x.flatten(0, 1) for x in (obs_store, actions, log_probs, advantage, advantage + values)]
        for _ in range(work.epochs):
            order = np.random.permutation(work.samples)
            for start in range(0, work.samples, work.batch):
                o, a, old, adv, target = (x[order[start : start + work.batch]] for x in data)
                dist = torch.distributions.Categorical(logits=actor(o))
                adam.zero_grad()
                (policy_loss(dist, a, old, adv) + 0.25 * ((critic(o)[:, 0] - target) ** 2).mean()).backward()
                nn.utils.clip_grad_norm_(parameters, 0.5)
                adam.step()
    return Done(work.iterations(steps) * work.samples, updates.count, sum(p.numel() for p in parameters))


def policy_loss(
    dist: torch.distributions.Categorical, action: torch.Tensor, old: torch.Tensor, advantage: torch.Tensor
) -> torch.Tensor:
    """Returns the clipped surrogate of normalised advantages, less the entropy bonus."""
    ratio = (dist.log_prob(action) - old).exp()
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    surrogate = torch.max(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2)).mean()
    return surrogate - 0.01 * dist.entropy().mean()


def gae(
    rewards: torch.Tensor, dones: torch.Tensor, values: torch.Tensor, after: torch.Tensor
) -> torch.Tensor:
    """Returns advantages (T, B); ``after`` (B,) are the values of what follows the last row."""
    advantage, running = torch.zeros_like(rewards), torch.zeros_like(after)
    for t in reversed(range(len(rewards))):
        delta = rewards[t] + 0.99 * after * (1 - dones[t]) - values[t]
        running = advantage[t] = delta + 0.99 * 0.95 * (1 - dones[t]) * running
        after = values[t]
    return advantage


def _network(out: int) -> nn.Sequential:
    first, second = HIDDEN
    return nn.Sequential(
        nn.Linear(4, first), nn.Tanh(), nn.Linear(first, second), nn.Tanh(), nn.Linear(second, out)
    )
