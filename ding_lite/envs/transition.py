"""The result of one step of a vector environment.

Shapes: B envs, K episodes with a final observation.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ding_lite.trees import Tree

RECENT_EPISODES = 100  # number of recent episodes that training metrics are averaged over


class Episode(NamedTuple):
    """One finished episode of one environment, recorded below every wrapper."""

    env: int
    episode_return: float  # undiscounted sum of the rewards
    length: int
    info: dict[str, float]
    cut: bool = False  # ended by a wrapper, such as a configured time limit; the game itself had not ended


class Transition(NamedTuple):
    """The result of one step of B environments.

    ``obs`` may be overwritten by the next step of any environment of the vector. Environments are numbered by
    their rows in this transition, in ``episodes`` too; the transition of a group counts from 0.

    Shapes:
        obs: (B, ...), the observations that the policy acts on next; after an episode's end, the first
            observation of the new episode. Under NEXT_STEP the row of the end still has the old
            episode's last observation, and the action chosen from it is discarded; the row after it is not
            valid, and has the new episode's first observation
        reward: (B,) float32
        terminated, truncated: (B,) bool, never both
        valid: (B,) bool, False where nothing was stepped: the row is a reset (autoreset mode NEXT_STEP), its
            worker was replaced, or its step gave a value that is not finite. An episode that was open
            before such a row was lost, and the row before holds its last step
        final_obs: (K, ...), the true last observations of the truncated episodes of the environments
            ``final_env``; None if K is 0
        final_env: (K,), rows of these environments
    """

    obs: Tree
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    valid: np.ndarray
    final_obs: Tree | None
    final_env: np.ndarray
    episodes: list[Episode]
