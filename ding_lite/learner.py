"""Improves the policy from what was collected, and counts how often."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ding_lite.rollout import Rollout
from ding_lite.types import LearnMode


class Learner:
    """Feeds rollouts to the policy's learn mode.

    Attributes:
        train_iter: optimiser steps of the policy phase so far.
    """

    def __init__(self, mode: LearnMode) -> None:
        self.mode = mode
        self.train_iter = 0

    def train(self, rollout: Rollout) -> dict[str, float]:
        """Learns from one rollout and returns the metrics."""
        metrics = self.mode.forward(rollout)
        self.train_iter += int(metrics["updates"])
        return metrics

    def state_dict(self) -> dict[str, Any]:
        return {"train_iter": self.train_iter}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.train_iter = int(state["train_iter"])
