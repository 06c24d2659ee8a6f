"""The gradient of the losses of PPO and PPG for small networks, in closed form and in NumPy.

A gradient step of two 64-64 networks takes nearly two hundred calls to torch, which cost more than their
arithmetic. In closed form, with N samples of weight w and r = pi / pi_old,

    d L_pi / d log pi(a|s)  =  -w r A / N inside of the clip, 0 where the clip holds
    d L_V / d V             =  w (V - R) / N
    d L_KL / d KL           =  beta_clone / N

and the rest is the chain rule of the distribution and of its KL (``numpy_distributions``) and of the networks
(``numpy_mlp``). The losses and their sources are in ``rl.losses``, ``policies.ppo`` and ``policies.ppg``;
tests compare both implementations. ``switch`` decides when this one is used; a method of the policy beside
each loss gives the coefficients, or says that the loss has a term that is not written here.

Shapes: N samples of a minibatch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ding_lite.data.minibatches import Batch
from ding_lite.data.rollout import view
from ding_lite.fast.gradients import Clip, Gradient, GradientFunction
from ding_lite.fast.numpy_model import NumpyModel
from ding_lite.fast.numpy_network import NumpyEncoder, NumpyNetwork, NumpyPart
from ding_lite.trees import MASK_KEY

LOG_SIGMA = "log sigma"


class Options(NamedTuple):
    """The coefficients of PPO's losses at the start of a learning phase."""

    clip_ratio: float
    entropy_weight: float
    value_clip: float | None
    dual_clip: float | None
    value_weight: float
    value_loss: str


class AuxiliaryOptions(NamedTuple):
    """The coefficients of the loss of PPG's auxiliary phase."""

    bc_weight: float
    value_weight: float


def are_numbers(coefficients: Sequence[Any]) -> bool:
    """Returns whether no coefficient is learned, or has a number for each sample; None counts as one."""
    return not any(isinstance(x, Tensor) and (x.requires_grad or x.dim()) for x in coefficients)


class _GradientMemory(NamedTuple):
    """The memory that the gradient of a loss is written to."""

    flat: np.ndarray  # all of it
    of_parts: dict[NumpyPart, list[np.ndarray]]  # for each encoder and head that the loss reaches
    log_sigma: np.ndarray | None
    values: list[Tensor | None]  # for each parameter of the optimiser, on the same memory
    reached: list[Tensor]  # the parameters


class _Tape:
    """A minibatch on its way through networks, which may share an encoder, and back.

    Args:
        batch: the minibatch.
        memory: of the gradient.
    """

    def __init__(self, batch: Batch, memory: _GradientMemory) -> None:
        self.batch, self.memory = batch, memory
        self._traces: dict[NumpyEncoder, list[Any]] = {}
        self._slopes: dict[NumpyEncoder, np.ndarray] = {}  # the gradient by their features

    def trace(self, network: NumpyNetwork) -> list[np.ndarray]:
        """Returns the features and the outputs of all layers of the head."""
        encoder = network.encoder
        if encoder not in self._traces:
            self._traces[encoder] = encoder.trace(encoder.rows(self.batch))
        return network.head.trace(self._traces[encoder][-1])

    def backward(self, network: NumpyNetwork, outputs: list[np.ndarray], slope: np.ndarray) -> None:
        """Writes the gradient of the head, and keeps that of the features.

        Args:
            network: whose head has given ``outputs``.
            outputs: from :meth:`trace`.
            slope: (N, A), the gradient of the last output.
        """
        into, encoder = self.memory.of_parts[network.head], network.encoder
        of_features = network.head.backward(outputs, slope, into, to_input=not network.is_detached)
        if of_features is not None:
            earlier = self._slopes.get(encoder)
            self._slopes[encoder] = of_features if earlier is None else earlier + of_features

    def finish(self) -> None:
        """Writes the gradients of the encoders."""
        for encoder, slope in self._slopes.items():
            encoder.backward(self._traces[encoder], slope, self.memory.of_parts[encoder])


