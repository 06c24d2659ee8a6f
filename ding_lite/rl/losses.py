"""The losses of PPO and the statistics logged with them.

``clipped_surrogate``, ``reference_kl`` and ``value_error`` return one number per sample; ``weighted_mean``
reduces the first two. ``r`` is the ratio pi(a|s) / pi_old(a|s), ``A`` the advantage, ``V`` the predicted
value and ``R`` its target, in the unit of V. Log-ratios and KLs are in nats.

Shapes: (N,) each, of N samples; coefficients are numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor


def clipped_surrogate(
    log_ratio: Tensor, advantage: Tensor, clip_ratio: float, dual_clip: float | None = None
) -> Tensor:
    """Returns min(r A, clip(r, 1 - eps, 1 + eps) A), the objective to maximise (arXiv:1707.06347, eq. 7).

    With ``dual_clip`` c > 1 it is max(min(...), c A) where A < 0 (arXiv:1912.09729, eq. 5).

    The minimum bounds r on one side, which the sign of A selects: r <= 1 + eps where A >= 0; r >= 1 - eps
    where A < 0, and r <= c with ``dual_clip``. The bounds are applied to log r, so that the gradient is 0
    where a bound is active, even if exp(log r) overflows: clamping r itself would give 0 times inf there.

    Args:
        log_ratio: log r.
        advantage: A.
        clip_ratio: eps > 0. With eps >= 1, r has no lower bound.
        dual_clip: c, or None.
    """
    low = math.log1p(-clip_ratio) if clip_ratio < 1 else -math.inf
    dual = math.inf if dual_clip is None else math.log(dual_clip)
    bounded = torch.where(
        advantage >= 0, log_ratio.clamp(max=math.log1p(clip_ratio)), log_ratio.clamp(low, dual)
    )
    return torch.exp(bounded) * advantage


def kl_estimate(log_ratio: Tensor, kind: str) -> Tensor:
    """Returns estimates of KL(pi || pi_ref), one per action of pi (joschu.net/blog/kl-approx.html).

    With x = log pi(a|s) - log pi_ref(a|s): k1 = x, k2 = x^2 / 2, k3 = exp(-x) - 1 + x. The means of k1 and k3
    are the KL; the mean of k2 has a small bias.

    Args:
        log_ratio: x.
        kind: "k1", "k2" or "k3".
    """
    if kind == "k1":
        return log_ratio
    if kind == "k2":
        return 0.5 * log_ratio.square()
    return torch.expm1(-log_ratio) + log_ratio


def reference_kl(log_prob: Tensor, reference: Tensor, denominator: Tensor, kind: str) -> Tensor:
    """Returns terms r k whose mean over actions of mu is KL(pi || pi_ref), with r = pi / mu.

    Off-policy the denominator is pi_prox, and the caller's weights w are pi_prox / mu.

    Without r, k1 would have the gradient of -KL(mu || pi), which has no minimum: each step would move pi
    further from mu. k3 would have the gradient of another KL.

    Args:
        log_prob, reference: log-probs of the actions under pi and pi_ref.
        denominator: log-probs under the policy in the ratio's denominator.
        kind: the estimate k, see :func:`kl_estimate`.
    """
    return torch.exp(log_prob - denominator) * kl_estimate(log_prob - reference, kind)


ERRORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mse": lambda value, target: 0.5 * F.mse_loss(value, target, reduction="none"),
    "smooth_l1": lambda value, target: F.smooth_l1_loss(value, target, reduction="none"),
}


def value_error(
    value: Tensor,
    target: Tensor,
    old_value: Tensor | None = None,
    value_clip: float | None = None,
    kind: str = "mse",
) -> Tensor:
    """Returns the error e(V) of each value: 0.5 (V - R)^2, or torch's smooth L1 with beta 1.

    With ``value_clip`` eps it is max(e(V), e(V_old + clip(V - V_old, -eps, eps))): detail 9 of "The 37
    implementation details of PPO" (iclr-blog-track.github.io, 2022).

    Args:
        value, target, old_value: V, R and V_old.
        value_clip: eps > 0 in the unit of V; it needs ``old_value``.
        kind: "mse" or "smooth_l1".
    """
    error = ERRORS[kind](value, target)
    if value_clip is None:
        return error
    assert old_value is not None
    clipped = old_value + torch.clamp(value - old_value, -value_clip, value_clip)
    return torch.max(error, ERRORS[kind](clipped, target))


def approx_kl(log_ratio: Tensor) -> Tensor:
    """Returns the k3 estimate of KL(pi_old || pi), mean((r - 1) - log r) >= 0, from actions of pi_old."""
    return (torch.expm1(log_ratio) - log_ratio).mean()


def clip_fraction(log_ratio: Tensor, clip_ratio: float) -> Tensor:
    """Returns the fraction of samples whose ratio is outside [1 - eps, 1 + eps]."""
    return (torch.expm1(log_ratio).abs() > clip_ratio).to(log_ratio.dtype).mean()


def weighted_mean(x: Tensor, weight: Tensor | None = None) -> Tensor:
    """Returns sum(weight x) / N. The divisor is the number of samples, not the sum of the weights."""
    return x.mean() if weight is None else (weight * x).mean()
