"""Improves the policy from what was collected, and counts how often."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ding_lite.errors import ConfigError
from ding_lite.machine import out_of_memory
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
        """Learns from one rollout and returns the metrics.

        Raises:
            ConfigError: if there is not enough memory for it, on whatever device.
        """
        try:
            metrics = self.mode.forward(rollout)
        except (RuntimeError, MemoryError) as error:
            if not (said := out_of_memory(error)):
                raise
            steps, envs = rollout.valid.shape
            raise ConfigError(
                f"out of memory while learning from {steps} steps of {envs} environments: "
                f"{said}. Lower policy.learn.batch_size (of an auxiliary phase: "
                "aux_batch_size), the sizes under policy.model, or policy.collect.n_sample. The checkpoints "
                "are as they were before: --resume with the new value goes on from the last"
            ) from error
        self.train_iter += int(metrics["updates"])
        return metrics

    def state_dict(self) -> dict[str, Any]:
        return {"train_iter": self.train_iter}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.train_iter = int(state["train_iter"])
