"""What a worker and its parent exchange: the arrays of all environments, and the messages beside them.

A request is a pickled (method, arguments), its answer a pickled (whether it succeeded, result). Batches are
in :class:`SharedArrays`; rare data (final observations, finished episodes, states, errors) is in the answers.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from ding_lite.envs.vector import Episode
from ding_lite.trees import Tree, map_space, map_tree, stored_dtype

# The arrays that a worker writes for its environments.
RESULTS = ("obs", "reward", "terminated", "truncated", "valid", "episode_return", "episode", "step")
IDLE = -1  # in SharedArrays.busy: the worker calls no environment
ALIGNMENT = 64  # bytes: a cache line


class Job(NamedTuple):
    """The environments of one worker: the argument of the first request."""

    make: Callable[[int], gym.Env]
    number: int  # of the worker
    num_workers: int
    rows: range  # of its environments in the vector
    num_envs: int  # in the whole vector
    index_offset: int  # number of the vector's first environment
    seed: int
    seed_every: bool  # whether each reset has a seed


class StepReply(NamedTuple):
    """The rare results of a step; rows count within the environments that the worker has stepped."""

    final_obs: Tree | None  # (K, ...)
    final_env: np.ndarray  # (K,)
    episodes: list[Episode]


class ErrorReport(NamedTuple):
    """An exception in a worker."""

    kind: str  # name of its class
    message: str
    traceback: str


class SharedArrays:
    """The arrays of a whole vector, laid out in one block of memory, which processes of one machine share.

    Args:
        allocate: makes the block of so many bytes.
        obs_space: of one environment.
        num_envs: B.
        num_workers: W.

    Attributes:
        obs: tree of (B, ...), in the layout of an ``ObservationBuffer``.
        reward, terminated, truncated, valid: (B,), of the last step.
        episode_return: (B,), of the open episodes, recorded below every wrapper.
        episode, step: (B,), number of the open episode, and of its actions so far.
        busy: (W,), row of the environment that a worker is calling, or ``IDLE``.
    """

    def __init__(
        self, allocate: Callable[[int], mmap.mmap], obs_space: gym.Space, num_envs: int, num_workers: int
    ) -> None:
        self._memory: mmap.mmap | None = None  # while the size is computed
        self._memory = allocate(self._lay_out(obs_space, num_envs, num_workers))
        self._lay_out(obs_space, num_envs, num_workers)

    def _lay_out(self, obs_space: gym.Space, num_envs: int, num_workers: int) -> int:
        """Makes the arrays, and returns the size of the block in bytes."""
        self._end = 0
        self.obs: Tree = map_space(
            lambda leaf: self._take((num_envs, *leaf.shape), stored_dtype(leaf.dtype)), obs_space
        )
        self.reward = self._take((num_envs,), np.float32)
        self.terminated, self.truncated, self.valid = (self._take((num_envs,), bool) for _ in range(3))
        self.episode_return = self._take((num_envs,), np.float64)
        self.episode, self.step = (self._take((num_envs,), np.int64) for _ in range(2))
        self.busy = self._take((num_workers,), np.int64)
        return self._end

    def _take(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Returns an array over the next bytes of the block."""
        start = self._end
        self._end += -(-math.prod(shape) * np.dtype(dtype).itemsize // ALIGNMENT) * ALIGNMENT
        if self._memory is None:
            return np.empty(0, dtype)
        return np.ndarray(shape, dtype, self._memory, start)

    def results(self, rows: slice) -> dict[str, Tree]:
        """Returns views of these rows of all arrays that a worker writes for its environments."""
        return {name: map_tree(lambda leaf: leaf[rows], getattr(self, name)) for name in RESULTS}
