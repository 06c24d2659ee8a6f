"""The scales of observations, rewards and value targets. Each stores all of its samples.

std = sqrt(max(var, 1e-8)), where var is the population's, so a constant has a std of 1e-4 and not 0. An
observation that has been constant so far has a std of 1, because the next value may be of any size.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from reference.recording import Step

LEAST_VARIANCE = 1e-8


class ObservationScale:
    """(obs - mean) / std, clipped; mean and std are of random steps and of all earlier rollouts.

    Args:
        clip: largest absolute value of the result.
        running: whether rollouts are added to the statistics, or only the random steps.
    """

    def __init__(self, clip: float, running: bool) -> None:
        self.clip, self.running = clip, running
        self.seen: list[np.ndarray] = []

    def take_in(self, vectors: list[np.ndarray]) -> None:
        self.seen += vectors
        self.mean = np.mean(self.seen, axis=0)
        var = np.var(self.seen, axis=0)
        self.std = np.where(var > LEAST_VARIANCE, np.sqrt(var), 1.0)

    def __call__(self, vectors: np.ndarray) -> np.ndarray:
        return np.clip((vectors - self.mean) / self.std, -self.clip, self.clip)


class RewardScale:
    """r / std of the running discounted return G_t = gamma G_{t-1} + r_t of each environment.

    G is 0 before an episode's first step, and after a row that is not valid; or, if it ``continues``, goes
    on over the ends of episodes.
    """

    def __init__(self, gamma: float, continues: bool = False) -> None:
        self.gamma, self.continues = gamma, continues
        self.returns: list[float] = []
        self.running: dict[int, float] = {}

    def take_in(self, columns: list[list[Step]], reward: Callable[[Step], float]) -> None:
        """Adds the rewards of one rollout: a list of rows for each environment."""
        for env, column in enumerate(columns):
            for step in column:
                if step.valid:
                    self.running[env] = self.gamma * self.running.get(env, 0.0) + reward(step)
                    self.returns.append(self.running[env])
                if not self.continues and (step.done or not step.valid):
                    self.running[env] = 0.0

    @property
    def std(self) -> float:
        return math.sqrt(max(float(np.var(self.returns)), LEAST_VARIANCE))


class ValueScale:
    """The mean and std of value targets; the heads predict (V - mean) / std (PopArt, arXiv:1602.07714).

    Batch k of K has n_k targets with the weight w_k = decay^(K - k) each:

        mean = sum w_k sum R / sum w_k n_k,     var = sum w_k sum (R - mean)^2 / sum w_k n_k

    Before the first batch mean and std are 0. While the std is 0, within the rounding of float32, each
    prediction is the mean, and the heads are not rescaled. A later batch of equal targets is left out.
    """

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self.batches: list[np.ndarray] = []
        self.mean, self.std = 0.0, 0.0

    def _weighted_mean(self, numbers: list[np.ndarray]) -> float:
        weights = [self.decay ** (len(numbers) - 1 - k) for k in range(len(numbers))]
        total = sum(w * float(x.sum()) for w, x in zip(weights, numbers, strict=True))
        return total / sum(w * len(x) for w, x in zip(weights, numbers, strict=True))

    def take_in(self, targets: list[float], heads: list[tuple[Tensor, Tensor]]) -> None:
        """Adds raw targets, and rescales the heads so that V in raw units does not change (eq. 9).

        w <- w s / s',   b <- (s b + m - m') / s'
        """
        mean, std = self.mean, self.std
        new = np.array(targets)
        if std and new.var() <= 1e-12 * (new.mean() ** 2 + std**2):
            return
        self.batches.append(new)
        self.mean = self._weighted_mean(self.batches)
        variance = self._weighted_mean([(batch - self.mean) ** 2 for batch in self.batches])
        self.std = math.sqrt(variance)
        if self.std <= 1e-6 * abs(self.mean):
            self.std = 0.0
        if not (std and self.std):
            return
        with torch.no_grad():
            for weight, bias in heads:
                weight.copy_(weight * std / self.std)
                bias.copy_((std * bias + mean - self.mean) / self.std)

    def normalize(self, value: float) -> float:
        return (value - self.mean) / self.std if self.std else 0.0

    def denormalize(self, value: float) -> float:
        return value * self.std + self.mean
