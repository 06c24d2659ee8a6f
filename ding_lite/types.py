"""The few shapes of data that travel between the parts.

Shapes: T steps, B envs, N samples; time comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

# A leaf, or a dict of trees: what an observation or an action looks like.
Tree = Any

# The observation that says which actions are legal; no encoder looks at it.
MASK_KEY = "action_mask"

# Finished episodes that what is told of training is the mean, or the greatest, of.
RECENT_EPISODES = 100


class Episode(NamedTuple):
    """One finished episode of one environment, as it was below every wrapper."""

    env: int
    episode_return: float  # undiscounted sum of the rewards
    length: int
    info: dict[str, float]
    cut: bool = False  # by a wrapper, such as a time limit of ours; the game itself had not ended


class Transition(NamedTuple):
    """What one step of B environments gave. ``obs`` is good until the next step of any of them.

    Environments are numbered by their rows here, in ``episodes`` too: of a part of a vector, from 0 as well.

    Shapes:
        obs: (B, ...), what the policy sees next: of the new episode where one has ended
        reward: (B,) float32; terminated, truncated: (B,) bool, never both
        valid: (B,) bool, False where the step was only a reset: autoreset mode NEXT_STEP, a worker that was
            replaced, or a value that is not finite. An episode that was open before such a row was lost; its
            last obs is known
        final_obs: (K, ...), the true last observations of the episodes cut at the envs final_env (K,);
            of terminated ones too where that was asked for
        spoiled: environments whose step gave a value that is not finite, and is not valid for that
    """

    obs: Tree
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    valid: np.ndarray
    final_obs: Tree | None
    final_env: np.ndarray
    episodes: list[Episode]
    spoiled: Sequence[int] = ()


class LearnMode(NamedTuple):
    """What a learner may call."""

    forward: Callable[..., dict[str, float]]
    monitor_vars: Callable[[], list[str]]
    state_dict: Callable[[], dict[str, Any]]
    load_state_dict: Callable[[Mapping[str, Any]], None]


class CollectMode(NamedTuple):
    """What a collector may call."""

    forward: Callable[..., dict[str, Any]]
    to_env: Callable[[Tree], Tree]
    process_transition: Callable[..., dict[str, Any]]
    get_train_sample: Callable[[Any], Any]
    state_dict: Callable[[], dict[str, Any]]
    load_state_dict: Callable[[Mapping[str, Any]], None]
    # Around the steps of one rollout, given the mode that makes them: nobody changes the policy within. Where
    # that mode is the policy's own, forward may leave log-probs to get_train_sample.
    acting: Callable[[Any], AbstractContextManager[None]] = nullcontext


class EvalMode(NamedTuple):
    """What an evaluator may call."""

    forward: Callable[..., dict[str, Any]]
    to_env: Callable[[Tree], Tree]
    reset: Callable[[], None]


@dataclass(frozen=True)
class Evaluation:
    """The returns and lengths of the episodes of one evaluation, in the order of their envs."""

    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    cut_short: int = 0  # episodes that reached max_eval_steps

    @property
    def mean(self) -> float:
        return float(np.mean(self.returns))

    @property
    def std(self) -> float:
        return float(np.std(self.returns))

    def __add__(self, other: Evaluation) -> Evaluation:
        return Evaluation(
            self.returns + other.returns,
            self.lengths + other.lengths,
            self.cut_short + other.cut_short,
        )


@dataclass
class Progress:
    """How far a run has come; every turn of the pipeline yields it."""

    env_step: int = 0  # valid transitions: decisions, not frames
    train_iter: int = 0  # optimiser steps of the policy phase
    iteration: int = 0  # one collect and its learning
    metrics: dict[str, float] = field(default_factory=dict)
    evaluation: Evaluation | None = None  # of this turn, if there was one
    solved: bool = False
    past_solved: bool = False  # told to train on where it would end as solved
    turn_began: int = 0  # env_step before this turn

    def crossed(self, freq: int) -> bool:
        """Returns whether this turn has reached or passed a multiple of ``freq`` env steps (0: never)."""
        return freq > 0 and self.env_step // freq > self.turn_began // freq

    def state_dict(self) -> dict[str, Any]:
        names = ("env_step", "train_iter", "iteration", "solved", "past_solved")
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.env_step, self.train_iter = int(state["env_step"]), int(state["train_iter"])
        self.iteration, self.solved = int(state["iteration"]), bool(state["solved"])
        self.past_solved = bool(state["past_solved"])
