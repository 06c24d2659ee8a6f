"""How many episodes each environment plays: an equal share, fixed in advance.

Taking those that end first would favour the short ones, which are as often the bad ones.
"""

from __future__ import annotations

import numpy as np

from ding_lite.envs.spaces import tree_map
from ding_lite.errors import EnvError, NotFiniteError
from ding_lite.types import Transition

ENDLESS = 100_000  # steps of one episode, after which a rollout of whole ones is given up
SPOILED_PER_EPISODE = 10  # for each that is to be played so many may be lost to values that are not finite


def shares(n_episode: int, num_envs: int) -> np.ndarray:
    """Returns how many of ``n_episode`` episodes each environment plays (B,); they differ by one at most."""
    base, more = divmod(n_episode, num_envs)
    return np.array([base + (i < more) for i in range(num_envs)])


class EpisodeQuota:
    """Which steps belong to the episodes of one rollout: those of each environment's share of them.

    Attributes:
        steps: rows of the rollout so far, up to the last one that counts.
    """

    def __init__(self, n_episode: int, num_envs: int) -> None:
        self.n_episode, self._shares = n_episode, shares(n_episode, num_envs)
        self.begin()

    def begin(self) -> None:
        """Begins a rollout: every environment has its whole share to play."""
        self.steps, self._left, self._open = 0, self._shares.copy(), np.zeros_like(self._shares)
        self._spoiled = 0

    @property
    def is_met(self) -> bool:
        """Whether all environments have played their share."""
        return not self._left.any()

    def count(self, t: int, transition: Transition, numbers: np.ndarray) -> Transition:
        """Returns row ``t`` of the environments of these numbers, not valid where their share is played.

        Raises:
            EnvError: if an episode does not end.
            NotFiniteError: if nearly all are lost to values that are not finite.
        """
        counts = self._left[numbers] > 0
        if not counts.any():
            return transition._replace(valid=counts, final_obs=None, episodes=[], spoiled=())
        self.steps = max(self.steps, t + 1)
        ends = counts & (transition.terminated | transition.truncated)
        self._left[numbers] -= ends
        self._open[numbers] = np.where(transition.valid & counts & ~ends, self._open[numbers] + 1, 0)
        if self._open.max() >= ENDLESS:
            raise EnvError(
                f"policy.collect.n_episode: an episode of environment {self._open.argmax()} has not ended in "
                f"{ENDLESS:,} steps; set env.max_episode_steps below that, or collect n_sample transitions"
            )
        spoiled = [env for env in transition.spoiled if counts[env]]
        self._spoiled += len(spoiled)
        if self._spoiled > SPOILED_PER_EPISODE * self.n_episode:
            raise NotFiniteError(
                f"a rollout of {self.n_episode} episodes has lost {self._spoiled} to values that are not "
                "finite; env.on_bad_value is for those that are rare"
            )
        final_obs, final_env = transition.final_obs, transition.final_env
        if final_obs is not None:
            keep = counts[final_env]
            final_obs = tree_map(lambda leaf: leaf[keep], final_obs) if keep.any() else None
            final_env = final_env[keep]
        return transition._replace(
            valid=transition.valid & counts,
            final_obs=final_obs,
            final_env=final_env,
            episodes=[one for one in transition.episodes if counts[one.env]],
            spoiled=spoiled,
        )
