"""What is checked in observations."""

import gymnasium as gym
import numpy as np
import pytest
from small_worlds import LengthEnv
from worlds import vector_of

from ding_lite.envs.checks import Watch, first_fault
from ding_lite.errors import EnvContractError


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
def test_an_index_outside_of_its_range_is_refused(space, value):
    class Shows(LengthEnv):
        observation_space = gym.spaces.Tuple([space])

        def reset(self, **kwargs):
            return (value,), super().reset(**kwargs)[1]

    watch = Watch(vector_of(lambda index: Shows(5), 1), "")
    with pytest.raises(EnvContractError, match=r"env 0 .*observation after reset\['0'\].*not in"):
        watch.reset("x")
