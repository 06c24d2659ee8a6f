"""Hooks: code that a run calls at fixed points, the user's and the library's own.

A hook of your own::

    class HalveLearningRate(Hook):
        def __init__(self, every: int = 100) -> None:
            self.every = every

        def after_iter(self, pipeline):
            if pipeline.progress.iteration % self.every == 0:
                pipeline.policy.learning_rate /= 2

A config names it as ``hooks=["my_module:HalveLearningRate"]``, as ``{"type": ..., "every": 50}``, or by the
name that ``@HOOK_REGISTRY.register(name)`` gives it. A script that iterates over a SerialPipeline needs no
hooks.

The library's own parts that only observe a run are hooks, too, on rank 0 alone: its folder, trackers, health
and display.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from ding_lite.config.registry import HOOK_REGISTRY
from ding_lite.config.schema import Key


class Hook:
    """Called by a run. A subclass overrides the methods it needs; the methods here do nothing.

    The methods receive the :class:`~ding_lite.SerialPipeline`: its ``progress``, ``policy``, ``cfg``,
    ``folder`` and ``say``. With several ranks, every rank calls the hooks of the config. The library's own
    hooks (folder, trackers, health, display) are called after them, but ``after_run`` before them.

    A hook whose state must survive an interruption defines ``state_dict()``, which returns a dict of plain
    values and arrays, and ``load_state_dict(state)``.
    """

    def before_run(self, pipeline: Any) -> None:
        """Called once before the first iteration, also of a resumed run."""

    def before_iter(self, pipeline: Any) -> None:
        """Called before each iteration; ``pipeline.progress`` is still that of the one before."""

    def after_iter(self, pipeline: Any) -> None:
        """Called after each iteration, before its metrics are written and a checkpoint is saved.

        ``pipeline.progress.metrics["my/metric"] = x`` adds a metric, one number, to the iteration's row.
        ``pipeline.request_stop(reason)`` makes this iteration the last one.
        """

    def after_run(self, pipeline: Any) -> None:
        """Called at the end of the run, when everything is saved; ``pipeline.status`` says how it ended.

        The last hook of the config is called first.
        """

    def say(self, line: str) -> None:
        """Called with each line that the run has for the user."""


@HOOK_REGISTRY.register("early_stopping")
class EarlyStopping(Hook):
    """Ends the run after `patience` evaluations in a row without a higher mean return than before.

    Args:
        patience: number of evaluations.
    """

    config: ClassVar[dict[str, Any]] = dict(patience=Key(5, low=1))

    def __init__(self, patience: int = 5) -> None:
        self.patience = patience
        self.best = -math.inf
        self.without_improvement = 0

    def before_run(self, pipeline: Any) -> None:
        if pipeline.evaluator is None:
            pipeline.say("early_stopping: no effect without env.evaluator_env_num or env.greedy_env_num")

    def after_iter(self, pipeline: Any) -> None:
        evaluation = pipeline.progress.evaluation
        if evaluation is None:
            return
        is_better = evaluation.mean > self.best
        self.best = max(self.best, evaluation.mean)
        self.without_improvement = 0 if is_better else self.without_improvement + 1
        if self.without_improvement >= self.patience:
            pipeline.request_stop(f"no evaluation above {self.best:.4g} in the last {self.patience}")

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "without_improvement": self.without_improvement}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.best = float(state["best"])
        self.without_improvement = int(state["without_improvement"])
