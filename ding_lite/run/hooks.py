"""Hooks: user code that a run calls at fixed points.

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
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ding_lite.config.registry import HOOK_REGISTRY
from ding_lite.config.schema import without_numpy
from ding_lite.errors import FOREIGN, CheckpointError, ConfigError, HookError, error_text
from ding_lite.run.checkpoint import refuse_unsaveable


class Hook:
    """Called by a run. A subclass overrides what it needs; each method does nothing.

    Every method receives the :class:`~ding_lite.SerialPipeline`: its ``progress``, ``policy``, ``cfg``,
    ``folder`` and ``say``. With several ranks, every rank calls its own hooks.

    A hook whose state must survive an interruption defines ``state_dict()``, which returns a dict of plain
    values and arrays, and ``load_state_dict(state)``. Hooks without them have no state.
    """

    def before_run(self, pipeline: Any) -> None:
        """Called once before the first iteration, also of a resumed run."""

    def before_iter(self, pipeline: Any) -> None:
        """Called before each iteration."""

    def after_iter(self, pipeline: Any) -> None:
        """Called after each iteration, before its metrics are written and a checkpoint is saved.

        ``pipeline.progress.metrics["my/metric"] = x`` adds a metric, one number, to the iteration's row.
        ``pipeline.request_stop(reason)`` makes this iteration the last one.
        """

    def after_run(self, pipeline: Any) -> None:
        """Called at the end of the run, when everything is saved; not if an error ends it.

        ``pipeline.status`` says how it ended.
        """


class Hooks:
    """The hooks of one run, called in the order of the config.

    Args:
        items: value of the key ``hooks``.

    Raises:
        RegistryError: if an item names no hook.
        ConfigError: if a hook cannot be made of its arguments.
    """

    def __init__(self, items: Sequence[Any]) -> None:
        self._hooks: dict[str, Hook] = {}
        for name, cls, arguments in HOOK_REGISTRY.named_choices(items):
            try:
                self._hooks[name] = cls(**arguments)
            except FOREIGN as error:
                raise ConfigError(f"hooks: {name!r} cannot be made: {error_text(error)}") from error

    def call(self, method: str, pipeline: Any) -> None:
        """Calls one method of every hook.

        Raises:
            HookError: naming the hook whose method raised an error, returned something, or left a metric that
                is not a number.
        """
        for name, hook in self._hooks.items():
            try:
                result = getattr(hook, method)(pipeline)
            except FOREIGN as error:
                raise HookError(f"hook {name!r} failed in {method}: {error_text(error)}") from error
            if result is not None:
                raise HookError(
                    f"hook {name!r}: {method} returned {result!r:.60}, which has no effect; to end a run, "
                    "call pipeline.request_stop(reason)"
                )
            if method == "after_iter":
                _check_metrics(pipeline.progress.metrics, name)

    def state_dict(self) -> dict[str, Any]:
        """Returns the states of the hooks that have one, by their names.

        Raises:
            HookError: naming the hook whose state cannot be taken, or cannot be saved.
        """
        states = {}
        for name, hook in self._hooks.items():
            if hasattr(hook, "state_dict"):
                try:
                    states[name] = dict(hook.state_dict())
                    refuse_unsaveable(states[name])
                except FOREIGN as error:
                    raise HookError(f"hook {name!r} failed in state_dict: {error_text(error)}") from error
        return states

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the states of the hooks; a hook that was not part of the saved run begins anew.

        Raises:
            CheckpointError: naming the hook whose state does not fit.
        """
        for name, hook in self._hooks.items():
            if name in state and hasattr(hook, "load_state_dict"):
                try:
                    hook.load_state_dict(state[name])
                except FOREIGN as error:
                    raise CheckpointError(
                        f"the saved state of hook {name!r} does not fit: {error_text(error)}"
                    ) from error


def _check_metrics(metrics: dict[str, Any], hook: str) -> None:
    """Makes Python numbers of the metrics that the hook has added, in place.

    Raises:
        HookError: if one is not a number.
    """
    faults = []
    for name, value in list(metrics.items()):
        number = without_numpy(value)
        if isinstance(number, (int, float)):
            metrics[name] = number
        else:
            del metrics[name]  # the others are still written
            faults.append(f"{name!r} must be one number, got {value!r:.60} ({type(value).__name__})")
    if faults:
        raise HookError(f"hook {hook!r}: the metric {'; '.join(faults)}")


@HOOK_REGISTRY.register("stop_file")
class StopFile(Hook):
    """Ends the run in order when the file `stop` appears in its folder, and removes the file."""

    def __init__(self, name: str = "stop") -> None:
        self.name = name

    def before_run(self, pipeline: Any) -> None:
        # Later, an environment may have changed the working directory.
        self.file = pipeline.folder.absolute() / self.name

    def after_iter(self, pipeline: Any) -> None:
        if pipeline.ranks.is_first and self.file.exists():
            self.file.unlink()
            pipeline.request_stop(f"the file {pipeline.folder / self.name} appeared")


@HOOK_REGISTRY.register("early_stopping")
class EarlyStopping(Hook):
    """Ends the run after `patience` evaluations in a row without a higher mean return than before.

    A run that it has ended and that is resumed gets as many evaluations again.

    Args:
        patience: number of evaluations.
        min_delta: how much higher a mean return must be to count.
    """

    def __init__(self, patience: int = 5, min_delta: float = 0.0) -> None:
        if not isinstance(patience, int) or isinstance(patience, bool) or patience < 1:
            raise ValueError(f"patience: expected a whole number of at least 1, got {patience!r}")
        self.patience = patience
        self.min_delta = min_delta
        self.best = -math.inf
        self.without_improvement = 0

    def before_run(self, pipeline: Any) -> None:
        if self.without_improvement >= self.patience:
            self.without_improvement = 0
        if pipeline.cfg.policy.eval.eval_freq == 0:
            pipeline.say(
                "early_stopping: no effect, since policy.eval.eval_freq=0 evaluates at the end alone"
            )

    def after_iter(self, pipeline: Any) -> None:
        evaluation = pipeline.progress.evaluation
        if evaluation is None:
            return
        if evaluation.mean > self.best + self.min_delta:
            self.best = evaluation.mean
            self.without_improvement = 0
            return
        self.without_improvement += 1
        if self.without_improvement >= self.patience:
            margin = f" by more than min_delta={self.min_delta:g}" if self.min_delta > 0 else ""
            pipeline.request_stop(
                f"no evaluation of the last {self.without_improvement} was above {self.best:.4g}{margin}"
            )

    def state_dict(self) -> dict[str, Any]:
        best = None if math.isinf(self.best) else self.best
        return {"best": best, "without_improvement": self.without_improvement}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.best = -math.inf if state["best"] is None else float(state["best"])
        self.without_improvement = int(state["without_improvement"])
