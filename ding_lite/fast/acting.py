"""Faster ways to act than the methods of a policy: a small network in NumPy, a CUDA graph.

``Policy.acting`` chooses one at the start of a rollout or an evaluation. All return the same actions within
rounding, from the same random numbers.

Shapes: B environments, A actions or action size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ding_lite.data.modes import Acting
from ding_lite.data.rollout import Rollout, flat
from ding_lite.fast.clipped import legal
from ding_lite.fast.cuda_graphs import CapturedFunction, GraphPool, PinnedMemory
from ding_lite.fast.stacks import NumpyStack
from ding_lite.models.actor_critic import ActorCritic
from ding_lite.models.heads import BoxHead, DiscreteHead, MultiDiscreteHead
from ding_lite.rl.distributions import Distribution
from ding_lite.trees import Tree, map_tree

RAW_OUTPUT = "raw_output"  # field of a row: the network's output, from which the log-prob is computed


def by_graph(
    acting: Acting, device: torch.device, generator: torch.Generator, pool: GraphPool, stays: bool = False
) -> Acting:
    """Returns ``acting`` with CUDA graphs as its forward passes.

    From the second call on, each call is one launch and one wait.

    Args:
        acting, device, generator, pool: what is captured, and how.
        stays: whether results stay on the device, where the next call overwrites them; then nothing waits.
    """
    stream, pinned = torch.cuda.current_stream(device), PinnedMemory()

    def captured(function: Callable[[Tree], Tree], name: str) -> Callable[[Tree], dict[str, Any]]:
        launched = CapturedFunction(pool, function, name, generator)

        @torch.inference_mode()
        def called(obs: Tree) -> dict[str, Any]:
            on_device: dict[str, Any] = launched(pinned.to_device(obs, device))
            if stays:
                return on_device
            row: dict[str, Any] = map_tree(lambda leaf: leaf.to("cpu", non_blocking=True), on_device)
            stream.synchronize()
            return row

        return called

    sample, greedy = captured(acting.sample, "sample"), captured(acting.greedy, "greedy")
    return acting._replace(name="torch (CUDA graph)", sample=sample, greedy=greedy)


class SmallPolicy(Protocol):
    """The part of a policy that acting in NumPy uses."""

    model: ActorCritic
    obs_norm: Any  # scales observations, arrays or tensors
    generator: torch.Generator

    def scaled(self, obs: Tree) -> Any: ...

    def distribution(self, obs: Any, logit: Any) -> Distribution: ...


class NumpyActing:
    """Acts with a policy network in NumPy; actions are arrays.

    NumPy also draws actions of the usual distributions, and torch computes the log-probs of a whole rollout
    at once (:meth:`with_log_probs`). For other distributions torch runs all that follows the last layer.

    Args:
        policy: the policy whose model acts.
        stack: the policy network.
        samples: number of actions to draw.
    """

    def __init__(self, policy: SmallPolicy, stack: NumpyStack, samples: int) -> None:
        self.policy, self.stack, self._samples = policy, stack, samples
        self.out = out = policy.model.actor_head.out
        self._is_normal = type(out) is BoxHead and out.is_simple_normal
        self._is_known = self._is_normal or type(out) in (DiscreteHead, MultiDiscreteHead)
        if self._is_normal:
            with torch.no_grad():
                self._sigma = out.logit(torch.zeros(1, out.size))["sigma"].numpy()
        self._noise, self._used = np.empty(0, np.float32), 0

    @np.errstate(all="ignore")  # the learner checks for numbers that are not finite
    def sample(self, obs: Tree) -> dict[str, Any]:
        """Draws actions as ``rl.distributions`` does, from the same random numbers."""
        raw, out = self.stack(self.policy.obs_norm(obs)), self.out
        if not self._is_known:
            with torch.inference_mode():
                dist = self._distribution(self.policy.scaled(obs), raw)
                action = dist.sample(self.policy.generator)
                return {"action": map_tree(Tensor.numpy, action), "log_prob": dist.log_prob(action)}
        if self._is_normal:
            noise = torch.empty(raw.shape).normal_(generator=self.policy.generator).numpy()
            mean = raw
            if out.bound_type is not None:
                with torch.inference_mode():
                    mean = out.logit(torch.from_numpy(raw))["mu"].numpy()
            return {"action": mean + self._sigma * noise, RAW_OUTPUT: raw}
        # With Exponential noise E, the argmax of p / E has the probabilities p.
        logit = legal(raw, obs)
        if isinstance(out, DiscreteHead):
            return {"action": (logit - self._log_exponentials(logit.shape)).argmax(1), RAW_OUTPUT: raw}
        parts = np.split(logit, np.cumsum(out.sizes)[:-1], -1)
        indices = [(part - self._log_exponentials(part.shape)).argmax(1) for part in parts]
        return {"action": np.stack(indices, 1), RAW_OUTPUT: raw}

    @torch.no_grad()
    def with_log_probs(self, rollout: Rollout) -> Rollout:
        """Returns a rollout of :meth:`sample`, with its raw outputs replaced by log-probs."""
        if self._is_known:
            dist = self._distribution(flat(rollout.obs), flat(rollout.pop(RAW_OUTPUT)))
            rollout.log_prob = dist.log_prob(flat(rollout.action)).unflatten(0, rollout.valid.shape)
        return rollout

    @torch.inference_mode()
    @np.errstate(all="ignore")
    def greedy(self, obs: Tree) -> dict[str, Any]:
        raw = self.stack(self.policy.obs_norm(obs))
        if type(self.out) is DiscreteHead:
            return {"action": legal(raw, obs).argmax(-1)}
        dist = self._distribution(self.policy.scaled(obs), raw)
        return {"action": map_tree(Tensor.numpy, dist.mode())}

    def _distribution(self, obs: Any, raw: Any) -> Distribution:
        return self.policy.distribution(obs, self.policy.model.from_raw("actor", torch.as_tensor(raw)))

    def _log_exponentials(self, shape: tuple[int, ...]) -> np.ndarray:
        """Returns logarithms of Exponentials. One draw for a whole rollout gives the numbers of its steps."""
        count = math.prod(shape)
        if self._used + count > len(self._noise):
            numbers = torch.empty(max(count, self._samples * self.out.size))
            numbers.exponential_(generator=self.policy.generator)
            self._noise, self._used = np.log(numbers.numpy()), 0
        self._used += count
        return self._noise[self._used - count : self._used].reshape(shape)
