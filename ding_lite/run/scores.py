"""The evaluations of a run: its best mean return, whether it has solved the task, and the logged metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ding_lite.data.episodes import Evaluation, Evaluator, means_of


class Scores:
    """The evaluations of a run: the last one, the best mean return, and whether the task is solved.

    Args:
        stop_value: the task is solved if the mean returns of two evaluations with different seeds both
            reach this value; None: it is never solved.

    Attributes:
        last: the last evaluation, or None.
        best: highest finite mean return so far; -inf before the first.
        iteration: of the last evaluation; -1 before the first.
    """

    def __init__(self, stop_value: float | None) -> None:
        self.stop_value = stop_value
        self.last: Evaluation | None = None
        self.best = self._best_before = -math.inf
        self.iteration = -1

    def evaluate(self, evaluator: Evaluator, iteration: int) -> tuple[Evaluation, bool]:
        """Evaluates once, or twice if the first mean reaches ``stop_value``.

        Returns:
            ``(evaluation, solved)``; the evaluation has the episodes of both rounds.
        """
        evaluation = evaluator.evaluate(iteration, 0)
        solved = False
        if self.stop_value is not None and evaluation.mean >= self.stop_value:
            second = evaluator.evaluate(iteration, 1)
            solved = second.mean >= self.stop_value
            evaluation = evaluation + second
        self.last = evaluation
        self.iteration = iteration
        return evaluation, solved

    def update_best(self, evaluation: Evaluation | None) -> bool:
        """Makes ``evaluation`` the best one if no mean return was higher so far; returns whether it is.

        Called for every checkpoint; None if there was no evaluation before it.

        Of equal means the later one is the best, because its policy was trained for longer. A mean that is
        not finite is never the best: no later one could exceed infinity.
        """
        self._best_before = self.best
        if evaluation is None or not (math.isfinite(evaluation.mean) and evaluation.mean >= self.best):
            return False
        self.best = evaluation.mean
        return True

    def restore_best(self) -> None:
        """Takes back the last :meth:`update_best`, because ``ckpt/best`` could not be saved."""
        self.best = self._best_before

    def state_dict(self) -> dict[str, Any]:
        last = self.last
        infos = [] if last is None else [dict(info) for info in last.infos]
        return {
            "best": None if math.isinf(self.best) else self.best,
            "iteration": self.iteration,
            "last": None if last is None else [list(last.returns), list(last.lengths), last.cut_short],
            **({"last_infos": infos} if any(infos) else {}),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        last = state["last"]
        self.last = None
        if last is not None:
            returns, lengths, cut_short = last
            infos = state.get("last_infos", [{}] * len(returns))
            self.last = Evaluation(tuple(returns), tuple(lengths), int(cut_short), tuple(map(dict, infos)))
        self.best = self._best_before = -math.inf if state["best"] is None else float(state["best"])
        self.iteration = int(state["iteration"])


def evaluation_metrics(evaluation: Evaluation) -> dict[str, float]:
    """Returns the logged metrics of an evaluation, by name."""
    own = {
        "eval/episode_return_mean": evaluation.mean,
        "eval/episode_return_std": evaluation.std,
        "eval/episode_return_min": min(evaluation.returns),
        "eval/episode_return_max": max(evaluation.returns),
        "eval/episode_length_mean": float(np.mean(evaluation.lengths)),
        "eval/episode_length_max": float(max(evaluation.lengths)),
    }
    info = {f"eval/{key}": mean for key, mean in means_of(evaluation.infos).items()}
    return own | info | own  # keys of info come last, and replace no metric
