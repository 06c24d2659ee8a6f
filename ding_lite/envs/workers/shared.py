"""What a worker and its parent exchange: the arrays of all environments, and the messages beside them.

A request is a pickled (method, arguments); its answer is a pickled (succeeded, result or failure,
arrays of a Ray actor or None). Batches are in :func:`shared_arrays`; rare data (last observations, finished
episodes, states, errors) is in the answers.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable

import gymnasium as gym
import numpy as np

from ding_lite.trees import Tree, map_space, map_tree, stored_dtype

CLOSE_SECONDS = 5.0  # time for environments to close
ALIGNMENT = 64  # bytes: a cache line
NUMBERS = {
    "reward": np.float32,
    "terminated": bool,
    "truncated": bool,
    "valid": bool,
    "episode_return": np.float64,
    "episode": np.int64,
    "step": np.int64,
    "busy": bool,
}


def shared_arrays(
    allocate: Callable[[int], mmap.mmap], obs_space: gym.Space, num_envs: int
) -> dict[str, Tree]:
    """Returns the arrays of a whole vector, laid out in one block of memory that is 0 at first.

    Args:
        allocate: returns a block of this many bytes.
        obs_space: of one environment.
        num_envs: B.

    Shapes:
        obs: tree of (B, ...), in the layout of an ``ObservationBuffer``
        reward, terminated, truncated, valid: (B,), of the last step
        episode_return: (B,), of the open episodes, recorded below every wrapper
        episode, step: (B,), number of the open episode, and number of its actions so far
        busy: (B,), whether a worker is calling the environment
    """
    end = 0

    def reserve(dtype: np.dtype) -> int:
        nonlocal end
        start, end = end, end - (-num_envs * dtype.itemsize // ALIGNMENT) * ALIGNMENT
        return start

    kinds = {
        "obs": map_space(lambda leaf: np.dtype((stored_dtype(leaf.dtype), leaf.shape)), obs_space),
        **{name: np.dtype(kind) for name, kind in NUMBERS.items()},
    }
    starts = map_tree(reserve, kinds)
    memory = allocate(end)
    return map_tree(lambda dtype, start: np.ndarray(num_envs, dtype, memory, start), kinds, starts)
