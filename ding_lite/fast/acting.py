"""What acts for a policy: its model in torch, the same as a CUDA graph, or a small network in NumPy.

All give the same actions within rounding, from the same random numbers. :func:`acting_of` decides when a
rollout or an evaluation begins. A network that policy and value share gives its values as it acts, since its
encoder is nearly all of the work; a value network of its own sees the whole rollout at once.

Shapes: B environments, A actions or action size.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ding_lite.data.rollout import Rollout, flat
from ding_lite.fast.cuda_graphs import CapturedFunction, PinnedMemory
from ding_lite.fast.stacks import NumpyStack, numpy_stacks
from ding_lite.models.heads import BoxHead, DiscreteHead, MultiDiscreteHead
from ding_lite.rl.distributions import ILLEGAL
from ding_lite.trees import MASK_KEY, Tree, map_tree

# Fields of a rollout between acting and get_train_sample.
RAW = "acting_raw"  # the output of the network in NumPy, from which log-probs are computed at once
VALUE = "acting_value"  # values that a shared or a recurrent network gave while it acted


class Acting:
    """Acts by the model in torch.

    Args:
        policy: with ``model``, ``inputs``, ``distribution``, ``generator`` and ``value_norm``.
    """

    name = "torch"

    def __init__(self, policy: Any) -> None:
        self.policy = policy

    @torch.inference_mode()
    def sample(self, obs: Tree, hidden: Tree = None) -> dict[str, Any]:
        """Returns actions (B, ...), log-probs (B,), and of a recurrent policy the hidden states after."""
        return self._draw(obs, hidden, with_value=False)

    @torch.inference_mode()
    def sample_row(self, obs: Tree, hidden: Tree = None) -> dict[str, Any]:
        """Does :meth:`sample` for a rollout that :meth:`complete` completes."""
        shares = getattr(self.policy.model, "share_encoder", False)
        return self._draw(obs, hidden, with_value=bool(shares) or self.policy.recurrence is not None)

    def complete(self, rollout: Rollout) -> Rollout:
        """Returns a rollout of :meth:`sample_row`, with its log-probs."""
        return rollout

    @torch.inference_mode()
    def greedy(self, obs: Tree, hidden: Tree = None) -> dict[str, Any]:
        """Returns the greedy actions (B, ...); of a recurrent policy the hidden states after, too."""
        dist, found = self._outputs(obs, hidden, with_value=False)
        return {"action": dist.mode(), **found}

    def _draw(self, obs: Tree, hidden: Tree, *, with_value: bool) -> dict[str, Any]:
        dist, found = self._outputs(obs, hidden, with_value=with_value)
        action = dist.sample(self.policy.generator)
        return {"action": action, "log_prob": dist.log_prob(action), **found}

    def _outputs(self, obs: Tree, hidden: Tree, *, with_value: bool) -> tuple[Any, dict[str, Any]]:
        policy, found = self.policy, {}
        if policy.recurrence is not None:
            inputs = policy.inputs(obs, hidden)
            logit, value, found["hidden"] = policy.model.step(inputs)
        else:
            inputs = policy.inputs(obs)
            if with_value:
                logit, value = policy.model.compute_actor_critic(inputs)
            else:
                logit = policy.model.compute_actor(inputs)
        if with_value:
            found[VALUE] = policy.value_norm.denormalize(value)
        return policy.distribution(inputs, logit), found


class GraphActing(Acting):
    """Acts by the model on a GPU, whose kernels are launched together and waited for once.

    It is for one rollout or one evaluation. Its results are on the host.
    """

    name = "torch (CUDA graph)"

    def __init__(self, policy: Any) -> None:
        super().__init__(policy)
        self._stream = torch.cuda.current_stream(policy.device)
        self._pinned = PinnedMemory()
        acting, pool = Acting(policy), policy._graph_pool
        functions = (acting.sample, acting.sample_row, acting.greedy)
        self._functions = [CapturedFunction(pool, f, f.__name__, policy.generator) for f in functions]

    def sample(self, obs: Tree, hidden: Tree = None) -> dict[str, Any]:
        return self._on_host(self._functions[0], obs)

    def sample_row(self, obs: Tree, hidden: Tree = None) -> dict[str, Any]:
        return self._on_host(self._functions[1], obs)

    def greedy(self, obs: Tree, hidden: Tree = None) -> dict[str, Any]:
        return self._on_host(self._functions[2], obs)

    @torch.inference_mode()
    def _on_host(self, function: Any, obs: Tree) -> dict[str, Any]:
        results = function(self._pinned.to_device(obs, self.policy.device))
        found: dict[str, Any] = map_tree(lambda leaf: leaf.to("cpu", non_blocking=True), results)
        self._stream.synchronize()
        return found


class NumpyActing(Acting):
    """Acts by the policy network in NumPy. Log-probs of a rollout are computed by torch, all at once."""

    name = "NumPy"

    def __init__(self, policy: Any, stack: NumpyStack, samples: int) -> None:
        super().__init__(policy)
        self.stack, self._samples = stack, samples
        out: Any = getattr(policy.model.actor_head, "out", None)
        kind, self._out = type(out), out
        is_known = kind in (DiscreteHead, MultiDiscreteHead) or (kind is BoxHead and out.is_simple_normal)
        self._is_known = is_known and not policy.overrides("distribution")
        if self._is_known and kind is BoxHead:
            with torch.no_grad():
                self._sigma = out.logit(torch.zeros(1, out.size))["sigma"].numpy()
        self._noise, self._used = np.empty(0, np.float32), 0  # drawn, and how many of them are used

    def _raw(self, obs: Tree) -> np.ndarray:
        norm = self.policy.obs_norm
        leaves = [
            norm(x, leaf.path)
            for x, leaf in zip(self.stack.leaves_of(obs), self.stack.encoder.leaves, strict=True)
        ]
        return self.stack(leaves)

    def _distribution(self, obs: Any, raw: Tensor) -> Any:
        return self.policy.distribution(obs, self.policy.model.from_raw("actor", raw))

    @np.errstate(all="ignore")  # the learner checks for numbers that are not finite
    def sample_row(self, obs: Tree, hidden: Tree = None) -> dict[str, Any]:
        raw = self._raw(obs)
        if self._is_known:
            return {"action": self._actions(raw, _mask(obs)), RAW: raw}
        with torch.inference_mode():
            dist = self._distribution(self.policy.inputs(obs), torch.from_numpy(raw))
            action = dist.sample(self.policy.generator)
            return {"action": action, "log_prob": dist.log_prob(action)}

    @torch.no_grad()
    def complete(self, rollout: Rollout) -> Rollout:
        raw = rollout.pop(RAW, None)
        if raw is not None:
            dist = self._distribution(flat(rollout.obs), flat(raw))
            rollout.log_prob = dist.log_prob(flat(rollout.action)).unflatten(0, rollout.valid.shape)
        return rollout

    @torch.inference_mode()
    @np.errstate(all="ignore")
    def greedy(self, obs: Tree, hidden: Tree = None) -> dict[str, Any]:
        raw = self._raw(obs)
        if type(self._out) is DiscreteHead and self._is_known:
            return {"action": torch.from_numpy(_legal(raw, _mask(obs)).argmax(-1))}
        return {"action": self._distribution(self.policy.inputs(obs), torch.from_numpy(raw)).mode()}

    def _actions(self, raw: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
        """Draws actions as ``rl.distributions`` does, from the same random numbers."""
        if isinstance(self._out, BoxHead):
            mean = raw
            if self._out.bound_type is not None:
                with torch.inference_mode():
                    mean = self._out.logit(torch.from_numpy(raw))["mu"].numpy()
            return mean + self._sigma * self._noise_of(raw.shape, raw.shape[1])
        if isinstance(self._out, DiscreteHead):
            return self._index(raw, mask, raw.shape[1])
        ends = np.cumsum(self._out.sizes)[:-1]
        masks = [None] * (len(ends) + 1) if mask is None else np.split(mask, ends, -1)
        parts = [self._index(x, m, raw.shape[1]) for x, m in zip(np.split(raw, ends, -1), masks, strict=True)]
        return np.stack(parts, 1)

    def _index(self, logit: np.ndarray, mask: np.ndarray | None, width: int) -> np.ndarray:
        """Returns indices (B,): the argmax of p / E, with Exponential noise E, has the probabilities p."""
        action: np.ndarray = (_legal(logit, mask) - self._noise_of(logit.shape, width)).argmax(1)
        return action

    def _noise_of(self, shape: tuple[int, ...], width: int) -> np.ndarray:
        """Returns random numbers: of a Box Normals, else logarithms of Exponentials; an action has ``width``.

        Those of a rollout are drawn at once. They are the numbers of one call for each row; those of Normals
        only if each call takes a multiple of 16, which is what torch fills at a time.
        """
        count, is_normal = math.prod(shape), isinstance(self._out, BoxHead)
        if self._used + count > len(self._noise):
            noise = torch.empty(count if is_normal and count % 16 else max(count, self._samples * width))
            (noise.normal_ if is_normal else noise.exponential_)(generator=self.policy.generator)
            self._noise, self._used = noise.numpy(), 0
            if not is_normal:
                np.log(self._noise, out=self._noise)
        self._used += count
        return self._noise[self._used - count : self._used].reshape(shape)


def acting_of(policy: Any, samples: int = 0) -> Acting:
    """Returns what acts in one evaluation or rollout of ``samples`` actions; the policy must not change."""
    if policy.recurrence is not None:
        return Acting(policy)
    if policy.device.type == "cuda":
        hooks = any(module._forward_hooks or module._forward_pre_hooks for module in policy.model.modules())
        return GraphActing(policy) if policy.cfg.cuda_graph and not hooks else Acting(policy)
    is_plain = policy.device.type == "cpu" and not policy.overrides("scaled")
    stacks = numpy_stacks(policy.model, ("actor",)) if is_plain else None
    return Acting(policy) if stacks is None else NumpyActing(policy, stacks["actor"], samples)


def _mask(obs: Tree) -> np.ndarray | None:
    mask = obs.get(MASK_KEY) if isinstance(obs, dict) else None
    return None if mask is None else np.asarray(mask, np.bool_)


def _legal(logit: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    return logit if mask is None else np.where(mask, logit, np.float32(ILLEGAL))
