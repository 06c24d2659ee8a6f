"""What acts: the model in torch, the model as a CUDA graph, or a small network in NumPy.

All give the same actions and log-probs within rounding; :mod:`ding_lite.fast.switch` decides between them.

Shapes: B environments.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ding_lite.data.rollout import Rollout, view
from ding_lite.fast.cuda_graphs import CapturedFunction, GraphPool, PinnedMemory
from ding_lite.fast.numpy_actor import NumpyActor
from ding_lite.models.actor_critic import ActorCritic
from ding_lite.rl.distributions import Distribution
from ding_lite.trees import Tree, map_tree

# Fields of a rollout between acting and get_train_sample.
ACTING_OUTPUT = "acting_output"  # the output of the NumPy actor, from which log-probs are computed at once
ACTING_VALUE = "acting_value"  # values that a shared network, or one with a memory, gave while it acted


class ActorCriticLike(Protocol):
    """What ``fast`` uses of every policy; ``policies.actor_critic`` documents it.

    Not listed are the methods that ``switch`` names in its tables and looks up by these names, since not
    every policy has all of them: PPG alone has an auxiliary loss.
    """

    model: ActorCritic
    obs_norm: Any
    generator: torch.Generator
    device: torch.device

    @property
    def uses_cuda_graphs(self) -> bool: ...

    def inputs(self, obs: Tree) -> Any: ...
    def distribution(self, inputs: Any, logit: Any) -> Distribution: ...
    def denormalized_values(self, value: Tensor) -> Tensor: ...


class TorchActing:
    """Acts by the model."""

    name = "torch"

    def __init__(self, policy: ActorCriticLike) -> None:
        self.policy = policy

    def sample(self, obs: Tree) -> dict[str, Any]:
        """Returns actions and their log-probs."""
        policy = self.policy
        with torch.inference_mode():
            inputs = policy.inputs(obs)
            return self._drawn(inputs, policy.model.compute_actor(inputs))

    def sample_with_values(self, obs: Tree) -> dict[str, Any]:
        """Returns actions, their log-probs, and the values of the observations in training units."""
        policy = self.policy
        with torch.inference_mode():
            inputs = policy.inputs(obs)
            logit, value = policy.model.compute_actor_critic(inputs)
            return {**self._drawn(inputs, logit), ACTING_VALUE: policy.denormalized_values(value)}

    def _drawn(self, inputs: Any, logit: Any) -> dict[str, Any]:
        dist = self.policy.distribution(inputs, logit)
        action = dist.sample(self.policy.generator)
        return {"action": action, "log_prob": dist.log_prob(action)}

    def greedy(self, obs: Tree) -> dict[str, Any]:
        """Returns the greedy actions."""
        policy = self.policy
        with torch.inference_mode():
            inputs = policy.inputs(obs)
            return {"action": policy.distribution(inputs, policy.model.compute_actor(inputs)).mode()}


class GraphActing:
    """Acts by the model on a GPU, whose kernels are launched together and waited for once.

    It is for one rollout or one evaluation. Its results are on the host.

    Args:
        policy: with its model on a GPU.
        pool: of the graphs of all rollouts and evaluations.
    """

    name = "torch (CUDA graph)"

    def __init__(self, policy: ActorCriticLike, pool: GraphPool) -> None:
        self.device = policy.device
        self._stream = torch.cuda.current_stream(policy.device)
        self._pinned = PinnedMemory()
        acting = TorchActing(policy)
        functions = (acting.sample, acting.sample_with_values, acting.greedy)
        self._sample, self._sample_with_values, self._greedy = (
            pool.captured(function, function.__name__, policy.generator) for function in functions
        )

    def sample(self, obs: Tree) -> dict[str, Any]:
        """Returns actions and their log-probs."""
        return self._on_host(self._sample, obs)

    def sample_with_values(self, obs: Tree) -> dict[str, Any]:
        """Returns actions, their log-probs, and the values of the observations in training units."""
        return self._on_host(self._sample_with_values, obs)

    def greedy(self, obs: Tree) -> dict[str, Any]:
        """Returns the greedy actions."""
        return self._on_host(self._greedy, obs)

    @torch.inference_mode()
    def _on_host(self, function: CapturedFunction, obs: Tree) -> dict[str, Any]:
        results = function(self._pinned.to_device(obs, self.device))
        found: dict[str, Any] = map_tree(lambda leaf: leaf.to("cpu", non_blocking=True), results)
        self._stream.synchronize()
        return found


class NumpyActing:
    """Acts in NumPy; observations that are not arrays of the space's shapes go to the model."""

    name = "NumPy"

    def __init__(self, policy: ActorCriticLike, actor: NumpyActor) -> None:
        self.policy, self.actor = policy, actor
        self.torch = TorchActing(policy)

    def _leaves(self, obs: Tree) -> list[np.ndarray] | None:
        """Returns the scaled input of the network, or None if ``obs`` is not one."""
        encoder, norm = self.actor.network.encoder, self.policy.obs_norm
        leaves = encoder.leaves_of(obs)
        if leaves is None or norm is None:
            return leaves
        return [norm(x, leaf.path) for leaf, x in zip(encoder.leaves, leaves, strict=True)]

    def sample(self, obs: Tree) -> dict[str, Any]:
        """Returns actions and their log-probs."""
        found = self.sample_outputs(obs)
        if ACTING_OUTPUT in found:
            found["log_prob"] = self.actor.log_prob(found.pop(ACTING_OUTPUT), obs, found["action"].numpy())
        return found

    def sample_outputs(self, obs: Tree) -> dict[str, Any]:
        """Returns actions, and the outputs from which :meth:`add_log_probs` computes their log-probs."""
        leaves = self._leaves(obs)
        if leaves is None:
            return self.torch.sample(obs)
        action, output = self.actor.draw(leaves, obs, self.policy.generator)
        return {"action": action, ACTING_OUTPUT: output}

    def add_log_probs(self, rollout: Rollout) -> None:
        """Replaces the outputs in a rollout by log-probs, in one call; sigma must be that of the rollout."""
        output = rollout.pop(ACTING_OUTPUT, None)
        if output is not None:
            obs, action = map_tree(view, rollout.obs), view(rollout.action)
            rollout.log_prob = self.actor.log_prob(view(output), obs, action)

    def greedy(self, obs: Tree) -> dict[str, Any]:
        """Returns the greedy actions."""
        leaves = self._leaves(obs)
        return self.torch.greedy(obs) if leaves is None else {"action": self.actor.mode(leaves, obs)}
