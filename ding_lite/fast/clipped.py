"""The slopes (gradients by raw outputs) of PPO's own losses in NumPy, for Categorical and Normal actions.

On small minibatches they save the hundred torch calls of these losses and their autograd. A policy that
overrides a loss does not use them; tests compare them with autograd. With weights w and r = pi / pi_prox,

    d L_pi / d log pi(a|s) = -w r A / N where the clip is not active, else 0;   d L_V / d V = (V - R) / N
    Categorical of z       d log pi(a|s) / d z = onehot(a) - p;   d H / d z = -p (log p + H)
    Normal                 d log pi(a|s) / d mu = (a - mu) / sigma^2;   d H / d log sigma = 1
                           d log pi(a|s) / d log sigma = ((a - mu) / sigma)^2 - 1

Shapes: N samples, A actions or action size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from ding_lite.data.rollout import view
from ding_lite.data.samples import Batch
from ding_lite.models.actor_critic import ActorCritic
from ding_lite.models.heads import BoxHead, DiscreteHead
from ding_lite.rl.distributions import ILLEGAL, LOG_2PI
from ding_lite.trees import MASK_KEY

# If a policy overrides one of these methods, the slopes are not used.
LOSSES = ("policy_loss", "value_loss", "loss", "with_outputs", "distribution")


class ClippedPolicy(Protocol):
    """The part of a policy that the slopes use: its head, current coefficients, and overridden methods."""

    model: ActorCritic
    cfg: Any
    clip_ratio: float
    entropy_weight: float
    value_weight: float
    value_clip: float | None

    def overrides(self, *methods: str) -> bool: ...


def clipped_slopes(policy: ClippedPolicy) -> ClippedSlopes | None:
    """Returns the losses of a policy with slopes; None for other losses or distributions than PPO's own."""
    head, learn = policy.model.actor_head.out, policy.cfg.learn
    if learn.kl_beta or learn.value_loss != "mse" or policy.overrides(*LOSSES):
        return None
    is_normal = type(head) is BoxHead and head.is_simple_normal and head.bound_type is None
    return ClippedSlopes(policy, head) if is_normal or type(head) is DiscreteHead else None


