"""The hidden state of each environment of a recurrent policy while it is played, as a rollout stores it.

Shapes: B environments, G of a group that is stepped together, K cut episodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ding_lite.data.rollout import RolloutStorage, to_device
from ding_lite.data.samples import Recurrence
from ding_lite.envs.vector import Transition
from ding_lite.models.recurrent import chosen_hidden
from ding_lite.trees import Tree, map_tree


def begin_episodes(hidden: Tree, first: np.ndarray, initial: Tree) -> Tree:
    """Returns hidden states (G, ...) with those of ``initial`` where ``first`` (G,) is True."""
    return chosen_hidden(torch.from_numpy(first), initial, hidden) if first.any() else hidden


def ends_of(transition: Transition) -> np.ndarray:
    """Returns the environments (G,) whose next row does not belong to the episode of this one."""
    return transition.terminated | transition.truncated | ~transition.valid


class HiddenStates:
    """The hidden states of a collector.

    Args:
        recurrence: of the policy.
        env_indices: the environments of each group.
        steps: T, of a rollout.

    Attributes:
        of_groups: hidden states (G, ...) of each group, before the row that it plays next.
    """

    def __init__(self, recurrence: Recurrence, env_indices: Sequence[np.ndarray], steps: int) -> None:
        self.recurrence, self._env_indices = recurrence, env_indices
        self._storage = RolloutStorage(-(-steps // recurrence.length), sum(map(len, env_indices)))
        self.begin_all()

    def begin_all(self) -> None:
        """Begins an episode in every environment."""
        self.of_groups = [self.recurrence.initial_hidden(len(envs)) for envs in self._env_indices]

    def before(self, t: int, group: int, envs: slice) -> Tree:
        """Returns the hidden states before row ``t`` of a group, and stores them if a run may begin there."""
        hidden = self.of_groups[group]
        slot, rest = divmod(t, self.recurrence.length)
        if not rest:
            self._storage.write(slot, "hidden", hidden, envs)
        return hidden

    def after(self, group: int, hidden: Tree, transition: Transition) -> Tree | None:
        """Takes the hidden states after a row of a group.

        Returns:
            those of the episodes that were cut at this row (K, ...), on the host, or None.
        """
        final = None
        if transition.final_obs is not None:
            final = map_tree(lambda leaf: leaf[torch.from_numpy(transition.final_env)].cpu(), hidden)
        ends = ends_of(transition)
        self.of_groups[group] = begin_episodes(hidden, ends, self.recurrence.initial_hidden(len(ends)))
        return final

    def fields(self) -> dict[str, Any]:
        """Returns the fields ``hidden`` (slots, B, ...) and ``last_hidden`` (B, ...) of a rollout."""
        return {"hidden": self._storage.array("hidden"), "last_hidden": self.state_dict()}

    def state_dict(self) -> Tree:
        """Returns the hidden states (B, ...) of all environments."""
        order = torch.from_numpy(np.concatenate(self._env_indices).argsort())
        return map_tree(lambda *leaves: torch.cat(leaves)[order].cpu(), *self.of_groups)

    def load_state_dict(self, state: Tree) -> None:
        whole = to_device(state, torch.device("cpu"))
        self.of_groups = [
            map_tree(lambda leaf, mine, e=envs: leaf[torch.from_numpy(e)].to(mine), whole, like)
            for envs, like in zip(self._env_indices, self.of_groups, strict=True)
        ]
