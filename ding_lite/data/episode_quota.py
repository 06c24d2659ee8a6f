"""The number of episodes that each environment plays: equal shares, fixed in advance.

Counting the episodes that end first instead would favour short episodes and bias the mean return.
"""

from __future__ import annotations

import numpy as np

from ding_lite.data.minibatches import even_sizes
from ding_lite.envs.transition import Transition
from ding_lite.errors import EnvError, NotFiniteError
from ding_lite.trees import map_tree

MAX_EPISODE_STEPS = 100_000  # a rollout of whole episodes fails if one of them has more steps
SPOILED_PER_EPISODE = 10  # episodes that may be lost to non-finite values for each episode to play


def shares(n_episode: int, num_envs: int) -> np.ndarray:
    """Returns the number of episodes that each environment plays; the numbers differ by at most one.

    Shapes:
        -> (B,) int64, where B is ``num_envs``
    """
    return np.array(even_sizes(n_episode, num_envs))


class EpisodeQuota:
    """Counts the episodes of one rollout, and marks steps after an environment's share as not valid.

    Args:
        n_episode: episodes in one rollout.
        num_envs: B.

    Attributes:
        steps: rows of the rollout so far, up to the last row with a step of some environment's share.
    """

    def __init__(self, n_episode: int, num_envs: int) -> None:
        self.n_episode = n_episode
        self._shares = shares(n_episode, num_envs)
        self.begin()

    def begin(self) -> None:
        """Begins a rollout, in which each environment plays its whole share."""
        self.steps = 0
        self._left = self._shares.copy()  # (B,), episodes left to play
        self._open_lengths = np.zeros_like(self._shares)  # (B,), steps of the open episodes
        self._counted = np.ones(len(self._shares), bool)  # (B,), whether the row before was counted
        self._spoiled = 0

    @property
    def is_met(self) -> bool:
        """Whether all environments have played their share."""
        return not self._left.any()

    def count(self, t: int, transition: Transition, env_indices: np.ndarray) -> Transition:
        """Counts one step; returns it with ``valid`` False where an environment has played its share.

        Args:
            t: row of the rollout.
            transition: of G environments.
            env_indices: their indices among all B environments.

        Shapes:
            transition: (G, ...); env_indices: (G,) -> (G, ...)

        Raises:
            EnvError: if an episode has ``MAX_EPISODE_STEPS`` steps and has not ended.
            NotFiniteError: if more than ``SPOILED_PER_EPISODE * n_episode`` episodes are lost to values that
                are not finite.
        """
        counts = self._left[env_indices] > 0
        # An episode that a wrapper cuts is reported at its reset, which may be a row of its own.
        reported = counts | (self._counted[env_indices] & ~transition.valid)
        self._counted[env_indices] = counts
        episodes = [episode for episode in transition.episodes if reported[episode.env]]
        if not counts.any():
            return transition._replace(valid=counts, final_obs=None, episodes=episodes, spoiled=())
        self.steps = max(self.steps, t + 1)
        ends = counts & (transition.terminated | transition.truncated)
        self._left[env_indices] -= ends
        continues = transition.valid & counts & ~ends
        self._open_lengths[env_indices] = np.where(continues, self._open_lengths[env_indices] + 1, 0)
        if self._open_lengths.max() >= MAX_EPISODE_STEPS:
            raise EnvError(
                "policy.collect.n_episode: an episode of environment "
                f"{self._open_lengths.argmax()} has not ended after {MAX_EPISODE_STEPS:,} steps; limit its "
                "episodes, such as by env.wrappers=[dict(type='time_limit', max_episode_steps=1000)], or set "
                "policy.collect.n_sample in place of n_episode"
            )
        spoiled = [env for env in transition.spoiled if counts[env]]
        self._spoiled += len(spoiled)
        if self._spoiled > SPOILED_PER_EPISODE * self.n_episode:
            raise NotFiniteError(
                f"a rollout of {self.n_episode} episodes lost {self._spoiled} episodes to values that are "
                f"not finite, more than {SPOILED_PER_EPISODE} per episode; env.on_bad_value is meant for "
                "rare values, so correct the environment"
            )
        final_obs = transition.final_obs
        final_env = transition.final_env
        if final_obs is not None:
            keep = counts[final_env]
            final_obs = map_tree(lambda leaf: leaf[keep], final_obs) if keep.any() else None
            final_env = final_env[keep]
        return transition._replace(
            valid=transition.valid & counts,
            final_obs=final_obs,
            final_env=final_env,
            episodes=episodes,
            spoiled=spoiled,
        )
