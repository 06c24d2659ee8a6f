"""The losses of PPO and what is watched beside them, per sample or as a mean.

Sources: PPO arXiv:1707.06347, dual clip arXiv:1912.09729 (eq. 5), the low-variance KL estimator
http://joschu.net/blog/kl-approx.html (k3).
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
    """Returns min(r A, clip(r, 1 - eps, 1 + eps) A), eq. 7, to be maximised.

    With ``dual_clip`` c > 1 the objective is bounded from below by c A, only where A < 0.

    The minimum bounds the ratio on one side, by the sign of A: r <= 1 + eps where A >= 0; r >= 1 - eps, and
    r <= c with ``dual_clip``, where A < 0. The bound is applied to log r, before the exponential. So the
    gradient is exactly 0 where a bound holds, also where exp(log r) overflows (0 times inf is nan).

    Shapes:
        log_ratio = log pi - log pi_old, advantage: (N,) -> (N,)
    """
    clip = torch.as_tensor(clip_ratio, dtype=log_ratio.dtype, device=log_ratio.device)
    above = math.inf if dual_clip is None else math.log(dual_clip)
    is_positive = advantage >= 0
    low = torch.where(is_positive, -math.inf, torch.log1p(-clip.clamp(max=1.0)))
    high = torch.where(is_positive, torch.log1p(clip), above)
    return torch.exp(torch.clamp(log_ratio, low, high)) * advantage


def value_error(
    value: Tensor,
    target: Tensor,
    old_value: Tensor | None = None,
    value_clip: float | Tensor | None = None,
    kind: str = "mse",
) -> Tensor:
    """Returns 0.5 (V - R)^2, or smooth-L1 (torch's, beta 1); clipped around ``old_value`` if asked.

    The clipped error is max(e(V), e(V_old + clip(V - V_old, -eps, eps))), section "9. value loss
    clipping" of the 37 implementation details.

    Shapes:
        value, target, old_value: (N,) -> (N,)
    """
    error = _regression_error(value, target, kind)
    if value_clip is None:
        return error
    if old_value is None:
        raise ValueError("value_error: clipping needs old_value")
    near = old_value + _clamped(value - old_value, -value_clip, value_clip)
    return torch.max(error, _regression_error(near, target, kind))


def _clamped(x: Tensor, low: Any, high: Any) -> Tensor:
    # torch's signatures know two numbers or two tensors; ours are one or the other.
    return torch.clamp(x, low, high)


def _regression_error(value: Tensor, target: Tensor, kind: str) -> Tensor:
    if kind == "mse":
        return 0.5 * F.mse_loss(value, target, reduction="none")
    if kind == "smooth_l1":
        return F.smooth_l1_loss(value, target, reduction="none")
    raise ValueError(f"value_error: kind is 'mse' or 'smooth_l1', got {kind!r}")


def approx_kl(log_ratio: Tensor) -> Tensor:
    """Returns the k3 estimate of KL(pi_old || pi): mean of (r - 1) - log r, never negative.

    Shapes:
        log_ratio: (N,) -> ()
    """
    return (torch.expm1(log_ratio) - log_ratio).mean()


def clip_fraction(log_ratio: Tensor, clip_ratio: float | Tensor) -> Tensor:
    """Returns the share of samples whose ratio is outside 1 - eps .. 1 + eps.

    Shapes:
        log_ratio: (N,) -> ()
    """
    return (torch.expm1(log_ratio).abs() > clip_ratio).to(log_ratio.dtype).mean()


def normalize_advantage(advantage: Tensor, eps: float = 1e-8) -> Tensor:
    """Returns (A - mean) / std of each minibatch; a constant one becomes 0.

    The std is the population's, so that one sample alone gives 0 and not nan. A spread within the
    rounding error of the mean counts as constant: dividing it by itself would train on noise.

    Shapes:
        advantage: (N,) -> (N,), or those of K minibatches: (K, N) -> (K, N)
    """
    std, mean = torch.std_mean(advantage, -1, correction=0, keepdim=True)
    scale = torch.where(std <= 1e-6 * mean.abs(), torch.inf, std + eps)
    return (advantage - mean) / scale


def weighted_mean(x: Tensor, weight: Tensor | None = None) -> Tensor:
    """Returns mean(weight x): divided by the count, not by the sum of the weights.

    Shapes:
        x, weight: (N,) -> ()
    """
    return x.mean() if weight is None else (weight * x).mean()
