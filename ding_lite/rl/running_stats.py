"""Mean and variance of a stream, and the scales of values and rewards.

The statistics of each are updated once an iteration, with the valid rows of its rollout:

    rewards        before the advantages of the rollout are computed
    values         before the first epoch, with the value targets
    observations   after the last gradient step, so that the policy that acted on them is the policy that
                   learns (see ``policies.normalization``)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


class RunningMeanStd:
    """Mean and variance over all samples so far, merged batch by batch in float64.

    The parallel update of Chan, Golub and LeVeque (1979). Before the first sample the mean is 0 and
    the variance 1, so that an untrained normaliser changes nothing.

    Shapes:
        mean, var: ``shape``
    """

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        self.mean = np.zeros(shape, np.float64)
        self.var = np.ones(shape, np.float64)
        self.count = 0.0

    def update(self, samples: np.ndarray) -> None:
        """Takes in ``samples`` (N, *shape); none at all is fine."""
        n = len(samples)
        if n == 0:
            return
        samples = np.asarray(samples, np.float64)
        mean, var = samples.mean(0), samples.var(0)
        if self.count == 0:
            self.mean, self.var, self.count = mean, var, float(n)
            return
        total = self.count + n
        delta = mean - self.mean
        moment = self.var * self.count + var * n + delta**2 * self.count * n / total
        self.mean = self.mean + delta * n / total
        self.var, self.count = moment / total, total

    @property
    def std(self) -> np.ndarray:
        """Never 0: a constant stream has the std 1e-4."""
        return np.sqrt(np.maximum(self.var, 1e-8))

    def state_dict(self) -> dict[str, Any]:
        return {"mean": np.array(self.mean), "var": np.array(self.var), "count": self.count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.mean = np.asarray(state["mean"], np.float64).reshape(self.mean.shape)
        self.var = np.asarray(state["var"], np.float64).reshape(self.var.shape)
        self.count = float(state["count"])


class ValueNorm(RunningMeanStd):
    """The scale of the value targets: heads predict (V - mean) / std (PopArt, arXiv:1602.07714).

    Before each update the weight of all earlier targets is multiplied by ``decay``. With rollouts of equal
    size this is the exponential mean of E[R] and E[R^2] with the correction for its start (as Adam's, arXiv:
    1412.6980, section 3): the targets of an untrained policy do not set the scale of a trained one.

    When the statistics move, every head is corrected so that its prediction in raw units stays
    (eq. 9): w <- w std / std', b <- (std b + mean - mean') / std'.

    Args:
        decay: 0 keeps the newest targets only, 1 forgets nothing.
    """

    def __init__(self, decay: float = 1.0) -> None:
        super().__init__()
        self.decay = decay

    def update(self, samples: np.ndarray) -> None:
        """Takes in ``samples`` (N,); none at all changes nothing."""
        if len(samples):
            self.count *= self.decay
            super().update(samples)

    def update_heads(self, targets: np.ndarray, heads: tuple[nn.Linear, ...]) -> None:
        """Takes in raw ``targets`` (N,) and corrects the last linear layer of each head."""
        old_mean, old_std = float(self.mean), float(self.std)
        self.update(targets)
        mean, std = float(self.mean), float(self.std)
        with torch.no_grad():
            for head in heads:
                head.weight.mul_(old_std / std)
                head.bias.mul_(old_std).add_(old_mean - mean).div_(std)

    def normalize(self, value: Tensor) -> Tensor:
        return (value - float(self.mean)) / float(self.std)

    def denormalize(self, value: Tensor) -> Tensor:
        return value * float(self.std) + float(self.mean)


class RewardScale(RunningMeanStd):
    """Divides rewards by the std of the running discounted return of each environment.

    The statistics include rollout k when the advantages of rollout k are computed, as those of the PPG
    authors' ``RewardNormalizer`` do: no gradient step sees an unscaled reward.

    Shapes: rewards are (T, B); the running return (B,) goes on over rollouts and restarts at 0 where
    an episode ends, and at a row that is not valid, before which an episode may have been lost.
    """

    def __init__(self, gamma: float) -> None:
        super().__init__()
        self.gamma = gamma
        self.running_return: np.ndarray | None = None

    def update_from(self, reward: np.ndarray, done: np.ndarray, valid: np.ndarray) -> None:
        """Takes in one rollout. Rows that are not ``valid`` lie between episodes, and count for nothing."""
        running = self.running_return
        if running is None or running.shape != reward.shape[1:]:
            running = np.zeros(reward.shape[1:], np.float64)
        returns = np.empty(reward.shape, np.float64)
        for t in range(len(reward)):
            running = np.where(valid[t], self.gamma * running + reward[t], 0.0)
            returns[t] = running
            running = np.where(done[t], 0.0, running)
        self.running_return = running
        self.update(returns[valid])

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"running_return": self.running_return}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        running = state["running_return"]
        self.running_return = None if running is None else np.asarray(running, np.float64)
