"""Environments that are stepped together: what each worker is sent for it, and what their answers make.

A group is all rows of the vector, or every k-th from one of the first k; a worker has a contiguous slice of
the vector, and so some environments of each group, or none. A step's arrays have a row for each of the
group's.

Shapes: G environments in the group.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence

import numpy as np

from ding_lite.envs.spaces import fits, tree_leaves, tree_map
from ding_lite.envs.vector import ALL, NO_ENVS
from ding_lite.envs.wire import SharedArrays
from ding_lite.errors import EnvError
from ding_lite.types import Episode, Transition, Tree


class Group:
    """Some environments of a vector.

    Args:
        rows: of the vector: ``slice(None)``, or ``slice(first, None, k)``.
        workers: the rows that each worker has.

    Attributes:
        is_first: whether a step of the vector begins with these.
        shares: by number of the worker, which of its environments these are, and which rows of the group.
    """

    def __init__(self, rows: slice, workers: Sequence[range]) -> None:
        numbers = range(workers[-1].stop)[rows]
        self.rows, self.size, self.is_first = rows, len(numbers), numbers.start == 0
        self.shares: dict[int, tuple[slice, slice]] = {}
        for worker, slice_ in enumerate(workers):
            own = slice((numbers.start - slice_.start) % numbers.step, None, numbers.step)
            if count := len(slice_[own]):
                start = numbers.index(slice_[own][0])
                self.shares[worker] = own, slice(start, start + count)
        # What asks the workers to step these with the actions that are in the shared memory.
        self._messages = {
            worker: b"" if rows == ALL else pickle.dumps((own, None))
            for worker, (own, _) in self.shares.items()
        }

    def messages(self, action: Tree, shared: SharedArrays) -> Mapping[int, bytes]:
        """Puts actions (G, ...) where the workers look, or, if they do not fit, into the messages to them.

        Environments get exactly what they would get in this process: a batch of another dtype than the
        action space's is not cast.
        """
        if shared.action is not None:
            target = self.of(shared.action)
            if fits(action, target):
                tree_map(np.copyto, target, action)
                return self._messages
        action = tree_map(np.asarray, action)
        counts = {len(leaf) if leaf.ndim else 0 for leaf in tree_leaves(action)}
        if counts != {self.size}:
            found = " and ".join(map(str, sorted(counts)))
            raise EnvError(f"step got {found} actions for {self.size} environments")
        messages = {}
        for worker, (own, rows) in self.shares.items():
            actions = tree_map(lambda leaf, rows=rows: leaf[rows], action)
            messages[worker] = pickle.dumps((own, actions), pickle.HIGHEST_PROTOCOL)
        return messages

    def transition(
        self, shared: SharedArrays, replies: Mapping[int, bytes], lost: np.ndarray
    ) -> tuple[Transition, list[str]]:
        """Returns what a step gave, and the values in it that were not finite, in words.

        Args:
            shared: where the workers have written it.
            replies: with what is rare: final observations, finished episodes, spoiled steps.
            lost: (G,), whose row is not to be valid.
        """
        finals: list[Tree] = []
        final_env: list[np.ndarray] = []
        episodes: list[Episode] = []
        spoiled: list[int] = []
        found: list[str] = []
        for worker, (_, rows) in self.shares.items():
            if reply := replies.get(worker):
                obs, env, ended, spoiled_there, found_there = pickle.loads(reply)
                episodes += [one._replace(env=one.env + rows.start) for one in ended]
                spoiled += [row + rows.start for row in spoiled_there]
                found += found_there
                if obs is not None:
                    finals.append(obs)
                    final_env.append(env + rows.start)
        reward, terminated, truncated, valid = (
            self.of(array).copy()
            for array in (shared.reward, shared.terminated, shared.truncated, shared.valid)
        )
        for array in (reward, terminated, truncated, valid):
            array[lost] = 0
        final_obs = tree_map(lambda *leaves: np.concatenate(leaves), *finals) if finals else None
        numbers = np.concatenate(final_env) if finals else NO_ENVS
        arrays = (self.of(shared.obs), reward, terminated, truncated, valid)
        return Transition(*arrays, final_obs, numbers, episodes, spoiled), found

    def of(self, tree: Tree) -> Tree:
        """Returns the views of the group's rows of arrays (B, ...)."""
        return tree_map(lambda leaf: leaf[self.rows], tree)
