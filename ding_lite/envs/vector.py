"""The one face of every vector environment, whatever runs behind it.

    obs = envs.reset("collect")
    while True:
        transition = envs.step(action)      # see types.Transition
        obs = transition.obs                # of the new episode where one has ended

An episode that ended is begun again without being asked. How (autoreset modes NEXT_STEP, SAME_STEP and
DISABLED of gymnasium) shows only in ``valid``: a row that was a reset and not a step is not valid. So is the
row of an environment that was lost with its worker and replaced: its step never was, and the row before
is the last of its episode.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from ding_lite.types import Transition, Tree

NO_ENVS = np.zeros(0, np.int64)


def _warn(line: str) -> None:
    warnings.warn(line, RuntimeWarning, stacklevel=2)


class VectorEnv(ABC):
    """B environments of one kind.

    Attributes:
        num_envs: B.
        obs_space, action_space: of one environment.
        episode_returns, episode_lengths: (B,) of the open episodes, below every wrapper.
        backend: one line for people.
        restorable: whether ``load_state_dict`` can bring open episodes back.
        restarts: how often a part of it was lost and replaced.
        cut_steps: how many steps the episodes had that were lost with it.
        say: called with a line for people when that happens; by default a warning.
    """

    num_envs: int
    obs_space: gym.Space
    action_space: gym.Space
    episode_returns: np.ndarray
    episode_lengths: np.ndarray
    backend: str
    restorable: bool = True
    restarts: int = 0
    cut_steps: int = 0
    say: Callable[[str], None] = staticmethod(_warn)

    @abstractmethod
    def reset(self, *stream: str | int) -> Tree:
        """Begins every environment anew, seeded from the named stream, and returns obs (B, ...)."""

    @abstractmethod
    def step(self, action: Tree) -> Transition:
        """Steps all environments with actions as they take them (B, ...)."""

    def describe(self, env: int) -> str:
        """Says which episode environment ``env`` is in, for messages."""
        return f"env {env} (step {int(self.episode_lengths[env])})"

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Returns what ``load_state_dict`` needs to go on in the middle of the open episodes."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> Tree:
        """Brings the open episodes back and returns their current obs (B, ...)."""

    @abstractmethod
    def close(self) -> None:
        """Frees everything; calling it twice is fine."""
