"""Running mean and variance, and the scales of observations, rewards and values that are built on them.

Random steps set the first scale of observations. Then each scale is updated once per iteration, with the
valid rows of the rollout (with ``obs="initial"`` never):

    rewards        before the advantages of the rollout are computed
    values         before the first epoch, with the value targets
    observations   after the last gradient step, so that the policy learns with the scale that it acted with
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from ding_lite.ranks import ALONE, Ranks
from ding_lite.trees import MASK_KEY, is_image, space_leaves, value_at

CONSTANT = 1e-8  # variances up to this are rounding errors
ROUNDING = 1e-12  # a variance up to this share of a number's square is a rounding error of float32
CHUNK = 2**23  # numbers that are converted to float64 in one call


class RunningMeanStd:
    """The mean and population variance of all samples so far, in float64.

    Batches are merged by the parallel update of Chan, Golub and LeVeque (1979). Before the first sample the
    mean is 0 and the variance 1, so that a scale without data changes nothing.

    Args:
        shape: of one sample, of ``mean``, ``var`` and ``std``.
        ranks: the ranks whose samples are merged at every update.
    """

    def __init__(self, shape: tuple[int, ...] = (), ranks: Ranks = ALONE) -> None:
        self.ranks = ranks
        self.mean, self.var, self.count = np.zeros(shape), np.ones(shape), 0.0

    def update(self, samples: Tensor) -> None:
        """Adds the samples (N, *shape) of all ranks; each rank reduces its samples on their device."""
        samples = samples.cpu() if samples.device.type == "mps" else samples  # mps has no float64
        batches: list[Any] = []  # (count, mean, variance) of each
        for part in samples.split(max(1, CHUNK // max(1, samples[:1].numel()))) if len(samples) else ():
            var, mean = torch.var_mean(part.double(), 0, correction=0)
            batches.append((len(part), mean.cpu().numpy(), var.cpu().numpy()))
        if self.ranks.size > 1:
            local = RunningMeanStd(self.mean.shape)
            local._merge(batches)
            rows = self.ranks.gather(local.count, *np.ravel(local.mean), *np.ravel(local.var))
            batches = [(row[0], *row[1:].reshape(2, *self.mean.shape)) for row in rows if row[0]]
        self._merge(batches)

    def _merge(self, batches: list[Any]) -> None:
        for count, mean, var in batches:
            total = self.count + count
            share, delta = count / total, mean - self.mean
            self.var = (1 - share) * self.var + share * var + share * (1 - share) * delta**2
            self.count, self.mean = float(total), self.mean + share * delta

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


RAW = {"mean": 0.0, "var": 1.0, "count": 0.0}  # state of a ValueNorm whose heads predict raw values


class ValueNorm(RunningMeanStd):
    """The scale of the value targets: value heads predict (V - mean) / std (PopArt, arXiv:1602.07714).

    Each update first multiplies the weight of all earlier targets by ``decay``. For rollouts of equal size
    this gives the exponential moving averages of E[R] and E[R^2] with the bias correction of Adam
    (arXiv:1412.6980, section 3).

    A new scale has ``std`` 0: every prediction denormalises to ``mean``, which is 0 before the first targets.
    The first targets that differ set the std without rescaling the heads. So rewards times 1,000 train the
    same networks, up to rounding, except with an intrinsic reward, a ``reward_clip`` or ``adv_norm=False``.

    Args:
        decay: weight of all earlier targets at an update; 0 keeps the newest targets only, 1 keeps all.
        ranks: the ranks whose samples are merged at every update.
    """

    def __init__(self, decay: float = 1.0, ranks: Ranks = ALONE) -> None:
        super().__init__(ranks=ranks)
        self.var, self.decay = np.zeros(()), decay

    @property
    def std(self) -> np.ndarray:
        """The standard deviation, (); 0 if it is at most 1e-6 of the mean: float32 rounding, not spread."""
        return np.sqrt(self.var) * (self.var > ROUNDING * self.mean**2)

    @torch.no_grad()
    def update_and_rescale(self, targets: Tensor, heads: tuple[nn.Linear, ...]) -> None:
        """Adds targets (N,), and rescales the last linear layer of each value head in place.

        Denormalised predictions stay the same: w <- w std / std', b <- (std b + mean - mean') / std'
        (arXiv:1602.07714, eq. 9). From std 0 the heads stay as they are. Later, targets that are equal up to
        rounding are ignored: they would shrink std, and increase the weights, at each update.
        """
        old_mean, old_std = float(self.mean), float(self.std)
        batch = RunningMeanStd(ranks=self.ranks)
        batch.update(targets)
        if not batch.count or (old_std and batch.var <= ROUNDING * (batch.mean**2 + old_std**2)):
            return
        self.count *= self.decay
        self._merge([(batch.count, batch.mean, batch.var)])
        mean, std = float(self.mean), float(self.std)
        for head in heads if old_std and std else ():
            head.weight.mul_(old_std / std)
            head.bias.mul_(old_std).add_(old_mean - mean).div_(std)

    def normalize(self, value: Tensor) -> Tensor:
        """Returns (value - mean) / std: from units of the training reward to normalised units."""
        return (value - float(self.mean)) / (float(self.std) or np.inf)

    def denormalize(self, value: Tensor) -> Tensor:
        """Returns value * std + mean: from normalised units to units of the training reward."""
        return value * float(self.std) + float(self.mean)


class RewardScale(RunningMeanStd):
    """The scale of rewards: r / std of the running discounted return G_t = gamma G_{t-1} + r_t.

    The statistics include a rollout before its rewards are scaled, as the PPG authors' ``RewardNormalizer``
    does, so no gradient step sees an unscaled reward. Each environment has its own running return, which
    continues over rollouts.

    Args:
        ranks: the ranks whose samples are merged; each has the running returns of its own environments.

    Attributes:
        running_return: G after the last row, (B,); None restarts the returns of all environments at 0.
    """

    def __init__(self, *, ranks: Ranks = ALONE) -> None:
        super().__init__(ranks=ranks)
        self.running_return: np.ndarray | None = None

    def update_from(self, reward: Any, restarts: Any, valid: Any, gamma: float) -> None:
        """Adds the valid rows of one rollout.

        Args:
            gamma: discount per step.
            reward: raw, (T, B).
            restarts: rows after which the return restarts at 0, (T, B) bool.
            valid: rows that are steps, (T, B) bool.
        """
        reward, restarts, valid = (torch.as_tensor(x).cpu().numpy() for x in (reward, restarts, valid))
        running = self.running_return
        if running is None or running.shape != reward.shape[1:]:
            running = np.zeros(reward.shape[1:], np.float64)
        returns = np.empty(reward.shape, np.float64)
        for t in range(len(reward)):
            returns[t] = running = np.where(valid[t], gamma * running + reward[t], running)
            running = np.where(restarts[t], 0.0, running)
        self.running_return = running
        self.update(torch.from_numpy(returns[valid]))

    def __call__(self, reward: Tensor) -> Tensor:
        return reward / float(self.std)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"running_return": self.running_return}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        running = state["running_return"]
        self.running_return = None if running is None else np.asarray(running, np.float64)


class ObservationNorm:
    """(obs - mean) / std, clipped, for every Box; Discrete leaves and masks are not changed.

    Args:
        space: of single observations.
        clip: bound on the absolute value of the results.
        device: of the observations that are tensors.
        images: whether images are scaled too, each pixel by its own statistics.
        ranks: the ranks whose observations the statistics include.

    Attributes:
        stats: the statistics of each scaled leaf, by its path.
    """

    def __init__(
        self,
        space: gym.Space,
        clip: float,
        device: torch.device,
        *,
        images: bool = False,
        ranks: Ranks = ALONE,
    ) -> None:
        self.clip, self.device = clip, device
        self.stats: dict[tuple[str, ...], RunningMeanStd] = {
            path: RunningMeanStd(leaf.shape, ranks)
            for path, leaf in space_leaves(space)
            if isinstance(leaf, gym.spaces.Box) and path[:1] != (MASK_KEY,) and (images or not is_image(leaf))
        }
        self._refresh()

    def _refresh(self) -> None:
        """Computes the factors of :meth:`__call__` from the statistics."""
        self._arrays: dict[tuple[str, ...], list[np.ndarray]] = {}
        for path, stats in self.stats.items():
            # A feature that was constant so far is centred but not scaled: its next value may have any size.
            std = np.where(stats.var > CONSTANT, stats.std, 1.0)
            self._arrays[path] = [np.asarray(x, np.float32) for x in (stats.mean, 1 / std)]
        self._tensors = {
            path: [torch.tensor(x, device=self.device) for x in pair] for path, pair in self._arrays.items()
        }

    def __call__(self, obs: Any, path: tuple[str, ...] = ()) -> Any:
        """Returns the scaled tree (N, ...) of tensors or arrays; ``path``: where ``obs`` is in the space."""
        if not isinstance(obs, (Tensor, np.ndarray)):
            return {name: self(value, (*path, name)) for name, value in obs.items()}
        if path not in self.stats:
            return obs
        if isinstance(obs, Tensor):
            mean, inverse = self._tensors[path]
            return ((obs.to(torch.float32) - mean) * inverse).clamp_(-self.clip, self.clip)
        center, factor = self._arrays[path]
        scaled = (obs.astype(np.float32) - center) * factor
        return np.minimum(np.maximum(scaled, -self.clip), self.clip)

    @property
    def is_empty(self) -> bool:
        """Whether a leaf has no statistics yet."""
        return any(stats.count == 0 for stats in self.stats.values())

    def clipped_share(self, obs: Any, valid: Tensor) -> Tensor:
        """Returns the share () of numbers in the valid rows of (T, B, ...) that are clipped."""
        scaled = [self(value_at(obs, path)[valid], path).flatten() for path in self.stats]
        if not scaled:
            return torch.zeros((), device=self.device)
        return (torch.cat(scaled).abs() >= self.clip).float().mean()

    def update(self, obs: Any, valid: Tensor) -> None:
        """Updates the statistics with the valid rows of observations (T, B, ...)."""
        for path, stats in self.stats.items():
            stats.update(value_at(obs, path)[valid])
        self._refresh()

    def state_dict(self) -> dict[str, Any]:
        return {"/".join(path): stats.state_dict() for path, stats in self.stats.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for path, stats in self.stats.items():
            stats.load_state_dict(state["/".join(path)])
        self._refresh()


class NoScale:
    """Replaces any scale that is switched off: it changes no value and has no statistics."""

    is_empty, std = False, 1.0
    running_return = None

    def __call__(self, x: Any, path: tuple[str, ...] = ()) -> Any:
        return x

    normalize = denormalize = __call__

    def update(self, *_: Any) -> None:
        pass

    update_and_rescale = update

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass
