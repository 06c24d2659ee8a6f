"""Trains the policy on rollouts; counts its optimiser steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ding_lite.config.schema import without_numpy
from ding_lite.data.modes import LearnMode
from ding_lite.data.rollout import Rollout
from ding_lite.errors import ContractError
from ding_lite.run.resources import explained_memory_errors


class Learner:
    """Passes rollouts to the policy's learn mode, and counts the optimiser steps.

    Optimiser steps are those of the policy phase; the steps of an auxiliary phase are not counted here.

    Args:
        mode: learn mode of the policy.

    Attributes:
        train_iter: optimiser steps so far. It is saved with the run.
        updates: optimiser steps in the last call of :meth:`train`.
    """

    def __init__(self, mode: LearnMode) -> None:
        self.mode = mode
        self.train_iter = 0
        self.updates = 0

    def train(self, rollout: Rollout) -> dict[str, float]:
        """Trains on one rollout and returns the policy's metrics.

        Raises:
            ConfigError: if the memory, of the CPU or of a device, does not suffice.
            ContractError: if the policy does not report its number of optimiser steps.
        """
        steps, envs = rollout.valid.shape
        with explained_memory_errors(
            f"learning from {steps} steps of {envs} environments",
            "Lower policy.learn.batch_size (in an auxiliary phase: policy.learn.aux_batch_size), the sizes "
            "under policy.model, or policy.collect.n_sample. The checkpoints are unchanged: --resume with "
            "the new value continues from the last one",
        ):
            metrics = self.mode.forward(rollout)
        self.updates = _updates_in(metrics)
        self.train_iter += self.updates
        return metrics

    def state_dict(self) -> dict[str, Any]:
        return {"train_iter": self.train_iter}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.train_iter = int(state["train_iter"])


def _updates_in(metrics: Any) -> int:
    """Returns the number of optimiser steps among the metrics of a policy.

    Raises:
        ContractError: if it is missing, or the metrics are no dict of numbers.
    """
    if not isinstance(metrics, Mapping):
        raise ContractError(
            f"the policy's _forward_learn must return its metrics as a dict, got {metrics!r:.60}"
        )
    for name, value in metrics.items():
        if not isinstance(without_numpy(value), (int, float)):
            raise ContractError(
                f"the policy's _forward_learn: the metric {name!r} must be one number, got {value!r:.60} "
                f"({type(value).__name__})"
            )
    if "updates" not in metrics:
        raise ContractError(
            "the policy's learn_mode.forward must return 'updates', its number of optimiser steps, among the "
            f"metrics; got {sorted(metrics)}. Add it in _forward_learn"
        )
    return int(metrics["updates"])
