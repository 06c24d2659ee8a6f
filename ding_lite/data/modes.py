"""The three modes of a policy: the methods that a collector, a learner and an evaluator call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ding_lite.data.sequences import Grid
from ding_lite.errors import ContractError
from ding_lite.trees import Tree


def check_output(output: Any, method: str) -> None:
    """Refuses what a policy's ``method`` must not return as the output of a batch of observations.

    Raises:
        ContractError: unless it is a dict with the key "action".
    """
    if not (isinstance(output, Mapping) and "action" in output):
        got = f"the keys {sorted(output)}" if isinstance(output, Mapping) else f"a {type(output).__name__}"
        raise ContractError(f"the policy's {method} must return a dict with the key 'action', got {got}")


class LearnMode(NamedTuple):
    """The functions that a learner calls."""

    forward: Callable[..., dict[str, float]]
    monitor_vars: Callable[[], list[str]]
    state_dict: Callable[[], dict[str, Any]]
    load_state_dict: Callable[[Mapping[str, Any]], None]


class CollectMode(NamedTuple):
    """The functions that a collector calls."""

    forward: Callable[..., dict[str, Any]]
    to_env: Callable[[Tree], Tree]
    process_transition: Callable[..., dict[str, Any]]
    get_train_sample: Callable[[Any], Any]
    state_dict: Callable[[], dict[str, Any]]
    load_state_dict: Callable[[Mapping[str, Any]], None]
    # mode -> the mode for one rollout (see for_rollout); None: the mode itself.
    specialize: Callable[[Any], Any] | None = None
    # Policies with memory: the memory (n, ...) before the first step of n episodes, which forward takes as
    # ``state``, and where rollouts store it.
    initial_state: Callable[[int], Tree] | None = None
    grid: Grid | None = None

    def for_rollout(self) -> CollectMode:
        """Returns the mode for one rollout, during which the policy does not change.

        It gives the same rollout. It may be faster: the policy decides once how it acts, and may leave the
        log-probs to ``get_train_sample``.
        """
        mode: CollectMode = self if self.specialize is None else self.specialize(self)
        return mode


class EvalMode(NamedTuple):
    """The functions that an evaluator calls."""

    forward: Callable[..., dict[str, Any]]
    to_env: Callable[[Tree], Tree]
    reset: Callable[[], None]
    # mode -> the mode for one evaluation (see for_evaluation); None: the mode itself.
    specialize: Callable[[Any], Any] | None = None
    initial_state: Callable[[int], Tree] | None = None  # as that of CollectMode

    def for_evaluation(self) -> EvalMode:
        """Returns the mode for one evaluation, during which the policy does not change.

        It takes the same actions. It may be faster: the policy decides once how it acts.
        """
        mode: EvalMode = self if self.specialize is None else self.specialize(self)
        return mode