class ClosedForm:
    """The gradient of losses by the parameters of one optimiser.

    Args:
        model: whose networks compute the losses.
        parameters: of the optimiser.
    """

    def __init__(self, model: NumpyModel, parameters: Sequence[Tensor]) -> None:
        self.model: Any = model
        self.parameters = list(parameters)
        self._memory: dict[tuple[str, ...], Any] = {}  # None: the loss is not covered

    def covers(self, names: tuple[str, ...]) -> bool:
        """Returns whether the gradient of a loss that the networks ``names`` compute is known here."""
        networks = [self.model.networks[name] for name in names]
        if any(network is None or network.has_hooks() for network in networks):
            return False
        if names not in self._memory:
            self._memory[names] = self._allocate(names)
        memory = self._memory[names]
        return memory is not None and all(p.requires_grad and not p._backward_hooks for p in memory.reached)

    def ppo(self, names: tuple[str, ...], options: Options) -> GradientFunction:
        """Returns the gradient of ``PPOPolicy.loss``, or of the term of "actor" or "critic" alone.

        The next call overwrites its numbers.

        Args:
            names: of the networks; :meth:`covers` has said yes to them.
            options: the coefficients.
        """
        return partial(self._gradient, self._memory[names], partial(self._ppo, names, options))

    def auxiliary(self, names: tuple[str, ...], options: AuxiliaryOptions) -> GradientFunction:
        """Returns the gradient of ``PPGPolicy.auxiliary_loss``; the arguments are as those of :meth:`ppo`."""
        return partial(self._gradient, self._memory[names], partial(self._auxiliary, options))

    def _allocate(self, names: tuple[str, ...]) -> _GradientMemory | None:
        """Allocates the gradient of a loss; None if the optimiser lacks one of its parameters."""
        groups: dict[Any, list[Tensor]] = {}  # of each encoder and head once, and log sigma
        for name in names:
            network = self.model.networks[name]
            if not network.is_detached:
                groups[network.encoder] = network.encoder.parameters
            groups[network.head] = network.head.parameters
            log_sigma = self.model.actor.distribution.log_sigma if name == "actor" else None
            if log_sigma is not None:
                groups[LOG_SIGMA] = [log_sigma]
        reached = [p for group in groups.values() for p in group]
        ids = {id(p) for p in reached}
        if not ids <= {id(p) for p in self.parameters} or len(ids) < len(reached):  # a shared parameter
            return None
        flat = torch.zeros(sum(p.numel() for p in reached), dtype=torch.float32, device="cpu")
        pieces = flat.split([p.numel() for p in reached])
        parts = [piece.view_as(p) for piece, p in zip(pieces, reached, strict=True)]
        by_id = {id(p): part for p, part in zip(reached, parts, strict=True)}
        values = [by_id.get(id(p)) for p in self.parameters]
        arrays = map(view, parts)
        of_groups: dict[Any, Any] = {key: list(islice(arrays, len(group))) for key, group in groups.items()}
        (of_log_sigma,) = of_groups.pop(LOG_SIGMA, [None])
        return _GradientMemory(view(flat), of_groups, of_log_sigma, values, reached)

    def _gradient(
        self,
        memory: _GradientMemory,
        loss: Callable[[_Tape], tuple[float, dict[str, float]]],
        parts: Sequence[Batch],
        clip: Clip,
    ) -> Gradient:
        """Returns the clipped gradient of a loss and its metrics.

        Args:
            memory: of the gradient.
            loss: computes a loss, takes its gradient back to the networks, and returns it and its metrics.
            parts: one minibatch.
            clip: of the gradient.
        """
        (batch,) = parts
        tape = _Tape(batch, memory)
        with np.errstate(all="ignore"):  # non-finite numbers are found below
            total, metrics = loss(tape)
            tape.finish()
            flat = memory.flat
            norm = math.sqrt(np.dot(flat, flat))
            scale = clip.value / (norm + 1e-6)  # as nn.utils.clip_grad_norm_
            if clip.kind == "clip_norm" and scale < 1:
                flat *= scale
            elif clip.kind == "clip_value":
                np.clip(flat, -clip.value, clip.value, out=flat)
        return Gradient(memory.values, norm, float(not math.isfinite(norm + total)), metrics)

    def _ppo(self, names: tuple[str, ...], options: Options, tape: _Tape) -> tuple[float, dict[str, float]]:
        """Computes ``PPOPolicy.policy_loss``, the weighted ``value_loss``, or their sum."""
        total = 0.0
        metrics: dict[str, float] = {}
        if "actor" in names:
            total, metrics = self._policy(options, tape)
        if "critic" in names:
            error = self._value(options, tape)
            total = total + options.value_weight * error
            metrics["value_loss"] = error
        return total, {"total_loss": total, **metrics} if names == ("actor", "critic") else metrics

    def _policy(self, options: Options, tape: _Tape) -> tuple[float, dict[str, float]]:
        actor, clip, entropy_weight = self.model.actor, options.clip_ratio, options.entropy_weight
        batch, outputs = tape.batch, tape.trace(actor.network)
        mask = batch.array("obs", MASK_KEY)
        result = actor.distribution.evaluate(outputs[-1], mask, batch.array("action"))
        log_ratio, advantage = result.log_prob - batch.array("log_prob"), batch.array("advantage")

        excess = np.expm1(log_ratio)
        # rl.losses.clipped_surrogate says which bound of log r holds where.
        where_negative = np.maximum(log_ratio, math.log1p(-clip) if clip < 1 else -math.inf)
        if options.dual_clip is not None:
            where_negative = np.minimum(where_negative, math.log(options.dual_clip))
        bounded = np.where(advantage >= 0, np.minimum(log_ratio, math.log1p(clip)), where_negative)
        objective = np.exp(bounded) * advantage
        slope = np.where(bounded == log_ratio, objective, np.float32(0)) / -len(objective)
        if batch.policy_weight is not None:
            weight = batch.array("policy_weight")
            objective, slope = objective * weight, slope * weight
        policy_loss = -_mean(objective)

        tape.backward(actor.network, outputs, result.backward(slope, -entropy_weight, tape.memory.log_sigma))
        return policy_loss - entropy_weight * result.entropy, {
            "policy_loss": policy_loss,
            "entropy_loss": result.entropy,
            "approx_kl": _mean(excess - log_ratio),
            "clipfrac": np.count_nonzero(np.abs(excess) > clip) / len(excess),
        }

    def _value(self, options: Options, tape: _Tape) -> float:
        """Returns the error without its weight; its gradient has the weight."""
        clip, kind = options.value_clip, options.value_loss
        batch, outputs = tape.batch, tape.trace(self.model.critic)
        value, target = outputs[-1][:, 0], batch.array("value_target")
        error, slope = _regression(kind, value - target)
        if clip is not None:
            old = batch.array("value")
            shift = value - old
            far_error, _ = _regression(kind, old + np.minimum(np.maximum(shift, -clip), clip) - target)
            # Where the clip holds and the error is that of the clipped value, nothing moves it.
            slope = np.where((far_error > error) & (np.abs(shift) > clip), np.float32(0), slope)
            error = np.maximum(error, far_error)
        if batch.value_weight is not None:
            weight = batch.array("value_weight")
            error, slope = error * weight, slope * weight
        slope = slope * np.float32(options.value_weight / len(value))
        tape.backward(self.model.critic, outputs, slope[:, None])
        return _mean(error)

    def _auxiliary(self, options: AuxiliaryOptions, tape: _Tape) -> tuple[float, dict[str, float]]:
        """Computes ``PPGPolicy.auxiliary_loss``."""
        model, batch = self.model, tape.batch
        target = batch.array("value_target")
        share = 1 / len(target)  # of a sample in a mean

        def regress(network: NumpyNetwork, weight: float) -> float:
            outputs = tape.trace(network)
            error, slope = _regression("mse", outputs[-1][:, 0] - target)
            tape.backward(network, outputs, slope[:, None] * np.float32(weight * share))
            return _mean(error)

        outputs = tape.trace(model.actor.network)
        distribution, mask = model.actor.distribution, batch.array("obs", MASK_KEY)
        old = [batch.array("old_logit", *leaf) for leaf in distribution.leaves]
        divergence = distribution.kl(old, outputs[-1], mask)
        slope = divergence.backward(options.bc_weight * share, tape.memory.log_sigma)
        tape.backward(model.actor.network, outputs, slope)
        terms = {
            "auxiliary_loss": regress(model.auxiliary, 1.0),
            "behavioral_cloning_loss": _mean(divergence.kl),
            "aux_value_loss": regress(model.critic, options.value_weight),
        }
        weights = (1.0, options.bc_weight, options.value_weight)
        return sum(weight * term for weight, term in zip(weights, terms.values(), strict=True)), terms


def _regression(kind: str, difference: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the error of each sample and its slope."""
    if kind == "mse":
        return 0.5 * difference * difference, difference
    size = np.abs(difference)  # smooth L1
    error = np.where(size < 1, 0.5 * difference * difference, size - 0.5)
    return error, np.minimum(np.maximum(difference, -1), 1)


def _mean(x: np.ndarray) -> float:
    return float(np.add.reduce(x)) / len(x)  # x.mean() takes four times as long on so few
