"""Converts gymnasium spaces to JSON and back; a checkpoint stores the spaces of its policy."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from ding_lite.errors import CheckpointError

MAX_ELEMENTS = 2**28  # of one leaf: a forged file must not allocate more memory


def space_to_json(space: gym.Space) -> dict[str, Any]:
    """Returns a space as plain data; infinite bounds become strings.

    Raises:
        CheckpointError: if the space is not supported.
    """
    spaces = gym.spaces
    if isinstance(space, spaces.Box):
        bounds = {name: _bounds_to_json(getattr(space, name)) for name in ("low", "high")}
        return {"kind": "Box", **bounds, "shape": list(space.shape), "dtype": str(space.dtype)}
    if isinstance(space, spaces.Discrete):
        numbers: dict[str, Any] = {"n": int(space.n), "start": int(space.start)}
        return {"kind": "Discrete", **numbers, "dtype": str(space.dtype)}
    if isinstance(space, spaces.MultiDiscrete):
        numbers = {"nvec": space.nvec.tolist(), "start": space.start.tolist()}
        return {"kind": "MultiDiscrete", **numbers, "dtype": str(space.dtype)}
    if isinstance(space, spaces.MultiBinary):
        return {"kind": "MultiBinary", "n": space.n if isinstance(space.n, int) else list(space.shape)}
    if isinstance(space, spaces.Dict):
        return {"kind": "Dict", "spaces": {k: space_to_json(v) for k, v in space.spaces.items()}}
    if isinstance(space, spaces.Tuple):
        return {"kind": "Tuple", "spaces": [space_to_json(child) for child in space.spaces]}
    raise CheckpointError(
        f"the space {space} cannot be saved; supported are Box, Discrete, MultiDiscrete, MultiBinary, and "
        "Dict and Tuple of them"
    )


def space_from_json(data: Any) -> gym.Space:
    """Returns the space that :func:`space_to_json` converted.

    Raises:
        CheckpointError: if ``data`` does not describe a space.
    """
    try:
        return _space(data)
    except (KeyError, TypeError, ValueError, AttributeError, AssertionError, OverflowError) as error:
        raise CheckpointError(f"{data!r:.200} does not describe a space: {error!r}") from error


def _space(data: Mapping[str, Any]) -> gym.Space:
    spaces, kind = gym.spaces, data["kind"]
    if kind == "Box":
        if math.prod(data["shape"]) > MAX_ELEMENTS:
            raise ValueError(f"the shape {data['shape']} is too large")
        dtype: Any = np.dtype(data["dtype"])
        low, high = (_bounds_from_json(data[name], data["shape"], dtype) for name in ("low", "high"))
        return spaces.Box(low, high, dtype=dtype)
    if kind == "Discrete":
        return spaces.Discrete(data["n"], start=data["start"], dtype=np.dtype(data["dtype"]).type)
    if kind == "MultiDiscrete":
        nvec, start = (np.array(data[name]) for name in ("nvec", "start"))
        return spaces.MultiDiscrete(nvec, start=start, dtype=np.dtype(data["dtype"]).type)
    if kind == "MultiBinary":
        return spaces.MultiBinary(data["n"])
    if kind == "Dict":
        # gymnasium sorts the keys of a dict; an OrderedDict keeps the order that the policy was built with.
        return spaces.Dict(OrderedDict((name, _space(child)) for name, child in data["spaces"].items()))
    if kind == "Tuple":
        return spaces.Tuple([_space(child) for child in data["spaces"]])
    raise ValueError(f"unknown kind {kind!r}")


def _bounds_to_json(bounds: np.ndarray) -> Any:
    values = bounds.ravel()
    if len(values) and (values == values[0]).all():
        return _number(values[0])
    return [_number(value) for value in values]


def _number(value: Any) -> float | int | str:
    number = value.item()
    return number if np.isfinite(number) else str(number)


def _bounds_from_json(data: Any, shape: list[int], dtype: np.dtype) -> np.ndarray:
    if not isinstance(data, list):
        return np.full(shape, dtype.type(data), dtype)
    return np.array([dtype.type(value) for value in data], dtype).reshape(shape)
