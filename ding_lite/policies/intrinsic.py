"""An intrinsic reward as part of a policy: its scale, its value network, and its advantages.

    r_t   = reward of ``models.intrinsic`` / std of its running discounted return
    A     = extrinsic_weight A_E + weight A_I        (arXiv:1810.12894, section 2.3)

Intrinsic returns have a separate small value network, so the policy's model needs no change. They continue
past the ends of episodes; otherwise the policy would avoid new states that may end an episode. Rewards are
computed, and their scale is updated, before credit is assigned. The networks are trained, and then the scale
of observations is updated, after the policy.

Shapes: T steps, B environments, N samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor, nn

from ding_lite.config.registry import INTRINSIC_REGISTRY
from ding_lite.data.rollout import Rollout, flat, to_device
from ding_lite.data.samples import Batch, Samples
from ding_lite.fast.gradients import Objective
from ding_lite.models.actor_critic import value_head
from ding_lite.models.encoders import Encoder, ImageEncoder
from ding_lite.models.init import initialize
from ding_lite.models.intrinsic import IntrinsicReward, Steps
from ding_lite.policies.optimizer import Optimizer, mean_metrics
from ding_lite.ranks import Ranks
from ding_lite.rl import losses
from ding_lite.rl.returns import explained_variance, following_rows, gae
from ding_lite.rl.scales import ObservationNorm, RewardScale
from ding_lite.rl.seeding import seeded_layers
from ding_lite.trees import map_tree

CHUNK = 2**11  # samples of a network in one call without a gradient


class ValueNetwork(nn.Module):
    """The value network of intrinsic returns, with the default encoders: obs (N, ...) -> (N,)."""

    def __init__(self, obs_space: gym.Space) -> None:
        super().__init__()
        self.encoder = Encoder(obs_space, None, None, "relu")
        self.head, last = value_head(self.encoder.out_features, (), "relu")
        initialize(self, "orthogonal", {}, value_layer=last)

    def forward(self, obs: Any) -> Tensor:
        return self.head(self.encoder(obs)).squeeze(-1)


class Intrinsic:
    """The intrinsic reward of a policy.

    Args:
        cfg: the section ``policy``.
        obs_space, action_space: of one environment.
        generator: draws the order of samples; on the device of the policy.
        seed, ranks: of the policy.

    Attributes:
        reward: the network that computes rewards.
        critic: the value network of intrinsic returns.
        scale: of the rewards.
        obs_norm: scale of the observations, also of images, for both networks.
    """

    def __init__(
        self,
        cfg: Any,
        obs_space: gym.Space,
        action_space: gym.Space,
        generator: torch.Generator,
        seed: int,
        ranks: Ranks,
    ) -> None:
        self.cfg, self.learn_cfg, self.collect_cfg = cfg.intrinsic, cfg.learn, cfg.collect
        self.device, self.ranks, self.generator = generator.device, ranks, generator
        options = {name: v for name, v in self.cfg.items() if name not in (*IntrinsicReward.config, "type")}
        factory = INTRINSIC_REGISTRY.get(self.cfg.type)
        with seeded_layers(seed, "policy", "intrinsic"):
            self.reward: IntrinsicReward = factory(obs_space, action_space, **options)
            self.critic = ValueNetwork(obs_space)
        self.networks = nn.ModuleDict({"reward": self.reward, "critic": self.critic}).to(self.device).eval()
        for module in self.networks.modules():
            if isinstance(module, ImageEncoder):
                module.scale = 1.0  # obs_norm has scaled the pixels
        self.scale = RewardScale(ranks=ranks)
        self.obs_norm = ObservationNorm(obs_space, self.cfg.obs_clip, self.device, images=True, ranks=ranks)
        self.optimizer = Optimizer(self.networks, self.learn_cfg, ranks=ranks)

    @torch.no_grad()
    def add_reward(self, rollout: Rollout) -> None:
        """Adds the field ``intrinsic_reward`` (T, B), not scaled, to a fresh rollout; updates the scale."""
        table, valid = StepTable(rollout, self.obs_norm, self.device), rollout.valid
        reward = torch.zeros(valid.numel(), device=self.device)
        for rows in table.rows.split(CHUNK):
            reward[rows.to(self.device)] = self.of_steps("reward", table.at(rows))
        rollout.intrinsic_reward = reward.view(valid.shape).to(valid.device)
        never = torch.zeros_like(valid)
        self.scale.update_from(rollout.intrinsic_reward, never, valid, self.cfg.discount_factor)

    def of_steps(self, method: str, steps: Steps) -> Tensor:
        """Returns the "reward" or the "loss" (N,) of steps, in float32."""
        # A count of visits may be a tensor of integers.
        return getattr(self.reward, method)(steps).float().view(steps.done.shape)

    @torch.no_grad()
    def credit(self, rollout: Rollout, weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Returns the intrinsic advantage and value target (T, B), by the newest value network.

        Args:
            rollout: with the field ``intrinsic_reward``.
            weight: (T, B), min(1, pi_prox/mu) of each step, for V-trace on rollouts that are not fresh.
        """
        valid = rollout.valid
        table = StepTable(rollout, self.obs_norm, self.device)
        every = torch.arange(valid.numel() + valid.shape[1], device=valid.device)
        value = torch.cat([self.critic(table.obs_at(rows)) for rows in every.split(CHUNK)])
        value, never = value.view(-1, valid.shape[1]), torch.zeros_like(valid)
        return gae(
            self.scale(rollout.intrinsic_reward),
            value[:-1],
            value.gather(0, following_rows(valid)),
            never,
            never,
            valid,
            gamma=self.cfg.discount_factor,
            gae_lambda=self.collect_cfg.gae_lambda,
            weight=weight,
        )

    def added_to(self, advantage: Tensor, rollout: Rollout, weight: Tensor | None) -> Tensor:
        """Returns the weighted sum (T, B) of extrinsic and intrinsic advantages."""
        intrinsic, _ = self.credit(rollout, weight)
        return self.cfg.extrinsic_weight * advantage + self.cfg.weight * intrinsic

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the sum of the reward loss, on the steps that train it, and the value loss, on all steps.

        Shapes:
            ``batch.obs``: Steps of N samples; ``value_target``: (N,); ``reward_weight``: (N,), 0 for a step
            that does not train the reward
        """
        reward_loss = losses.weighted_mean(self.of_steps("loss", batch.obs), batch.reward_weight)
        value_loss = losses.value_error(self.critic(batch.obs.obs), batch.value_target).mean()
        return reward_loss + value_loss, {"loss": reward_loss, "value_loss": value_loss}

    def learn(self, rollout: Rollout) -> dict[str, float]:
        """Trains the networks on a fresh rollout (T, B), then updates the scale of observations."""
        valid = rollout.valid
        table = StepTable(rollout, self.obs_norm, self.device)
        advantage, target = self.credit(rollout)
        explained = explained_variance((target - advantage)[valid], target[valid])
        fields = {"obs": table.rows, "value_target": target.flatten()[table.rows]}
        samples = Samples(fields, inputs=table.at)
        objective = Objective(self.loss, name="the intrinsic loss")
        gradient_of, history = self.optimizer.gradient_of(objective), []
        for _ in range(self.cfg.epoch_per_collect):
            size = self.learn_cfg.batch_size
            batches = self._weighted(samples.minibatches(size, self.generator, ranks=self.ranks).batches)
            history += self.optimizer.steps(gradient_of, batches, self.cfg.learning_rate)
        self.obs_norm.update(rollout.obs, valid)
        metrics = {
            **mean_metrics(history),
            "reward": self.ranks.total(float(rollout.intrinsic_reward[valid].sum()))
            / self.ranks.total(int(valid.sum())),
            "scale": float(self.scale.std),
            "explained_variance": float(explained),
        }
        return {f"intrinsic_{name}": value for name, value in metrics.items()}

    def _weighted(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Draws the steps of each minibatch that train the reward, and adds weights (N,).

        With these weights, the mean over the minibatches of all ranks is the mean over the drawn steps.
        """
        for batch in batches:
            draw = torch.rand(len(batch), generator=self.generator, device=self.generator.device)
            trained = (draw < self.cfg.update_proportion).float()
            counts = torch.stack([trained.sum(), torch.ones_like(trained).sum()])
            trained_steps, all_steps = self.ranks.sum(counts)
            yield batch.plus(reward_weight=trained * all_steps / trained_steps.clamp_min(1))

    def _parts(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("networks", "scale", "obs_norm", "optimizer")}

    def state_dict(self) -> dict[str, Any]:
        return {name: part.state_dict() for name, part in self._parts().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, part in self._parts().items():
            part.load_state_dict(state[name])


class StepTable:
    """The steps of a rollout (T, B), each with the observation that follows it.

    Args:
        rollout: the rollout.
        obs_norm: scales observations.
        device: the device of returned steps.

    Attributes:
        rows: (N,), indices of the valid steps in the flattened (T, B).
    """

    def __init__(self, rollout: Rollout, obs_norm: ObservationNorm, device: torch.device) -> None:
        self.obs_norm, self.device = obs_norm, device
        valid = rollout.valid
        self.rows = valid.flatten().nonzero().squeeze(-1)
        columns = torch.arange(valid.shape[1], device=valid.device)
        self._following = (following_rows(valid) * valid.shape[1] + columns).flatten()
        self._obs = map_tree(
            lambda leaf, after: torch.cat([leaf, after[None]]).flatten(0, 1), rollout.obs, rollout.last_obs
        )
        self._action = flat(rollout.action)
        self._done = (rollout.terminated | rollout.truncated).flatten()

    def obs_at(self, rows: Tensor) -> Any:
        """Returns the scaled observations (N, ...) at ``rows`` (N,) of the flattened (T + 1, B)."""
        obs = map_tree(lambda leaf: leaf.index_select(0, rows), self._obs)
        return self.obs_norm(to_device(obs, self.device))

    def at(self, rows: Tensor) -> Steps:
        """Returns the steps at ``rows`` (N,)."""
        action = map_tree(lambda leaf: leaf.index_select(0, rows), self._action)
        return Steps(
            obs=self.obs_at(rows),
            action=to_device(action, self.device),
            next_obs=self.obs_at(self._following[rows]),
            done=to_device(self._done[rows], self.device),
        )
