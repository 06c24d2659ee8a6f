"""What a policy gives to those who use it: its three modes for scripts, and what acts in a rollout."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from ding_lite.data.rollout import Rollout
from ding_lite.data.samples import Recurrence
from ding_lite.data.timer import Timer
from ding_lite.trees import Tree

Forward = Callable[..., dict[str, Any]]  # (obs[, hidden]) -> {"action": ...}


class LearnMode(NamedTuple):
    """The functions that a learner calls."""

    forward: Callable[[Rollout], dict[str, float]]
    state_dict: Callable[[], dict[str, Any]]
    load_state_dict: Callable[[Mapping[str, Any]], None]


class CollectMode(NamedTuple):
    """The functions that a script collects with; the policy may change between their calls."""

    forward: Forward
    to_env: Callable[[Tree], Tree]
    process_transition: Callable[..., dict[str, Any]]
    get_train_sample: Callable[[Rollout], Rollout]
    state_dict: Callable[[], dict[str, Any]]
    load_state_dict: Callable[[Mapping[str, Any]], None]


class EvalMode(NamedTuple):
    """The functions that a script evaluates with."""

    forward: Forward
    to_env: Callable[[Tree], Tree]


class Acting(NamedTuple):
    """What acts in one rollout or in one evaluation, in which the policy does not change.

    Attributes:
        name: of what computes, such as "NumPy".
        sample: (obs[, hidden]) -> a row: the action, of a recurrent policy the hidden state after it, and
            what ``finish`` needs.
        greedy: (obs[, hidden]) -> the action, of a recurrent policy the hidden state after it.
        to_env: action -> that of the environments.
        process_transition: (obs, row, transition) -> the fields that are stored beside the observation.
        finish: a rollout of these rows -> the same with log-probs, statistics and credit.
    """

    name: str
    sample: Forward
    greedy: Forward
    to_env: Callable[[Tree], Tree]
    process_transition: Callable[..., dict[str, Any]]
    finish: Callable[[Rollout], Rollout]


class ActingPolicy(Protocol):
    """What a collector and an evaluator need of a policy."""

    timer: Timer
    recurrence: Recurrence | None

    def acting(self, samples: int = 0, *, on_device: bool = False) -> Acting:
        """Returns what acts in one rollout of ``samples`` actions, or in one evaluation."""
