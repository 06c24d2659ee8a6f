"""Keys: their types, ranges and inheritance, and what is answered to a wrong value or an unknown key."""

from __future__ import annotations

import copy
import functools
import math
import operator
from types import NoneType
from typing import Literal, get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import TEXTS, plain_values, same

from ding_lite.config.schema import (
    DROPPED,
    Key,
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


# The values that each annotation accepts as they are.
ACCEPTED = {
    int: st.integers(),
    float: st.floats(),
    str: TEXTS,
    bool: st.booleans(),
    NoneType: st.none(),
    list[int]: st.lists(st.integers(), max_size=3),
    list[float | None]: st.lists(st.none() | st.floats(), max_size=3),
    dict: st.dictionaries(TEXTS, plain_values(), max_size=3),
    Literal["a", "b"]: st.sampled_from(["a", "b"]),
}
ANNOTATIONS = st.lists(  # a union has one list at most: its items could fit several
    st.sampled_from(list(ACCEPTED)), min_size=1, max_size=3, unique_by=lambda part: get_origin(part) or part
)


def union(parts):
    """Returns ``A | B | ...``; lists come last, since they take in texts."""
    return functools.reduce(operator.or_, sorted(parts, key=lambda part: get_origin(part) is list))


def is_of(value, annotation):
    """Returns whether a value is exactly of an annotation."""
    kind, parts = get_origin(annotation) or annotation, get_args(annotation)
    if kind is list:
        return type(value) is list and all(is_of(item, parts[0]) for item in value)
    if kind is Literal:
        return any(same(value, choice) for choice in parts)
    return any(is_of(value, part) for part in parts) if parts else type(value) is kind


@given(ANNOTATIONS, st.data())
def test_value_is_taken_or_converted_without_loss_or_refused(parts, data):
    annotation, whole = union(parts), st.integers(-9, 9).map(float)
    others = plain_values(), whole, st.lists(whole), st.tuples(whole, whole)
    value = data.draw(st.one_of(*(ACCEPTED[part] for part in parts), *others))
    try:
        found = fitted(value, annotation)
    except TypeError:
        assert not is_of(value, annotation)
        assert not (int in parts and type(value) is float and value.is_integer())
    else:
        assert is_of(found, annotation)
        if is_of(value, annotation):
            assert same(found, value)
            assert found is not value or not isinstance(value, (list, dict)), "it is a copy"
        else:
            items = [value] if isinstance(value, str) else value
            assert found == (list(items) if isinstance(found, list) else items)


BOUNDS = st.none() | st.integers(-2, 2)


@given(st.integers(-3, 3).map(float) | st.floats(), *[BOUNDS] * 4)
def test_a_number_and_each_item_of_a_list_is_within_the_bounds(number, low, high, above, below):
    bounds = {"low": low, "high": high, "above": above, "below": below}
    inside = math.isfinite(number) and all(
        bound is None or holds(number, bound)
        for bound, holds in zip(
            bounds.values(), (operator.ge, operator.le, operator.gt, operator.lt), strict=True
        )
    )
    for value, kind in ((number, float), ([number], list[float])):
        values, faults = check({"a": value}, {"a": Key(None, kind, **bounds)})
        assert same(values, {"a": value} if inside else {})
        assert bool(faults) != inside
        assert all(fault.startswith("a: expected ") for fault in faults)


def test_faults_of_a_key_of_its_own_are_of_the_converted_value():
    def odd(value: list, path: str) -> list[str]:
        return [f"{path}: {value} is odd"] if len(value) % 2 else []

    assert check({"a": "x"}, {"a": Key([], list, faults=odd)})[1] == ["a: ['x'] is odd"]


@pytest.mark.parametrize(
    ("values", "faults", "notes"),
    [
        ({}, 0, 0),
        ({"final": 0.1, "units": 3}, 0, 1),
        ({"final": 0.1, "schedule": "cosine"}, 0, 0),
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
            units=Key(1, needs="rnn"),  # a key of another class: nothing is known of it
        )
    )
    found = without_effect({"learn": default_values(schema) | values}, {"learn": schema})
    assert tuple(map(len, found)) == (faults, notes)
    assert all(line.startswith("learn.") and "no effect with" in line for lines in found for line in lines)