@dataclass(frozen=True)
class ClippedSlopes:
    """The losses of ``PPOPolicy``, and their slopes.

    Attributes:
        policy: has the coefficients, as schedules have set them.
        head: the head of the policy network.
    """

    policy: ClippedPolicy
    head: Any

    def __call__(
        self, batch: Batch, raw: Mapping[str, np.ndarray]
    ) -> tuple[float, dict[str, float], dict[str, np.ndarray], list[tuple[Tensor, np.ndarray]]]:
        """Returns loss, metrics, and the gradients by raw outputs (N, K) and by log sigma."""
        total, metrics, slopes, direct = 0.0, {}, {}, []
        if "actor" in raw:
            policy_loss = self._normal if isinstance(self.head, BoxHead) else self._categorical
            total, metrics, slopes["actor"], direct = policy_loss(batch, raw["actor"])
        if "critic" in raw:
            metrics["value_loss"], slopes["critic"] = self._value(batch, raw["critic"][:, 0])
            total += self.policy.value_weight * metrics["value_loss"]
        return total, {"total_loss": total, **metrics} if len(raw) == 2 else metrics, slopes, direct

    def _categorical(self, batch: Batch, logit: np.ndarray) -> Any:
        action = view(batch.action)
        # (A, N): NumPy's inner loops run over samples, which outnumber actions.
        log_probs = np.ascontiguousarray(legal(logit, batch.obs).T)
        log_probs = log_probs - np.maximum.reduce(log_probs, axis=0)
        probs = np.exp(log_probs)
        total = np.add.reduce(probs, axis=0)
        log_probs -= np.log(total)
        probs /= total
        chosen = action.astype(np.intp, copy=False) * len(action) + np.arange(len(action))
        entropy = -np.add.reduce(probs * log_probs, axis=0)
        loss, metrics, of_log_prob = self._surrogate(batch, log_probs.take(chosen), _mean(entropy))
        of_entropy = np.float32(-self.policy.entropy_weight / len(action))
        slope = -probs * (of_log_prob + of_entropy * (log_probs + entropy))
        slope.reshape(-1)[chosen] += of_log_prob
        return loss, metrics, slope.T, []

    def _normal(self, batch: Batch, mu: np.ndarray) -> Any:
        head = self.head
        is_free = head.sigma_type == "independent"
        sigma = np.exp(view(head.log_sigma)) if is_free else view(head.sigma)
        z, log_sigma = (view(batch.action) - mu) / sigma, float(np.add.reduce(np.log(sigma)))
        log_prob = -0.5 * np.vecdot(z, z) - np.float32(0.5 * LOG_2PI * len(sigma) + log_sigma)
        entropy = 0.5 * (1 + LOG_2PI) * len(sigma) + log_sigma
        loss, metrics, of_log_prob = self._surrogate(batch, log_prob, entropy)
        direct = []
        if is_free and head.log_sigma.requires_grad:
            slope = of_log_prob @ (z * z - 1) - np.float32(self.policy.entropy_weight)
            direct = [(head.log_sigma, slope)]
        return loss, metrics, of_log_prob[:, None] * z / sigma, direct

    def _surrogate(self, batch: Batch, log_prob: np.ndarray, entropy: float) -> Any:
        """Returns the policy loss, its metrics, and the slopes (N,) of its surrogate by the log-probs."""
        clip, dual_clip = self.policy.clip_ratio, self.policy.cfg.learn.dual_clip
        advantage, log_ratio = view(batch.advantage), log_prob - view(batch.log_prob)
        # rl.losses.clipped_surrogate documents these bounds of log r.
        negative = np.maximum(log_ratio, math.log1p(-clip) if clip < 1 else -math.inf)
        if dual_clip is not None:
            negative = np.minimum(negative, math.log(dual_clip))
        bounded = np.where(advantage >= 0, np.minimum(log_ratio, math.log1p(clip)), negative)
        gain = np.exp(bounded) * advantage
        slope = (bounded == log_ratio) * gain * np.float32(-1 / len(gain))  # 0 where a bound is active
        if batch.policy_weight is not None:
            weight = view(batch.policy_weight)
            gain, slope = gain * weight, slope * weight
        loss, moved, excess = -_mean(gain), log_ratio, np.expm1(log_ratio)
        outside = np.count_nonzero(np.abs(excess) > clip) / len(gain)
        if batch.prox_log_prob is not None:
            moved = log_prob - view(batch.prox_log_prob)
            excess = np.expm1(moved)
        kl = _mean(excess - moved)
        metrics = {"policy_loss": loss, "entropy_loss": entropy, "approx_kl": kl, "clipfrac": outside}
        return loss - self.policy.entropy_weight * entropy, metrics, slope

    def _value(self, batch: Batch, value: np.ndarray) -> tuple[float, np.ndarray]:
        """Returns the value loss, and the slopes (N, 1) of value_weight times this loss."""
        target, clip = view(batch.value_target), self.policy.value_clip
        slope = value - target
        error = 0.5 * slope * slope
        if clip is not None:
            old = view(batch.value)
            shift = value - old
            clipped = 0.5 * np.square(old + np.minimum(np.maximum(shift, -clip), clip) - target)
            # Where the clip is active and the clipped error is the larger one, the slope is 0.
            slope = np.where((clipped > error) & (np.abs(shift) > clip), np.float32(0), slope)
            error = np.maximum(error, clipped)
        return _mean(error), slope[:, None] * np.float32(self.policy.value_weight / len(value))


def legal(logit: np.ndarray, obs: Any) -> np.ndarray:
    """Returns logits (N, n); the logits of illegal actions are far below all others."""
    if isinstance(obs, (Tensor, np.ndarray)) or MASK_KEY not in obs:
        return logit
    return np.where(np.asarray(obs[MASK_KEY], np.bool_), logit, np.float32(ILLEGAL))


def _mean(x: np.ndarray) -> float:
    return float(np.add.reduce(x)) / len(x)  # x.mean() takes four times as long on so few numbers
