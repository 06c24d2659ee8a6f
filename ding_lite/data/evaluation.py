"""The result of one evaluation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

SUCCESS = "is_success"  # the key of info that says whether an episode reached its goal


@dataclass(frozen=True)
class Evaluation:
    """The episodes of one evaluation, in the order of their environments.

    Attributes:
        returns: undiscounted sum of the raw rewards of each episode.
        lengths: steps of each episode.
        cut_short: number of episodes that were cut at ``max_eval_steps``, or by a wrapper.
        infos: the numbers that ``env.info_keys`` takes from the last info of each episode.
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
    """Returns the mean of each key over the infos that have it; an episode without ``SUCCESS`` failed."""
    infos = list(infos)
    values: dict[str, list[float]] = {}
    for info in infos:
        for name, value in info.items():
            values.setdefault(name, []).append(value)
    if SUCCESS in values:
        values[SUCCESS] += [0.0] * (len(infos) - len(values[SUCCESS]))
    return {name: float(np.mean(of_name)) for name, of_name in values.items()}
