"""Spaces as JSON: every kind comes back as it was."""

import json

import gymnasium as gym
import pytest
from hypothesis import given
from strategies import spaces

from ding_lite.envs.space_json import space_from_json, space_to_json
from ding_lite.errors import CheckpointError
from ding_lite.trees import space_leaves

SPACES = gym.spaces


def from_text(space):
    return space_from_json(json.loads(json.dumps(space_to_json(space), allow_nan=False)))


@given(spaces())
def test_space_comes_back_from_json_as_it_was(space):
    again = from_text(space)
    assert again == space
    assert repr(again) == repr(space), "the order of the keys comes back, too"
    for (_, one), (_, other) in zip(space_leaves(again), space_leaves(space), strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)


def test_a_box_of_no_numbers_comes_back():
    space = SPACES.Box(-1.0, 1.0, (0,))
    assert from_text(space) == space


def test_space_that_cannot_be_saved_is_named():
    with pytest.raises(CheckpointError, match="Text"):
        space_to_json(SPACES.Dict(a=SPACES.Text(3)))
