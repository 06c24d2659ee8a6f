"""The one face of every vector environment, whatever runs behind it.

    obs = envs.reset("collect")
    while True:
        transition = envs.step(action)      # see types.Transition
        obs = transition.obs                # of the new episode where one has ended

An episode that ended is begun again without being asked. How (autoreset modes NEXT_STEP, SAME_STEP and
DISABLED of gymnasium) shows only in ``valid``: a row that was a reset and not a step is not valid. So is the
row of an environment that was lost with its worker and replaced, or whose step gave a value that is not
finite: that step never was, and the row before is the last of its episode.

A vector may have several ``groups``, of which one steps while the policy acts on another:

    envs.send(action, group)                # returns at once
    transition = envs.receive(group)        # of the rows envs.groups[group]
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from ding_lite.envs.finite import RAISE
from ding_lite.errors import EnvError
from ding_lite.types import Transition, Tree

NO_ENVS = np.zeros(0, np.int64)
ALL = slice(None)
# Why nothing can be stepped, or called at all.
NOT_RESET = "these environments have not been reset yet"
STEP_SENT = "a step that was sent has not been received"
CLOSED = "these environments have been closed; make them anew"


def _warn(line: str) -> None:
    warnings.warn(line, RuntimeWarning, stacklevel=2)


class VectorEnv(ABC):
    """B environments of one kind.

    Attributes:
        num_envs: B.
        obs_space, action_space: of one environment.
        episode_returns, episode_lengths: (B,) of the open episodes, below every wrapper.
        backend: one line for people.
        groups: rows that are stepped together.
        busy_cores: how many cores the environments use while the policy acts.
        has_fillers: whether the row after an episode's end is a reset, whose action is discarded.
        restorable: whether ``load_state_dict`` can bring open episodes back.
        restarts: how often a part of it was lost and replaced.
        cut_steps: how many steps the episodes had that were lost with it.
        on_bad_value: what a value that is not finite does: "raise", "reset_env" or "drop".
        bad_values: how often one has ended an episode, or was in the first observation of one.
        say: called with a line for people when any of this happens; by default a warning.
        explain: called with the traceback of a worker that is replaced, if it left one; by default nothing.
    """

    num_envs: int
    obs_space: gym.Space
    action_space: gym.Space
    episode_returns: np.ndarray
    episode_lengths: np.ndarray
    backend: str
    groups: tuple[slice, ...] = (ALL,)
    busy_cores: int = 0
    has_fillers: bool = False
    restorable: bool = True
    restarts: int = 0
    cut_steps: int = 0
    on_bad_value: str = RAISE
    bad_values: int = 0
    say: Callable[[str], None] = staticmethod(_warn)
    explain: Callable[[str], None] = staticmethod(lambda traceback: None)
    _lacking: str = NOT_RESET  # why nothing can be stepped; empty if it can
    _closed: str = ""  # why nothing can be called; empty if it can
    _sent: Tree = None  # the action that receive() steps with

    @abstractmethod
    def reset(self, *stream: str | int) -> Tree:
        """Begins every environment anew, seeded from the named stream, and returns obs (B, ...).

        Steps that were sent and not received are forgotten.
        """

    @abstractmethod
    def step(self, action: Tree) -> Transition:
        """Steps all environments with actions as they take them (B, ...).

        Raises:
            EnvError: if they are closed, have not been reset, or were sent a step that is not received; or
                if an environment raised.
        """

    def send(self, action: Tree, group: int = 0) -> None:
        """Begins a step of the environments of one group; what is here steps when it is received.

        Groups are received in the order in which they were sent, and sent again when they have been.
        """
        if self._lacking:
            raise self._cannot_step()
        if self._sent is not None:
            raise self._sent_already(group)
        self._sent = action

    def receive(self, group: int = 0) -> Transition:
        """Ends the step that was sent last to this group."""
        if self._lacking:
            raise self._cannot_step()
        if self._sent is None:
            raise self._sent_nothing(group)
        action, self._sent = self._sent, None
        return self.step(action)

    def _check_open(self) -> None:
        if self._closed:
            raise EnvError(self._closed)

    def _cannot_step(self, lacking: str = "") -> EnvError:
        lacking = lacking or self._lacking or STEP_SENT
        return EnvError(self._closed or f"{lacking}: reset() or load_state_dict() must be called first")

    @staticmethod
    def _sent_already(group: int) -> EnvError:
        return EnvError(f"group {group} has been sent a step already: receive({group}) must come first")

    @staticmethod
    def _sent_nothing(group: int) -> EnvError:
        return EnvError(f"group {group} has been sent no step, or is not the one that was sent one first")

    def describe(self, env: int) -> str:
        """Says which episode environment ``env`` is in, for messages."""
        return f"env {env} (step {int(self.episode_lengths[env])})"

    def _count_bad(self, found: Sequence[str]) -> None:
        """Counts values that were not finite, each in words, and tells of the first."""
        if found and not self.bad_values:
            self.say(
                f"{found[0]}. Its episode ends before that, as each will that has such a value "
                f"(env.on_bad_value={self.on_bad_value!r}); in training, collect/bad_values counts them"
            )
        self.bad_values += len(found)

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Returns what ``load_state_dict`` needs to go on in the middle of the open episodes."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> Tree:
        """Brings the open episodes back and returns their current obs (B, ...)."""

    @abstractmethod
    def close(self) -> None:
        """Frees everything; calling it twice is fine."""
