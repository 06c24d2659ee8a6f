"""What the ranks tell each other about an iteration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ding_lite.data.episodes import SUCCESS
from ding_lite.data.timer import PHASES
from ding_lite.envs.vector import Episode

COUNTS = ("episode_count", "env_restarts", "bad_values", "aux_memory")  # metrics that are summed over ranks


class Report(NamedTuple):
    """An iteration of one rank, or of all.

    Attributes:
        new_steps: valid transitions that were collected.
        metrics: of the iteration, by their names in metrics.csv.
        episodes: that ended.
        lines: of the environments, for the log.
    """

    new_steps: int
    metrics: dict[str, float]
    episodes: list[Episode]
    lines: list[str]


def merged_report(of_ranks: Sequence[Report]) -> Report:
    """Returns the iteration of all ranks, which takes as long as that of the slowest one."""
    new_steps = sum(report.new_steps for report in of_ranks)
    collecting_and_learning = [f"time/{phase}_s" for phase in PHASES if phase not in ("eval", "other")]
    seconds = max(sum(r.metrics.get(name, 0.0) for name in collecting_and_learning) for r in of_ranks)
    metrics = merged_metrics([report.metrics for report in of_ranks])
    return Report(
        new_steps=new_steps,
        metrics=metrics | {"time/env_steps_per_second": new_steps / seconds},
        episodes=[episode for report in of_ranks for episode in report.episodes],
        lines=[line for report in of_ranks for line in report.lines],
    )


def merged_metrics(of_ranks: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Returns the metrics of all ranks as one: their means, the maximum of ``*_max``, the sum of counts.

    Args:
        of_ranks: for each rank its metrics; one that a rank lacks is taken over the others.
    """
    if len(of_ranks) == 1:
        return dict(of_ranks[0])
    names = dict.fromkeys(name for metrics in of_ranks for name in metrics)
    merged = {}
    for name in names:
        numbers = [metrics[name] for metrics in of_ranks if name in metrics]
        if name == f"collect/{SUCCESS}":  # a rank without it has had episodes, none of which says so
            numbers = [m.get(name, 0.0) for m in of_ranks if "collect/episode_return" in m]
        short = name.split("/")[-1]
        if short in COUNTS or short.endswith("buffer_samples"):
            merged[name] = float(np.sum(numbers))
        elif short.endswith("_max") or name.startswith("time/"):
            merged[name] = max(numbers)
        else:
            merged[name] = float(np.mean(numbers))
    return merged
