import copy
from collections import OrderedDict

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from strategies import same, spaces, values_of

from ding_lite.envs.spaces import ObservationBuffer, sample_actions, split_actions, stack_actions
from ding_lite.errors import EnvContractError
from ding_lite.trees import map_tree, observation_to_tree, to_tree, tree_leaves

SPACES = gym.spaces


def write(space, obs):
    buffer = ObservationBuffer(space, 2)
    buffer.write(1, obs)
    return buffer


@given(spaces().flatmap(lambda space: st.tuples(st.just(space), values_of(space, 3))))
def test_observations_are_copied_into_their_rows_of_every_leaf(case):
    space, observations = case
    buffer = ObservationBuffer(space, 4)
    expected = [observation_to_tree(copy.deepcopy(obs), space) for obs in observations]
    for row, obs in zip((2, 0, 3), observations, strict=True):
        buffer.write(row, obs)
    for leaf in tree_leaves(to_tree(observations, SPACES.Tuple([space] * 3))):
        if isinstance(leaf, np.ndarray):
            leaf.fill(1)  # the environment may use its array again
    rows = buffer.rows([2, 0, 3, 1])
    map_tree(lambda array: array.fill(1), buffer.tree)
    stacked = map_tree(lambda *leaves: np.stack([*leaves, np.zeros_like(leaves[0])]), *expected)
    assert same(rows, stacked)


class Scalars(gym.Space):
    """One number of a dtype."""

    def __init__(self, dtype):
        super().__init__((), dtype)

    def __repr__(self):
        return "Scalars"


DTYPES = [np.dtype(kind) for kind in "?bBhiqQefd"]
OF_NUMPY = st.sampled_from(DTYPES).flatmap(hnp.from_dtype)
NUMBERS = st.one_of(st.booleans(), st.integers(), st.floats(), OF_NUMPY, OF_NUMPY.map(np.asarray))


def ends(dtype):
    """Returns the ends of an integer type, and the numbers beside them."""
    limits = np.iinfo(dtype if dtype.kind in "iu" else int)
    return limits.min - 1, limits.min, limits.max, limits.max + 1


def fits(value, dtype):
    """Returns whether a number is one of a dtype; a float is one of any float dtype, after rounding."""
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return False  # an object for NumPy
    number = np.asarray(value).item()
    if dtype.kind == "f":
        return True
    low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return isinstance(number, int) and low <= number <= high


@given(st.sampled_from(DTYPES), NUMBERS)
def test_a_scalar_is_stored_if_it_fits_and_else_refused(dtype, number):
    single, in_dict = Scalars(dtype), SPACES.Dict(a=Scalars(dtype))  # which is written in another way
    for value in (number, *ends(dtype)):
        for space, obs, where in ((single, value, ""), (in_dict, {"a": value}, r"\['a'\]")):
            if fits(value, dtype):
                with np.errstate(over="ignore"):
                    row = tree_leaves(write(space, obs).rows([1]))[0]
                    stored = np.float32 if dtype == np.float64 else dtype
                    assert same(row, np.asarray([value]).astype(stored))
            else:
                with pytest.raises(EnvContractError, match=f"^observation{where} is a .* of the shape"):
                    write(space, obs)


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (SPACES.Discrete(4), "1"),
        (SPACES.Discrete(4), [1]),
        (SPACES.MultiDiscrete([2]), 1),
        (SPACES.MultiBinary(1), np.int8(1)),
        (Scalars(np.float32), 1j),
        (Scalars(np.str_), np.str_("a")),
    ],
)
def test_what_is_no_scalar_is_refused(space, value):
    with pytest.raises(EnvContractError, match="^observation is a "):
        write(space, value)


FLAT = SPACES.Dict(a=SPACES.Discrete(4), b=SPACES.Box(-9.0, 9.0, (2,)))
NESTED = SPACES.Dict(a=SPACES.Tuple([FLAT, SPACES.Discrete(4)]))
TWO = np.ones(2, np.float32)


@pytest.mark.parametrize(
    ("space", "obs", "message"),
    [
        (FLAT, {"a": 1}, r"^the observation has no \['b'\]: got {'a': 1}$"),
        (FLAT, {"a": 1, "c": TWO}, r"^the observation has no \['b'\]: got "),
        (FLAT, {"a": 1.0, "b": TWO}, r"^observation\['a'\] is a float .*dtype float64"),
        (FLAT, (1, TWO), r"^the observation has no \['a'\]: got \(1, "),
        (FLAT, TWO, r"^the observation has no \['a'\]: got array"),
        (FLAT, {"a": 1, "b": TWO[:1]}, r"^observation\['b'\] .*the shape \(1,\)"),
        (NESTED, {"a": (1, 1)}, r"^the observation has no \['a'\]\['0'\]\['a'\]"),
        (NESTED, {"a": ({"a": 1, "b": TWO},)}, r"^the observation has no \['a'\]\['1'\]"),
        (NESTED, None, "None"),
    ],
)
def test_observation_of_another_structure_is_refused_by_its_path(space, obs, message):
    with pytest.raises(EnvContractError, match=message):
        write(space, obs)


def test_branches_of_an_observation_may_have_any_order_and_others_are_left_out():
    for obs in ({"b": TWO, "a": 2}, OrderedDict(b=TWO, a=2), {"a": 2, "b": TWO, "c": 0}):
        tree = write(FLAT, obs).tree
        assert (tree["a"].tolist(), tree["b"].tolist()) == ([0, 2], [[0, 0], [1, 1]])


@given(spaces(), st.integers(1, 5))
def test_split_actions_are_of_the_space_and_are_stacked_to_the_same_batch(space, n):
    batch = sample_actions(space, n)
    given, expected = copy.deepcopy(batch), copy.deepcopy(batch)
    rows = split_actions(given, space)
    map_tree(lambda array: array.fill(0), given)  # the caller may overwrite its arrays
    assert len(rows) == n
    assert all(space.contains(row) for row in rows)
    assert same(stack_actions(rows, space), expected)


def test_discrete_actions_are_split_into_python_ints():
    rows = split_actions(np.array([-1, 2]), SPACES.Discrete(4, start=-1))
    assert same(rows, [-1, 2])


def test_no_actions_are_no_batch():
    assert stack_actions([], SPACES.Discrete(2)) is None
