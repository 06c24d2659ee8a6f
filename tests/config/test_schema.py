"""Keys: their types, ranges and inheritance, and what is answered to a wrong value or an unknown key."""

from __future__ import annotations

import copy
import math
import re
from typing import Literal

import numpy as np
import pytest
import torch

from ding_lite.config.schema import (
    DROPPED,
    Choice,
    Key,
    Name,
    as_schema,
    check,
    default_values,
    fitted,
    leaves,
    merged_config,
    without_effect,
)


class Base:
    config = dict(a=1, b=Key(0.5, low=0, high=1), section=dict(x="x", y=Key(None, int | None)))


class Derived(Base):
    config = dict(b=1, c=[1], section=dict(x=None, z=True), kwargs={})


SCHEMA = as_schema(
    dict(
        seed=Key(0, low=0),
        learn=dict(rate=Key(1e-3, above=0), batch_size=64, clip_ratio=0.2),
        collect=dict(discount_factor=Key(0.99, low=0, below=1), n_sample=Key(8, int)),
        env=dict(type=Key("gymnasium", Name), kwargs={}, sizes=Key([], list[int], low=1)),
        kind=Key("constant", Literal["constant", "linear"]),
    )
)


def faults_of(user):
    return check(user, SCHEMA)[1]


def test_configs_merge_along_the_bases_and_leave_them_as_they_were():
    before = copy.deepcopy(merged_config(Base))
    merged = merged_config(Derived)
    assert default_values(merged) == {
        "a": 1,
        "b": 1.0,  # a number stays one
        "section": {"x": None, "y": None, "z": True},
        "c": [1],
        "kwargs": {},
    }
    assert (merged["b"].high, merged["section"]["x"].type) == (1, str | None)
    assert merged_config(Base) == before
    assert merged_config(type("Mute", (Base,), {})) == before


def test_a_subclass_may_drop_a_key():
    merged = merged_config(type("Without", (Base,), {"config": dict(a=DROPPED, section=dict(y=DROPPED))}))
    assert [path for path, _ in leaves(merged)] == ["b", "section.x"]


def test_defaults_are_copies_and_pass_their_own_schema():
    first, second = default_values(SCHEMA), default_values(SCHEMA)
    first["env"]["sizes"].append(1)
    assert second["env"]["sizes"] == []
    assert check(second, SCHEMA) == (second, [])


@pytest.mark.parametrize(
    ("value", "annotation", "expected"),
    [
        (64.0, int, 64),
        (1, float, 1.0),
        (2**53, float, 2.0**53),
        (3, int | Literal["auto"], 3),
        ("auto", int | Literal["auto"], "auto"),
        (True, Literal["minibatch"] | bool, True),
        ((1, 2.0), list[int], [1, 2]),
        ("csv", list, ["csv"]),
        ([1, "x"], list, [1, "x"]),
        ("impala_cnn", Choice | None, {"type": "impala_cnn"}),
        (Base, Name, Base),
    ],
)
def test_value_is_converted_where_nothing_is_lost(value, annotation, expected):
    found = fitted(value, annotation)
    assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("value", "annotation", "wanted"),
    [
        (64.5, int, "int"),
        (True, int, "int"),
        ("64", int, "int"),
        (True, float, "float"),
        (1, bool, "bool"),
        ("no", Literal["a", "b"] | None, "Literal['a', 'b'] | None"),
        ([1, "x"], list[int], "int"),
        (3, list[int], "list[int]"),
        (3, Name, "str | Callable"),
    ],
)
def test_value_of_another_type_is_refused(value, annotation, wanted):
    with pytest.raises(TypeError, match=f"^expected {re.escape(wanted)}, got "):
        fitted(value, annotation)


@pytest.mark.parametrize("number", [np.float32(0.5), np.array(0.5), torch.tensor(0.5)])
def test_scalars_of_numpy_and_torch_are_numbers(number):
    assert check({"b": number}, merged_config(Base)) == ({"b": 0.5}, [])
    assert check({"env": {"sizes": [np.int64(3)]}}, SCHEMA) == ({"env": {"sizes": [3]}}, [])


@pytest.mark.parametrize(
    ("user", "path", "said"),
    [
        ({"seed": -1}, "seed", "at least 0"),
        ({"learn": {"rate": 0}}, "learn.rate", "above 0"),
        ({"learn": {"rate": math.nan}}, "learn.rate", "above 0"),
        ({"learn": {"clip_ratio": math.nan}}, "learn.clip_ratio", "finite"),
        ({"collect": {"discount_factor": 1}}, "collect.discount_factor", "at least 0 and below 1"),
        ({"collect": {"n_sample": "64"}}, "collect.n_sample", "the string '64'"),
        ({"env": {"sizes": [4, 0]}}, "env.sizes", "got 0"),
        ({"kind": "liner"}, "kind", "did you mean 'linear'?"),
        ({"learn": 3}, "learn", "batch_size, clip_ratio, rate"),
        # Unknown keys.
        ({"sede": 0}, "unknown key 'sede'", "did you mean 'seed'?"),
        ({"learn": {"clip_ration": 1}}, "learn", "did you mean 'clip_ratio'?"),
        ({"learn": {"gamma": 1}}, "learn", "'gamma' is collect.discount_factor here"),
        ({"learn": {"disount_factor": 1}}, "learn", "did you mean 'collect.discount_factor'?"),
    ],
)
def test_fault_has_its_path_and_what_is_right(user, path, said):
    (fault,) = faults_of(user)
    assert fault.startswith(path)
    assert said in fault


def test_all_faults_are_found_and_the_rest_is_converted():
    user = {
        "seed": 1.0,
        "kind": 3,
        "learn": {"rat": 1, "rate": 1},
        "env": "mine:Env",
        "collect": {"n_sample": 0.5},
    }
    before = copy.deepcopy(user)
    values, faults = check(user, SCHEMA)
    assert [fault.split(":")[0] for fault in faults] == ["kind", "learn", "collect.n_sample"]
    assert values == {"seed": 1, "learn": {"rate": 1.0}, "env": {"type": "mine:Env"}, "collect": {}}
    assert user == before


def test_faults_of_a_key_of_its_own_are_of_the_converted_value():
    def odd(value: list, path: str) -> list[str]:
        return [f"{path}: {value} is odd"] if len(value) % 2 else []

    assert check({"a": "x"}, {"a": Key([], list, faults=odd)})[1] == ["a: ['x'] is odd"]


@pytest.mark.parametrize(
    ("values", "faults", "notes"),
    [
        ({}, 0, 0),
        ({"final": 0.1}, 0, 1),
        ({"final": 0.1, "schedule": "cosine"}, 0, 0),
        ({"uses": 3}, 1, 0),
        ({"uses": 3, "on_policy": False}, 0, 0),
        ({"uses": 3, "final": 0.1}, 1, 1),
    ],
)
def test_keys_without_effect_are_named(values, faults, notes):
    schema = as_schema(
        dict(
            on_policy=True,
            uses=Key(1, needs="not on_policy", strict=True),
            schedule="constant",
            final=Key(0.0, needs="schedule=linear or schedule=cosine"),
        )
    )
    found = without_effect(default_values(schema) | values, schema, "learn")
    assert tuple(map(len, found)) == (faults, notes)
    assert all(line.startswith("learn.") and "no effect with" in line for lines in found for line in lines)
