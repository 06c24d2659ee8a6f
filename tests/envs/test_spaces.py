"""Batches of observations and actions: what is stored, what is refused, and how batches are split."""

import re
from collections import OrderedDict

import gymnasium as gym
import numpy as np
import pytest

from ding_lite.envs.spaces import ObservationBuffer, sample_actions, split_actions, stack_actions
from ding_lite.errors import EnvContractError
from ding_lite.trees import named_leaves

SPACES = gym.spaces
NESTED = SPACES.Dict(
    camera=SPACES.Box(0, 255, (2, 2), np.uint8),
    joint=SPACES.Tuple([SPACES.Box(-1.0, 1.0, (3,), np.float64), SPACES.Discrete(4, start=-1)]),
)
SEEN = {"camera": np.full((2, 2), 7, np.uint8), "joint": (np.array([0.1, 0.2, 0.3]), 2)}


def write(space, obs):
    buffer = ObservationBuffer(space, 2)
    buffer.write(1, obs)
    return buffer


def test_nested_observation_is_written_into_its_row_of_every_leaf():
    tree = write(NESTED, SEEN).tree
    assert tree["camera"][1].tolist() == [[7, 7], [7, 7]]
    assert tree["joint"]["0"][1] == pytest.approx([0.1, 0.2, 0.3])
    assert tree["joint"]["1"].tolist() == [0, 2]
    assert not tree["camera"][0].any()


def test_float64_is_stored_as_float32_and_the_rest_keeps_its_dtype():
    tree = write(NESTED, SEEN).tree
    kept = [str(tree["camera"].dtype), str(tree["joint"]["0"].dtype), str(tree["joint"]["1"].dtype)]
    assert kept == ["uint8", "float32", "int64"]


def test_rows_are_copies():
    buffer = write(NESTED, SEEN)
    rows = buffer.rows(slice(1, 2))
    buffer.tree["camera"][:] = 0
    assert rows["camera"].tolist() == [[[7, 7], [7, 7]]]


def test_written_observation_may_change_afterwards():
    obs = np.ones(2, np.float32)
    buffer = write(SPACES.Box(-9, 9, (2,)), obs)
    obs[:] = 5
    assert buffer.tree[1].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("obs", "message"),
    [
        ({"camera": SEEN["camera"]}, r"\['joint'\]"),
        ({**SEEN, "joint": (SEEN["joint"][0],)}, r"\['joint'\]\['1'\]"),
        ({**SEEN, "camera": np.zeros((2, 3), np.uint8)}, r"observation\['camera'\].*\(2, 3\)"),
        (None, "None"),
    ],
)
def test_observation_of_another_structure_is_refused_by_its_path(obs, message):
    with pytest.raises(EnvContractError, match=message):
        write(NESTED, obs)


class Scalars(gym.Space):
    """One number of a dtype."""

    def __init__(self, dtype):
        super().__init__((), dtype)

    def __repr__(self):
        return "Scalars"


INT64 = SPACES.Discrete(4)
FLOAT = SPACES.Box(-9.0, 9.0, ())


def in_dict(space, value):
    """The space and the value as a Dict's only branch, which is written in another way than a leaf."""
    return SPACES.Dict(a=space), {"a": value}


@pytest.mark.parametrize(
    ("space", "value", "stored"),
    [
        (INT64, 3, 3),
        (INT64, np.int64(3), 3),
        (INT64, np.int32(3), 3),
        (INT64, np.uint8(3), 3),
        (INT64, np.uint64(3), 3),
        (INT64, np.array(3), 3),
        (INT64, np.array(3, np.int16), 3),
        (INT64, True, 1),
        (INT64, np.True_, 1),
        (INT64, -(2**63), -(2**63)),
        (SPACES.Box(0, 255, (), np.uint8), 255, 255),
        (SPACES.Box(0, 255, (), np.uint8), np.int64(255), 255),
        (Scalars(np.uint64), 2**64 - 1, 2**64 - 1),
        (Scalars(np.bool_), np.True_, True),
        (Scalars(np.bool_), True, True),
        (Scalars(np.bool_), 1, True),
        (FLOAT, 2.5, 2.5),
        (FLOAT, np.float32(2.5), 2.5),
        (FLOAT, np.float64(2.5), 2.5),
        (FLOAT, np.array(2.5), 2.5),
        (FLOAT, 2, 2.0),
        (FLOAT, np.int64(2), 2.0),
        (SPACES.Box(-9.0, 9.0, (), np.float64), np.float64(2.5), 2.5),
    ],
)
def test_a_scalar_that_fits_is_stored(space, value, stored):
    assert write(space, value).tree[1] == stored
    assert write(*in_dict(space, value)).tree["a"][1] == stored


