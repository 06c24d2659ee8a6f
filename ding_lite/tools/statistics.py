"""Statistics of a few runs: interquartile means, stratified bootstrap intervals, comparisons of two groups.

They follow "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (arXiv:2108.13264).
The scores of a group are one array per task, with one score per run: ``[(n_1,), (n_2,), ...]``. Each task
counts the same, however many runs it has. Each function also accepts leading dimensions, and computes one
result for each of their elements; the bootstrap passes its resamples this way.

The module replaces rliable. The last release of rliable requires packages that fail with today's pandas,
draws from NumPy's global generator, and requires the same number of runs in every task. Only the
interquartile mean differs: here a run at the edge of the middle half counts in part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

LEVEL = 0.95  # of all intervals
RESAMPLES = 10_000
MIN_RUNS = 3  # the bootstrap of fewer runs has too few different resamples for an interval
AT_ONCE = 500  # resamples that are computed at once, which limits the memory

Scores = Sequence[np.ndarray]
Statistic = Callable[..., np.ndarray]  # from the scores of one or more groups


def interquartile_mean(values: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Returns the mean of the middle half of the values.

    A value at the edge of the middle half counts in part, so that exactly half of the weight is left whatever
    the number of values. If 4 divides this number, the result is the mean without the lowest and the highest
    quarter, as in ``scipy.stats.trim_mean``.

    Args:
        values: of each run.
        weights: of the runs, above 0; None: all equal.

    Shapes:
        values: (..., n)
        weights: (n,)
        returns: (...)
    """
    weights = np.ones(values.shape[-1]) if weights is None else weights / weights.mean()
    order = np.argsort(values, axis=-1, kind="stable")
    ends = np.cumsum(weights[order], axis=-1)
    total = len(weights)
    starts = ends - weights[order]
    middle = np.clip(np.minimum(ends, 0.75 * total) - np.maximum(starts, 0.25 * total), 0.0, None)
    sums = (np.take_along_axis(values, order, axis=-1) * middle).sum(axis=-1)
    return np.asarray(sums / middle.sum(axis=-1))


def mean(scores: Scores) -> np.ndarray:
    """Returns the mean over tasks of the mean over runs.

    Shapes:
        scores: T x (..., n_t)
        returns: (...)
    """
    return np.asarray(np.mean([task.mean(axis=-1) for task in scores], axis=0))


def aggregate_iqm(scores: Scores) -> np.ndarray:
    """Returns the interquartile mean over the runs of all tasks together.

    Shapes:
        scores: T x (..., n_t)
        returns: (...)
    """
    weights = np.concatenate([np.full(task.shape[-1], 1 / task.shape[-1]) for task in scores])
    return interquartile_mean(np.concatenate(scores, axis=-1), weights)


def probability_of_improvement(scores: Scores, others: Scores) -> np.ndarray:
    """Returns the probability that a random run of a group scores higher than a random run of another group.

    It is the mean over tasks, and a tie counts as one half: Mann and Whitney's U, divided by the number of
    pairs.

    Shapes:
        scores: T x (..., n_t)
        others: T x (..., m_t)
        returns: (...)
    """
    of_tasks = []
    for task, other in zip(scores, others, strict=True):
        ours, theirs = task[..., :, None], other[..., None, :]
        of_tasks.append(((ours > theirs) + 0.5 * (ours == theirs)).mean(axis=(-2, -1)))
    return np.asarray(np.mean(of_tasks, axis=0))


def performance_profile(scores: Scores, levels: np.ndarray) -> np.ndarray:
    """Returns the share of runs that score higher than each level, as a mean over tasks.

    Shapes:
        scores: T x (..., n_t)
        levels: (L,)
        returns: (..., L)
    """
    return np.asarray(np.mean([(task[..., None] > levels).mean(axis=-2) for task in scores], axis=0))


def interval(statistic: Statistic, *groups: Scores, resamples: int = RESAMPLES) -> tuple[Any, Any] | None:
    """Returns the 95 % percentile interval of a statistic by the stratified bootstrap.

    The runs of each task and group are resampled separately. The same scores give the same interval.

    Args:
        statistic: of one or more groups, such as :func:`aggregate_iqm` or :func:`probability_of_improvement`.
        groups: the scores of each group.
        resamples: number of resamples.

    Shapes:
        groups: T x (..., n_t) each; the statistic receives R resamples, T x (..., R, n_t), and returns
            (R, ...)
        returns: lower and upper edge (...); None if a group has fewer than ``MIN_RUNS`` runs in a task
    """
    if min(task.shape[-1] for scores in groups for task in scores) < MIN_RUNS:
        return None
    rng = np.random.default_rng(0)
    results = []
    for start in range(0, resamples, AT_ONCE):
        count = min(AT_ONCE, resamples - start)
        resampled = [
            [task[..., rng.integers(0, task.shape[-1], (count, task.shape[-1]))] for task in scores]
            for scores in groups
        ]
        results.append(statistic(*resampled))
    low, high = np.quantile(np.concatenate(results), [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return low, high


def curve_interval(values: np.ndarray, statistic: Statistic, resamples: int) -> tuple[Any, Any] | None:
    """Returns the :func:`interval` of a curve over seeds, resampling whole curves.

    Args:
        values: of each seed at each point.
        statistic: of the seeds, ``(..., S) -> (...)``, such as :func:`interquartile_mean`.
        resamples: number of resamples.

    Shapes:
        values: (S, P)
        returns: (P,) each
    """
    return interval(lambda resampled: statistic(resampled[0]).T, [values.T], resamples=resamples)
