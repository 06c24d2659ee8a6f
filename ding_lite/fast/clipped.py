"""The slopes of PPO's own losses by raw outputs, in NumPy: for Categorical actions and Normals.

They save the hundred calls of torch that these losses and their autograd take on small minibatches. A policy
with a loss of its own does not use them; tests compare them with autograd. With weights w and r = pi /
pi_prox,

    d L_pi / d log pi(a|s) = -w r A / N where the clip does not hold, else 0;   d L_V / d V = (V - R) / N
    Categorical of z       d log pi(a|s) / d z = onehot(a) - p;   d H / d z = -p (log p + H)
    Normal                 d log pi(a|s) / d mu = (a - mu) / sigma^2;   d H / d log sigma = 1
                           d log pi(a|s) / d log sigma = ((a - mu) / sigma)^2 - 1

Shapes: N samples, A actions or action size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ding_lite.data.rollout import view
from ding_lite.data.samples import Batch
from ding_lite.models.actor_critic import ActorCritic
from ding_lite.models.heads import BoxHead, DiscreteHead
from ding_lite.rl.distributions import ILLEGAL, LOG_2PI
from ding_lite.trees import MASK_KEY

# The methods of a policy that the slopes stand for.
LOSSES = ("policy_loss", "value_loss", "loss", "actor_loss", "critic_loss", "with_outputs", "distribution")


class ClippedPolicy(Protocol):
    """What the slopes need of a policy: its head, its coefficients now, and which methods are replaced."""

    model: ActorCritic
    cfg: Any
    clip_ratio: float
    entropy_weight: float
    value_weight: float
    value_clip: float | None

    def overrides(self, *methods: str) -> bool: ...


def clipped_slopes(policy: ClippedPolicy) -> ClippedSlopes | None:
    """Returns what stands for the losses of a policy on small networks; None if they are not PPO's own."""
    head: Any = getattr(policy.model.actor_head, "out", None)
    is_normal = type(head) is BoxHead and head.is_simple_normal and head.bound_type is None
    is_known = is_normal or type(head) is DiscreteHead
    if not is_known or policy.cfg.learn.kl_beta or policy.overrides(*LOSSES):
        return None
    return ClippedSlopes(head, policy)


