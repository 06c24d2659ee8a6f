"""The scale of observations, as part of a policy and of its checkpoint.

The statistics begin with random steps before training (``ActorCriticPolicy.warm_up``). They do not change
between the first action and the last gradient step of an iteration. So the ratio of the first minibatch is
1, and the values of a whole rollout can be computed in one pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from ding_lite.models.encoders import is_image
from ding_lite.rl.ranks import ALONE, Ranks
from ding_lite.rl.running_stats import RunningMeanStd
from ding_lite.trees import MASK_KEY, space_leaves, value_at

CONSTANT = 1e-8  # variances up to this are rounding errors
CHUNK = 2**23  # numbers that are converted to float64 in one call


class ObservationNorm:
    """(obs - mean) / std, clipped, for every leaf of floats; indices and masks are not changed.

    Args:
        space: of single observations.
        clip: bound on the absolute value of the results.
        device: of the observations.
        images: whether images are scaled too, each pixel by its own statistics.
        ranks: whose observations the statistics are taken from.

    Shapes:
        a tree of observations (N, ...) -> the same
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
            path: RunningMeanStd(leaf.shape or (), ranks)
            for path, leaf in space_leaves(space)
            if _is_scaled(leaf, images) and path[:1] != (MASK_KEY,)
        }
        self._scale: dict[tuple[str, ...], tuple[Tensor, Tensor]] = {}
        self._arrays: dict[tuple[str, ...], tuple[np.ndarray, np.ndarray]] = {}  # the same, on the host
        self._refresh()

    def _refresh(self) -> None:
        for path, stats in self.stats.items():
            # A feature that was constant so far is centred but not scaled: its next value may have any size.
            std = np.where(stats.var > CONSTANT, stats.std, 1.0)
            mean, inverse = np.asarray(stats.mean, np.float32), np.asarray(1 / std, np.float32)
            self._arrays[path] = (mean, inverse)
            self._scale[path] = (
                torch.tensor(mean, device=self.device),
                torch.tensor(inverse, device=self.device),
            )

    def __call__(self, obs: Any, path: tuple[str, ...] = ()) -> Any:
        if not isinstance(obs, Tensor):
            return {name: self(value, (*path, name)) for name, value in obs.items()}
        if path not in self._scale:
            return obs
        mean, inverse = self._scale[path]
        return ((obs.to(torch.float32) - mean) * inverse).clamp_(-self.clip, self.clip)

    def of_array(self, leaf: np.ndarray, path: tuple[str, ...]) -> np.ndarray:
        """Returns the scaled leaf at ``path``, in NumPy."""
        if path not in self._arrays:
            return leaf
        mean, inverse = self._arrays[path]
        scaled = (leaf.astype(np.float32) - mean) * inverse
        return np.minimum(np.maximum(scaled, -self.clip), self.clip)

    @property
    def is_empty(self) -> bool:
        """Whether a leaf has no statistics yet."""
        return any(stats.count == 0 for stats in self.stats.values())

    def clipped_share(self, obs: Any, valid: Tensor) -> Tensor:
        """Returns the share of numbers in valid rows that the clip cuts.

        Shapes:
            obs: (T, B, ...), valid: (T, B) -> ()
        """
        cut: list[Tensor] = []
        for path in self.stats:
            cut.append((self(value_at(obs, path)[valid], path).abs() >= self.clip).float().flatten())
        return torch.cat(cut).mean() if cut else torch.zeros((), device=self.device)

    def update(self, obs: Any, valid: Tensor) -> None:
        """Updates the statistics with the valid rows of observations (T, B, ...)."""
        for path, stats in self.stats.items():
            leaf = value_at(obs, path)
            samples = leaf[valid].cpu().numpy()
            size = max(1, CHUNK // max(1, samples[:1].size))
            new = RunningMeanStd(stats.mean.shape)
            for start in range(0, len(samples), size):  # the statistics are computed in float64
                new.update(samples[start : start + size])
            stats.merge(new.count, new.mean, new.var)
        self._refresh()

    def state_dict(self) -> dict[str, Any]:
        return {"/".join(path): stats.state_dict() for path, stats in self.stats.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for path, stats in self.stats.items():
            stats.load_state_dict(state["/".join(path)])
        self._refresh()


def _is_scaled(leaf: gym.Space, images: bool) -> bool:
    if not isinstance(leaf, gym.spaces.Box):
        return False
    return images if is_image(leaf) else np.dtype(leaf.dtype).kind == "f"
