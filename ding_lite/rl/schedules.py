"""Schedules of coefficients over training.

A schedule is a function of :class:`TrainingProgress`, which is saved, so a resumed run continues it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

SCHEDULES = ("constant", "linear", "cosine")


def schedule(kind: str, progress: float, final: float = 0.0) -> float:
    """Returns the factor that multiplies the initial value: 1 at progress 0, ``final`` at progress 1.

    Args:
        kind: ``"constant"`` (always 1), ``"linear"``, or ``"cosine"`` (half a period, arXiv:1608.03983,
            eq. 5 without restarts).
        progress: fraction of the schedule that is done, clamped to 0 .. 1.
        final: the factor at the end.

    Raises:
        ValueError: if ``kind`` is not in ``SCHEDULES``.
    """
    progress = min(max(progress, 0.0), 1.0)
    if kind == "constant":
        return 1.0
    if kind == "linear":
        return 1.0 + (final - 1.0) * progress
    if kind == "cosine":
        return final + (1.0 - final) * 0.5 * (1.0 + math.cos(math.pi * progress))
    raise ValueError(f"schedule must be one of {', '.join(SCHEDULES)}, got {kind!r}")


class TrainingProgress:
    """The saved state that schedules depend on.

    Attributes:
        env_step: fresh valid transitions that the policy has learned from.
        configured: the learning rate of the config.
        learning_rate: initial value of the learning-rate schedule; a script may assign another value.
    """

    def __init__(self, learning_rate: float) -> None:
        self.env_step = 0
        self.configured = learning_rate
        self.learning_rate = learning_rate

    def state_dict(self) -> dict[str, Any]:
        return {"env_step": self.env_step, "learning_rate": self.learning_rate, "configured": self.configured}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.env_step = int(state["env_step"])
        # A run that was resumed with another configured learning rate starts from that one.
        if state["configured"] == self.configured:
            self.learning_rate = float(state["learning_rate"])


FARTHEST = 2.0**20  # the largest ratio of an adaptive coefficient to its first value


class AdaptivePenalty:
    """The coefficient beta of the KL penalty that keeps the policy's KL near a target.

    After each policy phase with mean KL d: beta <- beta / 2 if d < target / 1.5, and beta <- 2 beta if
    d > 1.5 target (arXiv:1707.06347, section 4).

    Args:
        start: beta at first.
        target: the KL, in nats.
        device: of :attr:`value`.

    Attributes:
        value: beta, a tensor (), since torch.compile treats every other number as a constant.
    """

    def __init__(self, start: float, target: float, device: torch.device) -> None:
        self.start, self.target = start, target
        self.value = torch.full((), start, device=device)
        self.low, self.high = start / FARTHEST, start * FARTHEST

    def update(self, kl: float) -> None:
        """Changes beta after a policy phase with the mean KL ``kl``, within bounds it can return from."""
        if kl < self.target / 1.5:
            self.value /= 2
        elif kl > self.target * 1.5:
            self.value *= 2
        self.value.clamp_(self.low, self.high)

    def state_dict(self) -> dict[str, Any]:
        return {"value": float(self.value), "start": self.start}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads beta; it begins anew if the config has another start, or the state has none."""
        if "value" in state and state.get("start", self.start) == self.start:
            self.value.fill_(float(state["value"]))
