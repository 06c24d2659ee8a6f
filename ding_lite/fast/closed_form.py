"""The gradient of PPO's losses for small networks, in closed form and in NumPy.

A gradient step of two 64-64 networks takes nearly two hundred calls to torch, which cost more than their
arithmetic. In closed form, with N samples of weight w and r = pi / pi_old,

    d L_pi / d log pi(a|s)  =  -w r A / N inside of the clip, 0 where the clip holds
    d L_V / d V             =  w (V - R) / N

and the rest is the chain rule of the distribution (``numpy_distributions``) and of the networks
(``numpy_mlp``). The losses and their sources are in ``rl.losses`` and ``policies.ppo``; tests compare both
implementations. ``switch`` decides when this one is used.

Shapes: N samples of a minibatch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ding_lite.data.minibatches import Batch
from ding_lite.data.rollout import view
from ding_lite.fast.gradients import Clip, Gradient, GradientFunction
from ding_lite.fast.numpy_actor import NumpyActor
from ding_lite.fast.numpy_mlp import NumpyMLP
from ding_lite.trees import MASK_KEY


class Options(NamedTuple):
    """The coefficients of the losses at the start of a learning phase."""

    clip_ratio: float
    entropy_weight: float
    value_clip: float | None
    dual_clip: float | None
    value_weight: float
    value_loss: str


class _Place(NamedTuple):
    """The memory that the gradient of some terms is written to."""

    flat: np.ndarray  # all of it
    actor: list[np.ndarray]
    log_sigma: np.ndarray | None
    critic: list[np.ndarray]
    values: list[Tensor | None]  # for each parameter of the optimiser, on the same memory
    reached: list[Tensor]  # the parameters


class ClosedForm:
    """The gradient of a weighted sum of PPO's losses by the parameters of one optimiser.

    Args:
        actor: the policy network in NumPy, if it has such a form.
        critic: the value network in NumPy, if it has such a form.
        parameters: of the optimiser.
    """

    def __init__(
        self, actor: NumpyActor | None, critic: NumpyMLP | None, parameters: Sequence[Tensor]
    ) -> None:
        self.actor: Any = actor
        self.critic: Any = critic
        self.parameters = list(parameters)
        self._places: dict[tuple[str, ...], _Place | None] = {}

    def covers(self, terms: tuple[str, ...]) -> bool:
        """Returns whether the gradient of the sum of ``terms``, "policy" and "value", is known here."""
        networks = [self.actor and self.actor.mlp if term == "policy" else self.critic for term in terms]
        if any(mlp is None or mlp.has_hooks() for mlp in networks):
            return False
        if terms not in self._places:
            self._places[terms] = self._place(terms)
        place = self._places[terms]
        return place is not None and all(p.requires_grad and not p._backward_hooks for p in place.reached)

    def of(self, terms: tuple[str, ...], options: Options) -> GradientFunction:
        """Returns the gradient of the sum of covered ``terms``.

        The next call overwrites its numbers.
        """
        place = self._places[terms]
        assert place is not None
        return partial(self._gradient, terms, options, place)

    def _place(self, terms: tuple[str, ...]) -> _Place | None:
        """Allocates the gradient of ``terms``; None if the optimiser lacks one of their parameters."""
        actor = self.actor.mlp.parameters if "policy" in terms else []
        log_sigma = self.actor.head.log_sigma if "policy" in terms else None
        critic = self.critic.parameters if "value" in terms else []
        reached = [*actor, *([] if log_sigma is None else [log_sigma]), *critic]
        ids = {id(p) for p in reached}
        if not ids <= {id(p) for p in self.parameters} or len(ids) < len(reached):  # a shared parameter
            return None
        flat = torch.zeros(sum(p.numel() for p in reached), dtype=torch.float32, device="cpu")
        pieces = flat.split([p.numel() for p in reached])
        parts = [piece.view_as(p) for piece, p in zip(pieces, reached, strict=True)]
        by_id = {id(p): part for p, part in zip(reached, parts, strict=True)}
        values = [by_id.get(id(p)) for p in self.parameters]
        arrays = [view(part) for part in parts]
        n, first_of_critic = len(actor), len(reached) - len(critic)
        sigma = None if log_sigma is None else arrays[n]
        return _Place(view(flat), arrays[:n], sigma, arrays[first_of_critic:], values, reached)

    def _gradient(
        self, terms: tuple[str, ...], options: Options, place: _Place, parts: Sequence[Batch], clip: Clip
    ) -> Gradient:
        (batch,) = parts
        total = 0.0
        metrics: dict[str, float] = {}
        with np.errstate(all="ignore"):  # non-finite numbers are found below
            if "policy" in terms:
                total, metrics = self._policy(batch, options, place)
            if "value" in terms:
                error = self._value(batch, options, place)
                total = total + options.value_weight * error
                metrics["value_loss"] = error
            flat = place.flat
            norm = math.sqrt(np.dot(flat, flat))
            scale = clip.value / (norm + 1e-6)  # as nn.utils.clip_grad_norm_
            if clip.kind == "clip_norm" and scale < 1:
                flat *= scale
            elif clip.kind == "clip_value":
                np.clip(flat, -clip.value, clip.value, out=flat)
        bad = float(not math.isfinite(norm + total))
        if len(terms) == 2:
            metrics = {"total_loss": total, **metrics}
        return Gradient(place.values, norm, bad, metrics)

    def _policy(self, batch: Batch, options: Options, place: _Place) -> tuple[float, dict[str, float]]:
        """Writes the gradient of ``PPOPolicy.policy_loss``; returns the loss and its metrics."""
        mlp, clip, entropy_weight = self.actor.mlp, options.clip_ratio, options.entropy_weight
        outputs = mlp.trace(mlp.rows(batch))
        result = self.actor.head.evaluate(outputs[-1], batch.array("obs", MASK_KEY), batch.array("action"))
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

        mlp.backward(outputs, result.backward(slope, -entropy_weight, place.log_sigma), place.actor)
        return policy_loss - entropy_weight * result.entropy, {
            "policy_loss": policy_loss,
            "entropy_loss": result.entropy,
            "approx_kl": _mean(excess - log_ratio),
            "clipfrac": np.count_nonzero(np.abs(excess) > clip) / len(excess),
        }

    def _value(self, batch: Batch, options: Options, place: _Place) -> float:
        """Writes the gradient of the weighted ``PPOPolicy.value_loss``; returns the loss."""
        clip, kind = options.value_clip, options.value_loss
        outputs = self.critic.trace(self.critic.rows(batch))
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
        self.critic.backward(outputs, slope[:, None], place.critic)
        return _mean(error)


def _regression(kind: str, difference: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the error of each sample and its slope."""
    if kind == "mse":
        return 0.5 * difference * difference, difference
    size = np.abs(difference)  # smooth L1
    error = np.where(size < 1, 0.5 * difference * difference, size - 0.5)
    return error, np.minimum(np.maximum(difference, -1), 1)


def _mean(x: np.ndarray) -> float:
    return float(np.add.reduce(x)) / len(x)  # x.mean() takes four times as long on so few
