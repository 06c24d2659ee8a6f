"""The interfaces of a policy: three modes for scripts, and the functions that act in a rollout."""

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
    """The functions for collecting in a script; the policy may change between their calls."""

    forward: Forward
    to_env: Callable[[Tree], Tree]
    process_transition: Callable[..., dict[str, Any]]
    get_train_sample: Callable[[Rollout], Rollout]
    state_dict: Callable[[], dict[str, Any]]
    load_state_dict: Callable[[Mapping[str, Any]], None]


class EvalMode(NamedTuple):
    """The functions for evaluating in a script."""

    forward: Forward
    to_env: Callable[[Tree], Tree]


class Acting(NamedTuple):
    """The functions that act in one rollout or one evaluation, in which the policy does not change.

    Attributes:
        name: what computes the actions, such as "NumPy".
        sample: (obs[, hidden]) -> output: the drawn action, the next hidden state of a recurrent policy, and
            the fields that ``finish`` needs.
        greedy: (obs[, hidden]) -> the greedy action, and the next hidden state of a recurrent policy.
        to_env: action -> the action in the form of the environments.
        process_transition: (obs, output, transition) -> the fields that are stored beside the observation.
        finish: a rollout of these fields -> the rollout with log-probs and credit; updates statistics.
    """

    name: str
    sample: Forward
    greedy: Forward
    to_env: Callable[[Tree], Tree]
    process_transition: Callable[..., dict[str, Any]]
    finish: Callable[[Rollout], Rollout]


class ActingPolicy(Protocol):
    """The part of a policy that a collector and an evaluator use."""

    timer: Timer
    recurrence: Recurrence | None

    def acting(self, samples: int = 0, *, on_device: bool = False) -> Acting:
        """Returns the functions that act in one rollout of ``samples`` actions, or in one evaluation."""
