"""Converts gymnasium spaces to JSON and back; a checkpoint stores the spaces of its policy."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from ding_lite.errors import CheckpointError
from ding_lite.trees import space_leaves

SPARE = 2**22  # numbers that a space may have beyond the number of weights: a forged file may say any number
# Constructor arguments of the integer spaces; each is also an attribute.
NUMBERS = {"Discrete": ("n", "start"), "MultiDiscrete": ("nvec", "start"), "MultiBinary": ("n",)}


def spaces_to_json(weights: int, **spaces: gym.Space) -> dict[str, Any]:
    """Returns spaces by their names as plain data.

    Args:
        weights: number of weights of the policy, which are saved in the same file.
        **spaces: the spaces of the policy.

    Raises:
        CheckpointError: if a space is not supported, or has too many numbers.
    """
    for name, space in spaces.items():
        numbers, most = sum(math.prod(leaf.shape or ()) for _, leaf in space_leaves(space)), SPARE + weights
        if numbers > most:
            raise CheckpointError(f"the {name} space has {numbers:,} numbers; at most {most:,} can be saved")
    return {name: space_to_json(space) for name, space in spaces.items()}


def spaces_from_json(weights: int, data: Mapping[str, Any]) -> dict[str, gym.Space]:
    """Returns the spaces that :func:`spaces_to_json` converted; other data may raise any exception."""
    if any(_numbers_in(space) > SPARE + weights for space in data.values()):
        raise ValueError("a space has too many numbers")
    return {name: space_from_json(space) for name, space in data.items()}


def space_to_json(space: gym.Space) -> dict[str, Any]:
    """Returns a space as plain data; infinite bounds become strings.

    Raises:
        CheckpointError: if the space is not supported.
    """
    if isinstance(space, gym.spaces.Dict):
        return {"kind": "Dict", "spaces": {k: space_to_json(v) for k, v in space.spaces.items()}}
    if isinstance(space, gym.spaces.Tuple):
        return {"kind": "Tuple", "spaces": [space_to_json(child) for child in space.spaces]}
    if isinstance(space, gym.spaces.Box):
        bounds = {name: _bounds_to_json(getattr(space, name)) for name in ("low", "high")}
        return {"kind": "Box", **bounds, "shape": list(space.shape), "dtype": str(space.dtype)}
    for kind, names in NUMBERS.items():
        if isinstance(space, getattr(gym.spaces, kind)):
            values = {name: np.asarray(getattr(space, name)).tolist() for name in names}
            return {"kind": kind, **values, "dtype": str(space.dtype)}
    raise CheckpointError(
        f"the space {space} cannot be saved; supported are Box, {', '.join(NUMBERS)}, Dict, Tuple"
    )


def space_from_json(data: Mapping[str, Any]) -> gym.Space:
    """Returns the space that :func:`space_to_json` converted; other data may raise any exception."""
    kind = data["kind"]
    if kind == "Dict":
        # gymnasium sorts the keys of a dict; an OrderedDict keeps the order that the policy was built with.
        return gym.spaces.Dict(OrderedDict((k, space_from_json(v)) for k, v in data["spaces"].items()))
    if kind == "Tuple":
        return gym.spaces.Tuple([space_from_json(child) for child in data["spaces"]])
    dtype: Any = np.dtype(data["dtype"])
    if dtype.kind not in "biuf":  # such as strings of any length
        raise ValueError(f"{dtype} is no dtype of numbers")
    if kind == "Box":
        # Equal bounds are stored as one number, which resize repeats.
        low, high = (np.resize(np.array(data[name], dtype), data["shape"]) for name in ("low", "high"))
        return gym.spaces.Box(low, high, dtype=dtype)
    numbers = {name: data[name] for name in NUMBERS[kind]}
    options = {} if kind == "MultiBinary" else {"dtype": dtype.type}
    return getattr(gym.spaces, kind)(**numbers, **options)


def _numbers_in(data: Mapping[str, Any]) -> int:
    """Returns how many numbers a value of the described space has, without making the space."""
    if "spaces" in data:
        children = data["spaces"]
        return sum(map(_numbers_in, children.values() if isinstance(children, dict) else children))
    shape = data["n"] if data["kind"] == "MultiBinary" else data.get("shape", [])
    return math.prod(map(abs, shape if isinstance(shape, list) else [shape]))


def _bounds_to_json(bounds: np.ndarray) -> Any:
    """Returns the numbers of all elements, or one number if they are equal."""
    values = [number if np.isfinite(number) else str(number) for number in bounds.ravel().tolist()]
    return values[0] if len(set(values)) == 1 else values
