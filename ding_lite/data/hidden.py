"""The hidden states of a recurrent policy that acts in B environments, as a rollout stores them.

Shapes: B environments, of which G form a group that steps together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ding_lite.data.rollout import to_device
from ding_lite.data.samples import Recurrence
from ding_lite.envs.vector import Transition
from ding_lite.models.recurrent import chosen_hidden
from ding_lite.trees import Tree, map_tree


def begin_episodes(hidden: Tree, first: np.ndarray | Tensor, initial: Tree) -> Tree:
    """Returns hidden states (G, ...), replaced by ``initial`` ones where ``first`` (G,) is True."""
    if isinstance(first, np.ndarray):  # any() of a tensor would wait for its device
        if not first.any():
            return hidden
        first = torch.from_numpy(first)
    return chosen_hidden(first, initial, hidden)


def ends_of(transition: Transition) -> np.ndarray:
    """Returns a mask (G,), True where the next row does not continue the episode of this row."""
    return transition.terminated | transition.truncated | ~transition.valid


class HiddenStates:
    """The hidden states of a collector, on the device of the policy.

    Args:
        recurrence: the recurrence of the policy.
        env_indices: the environments of each group.
        steps: T, the rows of a rollout.

    Attributes:
        of_groups: hidden states (G, ...) of each group, before its next row.
    """

    def __init__(self, recurrence: Recurrence, env_indices: Sequence[np.ndarray], steps: int) -> None:
        self.recurrence, self._env_indices = recurrence, env_indices
        slots, count = -(-steps // recurrence.length), sum(map(len, env_indices))
        initial = recurrence.initial_hidden(count)
        self._stored = map_tree(lambda leaf: leaf.new_zeros((slots, *leaf.shape)), initial)
        self.reset_all()

    def reset_all(self) -> None:
        """Resets the hidden states of all environments."""
        self.of_groups = [self.recurrence.initial_hidden(len(envs)) for envs in self._env_indices]

    @torch.no_grad()
    def before(self, t: int, group: int, envs: slice) -> Tree:
        """Returns the hidden states before row ``t`` of a group, and stores them if a run may begin there."""
        hidden = self.of_groups[group]
        slot, rest = divmod(t, self.recurrence.length)
        if not rest:
            map_tree(lambda rows, leaf: rows[slot, envs].copy_(leaf), self._stored, hidden)
        return hidden

    def after(self, group: int, hidden: Tree, ends: np.ndarray | Tensor) -> None:
        """Sets the hidden states after a row of a group, and resets them where ``ends`` (G,) is True."""
        self.of_groups[group] = begin_episodes(hidden, ends, self.recurrence.initial_hidden(len(ends)))

    def fields(self) -> dict[str, Any]:
        """Returns the fields ``hidden`` (slots, B, ...) and ``last_hidden`` (B, ...) of a rollout."""
        return {"hidden": self._stored, "last_hidden": self.state_dict()}

    def state_dict(self) -> Tree:
        """Returns the hidden states (B, ...) of all environments."""
        order = torch.from_numpy(np.concatenate(self._env_indices).argsort())
        return map_tree(lambda *leaves: torch.cat(leaves)[order], *self.of_groups)

    def load_state_dict(self, state: Tree) -> None:
        whole = to_device(state, torch.device("cpu"))
        self.of_groups = [
            map_tree(lambda leaf, mine, e=envs: leaf[torch.from_numpy(e)].to(mine), whole, like)
            for envs, like in zip(self._env_indices, self.of_groups, strict=True)
        ]
