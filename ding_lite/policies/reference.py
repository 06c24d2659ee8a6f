"""The frozen policy that the penalty ``learn.kl_beta`` refers to.

It sees each rollout once, before the policy learns from it. If it is recurrent it follows the same episodes:
its hidden state continues over rollouts, is reset at the start of each episode, and is saved.

Shapes: T steps, B environments.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ding_lite.data.hidden import begin_episodes
from ding_lite.data.rollout import Rollout, as_field, to_device
from ding_lite.data.samples import Batch
from ding_lite.errors import ConfigError
from ding_lite.policies.base import Policy
from ding_lite.rl import losses
from ding_lite.trees import Tree, example_observations, in_one_order, leading_size, map_tree


class Reference:
    """A frozen policy.

    Args:
        policy: the frozen policy.
        learner: the policy that stays near it.

    Attributes:
        hidden: (B, ...), before the next rollout; None before the first one.

    Raises:
        ConfigError: if the actions of the two policies cannot be compared.
    """

    @torch.no_grad()
    def __init__(self, policy: Policy, learner: Policy) -> None:
        learn = learner.cfg.learn
        self.policy, self.weight, self.kind = policy, learn.kl_beta, learn.kl_type
        self.hidden: Tree | None = None
        weights = in_one_order(policy.model.state_dict())
        self.digest = zlib.crc32(b"".join(x.cpu().numpy().tobytes() for x in weights.values()))
        obs = example_observations(learner.obs_space, 2)
        try:
            dists = [
                each.distribution(inputs := each._inputs(obs), each.model.compute_actor(inputs))
                for each in (learner, policy)
            ]
            kl = dists[0].kl(dists[1])
            if type(dists[0]) is not type(dists[1]) or not torch.isfinite(kl).all():
                raise ValueError(f"{type(dists[1]).__name__} and {type(dists[0]).__name__}")
        except (RuntimeError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise ConfigError(
                "policy.learn.pretrained_model_path: the reference must be a policy for the same "
                f"observations and actions, {learner.obs_space} and {learner.action_space}; it was made for "
                f"{policy.obs_space} and {policy.action_space}: {error}"
            ) from error

    @torch.no_grad()
    def add_logits(self, rollout: Rollout) -> None:
        """Adds ``reference_logit`` (T, B, ...), the reference's distribution parameters, to a rollout."""
        policy, played = self.policy, rollout.to(self.policy.device)
        if policy.recurrence is None:
            logit = policy.over_rollout(policy.network("actor"), played)
        else:
            logit = self._followed(played)
        rollout.reference_logit = as_field(map_tree(lambda leaf: leaf.to(rollout.valid.device), logit))

    def _followed(self, rollout: Rollout) -> Any:
        policy, count = self.policy, rollout.valid.shape[1]
        initial = policy.model.initial_hidden(count)
        if self.hidden is None or leading_size(self.hidden) != count:
            self.hidden = initial
        ends = (rollout.terminated | rollout.truncated | ~rollout.valid).cpu().numpy()
        logits = []
        for t in range(len(ends)):
            inputs = policy._inputs(map_tree(lambda leaf, t=t: leaf[t], rollout.obs), self.hidden)
            logit, _, hidden = policy.model.step(inputs)
            logits.append(logit)
            self.hidden = begin_episodes(hidden, ends[t], initial)
        return map_tree(lambda *leaves: torch.stack(leaves), *logits)

    def penalty(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the 0-d kl_beta KL(pi || pi_ref), and the KL as a metric."""
        reference = self.policy.distribution(batch.obs, batch.reference_logit)
        if self.kind == "exact":
            mean_kl = batch.dist.kl(reference).mean()
        else:
            log_prob, of_reference = (dist.log_prob(batch.action) for dist in (batch.dist, reference))
            kl = losses.reference_kl(log_prob, of_reference, batch.log_prob, self.kind)
            mean_kl = losses.weighted_mean(kl, batch.policy_weight)
        return self.weight * mean_kl, {"reference_kl": mean_kl}

    def state_dict(self) -> dict[str, Any]:
        return {"hidden": self.hidden, "digest": self.digest}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state.get("digest", self.digest) != self.digest:
            raise ValueError("its run was trained on since; the frozen policy was another one")
        hidden = state["hidden"]
        self.hidden = None if hidden is None else to_device(hidden, self.policy.device)
