"""Trains the policy on rollouts; counts its optimiser steps.

The loop over minibatches is the policy's, not the learner's, so that ``learn_mode.forward(rollout)`` works
without a pipeline.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ding_lite.data.modes import LearnMode
from ding_lite.data.rollout import Rollout
from ding_lite.errors import ContractError


class Learner:
    """Passes rollouts to the policy's learn mode, and counts the optimiser steps of the policy phase.

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
            ContractError: if the policy does not report its number of optimiser steps.
        """
        metrics = self.mode.forward(rollout)
        if not (isinstance(metrics, Mapping) and "updates" in metrics):
            raise ContractError(
                "the policy's _forward_learn must return a dict of metrics, among them 'updates', its number "
                f"of optimiser steps; got {metrics!r:.80}"
            )
        self.updates = int(metrics["updates"])
        self.train_iter += self.updates
        return dict(metrics)

    def state_dict(self) -> dict[str, Any]:
        return {"train_iter": self.train_iter}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.train_iter = int(state["train_iter"])
