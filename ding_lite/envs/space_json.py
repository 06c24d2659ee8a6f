"""Gymnasium spaces as JSON, so that a checkpoint can say which ones its policy was made for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from ding_lite.errors import CheckpointError


def space_to_json(space: gym.Space) -> dict[str, Any]:
    """Returns a space as plain data; infinite bounds become strings."""
    spaces = gym.spaces
    if isinstance(space, spaces.Box):
        bounds = {name: _bounds_to_json(getattr(space, name)) for name in ("low", "high")}
        return {"kind": "Box", **bounds, "shape": list(space.shape), "dtype": str(space.dtype)}
    if isinstance(space, spaces.Discrete):
        return {"kind": "Discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        return {"kind": "MultiDiscrete", "nvec": space.nvec.tolist(), "start": space.start.tolist()}
    if isinstance(space, spaces.MultiBinary):
        return {"kind": "MultiBinary", "n": list(space.shape)}
    if isinstance(space, spaces.Dict):
        return {"kind": "Dict", "spaces": {k: space_to_json(v) for k, v in space.spaces.items()}}
    if isinstance(space, spaces.Tuple):
        return {"kind": "Tuple", "spaces": [space_to_json(child) for child in space.spaces]}
    raise CheckpointError(f"the space {space} cannot be saved")


def space_from_json(data: Mapping[str, Any]) -> gym.Space:
    """Returns the space that :func:`space_to_json` wrote.

    Raises:
        CheckpointError: if ``data`` does not describe one.
    """
    spaces = gym.spaces
    kind = data["kind"]
    if kind == "Box":
        dtype: Any = np.dtype(data["dtype"])
        low, high = (_bounds_from_json(data[name], data["shape"], dtype) for name in ("low", "high"))
        return spaces.Box(low, high, dtype=dtype)
    if kind == "Discrete":
        return spaces.Discrete(data["n"], start=data["start"])
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(np.array(data["nvec"]), start=np.array(data["start"]))
    if kind == "MultiBinary":
        return spaces.MultiBinary(data["n"])
    if kind == "Dict":
        return spaces.Dict({k: space_from_json(v) for k, v in data["spaces"].items()})
    if kind == "Tuple":
        return spaces.Tuple([space_from_json(child) for child in data["spaces"]])
    raise CheckpointError(f"unknown kind of space {kind!r}")


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
