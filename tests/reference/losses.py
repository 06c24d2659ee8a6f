"""The objectives of a minibatch, one number per sample: (N,)."""

from __future__ import annotations

import math

import torch
from torch import Tensor


class Watch:
    """Records which mechanisms a run used, and how near a loss came to one of its corners.

    At a corner the gradient jumps. There float32 and float64 may differ, and both are right.
    """

    def __init__(self) -> None:
        self.nearest, self.corner = math.inf, ""
        self.seen: set[str] = set()

    def near(self, corner: str, distance: Tensor | float) -> None:
        nearest = float(distance.detach().abs().min() if isinstance(distance, Tensor) else abs(distance))
        if nearest < self.nearest:
            self.nearest, self.corner = nearest, corner

    def saw(self, what: str, happened: Tensor | bool = True) -> None:
        if bool(happened.any() if isinstance(happened, Tensor) else happened):
            self.seen.add(what)


def surrogate(log_ratio: Tensor, advantage: Tensor, clip: float, dual: float | None, watch: Watch) -> Tensor:
    """Returns min(r A, clip(r, 1 - eps, 1 + eps) A) (arXiv:1707.06347, eq. 7).

    With ``dual`` c: max of that and c A, only where A < 0 (arXiv:1912.09729, eq. 5).
    """
    ratio = log_ratio.exp()
    watch.near("the clip", (ratio - 1).abs() - clip)
    watch.saw("the clip", (ratio - 1) * torch.sign(advantage) > clip)
    objective = torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
    if dual is None:
        return objective
    watch.near("the dual clip", ratio - dual)
    watch.saw("the dual clip", (advantage < 0) & (ratio > dual))
    return torch.where(advantage < 0, torch.maximum(objective, dual * advantage), objective)


def regression(value: Tensor, target: Tensor, kind: str) -> Tensor:
    """Returns 0.5 d^2, or smooth-L1: 0.5 d^2 where |d| < 1, |d| - 0.5 elsewhere."""
    d = value - target
    if kind == "mse":
        return 0.5 * d**2
    return torch.where(d.abs() < 1, 0.5 * d**2, d.abs() - 0.5)


def value_error(
    value: Tensor, target: Tensor, old: Tensor, clip: float | None, kind: str, watch: Watch
) -> Tensor:
    """Returns e(V), or max(e(V), e(V_old + clip(V - V_old, -eps, eps)))."""
    error = regression(value, target, kind)
    watch.saw("the straight part of smooth L1", (kind != "mse") & ((value - target).abs() > 1))
    if clip is None:
        return error
    shift = value - old
    held = old + shift.clamp(-clip, clip)
    held_error = regression(held, target, kind)
    outside = shift.abs() > clip
    watch.near("the value clip", shift.abs() - clip)
    if bool(outside.any()):
        watch.near("the two value errors", ((value - target).abs() - (held - target).abs())[outside])
        watch.saw("the value clip", held_error > error)
    return torch.maximum(error, held_error)


def reference_kl(log_prob: Tensor, reference: Tensor, old: Tensor, kind: str) -> Tensor:
    """Returns r k, whose mean over actions of pi_old is an estimate of KL(pi || pi_ref); r = pi / pi_old.

    k1 = x, k2 = x^2 / 2 and k3 = exp(-x) - 1 + x with x = log pi - log pi_ref
    (joschu.net/blog/kl-approx.html). The gradient is of the whole product.
    """
    x = log_prob - reference
    k = {"k1": x, "k2": x**2 / 2, "k3": (-x).exp() - 1 + x}[kind]
    return (log_prob - old).exp() * k


def approx_kl(log_ratio: Tensor) -> Tensor:
    """Returns the mean of (r - 1) - log r, an estimate of KL(pi_old || pi)."""
    return (log_ratio.exp() - 1 - log_ratio).mean()


def schedule(kind: str, share: float, final: float) -> float:
    """Returns the factor of a coefficient when ``share`` of its schedule is done: from 1 to ``final``."""
    share = min(share, 1.0)
    if kind == "linear":
        return 1.0 + (final - 1.0) * share
    if kind == "cosine":
        return final + (1.0 - final) * (1.0 + math.cos(math.pi * share)) / 2
    return 1.0
