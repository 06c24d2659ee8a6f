"""What is checked in observations."""

import re

import gymnasium as gym
import numpy as np
import pytest

from ding_lite.envs.checks import first_fault


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_large_numbers_are_finite_though_their_squares_are_not(dtype):
    obs = np.full((3, 2, 2), np.finfo(dtype).max, dtype)
    leaves = [((), gym.spaces.Box(-np.inf, np.inf, (2, 2)))]
    assert first_fault(leaves, obs) is None
    for bad in (np.nan, np.inf, -np.inf):
        obs[1, -1, -1] = bad
        assert first_fault(leaves, obs).row == 1


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (gym.spaces.Discrete(3), 3),
        (gym.spaces.Discrete(3, start=-1), 2),
        (gym.spaces.MultiDiscrete([2, 2]), np.array([0, -1])),
    ],
)
def test_an_index_outside_of_its_range_is_found(space, value):
    inside = np.broadcast_to(space.start, np.shape(value))
    fault = first_fault([(("0",), space)], {"0": np.array([inside, value])})
    assert fault.row == 1
    assert re.match(r"observation\['0'\].* = .*, which is not in ", fault.message)
