"""Spaces as JSON: every kind comes back as it was, and what is no space is refused."""

import contextlib
import json

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import SCALARS, places, spaces

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


def test_the_largest_and_the_smallest_numbers_and_no_number_come_back():
    for space in (
        SPACES.Box(-(2**62) - 1, 2**62 + 1, (2,), "i8"),
        SPACES.Box(-0.1, 1e38, (1,), "f4"),
        SPACES.Box(-1.0, 1.0, (0,)),
    ):
        assert from_text(space) == space


def test_space_that_cannot_be_saved_is_named():
    with pytest.raises(CheckpointError, match="Text"):
        space_to_json(SPACES.Dict(a=SPACES.Text(3)))


def test_unknown_kind_is_refused():
    with pytest.raises(CheckpointError, match="unknown kind 'Sphere'"):
        space_from_json({"kind": "Sphere"})


@given(spaces(), st.data())
def test_a_forged_description_makes_a_space_or_is_a_checkpoint_error(space, data):
    description = json.loads(json.dumps(space_to_json(space)))
    node, key = data.draw(st.sampled_from(list(places(description))))
    node[key] = data.draw(SCALARS | st.sampled_from([-3, 2**60, [2**60], [0, 1, 2], [], {}, "Box", "bool"]))
    with contextlib.suppress(CheckpointError), np.errstate(all="ignore"):
        assert isinstance(space_from_json(description), gym.Space)


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"kind": "Discrete", "n": -3, "start": 0, "dtype": "int64"},
        {"kind": "Dict", "spaces": 3},
        {"kind": "Box", "low": 3, "high": 1, "shape": [2], "dtype": "float32"},
        {"kind": "Box", "low": 0, "high": 1, "shape": [2**60], "dtype": "float32"},
    ],
    ids=str,
)
def test_description_that_makes_no_space_is_a_checkpoint_error(data):
    with pytest.raises(CheckpointError):
        space_from_json(data)
