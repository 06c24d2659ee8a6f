"""Trees of arrays for trees of spaces: batches in, single observations and actions out.

A Dict or Tuple observation becomes a nested dict of arrays (a Tuple's keys are "0", "1", ...); every
other space is one array. float64 is stored as float32, the rest keeps its dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

from ding_lite.errors import EnvContractError
from ding_lite.types import Tree


def children(space: gym.Space) -> dict[str, gym.Space] | None:
    """Returns the named branches of a Dict or a Tuple, ``None`` for a leaf."""
    if isinstance(space, gym.spaces.Dict):
        return dict(space.spaces)
    if isinstance(space, gym.spaces.Tuple):
        return {str(i): child for i, child in enumerate(space.spaces)}
    return None


def has_box(space: gym.Space) -> bool:
    """Returns whether a Box is in a space, or is it."""
    branches = children(space)
    return isinstance(space, gym.spaces.Box) if branches is None else any(map(has_box, branches.values()))


def tree_map(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """Applies ``function`` to every leaf of nested dicts of one structure."""
    if isinstance(tree, dict):
        return {k: tree_map(function, v, *[other[k] for other in others]) for k, v in tree.items()}
    return function(tree, *others)


def tree_leaves(tree: Tree) -> list[Any]:
    """Returns the leaves of nested dicts, in the order of their keys."""
    if isinstance(tree, dict):
        return [leaf for value in tree.values() for leaf in tree_leaves(value)]
    return [tree]


class LeafBuffer:
    """One array (B, ...) for one leaf of the observation space, written env by env and checked."""

    def __init__(self, space: gym.Space, num_envs: int, path: str) -> None:
        self.space, self.path = space, path
        self.shape = tuple(space.shape or ())
        self.declared = np.dtype(space.dtype)
        stored = np.float32 if self.declared == np.float64 else self.declared
        self.array = np.zeros((num_envs, *self.shape), stored)

    def write(self, index: int, value: Any) -> None:
        """Copies one observation in.

        Raises:
            EnvContractError: if its shape or dtype is not what the space declares.
        """
        if not (type(value) is np.ndarray and value.dtype == self.declared and value.shape == self.shape):
            value = self._conform(value)
        self.array[index] = value

    def _conform(self, value: Any) -> np.ndarray:
        where = f"observation{self.path}"
        try:
            array = np.asarray(value)
        except ValueError as error:
            raise EnvContractError(f"{where}: {error}") from error
        if array.dtype.kind not in "biufc":
            raise EnvContractError(
                f"{where} is {value!r:.60} ({type(value).__name__}), the space {self.space} declares "
                f"numbers of the dtype {self.declared}"
            )
        if array.shape != self.shape:
            raise EnvContractError(
                f"{where} has the shape {array.shape}, the space {self.space} declares {self.shape}"
            )
        to_float = self.declared.kind == "f" and array.dtype.kind in "fiub"
        if not to_float and not np.can_cast(array.dtype, self.declared, "same_kind"):
            raise EnvContractError(
                f"{where} has the dtype {array.dtype}, the space {self.space} declares {self.declared}"
            )
        return array


class ObservationBuffer:
    """The batch of observations of B environments, as a tree of arrays that is reused every step."""

    def __init__(self, space: gym.Space, num_envs: int) -> None:
        self.space = space
        self._leaves: list[tuple[tuple[str | int, ...], LeafBuffer]] = []
        self.tree = self._build(space, num_envs, (), "")
        # A plain Box is by far the most common: its write is one call.
        self._only = self._leaves[0][1] if self._leaves and not self._leaves[0][0] else None

    def _build(self, space: gym.Space, num_envs: int, keys: tuple[str | int, ...], path: str) -> Tree:
        branches = children(space)
        if branches is None:
            if space.shape is None:
                raise EnvContractError(
                    f"observation{path}: {type(space).__name__} is not supported; supported are Box, "
                    "Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of them"
                )
            leaf = LeafBuffer(space, num_envs, path)
            self._leaves.append((keys, leaf))
            return leaf.array
        is_tuple = isinstance(space, gym.spaces.Tuple)
        return {
            name: self._build(child, num_envs, (*keys, int(name) if is_tuple else name), f"{path}[{name!r}]")
            for name, child in branches.items()
        }

    def write(self, index: int, obs: Any) -> None:
        """Copies the observation of one environment into its row of every leaf."""
        if self._only is not None:
            self._only.write(index, obs)
            return
        for keys, leaf in self._leaves:
            value = obs
            try:
                for key in keys:
                    value = value[key]
            except (KeyError, IndexError, TypeError) as error:
                raise EnvContractError(f"the observation has no {leaf.path}: got {obs!r:.200}") from error
            leaf.write(index, value)
        self._refuse_extra(self.space, obs, "")

    def _refuse_extra(self, space: gym.Space, obs: Any, path: str) -> None:
        branches = children(space)
        if branches is None:
            return
        if len(obs) != len(branches):
            extra = sorted(set(map(str, obs)) - set(branches)) if isinstance(obs, dict) else len(obs)
            raise EnvContractError(f"observation{path} has more than its space declares: {extra}")
        is_tuple = isinstance(space, gym.spaces.Tuple)
        for name, child in branches.items():
            self._refuse_extra(child, obs[int(name) if is_tuple else name], f"{path}[{name!r}]")

    def rows(self, index: Any) -> Tree:
        """Returns a copy of some rows of every leaf."""
        return tree_map(lambda array: array[index].copy(), self.tree)


def batch_of_actions(space: gym.Space, n: int) -> Tree:
    """Returns ``n`` actions drawn from a space, as environments take them in a batch (n, ...)."""
    branches = children(space)
    if branches is not None:
        return {name: batch_of_actions(child, n) for name, child in branches.items()}
    return np.array([space.sample() for _ in range(n)])


def fits(batch: Tree, target: Tree) -> bool:
    """Tells whether a batch has exactly the structure, shapes and dtypes of ``target``."""
    if isinstance(target, dict):
        same = isinstance(batch, dict) and batch.keys() == target.keys()
        return same and all(fits(batch[name], child) for name, child in target.items())
    return type(batch) is np.ndarray and batch.dtype == target.dtype and batch.shape == target.shape


def action_splitter(space: gym.Space) -> Callable[[Tree], list[Any]]:
    """Returns a function from a batch of actions to a list of single ones, as ``env.step`` takes them."""
    branches = children(space)
    if branches is not None:
        parts = {name: action_splitter(child) for name, child in branches.items()}
        as_tuple = isinstance(space, gym.spaces.Tuple)

        def split(batch: Tree) -> list[Any]:
            columns = {name: part(batch[name]) for name, part in parts.items()}
            rows = zip(*columns.values(), strict=True)
            return [row if as_tuple else dict(zip(columns, row, strict=True)) for row in rows]

        return split
    if isinstance(space, gym.spaces.Discrete):
        return lambda batch: batch.tolist()  # Python ints: environments step faster with them
    return lambda batch: list(np.array(batch))  # rows of a copy: they outlive the caller's array


def stacked_actions(actions: list[Any]) -> Tree:
    """Returns single actions as one batch (n, ...); a tuple's branches are called "0", "1", ..."""
    if not actions:
        return None
    if isinstance(actions[0], dict):
        return {name: stacked_actions([action[name] for action in actions]) for name in actions[0]}
    if isinstance(actions[0], tuple):
        return {str(k): stacked_actions([a[k] for a in actions]) for k in range(len(actions[0]))}
    return np.array(actions)
