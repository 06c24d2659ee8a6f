"""Observations and actions as trees.

This is a second implementation, independent of ``ding_lite.trees`` and ``ding_lite.envs.spaces``, because
the checks compare the library with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from ding_lite.trees import MASK_KEY, Tree


def branches_of(space: gym.Space) -> list[tuple[str, Any, gym.Space]] | None:
    """Returns the branches of a Dict or Tuple space, or None for a leaf.

    Each is ``(name in the library's trees, key in values of the space, space)``.
    """
    if isinstance(space, spaces.Dict):
        return [(name, name, child) for name, child in space.spaces.items()]
    if isinstance(space, spaces.Tuple):
        return [(str(i), i, child) for i, child in enumerate(space.spaces)]
    return None


def space_leaves(space: gym.Space, path: str = "") -> Iterator[tuple[str, gym.Space]]:
    """Yields ``("['a'][0]", leaf space)`` for each leaf; the path is "" if ``space`` itself is a leaf."""
    branches = branches_of(space)
    if branches is None:
        yield path, space
    for _, key, child in branches or ():
        yield from space_leaves(child, f"{path}[{key!r}]")


def value_leaves(space: gym.Space, value: Any, path: str = "") -> Iterator[tuple[str, gym.Space, Any]]:
    """Yields ``(path, leaf space, leaf)`` for each leaf of a value; missing leaves are skipped."""
    branches = branches_of(space)
    if branches is None:
        yield path, space, value
    for _, key, child in branches or ():
        try:
            part = value[key]
        except (KeyError, IndexError, TypeError):
            continue
        yield from value_leaves(child, part, f"{path}[{key!r}]")


def stored(space: gym.Space, value: Any) -> Tree:
    """Returns an observation as a rollout stores it: nested dicts of arrays, float32 in place of float64."""
    branches = branches_of(space)
    if branches is not None:
        return {name: stored(child, value[key]) for name, key, child in branches}
    return np.array(value).astype(np.float32 if space.dtype == np.float64 else space.dtype)


def row_of(tree: Tree, index: int) -> Tree:
    """Returns a copy of one row of a batch."""
    if isinstance(tree, dict):
        return {name: row_of(child, index) for name, child in tree.items()}
    return np.array(tree[index])


def first_difference(got: Tree, expected: Tree, path: str) -> str:
    """Returns the first difference between two trees, as "obs[3]: got 1.0, expected 2.0", or ""."""
    if isinstance(expected, dict):
        if not isinstance(got, dict) or got.keys() != expected.keys():
            return f"{path}: got {type(got).__name__} {sorted(got)}, expected the keys {sorted(expected)}"
        texts = (first_difference(got[key], value, f"{path}[{key!r}]") for key, value in expected.items())
        return next((text for text in texts if text), "")
    got, expected = np.asarray(got), np.asarray(expected)
    if (got.dtype, got.shape) != (expected.dtype, expected.shape):
        return f"{path}: got {got.dtype} {got.shape}, expected {expected.dtype} {expected.shape}"
    same = (got == expected) | ((got != got) & (expected != expected))  # NaN equals NaN
    if same.all():
        return ""
    index = tuple(int(i) for i in np.argwhere(~same)[0])
    where = str(list(index)) if index else ""
    return f"{path}{where}: got {got[index]}, expected {expected[index]}"


def draw(space: gym.Space, rng: np.random.Generator, mask: Any = None) -> Any:
    """Returns a random action with the structure and dtypes that the library passes to ``step``.

    Args:
        space: of the action.
        rng: generator.
        mask: of legal actions; None: all actions are legal.
    """
    branches = branches_of(space)
    if branches is not None:
        masks = dict(enumerate(mask)) if isinstance(mask, tuple) else mask or {}
        parts = {key: draw(child, rng, masks.get(key, masks.get(name))) for name, key, child in branches}
        return tuple(parts.values()) if isinstance(space, spaces.Tuple) else parts
    if isinstance(space, spaces.Discrete):
        return int(space.start) + _choice(int(space.n), rng, mask)
    if isinstance(space, spaces.MultiDiscrete):
        sizes = space.nvec.ravel()
        masks = [None] * len(sizes) if mask is None else mask
        if mask is not None and not isinstance(mask, tuple):
            masks = np.split(np.asarray(mask), np.cumsum(sizes)[:-1])
        chosen = [_choice(int(n), rng, m) for n, m in zip(sizes, masks, strict=True)]
        return (np.reshape(chosen, space.shape) + space.start).astype(space.dtype)
    if isinstance(space, spaces.MultiBinary):
        bits = rng.integers(0, 2, space.shape).astype(space.dtype)
        return bits if mask is None else (bits * np.asarray(mask, bits.dtype))
    assert isinstance(space, spaces.Box), "the check of the spaces refuses other kinds"
    low = np.where(np.isfinite(space.low), space.low, np.minimum(-1.0, space.high - 1.0))
    high = np.where(np.isfinite(space.high), space.high, np.maximum(1.0, low + 1.0))
    return rng.uniform(low, high).astype(space.dtype)


def _choice(n: int, rng: np.random.Generator, mask: Any) -> int:
    """Returns a random index in range(n), legal if the mask has a legal one."""
    if mask is not None and np.shape(mask) != (n,):
        raise ValueError(f"a mask of shape {np.shape(mask)} for {n} actions")
    legal = np.arange(n) if mask is None else np.flatnonzero(mask)
    return int(rng.choice(legal if len(legal) else np.arange(n)))


def draw_legal(space: gym.Space, obs: Any, rng: np.random.Generator) -> Any:
    """Returns a random action; it is legal if ``obs`` has a valid mask."""
    mask = obs.get(MASK_KEY) if isinstance(obs, dict) else None
    try:
        return draw(space, rng, mask)
    except (ValueError, IndexError, TypeError):
        return draw(space, rng)


def extremes(space: gym.Space) -> list[Any]:
    """Returns the lowest and the highest action of a space; infinite bounds are replaced by -1 and 1."""
    branches = branches_of(space)
    if branches is not None:
        columns = [extremes(child) for _, _, child in branches]
        if isinstance(space, spaces.Tuple):
            return list(zip(*columns, strict=True))
        keys = [key for _, key, _ in branches]
        return [dict(zip(keys, row, strict=True)) for row in zip(*columns, strict=True)]
    if isinstance(space, spaces.Discrete):
        return [int(space.start), int(space.start + space.n - 1)]
    if isinstance(space, spaces.MultiDiscrete):
        return [np.array(space.start, space.dtype), (space.start + space.nvec - 1).astype(space.dtype)]
    if isinstance(space, spaces.MultiBinary):
        return [np.zeros(space.shape, space.dtype), np.ones(space.shape, space.dtype)]
    assert isinstance(space, spaces.Box), "the check of the spaces refuses other kinds"
    low = np.where(np.isfinite(space.low), space.low, np.minimum(-1.0, space.high))
    high = np.where(np.isfinite(space.high), space.high, np.maximum(1.0, low))
    return [low.astype(space.dtype), high.astype(space.dtype)]


def stack(space: gym.Space, values: Sequence[Any]) -> Tree:
    """Returns single actions as a batch for a vector environment."""
    branches = branches_of(space)
    if branches is not None:
        return {name: stack(child, [one[key] for one in values]) for name, key, child in branches}
    return np.array(values, space.dtype)
