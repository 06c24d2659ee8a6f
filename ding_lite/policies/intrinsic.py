"""An intrinsic reward as part of a policy: its scale, its value network, and its advantages.

    r_t   = reward of ``models.intrinsic`` / std of its running discounted return
    A     = extrinsic_weight A_E + weight A_I        (arXiv:1810.12894, section 2.3)

The value network of the intrinsic returns is separate from the policy's model, so it works with every model.
Intrinsic returns continue over the ends of episodes. Otherwise an end would be a reason to avoid what is new.

In an iteration, rewards are computed and their scale is updated before credit is assigned. The networks, and
then the scale of observations, learn after the policy phase.

Shapes: T steps, B envs, C columns of rollouts, N samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import gymnasium as gym
import torch
from torch import Tensor, nn

from ding_lite.config.registry import INTRINSIC_REGISTRY
from ding_lite.data.minibatches import Batch, agreed_sizes, permutation
from ding_lite.data.rollout import Rollout, flat, places
from ding_lite.errors import ContractError, NumericsError, error_text
from ding_lite.fast.gradients import Loss, Metrics
from ding_lite.models.actor_critic import value_head
from ding_lite.models.encoders import Encoder, ImageEncoder
from ding_lite.models.init import initialize
from ding_lite.models.intrinsic import IntrinsicReward, Steps
from ding_lite.policies.failed_step import non_finite_step
from ding_lite.policies.optimizer import BadSteps, Optimizer, has_modes, in_mode
from ding_lite.ranks import Ranks
from ding_lite.rl import losses
from ding_lite.rl.returns import explained_variance, following_rows, gae, values_after
from ding_lite.rl.scales import ObservationNorm, RewardScale
from ding_lite.rl.seeding import GeneratorState, seeded_layers
from ding_lite.trees import Tree, map_tree

CHUNK = 2**11  # samples that a network is given in one call without a gradient
METRICS = ("reward", "scale", "loss", "value_loss", "explained_variance", "grad_norm")


class WithIntrinsicReward(Protocol):
    """What this part uses of its policy; ``policies.actor_critic`` documents it."""

    cfg: Any
    obs_space: gym.Space
    action_space: gym.Space
    device: torch.device
    seed: int
    ranks: Ranks

    def intrinsic_loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]: ...
    def on_device(self, obs: Tree) -> Any: ...
    def own_generator(
        self, name: str, device: Any = "cpu", *, saved_by_part: bool = False
    ) -> torch.Generator: ...
    def state_without_rollouts(self) -> dict[str, Any]: ...


class ValueNetwork(nn.Module):
    """A value network for intrinsic returns, with the default encoders.

    Shapes:
        obs (N, ...) -> (N,)
    """

    def __init__(self, obs_space: gym.Space) -> None:
        super().__init__()
        self.encoder = Encoder(obs_space, None, None, "relu", small_image="minatar_cnn")
        self.head, last = value_head(self.encoder.out_features, (), "relu")
        initialize(self, "orthogonal", {}, value_layer=last)

    def forward(self, obs: Any) -> Tensor:
        value: Tensor = self.head(self.encoder(obs)).squeeze(-1)
        return value


class Intrinsic:
    """The intrinsic reward of a policy.

    Args:
        policy: whose config has ``policy.intrinsic``.

    Attributes:
        reward: the network that gives rewards.
        critic: the value network of their returns.
        scale: of the rewards.
        obs_norm: scale of the observations of both networks.
    """

    def __init__(self, policy: WithIntrinsicReward) -> None:
        self.policy = policy
        self.cfg = policy.cfg.intrinsic
        options = {name: v for name, v in self.cfg.items() if name not in (*IntrinsicReward.config, "type")}
        with seeded_layers(policy.seed, "policy", "intrinsic"):
            factory = INTRINSIC_REGISTRY.get(self.cfg.type)
            with _named_errors(factory, "__init__"):
                self.reward: IntrinsicReward = factory(policy.obs_space, policy.action_space, **options)
            self.critic = ValueNetwork(policy.obs_space)
        self.networks = nn.ModuleDict({"reward": self.reward, "critic": self.critic}).to(policy.device)
        for module in self.networks.modules():
            if isinstance(module, ImageEncoder):
                module.scale = 1.0  # obs_norm has scaled the pixels
        self.networks.eval()
        self.has_modes = has_modes(self.networks)
        self.scale = RewardScale(self.cfg.discount_factor, ranks=policy.ranks)
        self.obs_norm = ObservationNorm(
            policy.obs_space, self.cfg.obs_clip, policy.device, images=True, ranks=policy.ranks
        )
        self.generator = policy.own_generator("intrinsic", device=policy.device, saved_by_part=True)
        self.optimizer: Optimizer | None = None
        # The last rollout and weight of credit() and its result, until something that it depends on changes.
        self._last_credit: tuple[Rollout, Tensor | None, tuple[Tensor, Tensor]] | None = None

    def prepare_learning(self, bad_steps: BadSteps) -> None:
        """Makes the optimiser; ``bad_steps`` is the budget of the policy."""
        learn = self.policy.cfg.learn
        self.optimizer = Optimizer(
            self.networks.parameters(),
            learning_rate=self.cfg.learning_rate,
            eps=learn.adam_eps,
            grad_clip_type=learn.grad_clip_type,
            grad_clip_value=learn.grad_clip_value,
            bad_steps=bad_steps,
            ranks=self.policy.ranks,
        )

    @torch.no_grad()
    def add_reward(self, rollout: Rollout) -> None:
        """Adds the field ``intrinsic_reward`` (T, B), not scaled, to a fresh rollout; updates the scale.

        Raises:
            ContractError: if the rewards are not (N,).
            NumericsError: if one of them is not finite.
        """
        self._last_credit = None
        if self.policy.cfg.collect.n_episode is not None:
            _end_with_a_reset(rollout)
        steps = StepTable(self, rollout)
        reward = torch.zeros(steps.valid.numel(), device=self.policy.device)
        for rows in steps.rows.split(CHUNK):
            reward[rows.to(reward.device)] = self.reward_of_steps(steps.at(rows))
        if not torch.isfinite(reward).all():
            raise NumericsError(
                f"{type(self.reward).__name__} returned intrinsic rewards that are not finite. Try a lower "
                "policy.intrinsic.learning_rate"
            )
        rollout.intrinsic_reward = reward.view(steps.valid.shape).to(steps.valid.device)
        # Intrinsic returns continue over the ends of episodes.
        never = torch.zeros_like(rollout.valid)
        self.scale.update_from(rollout.intrinsic_reward, never, rollout.valid)

    def reward_of_steps(self, steps: Steps) -> Tensor:
        """Returns the rewards (N,), not scaled, in float32. Raises ContractError if they are not (N,)."""
        with _named_errors(type(self.reward), "reward"):
            reward = self.reward.reward(steps)
        return self._one_each("reward", reward, steps.done)

    def loss_of_steps(self, steps: Steps) -> Tensor:
        """Returns the losses (N,), in float32. Raises ContractError if they are not (N,)."""
        with _named_errors(type(self.reward), "loss"):
            loss = self.reward.loss(steps)
        return self._one_each("loss", loss, steps.done)

    def _one_each(self, method: str, found: Tensor, steps: Tensor) -> Tensor:
        if not isinstance(found, Tensor) or found.shape != steps.shape or found.is_complex():
            is_tensor = isinstance(found, Tensor)
            got = f"{tuple(found.shape)}, {found.dtype}" if is_tensor else type(found).__name__
            raise ContractError(
                f"{type(self.reward).__name__}.{method} must return a tensor (N,) of real numbers, here "
                f"{tuple(steps.shape)}; got {got}"
            )
        return found.float()  # a count of visits, say, is a tensor of integers

    @torch.no_grad()
    def credit(
        self, rollout: Rollout, weight: Tensor | None = None, table: StepTable | None = None
    ) -> tuple[Tensor, Tensor]:
        """Returns the intrinsic advantage and value target (T, C), by the newest value network.

        They are the same in all passes of an iteration, since its networks and scales learn afterwards.

        Args:
            rollout: with the field ``intrinsic_reward``.
            weight: (T, C), min(1, pi/mu) of each step, for V-trace on rollouts that are not fresh.
            table: of the rollout, if there is one already.
        """
        last = self._last_credit
        if last is not None and last[0] is rollout and last[1] is weight:
            return last[2]
        steps = StepTable(self, rollout) if table is None else table
        value = torch.cat([self.critic(steps.obs_at(rows)) for rows in steps.all_rows().split(CHUNK)])
        value = value.view(-1, steps.columns)
        valid = rollout.valid
        never = torch.zeros_like(valid)
        result = gae(
            self.scale(rollout.intrinsic_reward),
            value[:-1],
            values_after(value[:-1], value[-1], valid),
            never,
            never,
            valid,
            gamma=self.cfg.discount_factor,
            gae_lambda=self.policy.cfg.collect.gae_lambda,
            weight=weight,
        )
        self._last_credit = (rollout, weight, result)
        return result

    def added_to(self, advantage: Tensor, rollout: Rollout, weight: Tensor | None) -> Tensor:
        """Returns the weighted sum (T, B) of extrinsic advantages and those of a rollout's intrinsic rewards.

        Args:
            advantage: (T, B), extrinsic.
            rollout, weight: as in :meth:`credit`.
        """
        intrinsic, _ = self.credit(rollout, weight)
        return self.cfg.extrinsic_weight * advantage + self.cfg.weight * intrinsic

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the loss of the reward on the steps that train it, and that of the value on all.

        Shapes:
            ``batch.obs``, ``action``, ``next_obs``: (N, ...); ``done``: (N,) bool; ``value_target``: (N,);
            ``reward_weight``: (N,), 0 for a step that does not train the reward
        """
        of_step = self.loss_of_steps(Steps(batch.obs, batch.action, batch.next_obs, batch.done))
        reward_loss = losses.weighted_mean(of_step, batch.reward_weight)
        value_loss = losses.value_error(self.critic(batch.obs), batch.value_target).mean()
        return reward_loss + value_loss, {"loss": reward_loss, "value_loss": value_loss}

    def learn(self, rollout: Rollout) -> dict[str, float]:
        """Trains the networks on a fresh rollout (T, B), then updates the scale of observations.

        Returns:
            the means of the metrics.
        """
        assert self.optimizer is not None
        valid = rollout.valid
        table = StepTable(self, rollout)
        advantage, target = self.credit(rollout, table=table)
        self._last_credit = None
        explained = explained_variance((target - advantage)[valid], target[valid])
        sizes = agreed_sizes(len(table.rows), self.policy.cfg.learn.batch_size, self.policy.ranks)
        with self.optimizer.phase(self._failure) as steps:
            for _ in range(self.cfg.epoch_per_collect):
                order = permutation(len(table.rows), self.generator)
                parts = zip(order.split(sizes), self._reward_weights(sizes), strict=True)
                with in_mode(self.networks, training=self.has_modes):
                    for index, weight in parts:
                        make = partial(self._batch, table, table.rows[index], target.flatten(), weight)
                        steps.take(self.policy.intrinsic_loss, make(), remake=make)
                if self.optimizer.on_host:
                    steps.check()
        self.obs_norm.update(rollout.obs, valid)
        metrics = {
            **steps.mean_metrics(),
            "reward": float(rollout.intrinsic_reward[valid].mean()),
            "scale": float(self.scale.std),
            "explained_variance": float(explained),
        }
        return {f"intrinsic_{name}": metrics[name] for name in METRICS}

    def _reward_weights(self, sizes: Sequence[int]) -> list[Tensor]:
        """Draws the steps of each minibatch that train the reward, and returns the weights (N,) of all steps.

        With these weights, the mean over a minibatch of all ranks is that of the drawn steps.
        """
        device = self.generator.device
        draws = [torch.rand(size, generator=self.generator, device=device) for size in sizes]
        trained = [draw < self.cfg.update_proportion for draw in draws]
        counts = torch.stack(
            [torch.stack([steps.sum() for steps in trained]), torch.tensor(sizes).to(device)]
        )
        drawn, all_steps = self.policy.ranks.sum(counts)
        shares = (drawn.clamp_min(1) / all_steps).unbind()
        return [steps / share for steps, share in zip(trained, shares, strict=True)]

    @staticmethod
    def _batch(table: StepTable, rows: Tensor, target: Tensor, reward_weight: Tensor) -> Batch:
        steps = table.at(rows)
        return Batch(**steps._asdict(), value_target=target[rows], reward_weight=reward_weight)

    def _failure(self, loss: Loss, batch: Batch, metrics: Metrics, step: int) -> NumericsError:
        where = f"gradient step {step} of the intrinsic reward"
        state = self.policy.state_without_rollouts()
        return non_finite_step(self.networks, state, where, loss, batch, metrics)

    def metric_names(self) -> list[str]:
        """Returns the names of the metrics of :meth:`learn`."""
        return [f"intrinsic_{name}" for name in METRICS]

    def _parts(self) -> dict[str, Any]:
        return {
            "networks": self.networks,
            "scale": self.scale,
            "obs_norm": self.obs_norm,
            "generator": GeneratorState(self.generator),
            **({} if self.optimizer is None else {"optimizer": self.optimizer}),
        }

    def state_dict(self) -> dict[str, Any]:
        return {name: part.state_dict() for name, part in self._parts().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._last_credit = None
        for name, part in self._parts().items():
            part.load_state_dict(state[name])
        if self.optimizer is not None:
            self.optimizer.learning_rate = self.cfg.learning_rate  # a resumed run may have another one


@contextmanager
def _named_errors(cls: Any, method: str) -> Iterator[None]:
    """Turns a TypeError into a ContractError that names the class and method that probably caused it."""
    try:
        yield
    except ContractError:
        raise
    except TypeError as error:
        name = getattr(cls, "__qualname__", repr(cls))
        raise ContractError(f"policy.intrinsic.type: {name}.{method} raised {error_text(error)}") from error


def _end_with_a_reset(rollout: Rollout) -> None:
    """Writes the first observation of each column after its last valid row.

    The next rollout of whole episodes begins with a reset of all environments. What an environment does
    while the others finish is no part of its returns.

    Args:
        rollout: (T, B), of whole episodes.
    """
    after_last = ~rollout.valid.flip(0).cummax(0).values.flip(0)
    rows, columns = after_last.nonzero(as_tuple=True)

    def write(leaf: Tensor, last: Tensor) -> None:
        leaf[rows, columns] = leaf[0, columns]
        last.copy_(leaf[0])

    map_tree(write, rollout.obs, rollout.last_obs)


class StepTable:
    """The steps of a rollout (T, C), each with the observation that follows it.

    Attributes:
        rows: (N,), of the valid steps in the flattened (T, C).
    """

    def __init__(self, intrinsic: Intrinsic, rollout: Rollout) -> None:
        self.intrinsic = intrinsic
        self.valid = rollout.valid
        self.columns = self.valid.shape[1]
        self.rows = places(self.valid)
        columns = torch.arange(self.columns, device=self.valid.device)
        self._following = (following_rows(self.valid) * self.columns + columns).flatten()
        self._obs = map_tree(
            lambda leaf, after: torch.cat([leaf, after[None]]).flatten(0, 1), rollout.obs, rollout.last_obs
        )
        self._action = flat(rollout.action)
        self._done = (rollout.terminated | rollout.truncated).flatten()

    def all_rows(self) -> Tensor:
        """Returns the places of all observations, the last ones among them: ((T + 1) C,)."""
        return torch.arange(len(self.valid) * self.columns + self.columns, device=self.valid.device)

    def obs_at(self, rows: Tensor) -> Any:
        """Returns the scaled observations (N, ...) at ``rows`` (N,) on the policy's device."""
        found = map_tree(lambda leaf: leaf.index_select(0, rows), self._obs)
        return self.intrinsic.obs_norm(self.intrinsic.policy.on_device(found))

    def at(self, rows: Tensor) -> Steps:
        """Returns the steps at ``rows`` (N,)."""
        action = map_tree(lambda leaf: leaf.index_select(0, rows), self._action)
        on_device = self.intrinsic.policy.on_device
        return Steps(
            obs=self.obs_at(rows),
            action=on_device(action),
            next_obs=self.obs_at(self._following[rows]),
            done=on_device(self._done[rows]),
        )
