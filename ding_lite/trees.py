"""Every walk over trees of arrays and over trees of spaces.

A tree is a leaf (an array, a tensor) or a dict of trees. Observations, actions, rollouts and minibatches
are trees. A Dict or Tuple space is a tree of spaces; the branches of a Tuple are named "0", "1", ...

This module imports neither torch nor treetensor, so that worker processes start quickly.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

Tree = Any  # a leaf, or a dict of trees
MASK_KEY = "action_mask"  # the branch of an observation that says which actions are legal; encoders skip it
LEAF_SPACES = (gym.spaces.Box, gym.spaces.Discrete, gym.spaces.MultiBinary, gym.spaces.MultiDiscrete)


def is_branch(tree: Tree) -> bool:
    """Returns whether ``tree`` is a dict or a treetensor, not a leaf."""
    return isinstance(tree, dict) or hasattr(tree, "items")


def branches_of(tree: Tree) -> Any:
    """Returns the pairs of name and branch; a treetensor may have a branch that is named "items"."""
    return type(tree).items(tree)


def map_tree(function: Callable[..., Any], tree: Tree, *others: Tree) -> Any:
    """Returns nested dicts of ``function(leaf, *other_leaves)``.

    Args:
        function: called once for each leaf.
        tree: determines the structure.
        others: trees of the same structure.
    """
    if not is_branch(tree):
        return function(tree, *others)
    return {name: map_tree(function, x, *[other[name] for other in others]) for name, x in branches_of(tree)}


def tree_leaves(tree: Tree) -> list[Any]:
    """Returns the leaves of a tree, in the order of its keys."""
    if is_branch(tree):
        return [leaf for _, branch in branches_of(tree) for leaf in tree_leaves(branch)]
    return [tree]


def to_dict(tree: Tree) -> Any:
    """Returns a treetensor, or a tree of anything, as nested plain dicts; leaves are not copied."""
    return map_tree(lambda leaf: leaf, tree)


def in_one_order(tree: Tree) -> Any:
    """Returns a tree as nested dicts, sorted by name, so that equal trees are saved as equal files."""
    if is_branch(tree):
        return {name: in_one_order(branch) for name, branch in sorted(branches_of(tree))}
    return tree


def named_leaves(tree: Tree, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    """Returns the leaves of a tree with their paths, in the order of its keys."""
    if is_branch(tree):
        return [leaf for name, branch in branches_of(tree) for leaf in named_leaves(branch, (*path, name))]
    return [(path, tree)]


def from_named_leaves(leaves: Mapping[tuple[str, ...], Any]) -> Tree:
    """Returns the tree with these leaves by their paths, the inverse of ``dict(named_leaves(tree))``."""
    if () in leaves:
        return leaves[()]
    tree: dict[str, Any] = {}
    for path, leaf in leaves.items():
        branch = tree
        for name in path[:-1]:
            branch = branch.setdefault(name, {})
        branch[path[-1]] = leaf
    return tree


def leading_size(tree: Tree) -> int:
    """Returns N of a tree of leaves (N, ...)."""
    return len(tree_leaves(tree)[0])


def children(space: gym.Space) -> dict[str, gym.Space] | None:
    """Returns the named branches of a Dict or a Tuple space, or None for a leaf."""
    # isinstance takes a microsecond, since Dict and Tuple are abstract classes.
    if type(space) in LEAF_SPACES:
        return None
    if isinstance(space, gym.spaces.Dict):
        return dict(space.spaces)
    if isinstance(space, gym.spaces.Tuple):
        return {str(i): child for i, child in enumerate(space.spaces)}
    return None


def space_leaves(space: gym.Space, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], gym.Space]]:
    """Returns the leaves of a space with their paths; the branches of a Dict are sorted by name."""
    branches = children(space)
    if branches is None:
        return [(path, space)]
    if isinstance(space, gym.spaces.Dict):
        branches = dict(sorted(branches.items()))
    return [leaf for name, child in branches.items() for leaf in space_leaves(child, (*path, name))]


def value_at(value: Any, path: Sequence[str]) -> Any:
    """Returns the branch or leaf at ``path`` of a tree, or of a value of a Dict or a Tuple space.

    Raises:
        KeyError, IndexError, TypeError: if there is no such branch.
    """
    for name in path:
        value = value[name] if is_branch(value) or not name.isdecimal() else value[int(name)]
    return value


def map_space(function: Callable[..., Any], space: gym.Space, *values: Any) -> Any:
    """Returns nested dicts of ``function(leaf_space, *leaves)``.

    Args:
        function: called once for each leaf of the space.
        space: determines the structure.
        values: trees of this structure, or values of the space, or batches of either.
    """
    branches = children(space)
    if branches is None:
        return function(space, *values)
    return {
        name: map_space(function, child, *[value_at(value, (name,)) for value in values])
        for name, child in branches.items()
    }


def to_tree(value: Any, space: gym.Space) -> Tree:
    """Returns a value of a space, or a batch of values, as a tree; leaves are not copied."""
    return map_space(lambda _, leaf: leaf, space, value)


def from_tree(tree: Tree, space: gym.Space) -> Any:
    """Returns a tree as a value of a space, the inverse of :func:`to_tree`; a Tuple becomes a tuple."""
    branches = children(space)
    if branches is None:
        return tree
    parts = {name: from_tree(tree[name], child) for name, child in branches.items()}
    return tuple(parts.values()) if isinstance(space, gym.spaces.Tuple) else parts


def observation_to_tree(obs: Any, space: gym.Space) -> Tree:
    """Returns an observation, or a batch, as the tree of arrays that is stored: float64 becomes float32."""
    return map_space(lambda _, leaf: np.asarray(leaf, stored_dtype(np.asarray(leaf).dtype)), space, obs)


def stored_dtype(dtype: Any) -> np.dtype:
    """Returns the dtype in which observations of a declared dtype are stored: float32 for float64."""
    return np.dtype(np.float32 if dtype == np.float64 else dtype)


def example_observations(space: gym.Space, n: int) -> Tree:
    """Returns observations (n, ...) that a space contains, as the tree that is stored; always the same ones.

    Numbers are near 0 where the bounds allow it, since samples from wide bounds would overflow in a network.
    All actions are legal.
    """
    rng = np.random.default_rng(0)

    def examples(leaf: gym.Space) -> np.ndarray:
        if isinstance(leaf, gym.spaces.Box):
            shape = (n, *leaf.shape)
            is_integer = np.issubdtype(leaf.dtype, np.integer)
            numbers = rng.integers(0, 256, shape) if is_integer else rng.normal(size=shape)
            return numbers.clip(leaf.low, leaf.high).astype(leaf.dtype)
        leaf = copy.deepcopy(leaf)
        leaf.seed(0)
        return np.stack([np.asarray(leaf.sample()) for _ in range(n)])

    tree = map_space(examples, space)
    if isinstance(tree, dict) and MASK_KEY in tree:
        tree[MASK_KEY] = map_tree(np.ones_like, tree[MASK_KEY])
    return observation_to_tree(tree, space)


def columns_to_values(columns: Tree, space: gym.Space) -> list[Any]:
    """Returns a tree of lists of length n as a list of n values of the space.

    Raises:
        ValueError: if the lists differ in length.
    """
    branches = children(space)
    if branches is None:
        return columns
    parts = [columns_to_values(columns[name], child) for name, child in branches.items()]
    rows = zip(*parts, strict=True)
    if isinstance(space, gym.spaces.Tuple):
        return list(rows)
    return [dict(zip(branches, row, strict=True)) for row in rows]


def path_text(path: Sequence[str]) -> str:
    """Returns a path as messages show it, such as ``"['pose']['arm']"``."""
    return "".join(f"[{name!r}]" for name in path)


def is_image(space: gym.Space) -> bool:
    """Returns whether a space is a 3-dimensional Box of at least 3 x 3 pixels, or a 2-dimensional uint8 Box.

    The channels of an image are its first or its last dimension, see :func:`has_channels_last`.
    """
    if not isinstance(space, gym.spaces.Box) or len(space.shape) != 3:
        return isinstance(space, gym.spaces.Box) and len(space.shape) == 2 and space.dtype == np.uint8
    first, middle, last = space.shape
    return min(middle, max(first, last)) >= 3


def has_channels_last(shape: Sequence[int]) -> bool:
    """Returns whether the last of an image's three dimensions has its channels, rather than the first.

    Two equal sides are height and width; otherwise the smaller of first and last has the channels.
    """
    first, middle, last = shape
    if (first == middle) != (middle == last):
        return first == middle
    return last < first


def box_size(space: gym.Space) -> int:
    """Returns how many numbers the Boxes in ``space`` have; 0 if there is none."""
    return sum(math.prod(leaf.shape) for _, leaf in space_leaves(space) if isinstance(leaf, gym.spaces.Box))
