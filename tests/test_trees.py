"""Walks over trees of arrays, over spaces, and over values of spaces."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from ding_lite.data.rollout import as_rollout
from ding_lite.trees import (
    from_named_leaves,
    from_tree,
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
NESTED = SPACES.Dict(
    camera=SPACES.Box(0, 255, (2, 2), np.uint8),
    joint=SPACES.Tuple([SPACES.Box(-1.0, 1.0, (3,), np.float64), SPACES.Discrete(4, start=-1)]),
)
CAMERA, ANGLES = np.full((2, 2), 7, np.uint8), np.array([0.1, 0.2, 0.3])
VALUE = {"camera": CAMERA, "joint": (ANGLES, 2)}


def test_map_tree_keeps_the_structure_and_takes_several_trees():
    left, right = {"a": 1, "b": {"c": 2}}, {"b": {"c": 20}, "a": 10}
    assert map_tree(lambda x, y: x + y, left, right) == {"a": 11, "b": {"c": 22}}


def test_leaves_come_in_the_order_of_the_keys():
    tree = {"b": 1, "a": {"y": 2, "x": 3}}
    assert tree_leaves(tree) == [1, 2, 3]
    assert named_leaves(tree) == [(("b",), 1), (("a", "y"), 2), (("a", "x"), 3)]
    assert named_leaves(4) == [((), 4)]


@pytest.mark.parametrize("tree", [4, {"b": 1, "a": {"y": 2, "x": {"deep": 3}}}])
def test_tree_comes_back_from_its_named_leaves(tree):
    assert from_named_leaves(dict(named_leaves(tree))) == tree


def test_leaves_of_a_space_are_sorted_and_paths_lead_to_them():
    space = SPACES.Dict([("b", SPACES.Discrete(2)), ("a", NESTED)])
    paths = [path for path, _ in space_leaves(space)]
    assert paths == [("a", "camera"), ("a", "joint", "0"), ("a", "joint", "1"), ("b",)]


def test_value_of_a_space_becomes_a_tree_and_comes_back():
    tree = to_tree(VALUE, NESTED)
    assert tree.keys() == {"camera", "joint"}
    assert tree["camera"] is CAMERA
    assert tree["joint"]["0"] is ANGLES
    assert tree["joint"]["1"] == 2
    again = from_tree(tree, NESTED)
    assert again["camera"] is CAMERA
    assert again["joint"][0] is ANGLES
    assert type(again["joint"]) is tuple
    assert to_tree(tree, NESTED).keys() == tree.keys(), "a tree is taken, too"


def test_observation_becomes_a_tree_without_float64():
    tree = observation_to_tree(VALUE, NESTED)
    assert [leaf.dtype for leaf in tree_leaves(tree)] == [np.uint8, np.float32, np.int64]
    assert tree["joint"]["0"] == pytest.approx(ANGLES)


def test_map_space_gives_each_leaf_space_with_its_leaves():
    sizes = map_space(lambda leaf, x, y: (type(leaf).__name__, np.size(x) + np.size(y)), NESTED, VALUE, VALUE)
    assert sizes == {"camera": ("Box", 8), "joint": {"0": ("Box", 6), "1": ("Discrete", 2)}}


def test_branches_may_have_the_names_of_methods():
    fields = {name: torch.arange(3) for name in ("items", "keys", "values", "get")}
    tree = as_rollout({"obs": fields})
    assert map_tree(len, tree) == {"obs": dict.fromkeys(fields, 3)}
    assert len(tree_leaves(tree)) == 4
    assert leading_size(tree) == 3
    assert to_dict(tree)["obs"].keys() == fields.keys()
    assert value_at(tree, ("obs", "get")).tolist() == [0, 1, 2]
    assert {path for path, _ in named_leaves(tree)} == {("obs", name) for name in fields}


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
