"""The counters of a run, the metrics of its last iteration, and its evaluations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ding_lite.data.episodes import SUCCESS, Evaluation, Evaluator, means_of
from ding_lite.data.tensors import GreedyEpisodes
from ding_lite.data.timer import PHASES
from ding_lite.envs.vector import Episode

COUNTS = ("episode_count", "env_restarts", "aux_memory")  # metrics that are summed over ranks
COUNTERS = ("env_step", "train_iter", "iteration")
VALUES = ("eval_value", "eval_value_std", "best_eval_value")


@dataclass
class Progress:
    """State of a run after an iteration.

    Attributes:
        env_step: valid transitions collected so far. A transition is one decision of the policy, whatever the
            number of frames.
        train_iter: optimiser steps of the policy phase so far.
        iteration: iterations so far. An iteration collects one rollout and learns from it.
        metrics: metrics of the last iteration, by their names in metrics.csv.
        episodes: the episodes that ended in the last iteration.
        evaluation: evaluation in the last iteration, or None if there was none.
        solved: whether an evaluation and its repetition reached ``env.stop_value``.
        eval_value, eval_value_std: mean and standard deviation of the returns of the last evaluation.
        best_eval_value: highest finite mean return of an evaluation so far.
        wall_time: seconds of training, over all sessions of the run.
        step_before: ``env_step`` before the last iteration.
        saved_at: ``iteration`` in the newest ``ckpt/last``.
    """

    env_step: int = 0
    train_iter: int = 0
    iteration: int = 0
    metrics: dict[str, float] = field(default_factory=dict, repr=False)
    episodes: list[Episode] = field(default_factory=list, repr=False)
    evaluation: Evaluation | None = None
    solved: bool = False
    eval_value: float | None = None
    eval_value_std: float | None = None
    best_eval_value: float | None = None
    wall_time: float = 0.0
    step_before: int = 0
    saved_at: int = 0

    def advance(self, turns: Sequence[tuple[int, int, dict[str, float], list[Episode]]]) -> None:
        """Counts one iteration of all ranks; each of its times is the maximum over the ranks.

        Args:
            turns: for each rank: the number of valid transitions, the number of optimiser steps of the policy
                phase, the metrics by their names in metrics.csv, and the episodes that ended.
        """
        self.step_before = self.env_step
        self.env_step += sum(steps for steps, *_ in turns)
        self.train_iter += turns[0][1]
        self.iteration += 1
        self.metrics = merged_metrics([metrics for _, _, metrics, _ in turns])
        phases = [phase for phase in PHASES if phase not in ("eval", "other")]
        seconds = sum(self.metrics.get(f"time/{phase}_s", 0.0) for phase in phases)
        self.metrics["time/env_steps_per_second"] = (self.env_step - self.step_before) / seconds
        self.episodes = [episode for *_, episodes in turns for episode in episodes]
        self.evaluation = None

    def evaluate(self, evaluator: Evaluator | GreedyEpisodes, stop_value: float | None) -> None:
        """Evaluates, and again if the mean reaches ``stop_value``; the task is solved if both means do.

        ``evaluation`` then has the episodes of both rounds; it is None if no episode has ended.
        """
        result = evaluator.evaluate(self.iteration, 0)
        self.solved = False
        if not result.returns:
            return
        if stop_value is not None and result.mean >= stop_value:
            second = evaluator.evaluate(self.iteration, 1)
            self.solved = bool(second.returns) and second.mean >= stop_value
            result = result + second
        self.evaluation, self.eval_value, self.eval_value_std = result, result.mean, result.std
        self.metrics |= evaluation_metrics(result)

    def update_best(self) -> bool:
        """Updates ``best_eval_value``; returns whether the last iteration's evaluation is the best so far.

        Of equal means the later is the best, because its policy was trained for longer. A mean that is not
        finite is never the best: no later mean could exceed infinity.
        """
        mean = math.nan if self.evaluation is None else self.evaluation.mean
        best = -math.inf if self.best_eval_value is None else self.best_eval_value
        is_best = math.isfinite(mean) and mean >= best
        if is_best:
            self.best_eval_value = mean
        return is_best

    def crossed(self, freq: int) -> bool:
        """Returns whether the last iteration reached or passed a multiple of ``freq`` env steps; 0: never."""
        return freq > 0 and self.env_step // freq > self.step_before // freq

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in (*COUNTERS, *VALUES, "solved")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name in COUNTERS:
            setattr(self, name, int(state[name]))
        for name in VALUES:
            setattr(self, name, None if state[name] is None else float(state[name]))
        self.solved = bool(state["solved"])
        self.step_before, self.saved_at = self.env_step, self.iteration


def merged_metrics(of_ranks: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Merges the metrics of all ranks: sums of counts, maxima of times and of ``*_max``, means of others.

    Args:
        of_ranks: the metrics of each rank; a metric that a rank lacks is merged over the other ranks.
    """
    if len(of_ranks) == 1:
        return dict(of_ranks[0])
    merged = {}
    for name in dict.fromkeys(name for metrics in of_ranks for name in metrics):
        numbers = [metrics[name] for metrics in of_ranks if name in metrics]
        if name == f"collect/{SUCCESS}":  # 0 for a rank whose episodes do not report it
            numbers = [m.get(name, 0.0) for m in of_ranks if "collect/episode_return" in m]
        short = name.split("/")[-1]
        if short in COUNTS or short.endswith("buffer_samples"):
            merged[name] = float(np.sum(numbers))
        elif short.endswith("_max") or name.startswith("time/"):
            merged[name] = max(numbers)
        else:
            merged[name] = float(np.mean(numbers))
    return merged


def evaluation_metrics(evaluation: Evaluation) -> dict[str, float]:
    """Returns the logged metrics of an evaluation, by name."""
    metrics = {
        "eval/episode_return_mean": evaluation.mean,
        "eval/episode_return_std": evaluation.std,
        "eval/episode_return_min": min(evaluation.returns),
        "eval/episode_return_max": max(evaluation.returns),
        "eval/episode_length_mean": float(np.mean(evaluation.lengths)),
        "eval/episode_length_max": float(max(evaluation.lengths)),
    }
    info = {f"eval/{key}": mean for key, mean in means_of(evaluation.infos).items()}
    return metrics | info | metrics  # keys of info come last, and replace no metric