@pytest.mark.parametrize(
    ("space", "value", "got"),
    [
        (INT64, 1.0, "float64"),
        (INT64, np.float32(1), "float32"),
        (INT64, np.array(1.0), "float64"),
        (INT64, 2**63, "uint64"),
        (INT64, 2**64, "object"),
        (INT64, "1", "str"),
        (INT64, None, "NoneType"),
        (INT64, [1], "shape (1,)"),
        (Scalars(np.uint8), 256, "int64"),
        (Scalars(np.uint8), -1, "int64"),
        (Scalars(np.uint8), np.int16(300), "int16"),
        (Scalars(np.bool_), 2, "int64"),
        (Scalars(np.bool_), 1.0, "float64"),
        (Scalars(np.float32), 1j, "complex128"),
        (Scalars(np.complex128), np.complex128(1), "complex128"),
        (Scalars(np.str_), np.str_("a"), "str_"),
        (SPACES.Discrete(1), {}, "dict"),
        (SPACES.MultiDiscrete([2]), 1, "shape ()"),
        (SPACES.MultiBinary(1), np.int8(1), "shape ()"),
    ],
)
def test_a_scalar_that_does_not_fit_is_refused(space, value, got):
    with pytest.raises(EnvContractError, match=f"^observation is a .*{re.escape(got)}"):
        write(space, value)
    with pytest.raises(EnvContractError, match=rf"^observation\['a'\] is a .*{re.escape(got)}"):
        write(*in_dict(space, value))


FLAT = SPACES.Dict(a=SPACES.Discrete(4), b=SPACES.Box(-9.0, 9.0, (2,)))
TWO = np.ones(2, np.float32)


@pytest.mark.parametrize(
    ("obs", "message"),
    [
        ({"a": 1}, r"^the observation has no \['b'\]: got {'a': 1}$"),
        ({"a": 1, "c": TWO}, r"^the observation has no \['b'\]: got "),
        ({"a": 1.0, "b": TWO}, r"^observation\['a'\] is a float .*dtype float64"),
        ((1, TWO), r"^the observation has no \['a'\]: got \(1, "),
        (TWO, r"^the observation has no \['a'\]: got array"),
        ({"a": 1, "b": TWO[:1]}, r"^observation\['b'\] .*the shape \(1,\)"),
    ],
)
def test_observation_of_another_structure_is_refused_of_a_dict_of_leaves_too(obs, message):
    with pytest.raises(EnvContractError, match=message):
        write(FLAT, obs)


def test_branches_of_an_observation_may_have_any_order_and_others_are_left_out():
    for obs in ({"b": TWO, "a": 2}, OrderedDict(b=TWO, a=2), {"a": 2, "b": TWO, "c": 0}):
        tree = write(FLAT, obs).tree
        assert (tree["a"].tolist(), tree["b"].tolist()) == ([0, 2], [[0, 0], [1, 1]])


@pytest.mark.parametrize(
    "space", [SPACES.Text(3), SPACES.Dict(a=SPACES.Sequence(SPACES.Discrete(2)))], ids=["text", "sequence"]
)
def test_unsupported_observation_spaces_are_refused_with_the_list_of_supported_ones(space):
    with pytest.raises(EnvContractError, match="Box, Discrete, MultiDiscrete, MultiBinary"):
        ObservationBuffer(space, 1)


def test_discrete_actions_are_split_into_python_ints():
    rows = split_actions(np.array([-1, 2]), SPACES.Discrete(4, start=-1))
    assert rows == [-1, 2]
    assert all(type(row) is int for row in rows)


def test_box_actions_are_split_into_rows_that_outlive_the_batch():
    batch = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
    rows = split_actions(batch, SPACES.Box(-9, 9, (2,)))
    batch[:] = 0
    assert [row.tolist() for row in rows] == [[1, 2], [3, 4]]


def test_nested_actions_are_split_into_what_the_space_contains():
    space = SPACES.Dict(
        turn=SPACES.Tuple([SPACES.Discrete(3), SPACES.Box(-1.0, 1.0, (1,))]), press=SPACES.MultiBinary(2)
    )
    batch = {
        "turn": {"0": np.array([0, 2]), "1": np.array([[0.5], [-0.5]], np.float32)},
        "press": np.array([[0, 1], [1, 1]], np.int8),
    }
    rows = split_actions(batch, space)
    assert all(space.contains(row) for row in rows)
    assert rows[1]["turn"][0] == 2
    assert rows[1]["turn"][1].tolist() == [-0.5]


@pytest.mark.parametrize(
    "space",
    [
        SPACES.Discrete(4, start=-1),
        SPACES.MultiDiscrete([2, 3]),
        SPACES.MultiBinary(2),
        SPACES.Box(-1.0, 1.0, (2, 2)),
        SPACES.Box(-1.0, 1.0, (), np.float64),
        SPACES.Dict({"0": SPACES.Discrete(3), "a": SPACES.Box(-1.0, 1.0, (1,))}),
        SPACES.Tuple([SPACES.Discrete(3), SPACES.Dict(b=SPACES.MultiBinary(2), a=SPACES.Discrete(2))]),
        SPACES.Dict(a=SPACES.Tuple([SPACES.Box(-1.0, 1.0, (1,))] * 12), b=SPACES.Discrete(2)),
    ],
    ids=str,
)
@pytest.mark.parametrize("n", [1, 5])
def test_split_actions_are_stacked_to_the_same_batch(space, n):
    batch = sample_actions(space, n)
    stacked = named_leaves(stack_actions(split_actions(batch, space), space))
    assert [path for path, _ in stacked] == [path for path, _ in named_leaves(batch)]
    for (_, got), (_, expected) in zip(stacked, named_leaves(batch), strict=True):
        assert got.dtype == expected.dtype
        assert np.array_equal(got, expected)


def test_no_actions_are_no_batch():
    assert stack_actions([], SPACES.Discrete(2)) is None
