"""The frozen policy that the penalty ``learn.kl_beta`` refers to.

It sees each rollout once, before the policy learns from it. A reference with a memory follows the same
episodes: its memory continues over rollouts, begins anew with each episode, and is saved.

Shapes: T steps, B environments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import gymnasium as gym
import torch

from ding_lite.data.minibatches import Batch
from ding_lite.data.rollout import Rollout, as_field, to_device
from ding_lite.errors import ConfigError
from ding_lite.models.actor_critic import ActorCritic
from ding_lite.policies.memory import PolicyMemory
from ding_lite.rl.distributions import Distribution, Joint
from ding_lite.trees import Tree, map_space, map_tree


class Frozen(Protocol):
    """What is used of the frozen policy; ``policies.actor_critic`` documents it."""

    obs_space: gym.Space
    action_space: gym.Space
    model: ActorCritic
    device: torch.device
    memory: PolicyMemory | None

    def sample_obs(self) -> Any: ...
    def inputs(self, obs: Tree) -> Any: ...
    def distribution(self, obs: Any, logit: Any) -> Distribution: ...
    def rollout_logits(self, rollout: Rollout) -> Any: ...


def check_fits(reference: Frozen, policy: Frozen) -> None:
    """Checks that ``policy`` can stay near a reference.

    Raises:
        ConfigError: if the observations of the two have other shapes, or their actions other distributions.
    """
    mine, others = (
        map_space(lambda leaf: tuple(leaf.shape or ()), each.obs_space) for each in (policy, reference)
    )
    if mine != others:
        raise ConfigError(
            f"policy.learn.pretrained_model_path: observations of the reference have the shape {others}, and "
            f"this policy's {mine}; it must be a policy for the same environment"
        )
    obs = policy.sample_obs()
    with torch.no_grad():
        dists = [
            each.distribution(inputs := each.inputs(obs), each.model.compute_actor(inputs))
            for each in (policy, reference)
        ]
    kinds = [_kind(dist) for dist in dists]
    try:
        fits = kinds[0] == kinds[1] and dists[0].kl(dists[1]).shape == (1,)
    except (RuntimeError, ValueError, KeyError, AttributeError):
        fits = False
    if not fits:
        raise ConfigError(
            "policy.learn.pretrained_model_path: actions of the reference have another distribution: "
            f"{kinds[1]} over {reference.action_space}, and this policy's is {kinds[0]} over "
            f"{policy.action_space}"
        )


def _kind(dist: Distribution) -> str:
    """Returns the name of a distribution, with the names of the parts of a joint one."""
    if not isinstance(dist, Joint):
        return type(dist).__name__
    return f"Joint({', '.join(f'{name}: {_kind(part)}' for name, part in dist.parts.items())})"


class Reference:
    """A frozen policy, and its memory of the open episodes.

    Args:
        policy: the frozen policy.

    Attributes:
        state: memory (B, ...) before the next rollout; None before the first one, or without a memory.
    """

    def __init__(self, policy: Frozen) -> None:
        self.policy = policy
        self.state: Tree | None = None

    def add_logits(self, rollout: Rollout) -> None:
        """Adds ``reference_logit`` (T, B, ...), parameters of the reference's distributions, to a rollout."""
        policy, played = self.policy, rollout.to(self.policy.device)
        if policy.memory is None:
            logit = policy.rollout_logits(played)
        else:
            logit, self.state = policy.memory.follow(played, self.state)
        logit = map_tree(lambda leaf: leaf.to(rollout.valid.device), logit)
        rollout.reference_logit = as_field(logit)

    def distribution(self, batch: Batch) -> Distribution:
        """Returns the reference's distributions on a minibatch."""
        return self.policy.distribution(batch.obs, batch.reference_logit)

    def state_dict(self) -> dict[str, Any]:
        return {"memory": self.state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        memory = state["memory"]
        self.state = None if memory is None else to_device(memory, self.policy.device)
