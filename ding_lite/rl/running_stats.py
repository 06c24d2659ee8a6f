"""Running mean and variance, and the normalisers of values and rewards built on them.

Each statistic is updated once per iteration, with the valid rows of the rollout:

    rewards        before the advantages of the rollout are computed
    values         before the first epoch, with the value targets
    observations   after the last gradient step, so that the policy learns with the statistics that it
                   acted with (see ``policies.normalization``)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ding_lite.rl.ranks import ALONE, Ranks


class RunningMeanStd:
    """The mean and population variance of all samples so far, in float64.

    Batches are merged by the parallel update of Chan, Golub and LeVeque (1979). Before the first sample the
    mean is 0 and the variance 1, so that a normaliser without data changes nothing.

    Args:
        shape: of one sample.
        ranks: whose samples are merged at every update.

    Shapes:
        mean, var, std: ``shape``
    """

    def __init__(self, shape: tuple[int, ...] = (), ranks: Ranks = ALONE) -> None:
        self.ranks = ranks
        self.mean = np.zeros(shape, np.float64)
        self.var = np.ones(shape, np.float64)
        self.count = 0.0

    def update(self, samples: np.ndarray) -> None:
        """Adds a batch of samples, and those of the other ranks; an empty batch changes nothing.

        Shapes:
            samples: (N, *shape)
        """
        samples = np.asarray(samples, np.float64)
        n = len(samples)
        self.merge(n, samples.mean(0) if n else self.mean, samples.var(0) if n else self.var)

    def merge(self, n: float, mean: np.ndarray, var: np.ndarray) -> None:
        """Adds the batches of all ranks, each by its number of samples, its mean and its variance."""
        if self.ranks.size == 1:
            self._add(n, mean, var)
            return
        for row in self.ranks.gather(n, *np.ravel(mean), *np.ravel(var)):
            self._add(row[0], *row[1:].reshape(2, *self.mean.shape))

    def _add(self, n: float, mean: np.ndarray, var: np.ndarray) -> None:
        if n == 0:
            return
        if self.count == 0:
            self.mean = mean
            self.var = var
            self.count = float(n)
            return
        total = self.count + n
        delta = mean - self.mean
        moment = self.var * self.count + var * n + delta**2 * self.count * n / total
        self.mean = self.mean + delta * n / total
        self.var = moment / total
        self.count = total

    @property
    def std(self) -> np.ndarray:
        """The standard deviation, at least 1e-4, so that a constant stream does not divide by 0."""
        return np.sqrt(np.maximum(self.var, 1e-8))

    def state_dict(self) -> dict[str, Any]:
        return {"mean": np.array(self.mean), "var": np.array(self.var), "count": self.count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.mean = np.asarray(state["mean"], np.float64).reshape(self.mean.shape)
        self.var = np.asarray(state["var"], np.float64).reshape(self.var.shape)
        self.count = float(state["count"])


class ValueNorm(RunningMeanStd):
    """The scale of the value targets: value heads predict (V - mean) / std (PopArt, arXiv:1602.07714).

    Each update first multiplies the weight of all earlier targets by ``decay``. For rollouts of equal size
    this gives the exponential moving averages of E[R] and E[R^2] with the bias correction of Adam
    (arXiv:1412.6980, section 3). Targets of an untrained policy therefore do not determine the scale of a
    trained policy.

    When the statistics change, each head is rescaled so that its prediction in raw units stays the same
    (arXiv:1602.07714, eq. 9): w <- w std / std', b <- (std b + mean - mean') / std'.

    Args:
        decay: weight of all earlier targets at an update; 0 keeps the newest targets only, 1 keeps all.
        ranks: whose samples are merged at every update.

    Shapes:
        mean, var, std: ()
    """

    def __init__(self, decay: float = 1.0, ranks: Ranks = ALONE) -> None:
        super().__init__(ranks=ranks)
        self.decay = decay

    def merge(self, n: float, mean: np.ndarray, var: np.ndarray) -> None:
        """Adds the batches of all ranks after the earlier targets have lost weight."""
        if self.ranks.total(n):
            self.count *= self.decay
        super().merge(n, mean, var)

    @property
    def std(self) -> np.ndarray:
        """The standard deviation; 1 where all targets are equal, so that heads are not multiplied by 1e4."""
        return np.sqrt(self.var) if self.var > 1e-8 else np.ones(())

    def update_heads(self, targets: np.ndarray, heads: tuple[nn.Linear, ...]) -> None:
        """Adds raw targets, and rescales the last linear layer of each value head in place.

        Shapes:
            targets: (N,); heads: weights (1, F), biases (1,)
        """
        old_mean = float(self.mean)
        old_std = float(self.std)
        self.update(targets)
        mean = float(self.mean)
        std = float(self.std)
        with torch.no_grad():
            for head in heads:
                head.weight.mul_(old_std / std)
                head.bias.mul_(old_std).add_(old_mean - mean).div_(std)

    def normalize(self, value: Tensor) -> Tensor:
        """Returns (value - mean) / std: from raw units to the units of the heads.

        Shapes:
            any shape -> the same shape
        """
        return (value - float(self.mean)) / float(self.std)

    def denormalize(self, value: Tensor) -> Tensor:
        """Returns value * std + mean: from the units of the heads to raw units.

        Shapes:
            any shape -> the same shape
        """
        return value * float(self.std) + float(self.mean)


class RewardScale(RunningMeanStd):
    """The scale of rewards: the std of the running discounted return G_t = gamma G_{t-1} + r_t.

    The statistics include rollout k before the advantages of rollout k are computed, as those of the PPG
    authors' ``RewardNormalizer`` do. Thus no gradient step sees an unscaled reward.

    Each environment has its own running return, which continues over rollouts.

    Args:
        gamma: discount per step.
        ranks: whose samples are merged at every update; each has the running returns of its environments.

    Attributes:
        running_return: G after the last row, in raw units; None before the first rollout.

    Shapes:
        running_return: (B,); mean, var, std: ()
    """

    def __init__(self, gamma: float, *, ranks: Ranks = ALONE) -> None:
        super().__init__(ranks=ranks)
        self.gamma = gamma
        self.running_return: np.ndarray | None = None

    def update_from(self, reward: np.ndarray, restarts: np.ndarray, valid: np.ndarray) -> None:
        """Adds the valid rows of one rollout.

        Args:
            reward: raw.
            restarts: rows after which the return restarts at 0.
            valid: rows that are steps.

        Shapes:
            reward: (T, B); restarts, valid: (T, B) bool
        """
        running = self.running_return
        if running is None or running.shape != reward.shape[1:]:
            running = np.zeros(reward.shape[1:], np.float64)
        returns = np.empty(reward.shape, np.float64)
        for t in range(len(reward)):
            running = np.where(valid[t], self.gamma * running + reward[t], running)
            returns[t] = running
            running = np.where(restarts[t], 0.0, running)
        self.running_return = running
        self.update(returns[valid])

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"running_return": self.running_return}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        running = state["running_return"]
        self.running_return = None if running is None else np.asarray(running, np.float64)
