"""Batches of observations and actions: what is stored, what is refused, and how batches are split."""

import gymnasium as gym
import numpy as np
import pytest

from ding_lite.envs.spaces import ObservationBuffer, split_actions
from ding_lite.errors import EnvContractError

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
        ({**SEEN, "sonar": 1}, r"observation .*\['sonar'\]"),
        ({**SEEN, "joint": (*SEEN["joint"], 0)}, r"observation\['joint'\].* 3"),
        ({**SEEN, "camera": np.zeros((2, 3), np.uint8)}, r"observation\['camera'\].*\(2, 3\)"),
        (None, "None"),
    ],
)
def test_observation_of_another_structure_is_refused_by_its_path(obs, message):
    with pytest.raises(EnvContractError, match=message):
        write(NESTED, obs)


def test_float_image_is_refused_where_bytes_were_declared():
    with pytest.raises(EnvContractError, match="dtype float32"):
        write(SPACES.Box(0, 255, (2,), np.uint8), np.zeros(2, np.float32))


def test_bool_box_is_stored_as_bool():
    buffer = write(SPACES.Box(0, 1, (2,), bool), np.array([True, False]))
    assert buffer.tree.dtype == bool
    assert buffer.tree[1].tolist() == [True, False]


def test_plain_list_is_an_observation():
    assert write(SPACES.Box(-9, 9, (2,)), [1, 2]).tree[1].tolist() == [1, 2]


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