class ClippedSlopes:
    """The losses of ``PPOPolicy``, and their slopes.

    Args:
        head: of the action space.
        policy: whose coefficients are taken, as schedules have them now.
    """

    def __init__(self, head: DiscreteHead | BoxHead, policy: ClippedPolicy) -> None:
        learn = policy.cfg.learn
        self.head, self.clip, self.dual_clip = head, policy.clip_ratio, learn.dual_clip
        self.entropy_weight, self.value_weight = policy.entropy_weight, policy.value_weight
        self.value_clip = policy.value_clip
        self.value_loss = learn.value_loss

    def __call__(
        self, batch: Batch, raw: Mapping[str, np.ndarray]
    ) -> tuple[float, dict[str, float], dict[str, np.ndarray], list[tuple[Tensor, Tensor]]]:
        """Returns loss, metrics, slopes (N, K) by raw outputs, and the gradient by single parameters."""
        total, metrics, slopes, direct = 0.0, {}, {}, []
        if "actor" in raw:
            total, metrics, slopes["actor"], direct = self._policy(batch, raw["actor"])
        if "critic" in raw:
            metrics["value_loss"], slopes["critic"] = self._value(batch, raw["critic"][:, 0])
            total += self.value_weight * metrics["value_loss"]
        return total, {"total_loss": total, **metrics} if len(raw) == 2 else metrics, slopes, direct

    def _policy(self, batch: Batch, raw: np.ndarray) -> Any:
        action, advantage = view(batch.action), view(batch.advantage)
        of_actions = self._normal if isinstance(self.head, BoxHead) else self._categorical
        log_prob, entropy, back = of_actions(raw, action, batch.obs)
        log_ratio = log_prob - view(batch.log_prob)
        # rl.losses.clipped_surrogate says which bound of log r holds where.
        negative = np.maximum(log_ratio, math.log1p(-self.clip) if self.clip < 1 else -math.inf)
        if self.dual_clip is not None:
            negative = np.minimum(negative, math.log(self.dual_clip))
        bounded = np.where(advantage >= 0, np.minimum(log_ratio, math.log1p(self.clip)), negative)
        gain = np.exp(bounded) * advantage
        slope = np.where(bounded == log_ratio, gain, np.float32(0)) * np.float32(-1 / len(gain))
        if batch.policy_weight is not None:
            weight = view(batch.policy_weight)
            gain, slope = gain * weight, slope * weight
        loss, moved, excess = -_mean(gain), log_ratio, np.expm1(log_ratio)
        outside = np.count_nonzero(np.abs(excess) > self.clip) / len(gain)
        if batch.prox_log_prob is not None:
            moved = log_prob - view(batch.prox_log_prob)
            excess = np.expm1(moved)
        metrics = {
            "policy_loss": loss,
            "entropy_loss": entropy,
            "approx_kl": _mean(excess - moved),
            "clipfrac": outside,
        }
        return loss - self.entropy_weight * entropy, metrics, *back(slope)

    def _categorical(self, logit: np.ndarray, action: np.ndarray, obs: Any) -> Any:
        mask = view(obs[MASK_KEY]).astype(bool) if not isinstance(obs, Tensor) and MASK_KEY in obs else None
        logit = logit if mask is None else np.where(mask, logit, np.float32(ILLEGAL))
        log_probs = np.ascontiguousarray(logit.T)  # (A, N): NumPy goes along the samples, of which are more
        log_probs = log_probs - np.maximum.reduce(log_probs, axis=0)
        probs = np.exp(log_probs)
        total = np.add.reduce(probs, axis=0)
        log_probs -= np.log(total)
        probs /= total
        chosen = action.astype(np.intp, copy=False) * len(action) + np.arange(len(action))
        entropy = -np.add.reduce(probs * log_probs, axis=0)

        def back(of_log_prob: np.ndarray) -> tuple[np.ndarray, list[tuple[Tensor, Tensor]]]:
            each = np.float32(-self.entropy_weight / len(action))
            slope = -probs * (of_log_prob + each * (log_probs + entropy))
            slope.reshape(-1)[chosen] += of_log_prob
            return (slope.T if mask is None else np.where(mask, slope.T, np.float32(0))), []

        return log_probs.take(chosen), _mean(entropy), back

    def _normal(self, mu: np.ndarray, action: np.ndarray, obs: Any) -> Any:
        head: Any = self.head
        is_free = head.sigma_type == "independent"
        sigma = np.exp(view(head.log_sigma)) if is_free else view(head.sigma)
        z, log_sigma = (action - mu) / sigma, float(np.add.reduce(np.log(sigma)))
        log_prob = -0.5 * np.vecdot(z, z) - np.float32(0.5 * LOG_2PI * len(sigma) + log_sigma)

        def back(of_log_prob: np.ndarray) -> tuple[np.ndarray, list[tuple[Tensor, Tensor]]]:
            of_sigma = of_log_prob @ (z * z - 1) - np.float32(self.entropy_weight)
            is_trained = is_free and head.log_sigma.requires_grad
            direct = [(head.log_sigma, torch.from_numpy(of_sigma))] if is_trained else []
            return of_log_prob[:, None] * z / sigma, direct

        return log_prob, 0.5 * (1 + LOG_2PI) * len(sigma) + log_sigma, back

    def _value(self, batch: Batch, value: np.ndarray) -> tuple[float, np.ndarray]:
        target = view(batch.value_target)
        error, slope = self._error(value - target)
        if self.value_clip is not None:
            old = view(batch.value)
            shift = value - old
            bounded = np.minimum(np.maximum(shift, -self.value_clip), self.value_clip)
            far, _ = self._error(old + bounded - target)
            # Where the clip holds and the error is that of the clipped value, nothing moves it.
            slope = np.where((far > error) & (np.abs(shift) > self.value_clip), np.float32(0), slope)
            error = np.maximum(error, far)
        return _mean(error), slope[:, None] * np.float32(self.value_weight / len(value))

    def _error(self, difference: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the error of each sample, and its slope."""
        if self.value_loss == "mse":
            return 0.5 * difference * difference, difference
        size = np.abs(difference)  # smooth L1
        error = np.where(size < 1, 0.5 * difference * difference, size - 0.5)
        return error, np.minimum(np.maximum(difference, -1), 1)


def _mean(x: np.ndarray) -> float:
    return float(np.add.reduce(x)) / len(x)  # x.mean() takes four times as long on so few
