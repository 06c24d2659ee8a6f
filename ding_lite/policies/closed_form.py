"""The gradient of PPO's losses for small networks, in closed form and in NumPy.

A gradient step of two 64-64 networks is nearly two hundred of torch's calls, in which arithmetic is the
smaller part. What they come to is short: with N samples of weight w and r = pi / pi_old,

    d L_pi / d log pi(a|s)  =  -w r A / N inside of the clip, 0 where the clip holds
    d L_V / d V             =  w (V - R) / N

and the rest is the chain rule of the distribution (``models.numpy_heads``) and of the networks
(``models.towers``). The losses' own words and sources are in ``rl.losses`` and ``policies.ppo``; the tests
hold both to the same numbers.

A loss says by ``@closed_form`` that its gradient is here. One that a policy writes anew does not, and is left
to torch, as are all other networks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from ding_lite.models.towers import find_critic, max_weights
from ding_lite.policies.updater import Gradient, KnownGradient, Loss
from ding_lite.rollout import Batch, view
from ding_lite.types import MASK_KEY

Function = TypeVar("Function", bound=Callable[..., Any])


def closed_form(*terms: str) -> Callable[[Function], Function]:
    """Marks a loss whose gradient is that of its ``terms``, "policy" and "value", as they are here."""

    def mark(loss: Function) -> Function:
        # With itself: functools.wraps copies marks on to functions that do something else.
        loss.closed_form = loss, terms  # type: ignore[attr-defined]
        return loss

    return mark


def terms_of(loss: Callable[..., Any]) -> tuple[str, ...]:
    """Returns what a loss is the sum of; nothing where it is not known here."""
    function = getattr(loss, "__func__", loss)
    marked, terms = getattr(function, "closed_form", (None, ()))
    return terms if marked is function else ()


class _Options(NamedTuple):
    """What the losses read of a policy: its schedules and its config, as they are before some steps."""

    clip_ratio: Any
    entropy_weight: Any
    value_clip: Any  # None: no clip
    dual_clip: float | None
    value_weight: float
    value_loss: str


class _Place(NamedTuple):
    """Where the gradient of some terms is written."""

    flat: np.ndarray  # all of it
    actor: list[np.ndarray]
    log_sigma: np.ndarray | None
    critic: list[np.ndarray]
    values: list[Tensor | None]  # one a parameter of the optimiser, on the same memory
    reached: list[Tensor]  # the parameters themselves


class ClosedForm:
    """The gradient of a PPO policy's losses for one optimiser, where it is known.

    Args:
        policy: whose model, config and schedules it reads.
        parameters: of the optimiser.
    """

    def __init__(self, policy: Any, parameters: Iterable[Tensor]) -> None:
        self.policy, self.parameters = policy, list(parameters)
        self._read()

    def _read(self) -> None:
        """Looks at the networks as they are now."""
        self.actor: Any = self.policy._find_fast_actor(max_weights())
        self.critic: Any = find_critic(self.policy.model)
        self._towers = {"policy": self.actor and self.actor.tower, "value": self.critic}
        self._places: dict[tuple[str, ...], _Place | None] = {}

    def of(self, loss: Loss) -> KnownGradient | None:
        """Returns the gradient of a loss for the policy as it is now, None where it is not known.

        It is what ``updater.clipped_gradient`` does, and good until somebody changes the policy.
        Its numbers are good until its next call.
        """
        terms = terms_of(loss)
        if not terms or not self._is_as_written():
            return None
        if any(self._towers[term] is None or self._towers[term].is_listened_to() for term in terms):
            return None
        if terms not in self._places:
            self._places[terms] = self._place(terms)
        place = self._places[terms]
        if place is None or not all(p.requires_grad and not p._backward_hooks for p in place.reached):
            return None
        options = self._options()  # last: to read them waits for a device
        return None if options is None else partial(self._gradient, terms, options, place)

    def _is_as_written(self) -> bool:
        """Returns whether the policy's losses, and its way to them, are ours; reads networks that are new."""
        policy = self.policy
        if policy.cfg.learn.kl_penalty is not None or torch.is_autocast_enabled("cpu"):
            return False
        if terms_of(policy.policy_loss) != ("policy",) or terms_of(policy.value_loss) != ("value",):
            return False
        known = [tower for tower in self._towers.values() if tower is not None]
        if not all(tower.model is policy.model and tower.holds() for tower in known):
            self._read()
        return bool(policy._sees_as_written())

    def _options(self) -> _Options | None:
        """Returns the policy's, None where one is not a number, or has a gradient of its own."""
        policy, learn = self.policy, self.policy.cfg.learn
        given = (policy.clip_ratio, policy.entropy_weight, policy.value_clip)
        if any(isinstance(x, Tensor) and (x.requires_grad or x.dim()) for x in given):
            return None
        clip_ratio, entropy_weight, value_clip = (None if x is None else float(x) for x in given)
        return _Options(
            clip_ratio, entropy_weight, value_clip, learn.dual_clip, learn.value_weight, learn.value_loss
        )

    def _place(self, terms: tuple[str, ...]) -> _Place | None:
        """Lays out the gradient of ``terms``; None where a parameter of theirs is not the optimiser's."""
        actor = self.actor.tower.parameters if "policy" in terms else []
        log_sigma = self.actor.head.log_sigma if "policy" in terms else None
        critic = self.critic.parameters if "value" in terms else []
        reached = [*actor, *([] if log_sigma is None else [log_sigma]), *critic]
        ids = {id(p) for p in reached}
        if not ids <= {id(p) for p in self.parameters} or len(ids) < len(reached):  # or is there twice
            return None
        flat = torch.zeros(sum(p.numel() for p in reached), dtype=torch.float32, device="cpu")
        pieces = flat.split([p.numel() for p in reached])
        parts = [piece.view_as(p) for piece, p in zip(pieces, reached, strict=True)]
        by_id = {id(p): part for p, part in zip(reached, parts, strict=True)}
        values = [by_id.get(id(p)) for p in self.parameters]
        arrays, n = list(map(view, parts)), len(actor)
        rest = arrays[n:] if log_sigma is None else arrays[n + 1 :]
        own = None if log_sigma is None else arrays[n]
        return _Place(view(flat), arrays[:n], own, rest, values, reached)

    def _gradient(
        self,
        terms: tuple[str, ...],
        options: _Options,
        place: _Place,
        batch: Batch,
        clip_type: str | None,
        clip_value: float,
    ) -> Gradient:
        total = 0.0
        metrics: dict[str, float] = {}
        value = None
        with np.errstate(all="ignore"):  # nor does torch say anything; what is not finite is found below
            if "policy" in terms:
                total, metrics = self._policy(batch, options, place)
            if "value" in terms:
                value, error = self._value(batch, options, place)
                total = total + options.value_weight * error
                metrics["value_loss"] = error
            flat = place.flat
            norm = math.sqrt(np.dot(flat, flat))
            scale = clip_value / (norm + 1e-6)  # as nn.utils.clip_grad_norm_
            if clip_type == "clip_norm" and scale < 1:
                flat *= scale
            elif clip_type == "clip_value":
                np.clip(flat, -clip_value, clip_value, out=flat)
        bad = float(not math.isfinite(norm + total))
        if len(terms) == 2:
            metrics = {"total_loss": total, **metrics}
        new_value = None if value is None else torch.from_numpy(value)
        return Gradient(place.values, norm, bad, metrics, new_value)

    def _policy(self, batch: Batch, options: _Options, place: _Place) -> tuple[float, dict[str, float]]:
        """Writes the gradient of ``PPOPolicy.policy_loss``; returns it and its metrics."""
        tower, clip, entropy_weight = self.actor.tower, options.clip_ratio, options.entropy_weight
        outputs = tower.trace(tower.rows(batch))
        found = self.actor.head.evaluate(outputs[-1], batch.array("obs", MASK_KEY), batch.array("action"))
        log_ratio, advantage = found.log_prob - batch.array("log_prob"), batch.array("advantage")

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

        tower.backward(outputs, found.backward(slope, -entropy_weight, place.log_sigma), place.actor)
        return policy_loss - entropy_weight * found.entropy, {
            "policy_loss": policy_loss,
            "entropy_loss": found.entropy,
            "approx_kl": _mean(excess - log_ratio),
            "clipfrac": np.count_nonzero(np.abs(excess) > clip) / len(excess),
        }

    def _value(self, batch: Batch, options: _Options, place: _Place) -> tuple[np.ndarray, float]:
        """Writes the gradient of the weighted ``PPOPolicy.value_loss``; returns the values and the loss."""
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
        return value, _mean(error)


def _regression(kind: str, difference: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the error of each sample and its slope."""
    if kind == "mse":
        return 0.5 * difference * difference, difference
    size = np.abs(difference)  # smooth L1
    error = np.where(size < 1, 0.5 * difference * difference, size - 0.5)
    return error, np.minimum(np.maximum(difference, -1), 1)


def _mean(x: np.ndarray) -> float:
    return float(np.add.reduce(x)) / len(x)  # x.mean() takes four times as long on so few
