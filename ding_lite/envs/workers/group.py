"""Groups of environments that step together: the requests to their workers, and the transition they return.

A group is all rows of the vector, or ``rows[first::k]`` with first < k. A worker has a contiguous slice
of the vector, and thus some or none of the environments of each group. The arrays of a group's step have one
row per environment of the group.

Shapes: G environments in the group.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ding_lite.envs.transition import Episode, Transition
from ding_lite.envs.vector import ALL, NO_ENVS
from ding_lite.envs.workers.messages import SharedArrays, StepReply
from ding_lite.errors import EnvError
from ding_lite.trees import Tree, map_tree, same_layout, tree_leaves


class Share(NamedTuple):
    """The part of a group that one worker has."""

    envs: slice  # of the worker's environments
    rows: slice  # of the group


class Group:
    """Some environments of a vector.

    Args:
        rows: rows of the vector: ``slice(None)``, or ``slice(first, None, k)``.
        workers: the rows of the vector that each worker has.

    Attributes:
        size: G.
        has_first: whether row 0 of the vector is in this group.
        shares: by number of the worker; workers without an environment of the group are left out.
    """

    def __init__(self, rows: slice, workers: Sequence[range]) -> None:
        numbers = range(workers[-1].stop)[rows]
        self.rows = rows
        self.size = len(numbers)
        self.has_first = numbers.start == 0
        self.shares: dict[int, Share] = {}
        for worker, worker_rows in enumerate(workers):
            envs = slice((numbers.start - worker_rows.start) % numbers.step, None, numbers.step)
            if count := len(worker_rows[envs]):
                first = numbers.index(worker_rows[envs][0])
                self.shares[worker] = Share(envs, slice(first, first + count))
        # The requests to step with the actions that are in the shared memory; b"" stands for all of a
        # worker's environments.
        self._requests = {
            worker: b"" if rows == ALL else pickle.dumps((share.envs, None))
            for worker, share in self.shares.items()
        }

    def requests(self, action: Tree, shared: SharedArrays) -> Mapping[int, bytes]:
        """Returns the step requests by number of the worker, for actions (G, ...).

        Actions with the layout of the shared arrays are written there; others travel in the requests, so that
        environments get exactly the values and dtypes that they would get in this process.

        Raises:
            EnvError: if the number of actions is not G.
        """
        if shared.action is not None:
            target = self.of(shared.action)
            if same_layout(action, target):
                map_tree(np.copyto, target, action)
                return self._requests
        action = map_tree(np.asarray, action)
        counts = {len(leaf) if leaf.ndim else 0 for leaf in tree_leaves(action)}
        if counts != {self.size}:
            got = " and ".join(map(str, sorted(counts)))
            raise EnvError(f"step got {got} actions for {self.size} environments")
        requests = {}
        for worker, share in self.shares.items():
            actions = map_tree(lambda leaf, rows=share.rows: leaf[rows], action)
            requests[worker] = pickle.dumps((share.envs, actions), pickle.HIGHEST_PROTOCOL)
        return requests

    def transition(
        self, shared: SharedArrays, replies: Mapping[int, bytes], lost: np.ndarray
    ) -> tuple[Transition, list[str]]:
        """Returns the result of a step, and a message for each value in it that was not finite.

        Args:
            shared: the arrays that the workers have written.
            replies: a pickled :class:`StepReply`, or b"", by number of the worker.
            lost: (G,), whether an environment was replaced with its worker; its row is not valid.
        """
        final_obs: list[Tree] = []
        final_env: list[np.ndarray] = []
        episodes: list[Episode] = []
        bad_values: list[str] = []
        for worker, share in self.shares.items():
            if payload := replies.get(worker):
                reply: StepReply = pickle.loads(payload)
                first = share.rows.start
                episodes += [episode._replace(env=episode.env + first) for episode in reply.episodes]
                bad_values += reply.bad_values
                if reply.final_obs is not None:
                    final_obs.append(reply.final_obs)
                    final_env.append(reply.final_env + first)
        transition = Transition(
            obs=self.of(shared.obs),
            reward=self.of(shared.reward).copy(),
            terminated=self.of(shared.terminated).copy(),
            truncated=self.of(shared.truncated).copy(),
            valid=self.of(shared.valid).copy(),
            final_obs=map_tree(lambda *leaves: np.concatenate(leaves), *final_obs) if final_obs else None,
            final_env=np.concatenate(final_env) if final_env else NO_ENVS,
            episodes=episodes,
        )
        for array in (transition.reward, transition.terminated, transition.truncated, transition.valid):
            array[lost] = 0
        return transition, bad_values

    def of(self, tree: Tree) -> Tree:
        """Returns views of this group's rows of the arrays (B, ...) of a tree."""
        return map_tree(lambda leaf: leaf[self.rows], tree)
