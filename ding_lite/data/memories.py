"""The memory of each environment while it is played, and the memories that a rollout stores.

Shapes: B environments, G of a group that is stepped together, K cut episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from ding_lite.data.rollout import RolloutStorage, to_device
from ding_lite.data.sequences import Grid
from ding_lite.envs.transition import Transition
from ding_lite.models.recurrent import chosen_hidden
from ding_lite.trees import Tree, map_tree


def begin_episodes(state: Tree, first: np.ndarray, initial: Tree) -> Tree:
    """Returns memories (G, ...) with those of ``initial`` where ``first`` (G,) is True."""
    return chosen_hidden(torch.from_numpy(first), initial, state) if first.any() else state


def ends_of(transition: Transition) -> np.ndarray:
    """Returns the environments (G,) whose next row does not belong to the episode of this one."""
    return transition.terminated | transition.truncated | ~transition.valid


class Memories:
    """The memories of a collector.

    Args:
        initial_state: of n episodes.
        grid: in which rows a rollout stores them.
        env_indices: the environments of each group.

    Attributes:
        of_groups: the memories (G, ...) of each group, before the row that it plays next.
    """

    def __init__(
        self, initial_state: Callable[[int], Tree], grid: Grid, env_indices: Sequence[np.ndarray]
    ) -> None:
        self._initial_state = initial_state
        self._grid = grid
        self._env_indices = env_indices
        self._storage = RolloutStorage(1, sum(map(len, env_indices)))
        self._before_lost: dict[tuple[int, int], Tree] = {}  # by row and environment
        self.begin_all()

    def begin_all(self) -> None:
        """Begins an episode in every environment."""
        self.of_groups = [self._initial_state(len(envs)) for envs in self._env_indices]
        # Of each group, the environments (G,) whose episode was open after the row before.
        self._open = [np.zeros(len(envs), bool) for envs in self._env_indices]

    def begin_rollout(self) -> None:
        """Forgets the stored memories."""
        self._storage.begin()
        self._before_lost.clear()

    def before(self, t: int, group: int, envs: slice) -> Tree:
        """Returns the memories before row ``t`` of a group, and stores them if the rollout is cut there."""
        state, slot = self.of_groups[group], self._grid.slot(t)
        if slot is not None:
            self._storage.reserve(slot + 1)
            self._storage.write(slot, "memory", state, envs)
        return state

    def after(self, t: int, group: int, state: Tree, transition: Transition) -> Tree | None:
        """Takes the memories after row ``t`` of a group.

        Returns:
            those of the episodes that were cut at this row (K, ...), on the host, or None.
        """
        envs = self._env_indices[group]
        for k in np.flatnonzero(self._open[group] & ~transition.valid):
            # A copy: a view would keep the memories of the whole group.
            before = map_tree(lambda leaf, k=k: leaf[k].clone(), self.of_groups[group])
            self._before_lost[t, int(envs[k])] = before
        final = None
        if transition.final_obs is not None:
            final = map_tree(lambda leaf: leaf[torch.from_numpy(transition.final_env)].cpu(), state)
        ends = ends_of(transition)
        self._open[group] = ~ends
        if ends.any():
            state = begin_episodes(state, ends, self._initial_state(len(envs)))
        self.of_groups[group] = state
        return final

    def before_lost(self, t: int, envs: np.ndarray) -> Tree:
        """Returns the memories (K, ...) before the lost steps of row ``t``, on the host."""
        return map_tree(
            lambda *leaves: torch.stack(leaves).cpu(), *[self._before_lost[t, int(e)] for e in envs]
        )

    def fields(self, steps: int) -> dict[str, Any]:
        """Returns the fields ``memory`` (slots, B, ...) and ``last_memory`` (B, ...) of a rollout."""
        stored = map_tree(lambda leaf: leaf[: self._grid.slots(steps)], self._storage.array("memory"))
        return {"memory": stored, "last_memory": self.state_dict()}

    def state_dict(self) -> Tree:
        """Returns the memories (B, ...) of all environments."""
        order = torch.from_numpy(np.concatenate(self._env_indices).argsort())
        return map_tree(lambda *leaves: torch.cat(leaves)[order].cpu(), *self.of_groups)

    def load_state_dict(self, state: Tree) -> None:
        whole = to_device(state, torch.device("cpu"))
        self.of_groups = [
            map_tree(lambda leaf, mine, e=envs: leaf[torch.from_numpy(e)].to(mine), whole, like)
            for envs, like in zip(self._env_indices, self.of_groups, strict=True)
        ]
