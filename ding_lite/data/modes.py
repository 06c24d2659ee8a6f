"""The three modes of a policy: the methods that a collector, a learner and an evaluator call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ding_lite.data.samples import Recurrence
from ding_lite.trees import Tree


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
    # (mode, samples) -> the mode for one rollout (see for_rollout); None: the mode itself.
    specialize: Callable[[Any, int], Any] | None = None
    recurrence: Recurrence | None = None  # of a recurrent policy, whose forward takes hidden states, too

    def for_rollout(self, samples: int = 0) -> CollectMode:
        """Returns the mode for one rollout of ``samples`` actions, during which the policy does not change.

        It gives the same rollout, perhaps faster: the policy decides once how it acts, may draw the random
        numbers of all actions at once, and may leave log-probs to ``get_train_sample``.
        """
        mode: CollectMode = self if self.specialize is None else self.specialize(self, samples)
        return mode


class EvalMode(NamedTuple):
    """The functions that an evaluator calls."""

    forward: Callable[..., dict[str, Any]]
    to_env: Callable[[Tree], Tree]
    reset: Callable[[], None]
    specialize: Callable[[Any], Any] | None = None  # mode -> the mode for one evaluation
    recurrence: Recurrence | None = None

    def for_evaluation(self) -> EvalMode:
        """Returns the mode for one evaluation, during which the policy does not change."""
        mode: EvalMode = self if self.specialize is None else self.specialize(self)
        return mode
