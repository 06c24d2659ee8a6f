"""The losses of PPO and the statistics logged with them.

``clipped_surrogate`` and ``value_error`` return one number per sample; ``weighted_mean`` reduces them.
``r`` is the ratio pi(a|s) / pi_old(a|s), ``A`` the advantage, ``V`` the predicted value and ``R`` its target.
Log-ratios and KLs are in nats; values and targets are in the same units as each other.

Sources: PPO arXiv:1707.06347; dual clip arXiv:1912.09729, eq. 5; value clipping, detail 9 of "The 37
implementation details of PPO" (iclr-blog-track.github.io, 2022); the low-variance KL estimator k3,
http://joschu.net/blog/kl-approx.html.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def clipped_surrogate(
    log_ratio: Tensor, advantage: Tensor, clip_ratio: float | Tensor, dual_clip: float | None = None
) -> Tensor:
    """Returns min(r A, clip(r, 1 - eps, 1 + eps) A), the objective to maximise (arXiv:1707.06347, eq. 7).

    With ``dual_clip`` c, the objective is max(min(...), c A) where A < 0 (arXiv:1912.09729, eq. 5).

    The minimum bounds the ratio on the side that the sign of A selects: r <= 1 + eps where A >= 0; r >= 1 -
    eps where A < 0, and r <= c there with ``dual_clip``. The bound is applied to log r before the
    exponential. The gradient is then exactly 0 where a bound is active, even where exp(log r) overflows. A
    bound on r would give nan there, because 0 times inf is nan.

    Args:
        log_ratio: log pi(a|s) - log pi_old(a|s).
        advantage: A.
        clip_ratio: eps > 0. From 1 on, r has no lower bound.
        dual_clip: c > 1, or None for no dual clip.

    Shapes:
        log_ratio, advantage: (N,); clip_ratio: () or (N,) -> (N,)
    """
    clip = torch.as_tensor(clip_ratio, dtype=log_ratio.dtype, device=log_ratio.device)
    high_of_negative = math.inf if dual_clip is None else math.log(dual_clip)
    is_positive = advantage >= 0
    low = torch.where(is_positive, -math.inf, torch.log1p(-clip.clamp(max=1.0)))
    high = torch.where(is_positive, torch.log1p(clip), high_of_negative)
    return torch.exp(torch.clamp(log_ratio, low, high)) * advantage


def kl_estimate(log_ratio: Tensor, kind: str) -> Tensor:
    """Returns an estimate of KL(pi || pi_ref) by each sample (joschu.net/blog/kl-approx.html).

    With x = log pi(a|s) - log pi_ref(a|s): k1 = x, k2 = x^2 / 2, k3 = exp(-x) - 1 + x. Over actions of pi the
    means of k1 and k3 are the KL; that of k2 has a small bias. For a loss see :func:`reference_kl`.

    Args:
        log_ratio: x.
        kind: "k1", "k2" or "k3".

    Shapes:
        log_ratio: (N,) -> (N,)
    """
    if kind == "k1":
        return log_ratio
    if kind == "k2":
        return 0.5 * log_ratio.square()
    return torch.expm1(-log_ratio) + log_ratio


def reference_kl(log_prob: Tensor, reference: Tensor, collected: Tensor, kind: str) -> Tensor:
    """Returns the terms of an estimate of KL(pi || pi_ref) that is minimised, r k with r = pi / mu.

    The actions are of mu, and pi moves away from it with each step. The ratio r makes the mean of k one over
    actions of pi, so its gradient is that of the KL (of k2 but for the bias). Without it the gradient of k1
    would be that of -KL(mu || pi), which has no minimum, and that of k3 would be of another KL.

    Args:
        log_prob: of the actions, under pi.
        reference: their log-probs under pi_ref.
        collected: their log-probs under mu.
        kind: "k1", "k2" or "k3", of :func:`kl_estimate`.

    Shapes:
        log_prob, reference, collected: (N,) -> (N,)
    """
    return torch.exp(log_prob - collected) * kl_estimate(log_prob - reference, kind)


def value_error(
    value: Tensor,
    target: Tensor,
    old_value: Tensor | None = None,
    value_clip: float | Tensor | None = None,
    kind: str = "mse",
) -> Tensor:
    """Returns the error e(V) of each value: 0.5 (V - R)^2, or torch's smooth L1 with beta 1.

    With ``value_clip`` eps the result is max(e(V), e(V_old + clip(V - V_old, -eps, eps))) (37 details, 9).

    Args:
        value: V.
        target: R.
        old_value: V_old, the value when the pass began (see learn.value_clip); required with ``value_clip``.
        value_clip: eps > 0 in the units of ``value``, or None for no clipping.
        kind: "mse" or "smooth_l1".

    Shapes:
        value, target, old_value: (N,); value_clip: () -> (N,)

    Raises:
        ValueError: if ``value_clip`` is given without ``old_value``, or ``kind`` is unknown.
    """
    error = _regression_error(value, target, kind)
    if value_clip is None:
        return error
    if old_value is None:
        raise ValueError("value_error: value_clip needs old_value, got None; pass the old values")
    bound: Any = value_clip  # torch's types allow two numbers or two tensors, not either
    clipped = old_value + torch.clamp(value - old_value, -bound, bound)
    return torch.max(error, _regression_error(clipped, target, kind))


def _regression_error(value: Tensor, target: Tensor, kind: str) -> Tensor:
    """Returns the unclipped error of each value: (N,), (N,) -> (N,)."""
    if kind == "mse":
        return 0.5 * F.mse_loss(value, target, reduction="none")
    if kind == "smooth_l1":
        return F.smooth_l1_loss(value, target, reduction="none")
    raise ValueError(f"value_error: kind must be 'mse' or 'smooth_l1', got {kind!r}")


def approx_kl(log_ratio: Tensor) -> Tensor:
    """Returns the mean k3 estimate of KL(pi_old || pi), mean((r - 1) - log r), in nats; it is never negative.

    The samples are actions of pi_old, so that x of :func:`kl_estimate` is -log r.

    Shapes:
        log_ratio: (N,) -> ()
    """
    return kl_estimate(-log_ratio, "k3").mean()


def clip_fraction(log_ratio: Tensor, clip_ratio: float | Tensor) -> Tensor:
    """Returns the fraction of samples whose ratio is outside [1 - eps, 1 + eps].

    Shapes:
        log_ratio: (N,); clip_ratio: () -> ()
    """
    return (torch.expm1(log_ratio).abs() > clip_ratio).to(log_ratio.dtype).mean()


def normalize_advantage(
    advantage: Tensor, scale: tuple[Tensor, Tensor] | None = None, eps: float = 1e-8
) -> Tensor:
    """Returns (A - mean) / (std + eps) of each minibatch, or 0 where the advantages are constant.

    The std is the population's (divided by N), so that a single sample gives 0 and not nan. Advantages
    whose std is at most 1e-6 times their mean count as constant: their spread is rounding error, and
    normalising it would train on noise.

    Args:
        advantage: A.
        scale: std and mean, if they are those of more samples than these.
        eps: added to the std.

    Shapes:
        advantage: (N,), or (K, N) for K minibatches -> the same shape
    """
    std, mean = torch.std_mean(advantage, -1, correction=0, keepdim=True) if scale is None else scale
    divisor = torch.where(std <= 1e-6 * mean.abs(), torch.inf, std + eps)
    return (advantage - mean) / divisor


def weighted_mean(x: Tensor, weight: Tensor | None = None) -> Tensor:
    """Returns sum(weight x) / N. The divisor is the number of samples, not the sum of the weights.

    Args:
        x: one number per sample.
        weight: of each sample; None weighs each with 1.

    Shapes:
        x, weight: (N,) -> ()
    """
    return x.mean() if weight is None else (weight * x).mean()
