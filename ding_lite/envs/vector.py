"""The one face of every vector environment, whatever runs behind it.

    obs = envs.reset("collect")
    while True:
        transition = envs.step(action)      # see types.Transition
        obs = transition.obs                # of the new episode where one has ended

An episode that ended is begun again without being asked. How (autoreset modes NEXT_STEP, SAME_STEP and
DISABLED of gymnasium) shows only in ``valid``: a row that was a reset and not a step is not valid.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from ding_lite.types import Transition, Tree

NO_ENVS = np.zeros(0, np.int64)


class VectorEnv(ABC):
    """B environments of one kind.

    Attributes:
        num_envs: B.
        obs_space, action_space: of one environment.
        episode_returns, episode_lengths: (B,) of the open episodes, below every wrapper.
        backend: one line for people.
        restorable: whether ``load_state_dict`` can bring open episodes back.
    """

    num_envs: int
    obs_space: gym.Space
    action_space: gym.Space
    episode_returns: np.ndarray
    episode_lengths: np.ndarray
    backend: str
    restorable: bool = True

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
