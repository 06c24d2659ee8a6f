"""PPG as one file in the manner of CleanRL's ppg_procgen, written for this benchmark, on EnvPool's Procgen.

One IMPALA encoder, a value head whose gradient stops at it, an auxiliary value head, one Adam for both
phases, rewards scaled by the std of the discounted return. EnvPool's reset takes a step, which is
no transition: both phases leave it out, as in ding_lite.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, kl_divergence

from systems import Done, Skipped, UpdateCounter, Work
from systems.single_file_ppo import gae

GAMMA = 0.999


class Residual(nn.Module):
    """A residual block of two convolutions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(torch.relu(self.first(torch.relu(x))))


class Network(nn.Module):
    """IMPALA's encoder (16, 32, 32; 256) with policy, value and auxiliary value head."""

    def __init__(self, actions: int) -> None:
        super().__init__()
        stages: list[nn.Module] = []
        for before, width in ((3, 16), (16, 32), (32, 32)):
            stages += [nn.Conv2d(before, width, 3, padding=1), nn.MaxPool2d(3, 2, padding=1)]
            stages += [Residual(width), Residual(width)]
        self.body = nn.Sequential(*stages, nn.Flatten(), nn.ReLU(), nn.Linear(2048, 256), nn.ReLU())
        self.actor, self.critic, self.aux_critic = (
            nn.Linear(256, actions),
            nn.Linear(256, 1),
            nn.Linear(256, 1),
        )

    def outputs(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns logits, value and auxiliary value of images (N, 3, 64, 64) between 0 and 1."""
        hidden = self.body(images)
        return self.actor(hidden), self.critic(hidden.detach())[:, 0], self.aux_critic(hidden)[:, 0]


class PoolEnvs:
    """EnvPool's environments, with a mask of the rows that are transitions."""

    def __init__(self, work: Work) -> None:
        import envpool

        try:
            self.envs = envpool.make_gymnasium(work.env_id, num_envs=work.envs, seed=0)
        except OSError as error:  # Procgen's Qt
            raise Skipped(str(error)) from error
        self.actions = int(self.envs.single_action_space.n)
        self.ended = np.zeros(work.envs, bool)

    def reset(self) -> np.ndarray:
        """Returns the first observations."""
        obs: np.ndarray = self.envs.reset()[0]
        return obs

    def step(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Returns observations, rewards, ends and validity (B,)."""
        obs, reward, terminated, truncated, _ = self.envs.step(action)
        valid, done = ~self.ended, (terminated | truncated) & ~self.ended
        self.ended = done
        return obs, reward * valid, done, valid


def environments(work: Work, steps: int) -> Done:
    """Steps the environments alone, with random actions."""
    envs, count = PoolEnvs(work), 0
    actions = np.random.default_rng(0).integers(envs.actions, size=(64, work.envs))
    envs.reset()
    while count < steps:
        count += sum(int(envs.step(action)[3].sum()) for action in actions)
    return Done(count)


class RewardScale:
    """Divides rewards by the running std of the discounted return, as gymnasium's NormalizeReward."""

    def __init__(self, envs: int) -> None:
        self.returns, self.mean, self.variance, self.count = np.zeros(envs), 0.0, 1.0, 1e-4

    def __call__(self, reward: np.ndarray, done: np.ndarray) -> np.ndarray:
        self.returns = self.returns * GAMMA * (1 - done) + reward
        delta, total = self.returns.mean() - self.mean, self.count + len(reward)
        spread = self.variance * self.count + self.returns.var() * len(reward)
        self.variance = (spread + delta**2 * self.count * len(reward) / total) / total
        self.mean, self.count = self.mean + delta * len(reward) / total, total
        return np.clip(reward / np.sqrt(self.variance + 1e-8), -10, 10)


def train(work: Work, steps: int) -> Done:
    """Trains whole phases: ``aux_freq`` iterations of the policy phase, then the auxiliary one."""
    updates, envs, scale = UpdateCounter(), PoolEnvs(work), RewardScale(work.envs)
    network = Network(envs.actions)
    adam = torch.optim.Adam(network.parameters(), lr=work.learning_rate, eps=1e-8)
    obs, env_steps = _scaled(envs.reset()), 0
    remembered: list[tuple[Tensor, Tensor]] = []
    while env_steps < steps:
        obs, rollout, valid = _collect(work, envs, scale, network, obs)
        rows = valid.flatten().nonzero()[:, 0]
        env_steps += len(rows)
        flat = [x.flatten(0, 1)[rows] for x in rollout]
        _policy_phase(work, network, adam, flat)
        remembered.append(((flat[0] * 255).to(torch.uint8), flat[4]))
        if len(remembered) == work.aux_freq:
            _auxiliary_phase(work, network, adam, *map(torch.cat, zip(*remembered, strict=True)))
            remembered = []
    return Done(env_steps, updates.count, sum(p.numel() for p in network.parameters()))


def _scaled(obs: np.ndarray) -> Tensor:
    return torch.as_tensor(obs).float() / 255.0


@torch.no_grad()
def _collect(
    work: Work, envs: PoolEnvs, scale: RewardScale, network: Network, obs: Tensor
) -> tuple[Tensor, list[Tensor], Tensor]:
    """Returns the next observations; observations, actions, log-probs, advantages, targets; validity."""
    shape = work.rollout, work.envs
    images = torch.zeros(*shape, *obs.shape[1:])
    actions = torch.zeros(shape, dtype=torch.long)
    log_probs, rewards, dones, values, valid = (torch.zeros(shape) for _ in range(5))
    for t in range(work.rollout):
        images[t] = obs
        logits, values[t], _ = network.outputs(obs)
        dist = Categorical(logits=logits)
        actions[t] = dist.sample()
        log_probs[t] = dist.log_prob(actions[t])
        following, reward, done, real = envs.step(actions[t].numpy())
        obs, dones[t], valid[t] = _scaled(following), torch.as_tensor(done), torch.as_tensor(real)
        rewards[t] = torch.as_tensor(scale(reward, done))
    advantage = gae(rewards, dones, values, network.outputs(obs)[1], GAMMA)
    return obs, [images, actions, log_probs, advantage, advantage + values], valid


def _policy_phase(work: Work, network: Network, adam: torch.optim.Optimizer, flat: list[Tensor]) -> None:
    flat = [*flat[:3], (flat[3] - flat[3].mean()) / (flat[3].std() + 1e-8), flat[4]]
    for _ in range(work.epochs):
        for index in torch.randperm(len(flat[0])).split(work.batch):
            o, a, old, adv, target = (x[index] for x in flat)
            logits, value, _ = network.outputs(o)
            dist = Categorical(logits=logits)
            ratio = (dist.log_prob(a) - old).exp()
            surrogate = torch.max(-adv * ratio, -adv * ratio.clamp(0.8, 1.2)).mean()
            loss = surrogate - 0.01 * dist.entropy().mean() + 0.25 * ((value - target) ** 2).mean()
            _step(network, adam, loss)


def _auxiliary_phase(
    work: Work, network: Network, adam: torch.optim.Optimizer, images: Tensor, targets: Tensor
) -> None:
    with torch.no_grad():
        old = torch.cat([network.outputs(x.float() / 255.0)[0] for x in images.split(work.aux_batch)])
    for _ in range(work.aux_epochs):
        for index in torch.randperm(len(images)).split(work.aux_batch):
            logits, value, auxiliary = network.outputs(images[index].float() / 255.0)
            clone = kl_divergence(Categorical(logits=old[index]), Categorical(logits=logits)).mean()
            errors = ((value - targets[index]) ** 2).mean() + ((auxiliary - targets[index]) ** 2).mean()
            _step(network, adam, clone + 0.5 * errors)


def _step(network: Network, adam: torch.optim.Optimizer, loss: Tensor) -> None:
    adam.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(network.parameters(), 0.5)
    adam.step()
