"""The frozen policy that the penalty ``learn.kl_beta`` refers to.

It sees each rollout once, before the policy learns from it. A reference with a memory follows the same
episodes: its memory continues over rollouts, begins anew with each episode, and is saved.

Shapes: T steps, B environments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch

from ding_lite.data.minibatches import Batch
from ding_lite.data.rollout import Rollout, as_field, to_device
from ding_lite.policies.memory import PolicyMemory
from ding_lite.rl.distributions import Distribution
from ding_lite.trees import Tree, map_tree


class Frozen(Protocol):
    """What is used of the frozen policy; ``policies.actor_critic`` documents it."""

    device: torch.device
    memory: PolicyMemory | None

    def distribution(self, obs: Any, logit: Any) -> Distribution: ...
    def rollout_logits(self, rollout: Rollout) -> Any: ...


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
