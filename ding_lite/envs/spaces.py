"""Batches of observations and actions of B environments.

A Dict or Tuple observation becomes a nested dict of arrays (a Tuple's keys are "0", "1", ...); an
observation of any other space is one array. float64 is stored as float32; other dtypes are kept.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from ding_lite.errors import EnvContractError
from ding_lite.trees import (
    Tree,
    columns_to_values,
    map_space,
    map_tree,
    path_text,
    space_leaves,
    stored_dtype,
    value_at,
)


def _checked(value: Any, space: gym.Space, path: tuple[str, ...]) -> np.ndarray:
    """Returns one observation of a leaf as an array.

    Raises:
        EnvContractError: if its shape or dtype is not what the space declares.
    """
    declared, array = np.dtype(space.dtype), np.asarray(value)
    to_float = declared.kind == "f" and array.dtype.kind in "fiub"
    to_integer = declared.kind in "biu" and array.dtype.kind in "biu"
    fits = to_float or (to_integer and bool((array.astype(declared) == array).all()))
    if array.shape != space.shape or not fits:
        raise EnvContractError(
            f"observation{path_text(path)} is a {type(value).__name__} of the shape {array.shape} and the "
            f"dtype {array.dtype}; its space is {space}"
        )
    return array


class ObservationBuffer:
    """The batch of observations of B environments: a tree of arrays that every step overwrites.

    Args:
        space: of one observation.
        num_envs: B.
        arrays: the tree of arrays (B, ...) to write into; allocated if None.

    Raises:
        EnvContractError: if the space has a leaf that is not supported.
    """

    def __init__(self, space: gym.Space, num_envs: int, arrays: Tree | None = None) -> None:
        leaves = space_leaves(space)
        for path, leaf in leaves:
            if leaf.shape is None:
                raise EnvContractError(
                    f"observation{path_text(path)}: {type(leaf).__name__} is not supported; supported are "
                    "Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of them. A wrapper "
                    "can leave it out or turn it into numbers: for MiniGrid env.wrappers=['minigrid_image'] "
                    "or ['minigrid_flat']"
                )
        if arrays is None:
            arrays = map_space(
                lambda leaf: np.zeros((num_envs, *leaf.shape), stored_dtype(leaf.dtype)), space
            )
        self.tree: Tree = arrays
        self._leaves = [
            (path, leaf, np.dtype(leaf.dtype), leaf.shape, value_at(arrays, path)) for path, leaf in leaves
        ]

    def write(self, index: int, obs: Any) -> None:
        """Copies the observation of one environment into row ``index`` of every leaf; ignores other branches.

        Raises:
            EnvContractError: if the observation lacks a branch, or has a leaf of another shape or dtype than
                the space declares.
        """
        for path, leaf, dtype, shape, array in self._leaves:
            try:
                value = value_at(obs, path)
            except (KeyError, IndexError, TypeError) as error:
                raise EnvContractError(
                    f"the observation has no {path_text(path)}: got {obs!r:.200}"
                ) from error
            is_index = type(value) is int and dtype == np.int64 and not shape and abs(value) < 2**63
            if not is_index and (
                type(value) is not np.ndarray or value.dtype != dtype or value.shape != shape
            ):
                value = _checked(value, leaf, path)
            array[index] = value

    def rows(self, index: Any) -> Tree:
        """Returns a copy of some rows of every leaf."""
        return map_tree(lambda array: array[index].copy(), self.tree)


def sample_actions(space: gym.Space, n: int) -> Tree:
    """Returns ``n`` random actions of a space as a batch (n, ...)."""
    return map_space(lambda leaf: np.array([leaf.sample() for _ in range(n)]), space)


def split_actions(batch: Tree, space: gym.Space) -> list[Any]:
    """Returns a batch of actions (n, ...) as a list of n single actions, as ``env.step`` takes them.

    Raises:
        AttributeError, IndexError, KeyError, TypeError, ValueError: if it is not a batch of such actions.
    """
    return columns_to_values(map_space(_column, space, batch), space)


def _column(leaf: gym.Space, array: np.ndarray) -> list[Any]:
    if isinstance(leaf, gym.spaces.Discrete):
        return array.tolist()  # Python ints: environments step faster with them
    rows = np.array(array)  # a copy: the caller may overwrite its array
    return list(rows) if rows.ndim > 1 else [rows[i, ...] for i in range(len(rows))]  # arrays, also 0-d ones


def stack_actions(actions: list[Any], space: gym.Space) -> Tree | None:
    """Returns single actions as one batch (n, ...), or None if there are none."""
    return map_space(lambda leaf, *values: np.array(values), space, *actions) if actions else None
