"""Walks over trees of arrays, over spaces, and over values of spaces."""

import operator

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import arrays, dicts, same, spaces, trees, values_of

from ding_lite.data.rollout import as_rollout
from ding_lite.trees import (
    from_named_leaves,
    from_tree,
    in_one_order,
    is_image,
    leading_size,
    map_space,
    map_tree,
    named_leaves,
    observation_to_tree,
    space_leaves,
    to_dict,
    to_tree,
    tree_leaves,
    value_at,
)

SPACES = gym.spaces


def test_leaves_come_in_the_order_of_the_keys():
    tree = {"b": 1, "a": {"y": 2, "x": 3}}
    assert tree_leaves(tree) == [1, 2, 3]
    assert named_leaves(tree) == [(("b",), 1), (("a", "y"), 2), (("a", "x"), 3)]
    assert named_leaves(4) == [((), 4)]


@given(trees(st.integers()))
def test_a_tree_comes_back_from_its_leaves_and_from_its_functions(tree):
    assert same(from_named_leaves(dict(named_leaves(tree))), tree)
    assert same(map_tree(operator.neg, map_tree(operator.neg, tree)), tree)
    twice = map_tree(operator.add, tree, in_one_order(tree))
    assert named_leaves(twice) == [(path, 2 * leaf) for path, leaf in named_leaves(tree)]


@given(dicts(trees(arrays().filter(lambda array: array.ndim)), min_size=1))
def test_a_treetensor_is_walked_as_a_dict(tree):
    """Its branches may have the names of its methods."""
    rollout = as_rollout(tree)
    assert same(to_dict(rollout), tree)
    assert leading_size(rollout) == len(tree_leaves(tree)[0])
    for path, leaf in named_leaves(rollout):
        assert value_at(rollout, path) is leaf is value_at(tree, path)


@given(spaces().flatmap(lambda space: st.tuples(st.just(space), values_of(space, 1))))
def test_a_value_of_a_space_becomes_a_tree_and_comes_back(case):
    space, (value,) = case
    tree = to_tree(value, space)
    assert same(from_tree(tree, space), value)
    assert same(to_tree(tree, space), tree), "a tree is taken, too"
    found, stored = dict(space_leaves(space)), observation_to_tree(value, space)
    each = named_leaves(map_space(lambda *leaves: leaves, space, value, tree))
    assert {path for path, _ in each} == found.keys()
    for path, (leaf, one, other) in each:
        assert leaf is found[path]
        assert one is other is value_at(value, path) is value_at(tree, path)
        kept = np.asarray(one, np.float32 if leaf.dtype == np.float64 else leaf.dtype)
        assert same(value_at(stored, path), kept)


def test_leaves_of_a_space_are_sorted():
    inner = SPACES.Dict([("c", SPACES.Discrete(2)), ("b", SPACES.Tuple([SPACES.Discrete(2)] * 11))])
    paths = [path for path, _ in space_leaves(SPACES.Dict([("b", SPACES.Discrete(2)), ("a", inner)]))]
    assert paths == [*(("a", "b", str(i)) for i in range(11)), ("a", "c"), ("b",)]


@pytest.mark.parametrize(
    ("shape", "dtype", "image"),
    [
        ((7, 1, 5), np.float32, False),
        ((2, 10, 2), np.float32, False),
        ((7, 7, 3), np.uint8, True),
        ((4, 84, 84), np.float32, True),
        ((9, 9), np.uint8, True),
        ((9, 9), np.float32, False),
    ],
)
def test_an_image_has_three_pixels_each_way(shape, dtype, image):
    assert is_image(gym.spaces.Box(0, 1, shape, dtype)) == image
