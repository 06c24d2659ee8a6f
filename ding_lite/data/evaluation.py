"""The result of one evaluation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Evaluation:
    """The episodes of one evaluation, in the order of their environments.

    Attributes:
        returns: undiscounted sum of the raw rewards of each episode.
        lengths: steps of each episode.
        cut_short: number of episodes that were cut at ``max_eval_steps``.
        infos: the numbers that ``env.info_keys`` takes from the last infos, of the episodes that have any.
    """

    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    cut_short: int = 0
    infos: tuple[Mapping[str, float], ...] = ()

    @property
    def mean(self) -> float:
        """The mean of the returns."""
        return float(np.mean(self.returns))

    @property
    def std(self) -> float:
        """The population standard deviation of the returns."""
        return float(np.std(self.returns))

    def __add__(self, other: Evaluation) -> Evaluation:
        """Returns one evaluation with the episodes of both."""
        return Evaluation(
            self.returns + other.returns,
            self.lengths + other.lengths,
            self.cut_short + other.cut_short,
            self.infos + other.infos,
        )


def means_of(infos: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Returns the mean of each key over the infos that have it."""
    infos = list(infos)
    names = dict.fromkeys(name for info in infos for name in info)
    return {name: float(np.mean([info[name] for info in infos if name in info])) for name in names}
