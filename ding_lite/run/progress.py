"""The counters and the clock of a run, and the results of its last iteration."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ding_lite.data.episodes import Evaluation


class Clock:
    """Seconds of training, over all sessions of a run. It counts from the start."""

    def __init__(self) -> None:
        self._earlier = 0.0
        self._began: float | None = time.monotonic()  # None: it is paused

    @property
    def seconds(self) -> float:
        return self._earlier + (0.0 if self._began is None else time.monotonic() - self._began)

    def start(self) -> None:
        """Begins a session, such as a loop over a pipeline; nothing since the last one is counted."""
        self._began = time.monotonic()

    def pause(self) -> None:
        """Ends a session."""
        self._earlier, self._began = self.seconds, None

    def state_dict(self) -> dict[str, float]:
        return {"wall_time": self.seconds}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        self._earlier = float(state["wall_time"])


@dataclass(repr=False)
class Progress:
    """State of a run after an iteration.

    Attributes:
        env_step: valid transitions collected so far. A transition is one decision of the policy, whatever the
            number of frames.
        train_iter: optimiser steps of the policy phase so far.
        iteration: iterations so far. An iteration collects one rollout and learns from it.
        metrics: metrics of the last iteration, by their names in metrics.csv.
        evaluation: evaluation in the last iteration, or None if there was none.
        confirming: episodes of that evaluation that were played to confirm that the task is solved.
        solved: whether an evaluation and its repetition reached ``env.stop_value``.
        past_solved: whether the run trains on after it is solved.
        turn_began: ``env_step`` before the last iteration.
        owes_evaluation: whether an evaluation that was due did not end, because of a signal or a failure; the
            next iteration makes it.
    """

    env_step: int = 0
    train_iter: int = 0
    iteration: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    evaluation: Evaluation | None = None
    confirming: int = 0
    solved: bool = False
    past_solved: bool = False
    turn_began: int = 0
    owes_evaluation: bool = False

    def __repr__(self) -> str:
        shown = {
            "env_step": self.env_step,
            "iteration": self.iteration,
            "episode_return": self.metrics.get("collect/episode_return"),
            "evaluation": None if self.evaluation is None else self.evaluation.mean,
            "solved": self.solved,
        }
        return f"Progress({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    def crossed(self, freq: int) -> bool:
        """Returns whether the last iteration reached or passed a multiple of ``freq`` env steps.

        False if ``freq`` is 0.
        """
        return freq > 0 and self.env_step // freq > self.turn_began // freq

    def state_dict(self) -> dict[str, Any]:
        names = ("env_step", "train_iter", "iteration", "solved", "past_solved")
        owes = {"owes_evaluation": True} if self.owes_evaluation else {}
        return {**{name: getattr(self, name) for name in names}, **owes}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.env_step = self.turn_began = int(state["env_step"])
        self.train_iter = int(state["train_iter"])
        self.iteration = int(state["iteration"])
        self.solved = bool(state["solved"])
        self.past_solved = bool(state["past_solved"])
        self.owes_evaluation = bool(state.get("owes_evaluation", False))
