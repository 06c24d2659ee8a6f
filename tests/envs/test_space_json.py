"""Spaces as JSON: every kind comes back as it was, and what is no space is refused."""

import json

import gymnasium as gym
import numpy as np
import pytest

from ding_lite.envs.space_json import space_from_json, space_to_json
from ding_lite.errors import CheckpointError

SPACES = gym.spaces
ALL = {
    "box": SPACES.Box(-1.0, 2.0, (3,), np.float32),
    "box without end": SPACES.Box(-np.inf, np.inf, (2, 2), np.float32),
    "half bounded box": SPACES.Box(0.0, np.inf, (2,), np.float64),
    "box with a bound for each": SPACES.Box(
        np.array([-1.0, -np.inf]), np.array([1.0, 7.0]), dtype=np.float64
    ),
    "box of bytes": SPACES.Box(0, 255, (4, 4, 3), np.uint8),
    "box of large integers": SPACES.Box(-(2**62) - 1, 2**62 + 1, (2,), np.int64),
    "box of bools": SPACES.Box(0, 1, (3, 2), bool),
    "box of one number": SPACES.Box(-1.0, 1.0, (), np.float32),
    "box of nothing": SPACES.Box(-1.0, 1.0, (0,), np.float32),
    "box of an odd float32": SPACES.Box(-0.1, np.float32(1) / 3, (1,), np.float32),
    "discrete": SPACES.Discrete(5),
    "discrete from below zero": SPACES.Discrete(5, start=-2),
    "multi discrete": SPACES.MultiDiscrete([2, 3, 4]),
    "multi discrete with starts": SPACES.MultiDiscrete([2, 3], start=[-1, 5]),
    "multi discrete matrix": SPACES.MultiDiscrete(np.array([[2, 3], [4, 5]])),
    "multi binary": SPACES.MultiBinary(4),
    "multi binary matrix": SPACES.MultiBinary([2, 3]),
    "tuple": SPACES.Tuple([SPACES.Discrete(2), SPACES.Box(-1.0, 1.0, (1,))]),
    "nested": SPACES.Dict(
        b=SPACES.Dict(z=SPACES.Discrete(2), y=SPACES.Tuple([SPACES.MultiBinary(1)])),
        a=SPACES.Box(-np.inf, 0.0, (2,), np.float32),
    ),
}


@pytest.mark.parametrize("space", ALL.values(), ids=ALL)
def test_space_comes_back_from_json_as_it_was(space):
    text = json.dumps(space_to_json(space), allow_nan=False)
    again = space_from_json(json.loads(text))
    assert again == space
    assert again.dtype == space.dtype
    assert again.shape == space.shape


def test_order_of_the_keys_comes_back_too():
    again = space_from_json(json.loads(json.dumps(space_to_json(ALL["nested"]))))
    assert list(again.spaces) == list(ALL["nested"].spaces)


def test_space_that_cannot_be_saved_is_named():
    with pytest.raises(CheckpointError, match="Text"):
        space_to_json(SPACES.Dict(a=SPACES.Text(3)))
