"""How a coefficient changes over training: functions of saved progress, so a resumed run goes on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

KINDS = ("constant", "linear", "cosine")


def schedule(kind: str, progress: float, final: float = 0.0) -> float:
    """Returns the factor of the initial value at ``progress``, from 1 at 0 to ``final`` at 1.

    Args:
        kind: ``"constant"``, ``"linear"`` or ``"cosine"`` (half a period, arXiv:1608.03983, eq. 5
            without restarts).
        progress: share of the schedule that is done; past 1 it stays at ``final``.
        final: the factor at the end.
    """
    progress = min(max(progress, 0.0), 1.0)
    if kind == "constant":
        return 1.0
    if kind == "linear":
        return 1.0 + (final - 1.0) * progress
    if kind == "cosine":
        return final + (1.0 - final) * 0.5 * (1.0 + math.cos(math.pi * progress))
    raise ValueError(f"schedule is one of {', '.join(KINDS)}, got {kind!r}")


class TrainingProgress:
    """How far this policy has learned: what its schedules are functions of."""

    def __init__(self, learning_rate: float) -> None:
        self.env_step = 0  # fresh valid rows learned from
        self.configured = learning_rate
        self.learning_rate = learning_rate  # base of the schedule; a script may have assigned another

    def state_dict(self) -> dict[str, Any]:
        return {"env_step": self.env_step, "learning_rate": self.learning_rate, "configured": self.configured}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.env_step = int(state["env_step"])
        if state["configured"] == self.configured:  # else the run was resumed with another one
            self.learning_rate = float(state["learning_rate"])
