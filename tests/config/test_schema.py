"""The schema of configs: merging along the bases, conversion, ranges, and all faults at once."""

import copy
import math

import pytest

from ding_lite.config.other_names import SYNONYMS
from ding_lite.config.schema import Key, as_schema, check, default_values, leaves, merged_config


class Base:
    config = dict(
        learn=dict(
            batch_size=Key(64, low=1),
            learning_rate=Key(3e-4, above=0),
            clip_ratio=Key(0.2, above=0, below=1),
            adv_norm=True,
        ),
        collect=dict(n_sample=Key(1024, low=1), gae_lambda=Key(0.95, low=0, high=1)),
        kwargs={},
        name="base",
    )


class Child(Base):
    config = dict(learn=dict(batch_size=128, aux_freq=Key(16, low=0)), name="child")


SCHEMA = merged_config(Base)


def value_of(key, raw):
    """Returns the converted value of one key; it must have no fault."""
    values, faults = check({"k": raw}, as_schema({"k": key}))
    assert faults == []
    return values["k"]


def fault_of(key, raw):
    _, faults = check({"k": raw}, as_schema({"k": key}))
    assert len(faults) == 1
    return faults[0]


def only_fault(user, schema=SCHEMA):
    _, faults = check(user, schema)
    assert len(faults) == 1
    return faults[0]


# ------------------------------------------------------------------ merging


def test_defaults_of_a_base_are_those_it_wrote():
    assert default_values(SCHEMA) == {
        "learn": {"batch_size": 64, "learning_rate": 3e-4, "clip_ratio": 0.2, "adv_norm": True},
        "collect": {"n_sample": 1024, "gae_lambda": 0.95},
        "kwargs": {},
        "name": "base",
    }


def test_subclass_replaces_defaults_and_adds_keys():
    defaults = default_values(merged_config(Child))
    assert defaults["learn"]["batch_size"] == 128
    assert defaults["learn"]["aux_freq"] == 16
    assert defaults["learn"]["learning_rate"] == 3e-4
    assert defaults["name"] == "child"


def test_subclass_leaves_its_base_as_it_was():
    before = default_values(merged_config(Base))
    merged_config(Child)
    assert default_values(merged_config(Base)) == before
    assert "aux_freq" not in merged_config(Base)["learn"]


def test_replaced_default_keeps_the_range_of_the_base():
    _, faults = check({"learn": {"batch_size": 0}}, merged_config(Child))
    assert faults == ["learn.batch_size: expected a number at least 1, got 0"]


def test_key_of_a_subclass_replaces_the_range_too():
    class Wide(Base):
        config = dict(learn=dict(batch_size=Key(0, low=0)))

    assert check({"learn": {"batch_size": 0}}, merged_config(Wide)) == ({"learn": {"batch_size": 0}}, [])


def test_configs_merge_along_the_method_resolution_order():
    class Left(Base):
        config = dict(name="left", left=1)

    class Right(Base):
        config = dict(name="right", right=2)

    class Both(Left, Right):
        pass

    defaults = default_values(merged_config(Both))
    assert (defaults["name"], defaults["left"], defaults["right"]) == ("left", 1, 2)


def test_class_without_a_config_has_that_of_its_base():
    class Plain(Base):
        pass

    assert default_values(merged_config(Plain)) == default_values(SCHEMA)


def test_whole_number_default_of_a_subclass_leaves_a_number_key_a_number_key():
    class Eager(Base):
        config = dict(learn=dict(learning_rate=1))

    values, faults = check({"learn": {"learning_rate": 0.5}}, merged_config(Eager))
    assert faults == []
    assert values == {"learn": {"learning_rate": 0.5}}


def test_open_dict_stays_open_when_a_subclass_gives_it_a_default():
    class Rendering(Base):
        config = dict(kwargs=dict(render_mode="rgb_array"))

    schema = merged_config(Rendering)
    assert default_values(schema)["kwargs"] == {"render_mode": "rgb_array"}
    assert check({"kwargs": {"difficulty": 3}}, schema) == ({"kwargs": {"difficulty": 3}}, [])


def test_defaults_are_fresh_copies():
    schema = as_schema({"sizes": [64, 64], "kwargs": {}})
    default_values(schema)["sizes"].append(1)
    default_values(schema)["kwargs"]["a"] = 1
    assert default_values(schema) == {"sizes": [64, 64], "kwargs": {}}


def test_leaves_are_walked_with_their_whole_path():
    tree = {"a": {"b": {"c": 1}, "d": [2]}, "e": {}, "f": None}
    assert list(leaves(tree)) == [("a.b.c", 1), ("a.d", [2]), ("e", {}), ("f", None)]


# ------------------------------------------------------------------ conversion without loss


@pytest.mark.parametrize(
    ("default", "raw", "expected"),
    [
        (1, 64.0, 64),
        (1, 7, 7),
        (1, -3.0, -3),
        (1.0, 1, 1.0),
        (1.0, 3e-4, 3e-4),
        ([1], (32, 32), [32, 32]),
        ("a", "b", "b"),
        (True, False, False),
    ],
)
def test_value_becomes_the_type_asked_for_where_nothing_is_lost(default, raw, expected):
    value = value_of(default, raw)
    assert value == expected
    assert type(value) is type(expected)


def test_items_of_a_list_become_the_type_asked_for():
    key = Key([], item=int, low=1)
    given = [64.0, 32]
    assert value_of(key, given) == [64, 32]
    assert [type(item) for item in value_of(key, (64.0, 32))] == [int, int]
    assert given == [64.0, 32]
    assert fault_of(key, [64, 6.5]) == "k: in the list: expected a whole number, got 6.5"
    assert fault_of(key, [64, True]) == "k: in the list: expected a whole number, got True"
    assert fault_of(key, [64, 0]).startswith("k: expected a number at least 1")
    assert value_of(Key(["a"], item=str), []) == []


@pytest.mark.parametrize("raw", [64.5, "64", [64], {"a": 1}, math.inf, None])
def test_what_is_not_a_whole_number_is_refused(raw):
    assert fault_of(1, raw).startswith("k: expected a whole number, got ")


@pytest.mark.parametrize("raw", [True, False])
def test_bool_is_never_a_number(raw):
    assert fault_of(1, raw) == f"k: expected a whole number, got {raw}"
    assert fault_of(1.0, raw) == f"k: expected a number, got {raw}"


@pytest.mark.parametrize("raw", [1, 0, 1.0, "true", None])
def test_number_or_string_is_never_a_bool(raw):
    assert fault_of(True, raw).startswith("k: expected a bool, got ")


def test_number_in_quotes_is_refused_with_a_hint():
    fault = fault_of(1e-3, "3e-4")
    assert fault == "k: expected a number, got the string '3e-4' (a number is written without quotes)"


@pytest.mark.parametrize("raw", ["nan", "inf", "abc", ""])
def test_quotes_are_not_blamed_for_what_is_no_number_without_them(raw):
    assert fault_of(Key(1.0), raw) == f"k: expected a number, got the string {raw!r}"


def test_choice_like_no_other_is_refused_without_a_suggestion():
    fault = fault_of(Key("auto", choices=("auto", True, None)), "subprocess")
    assert fault == "k: expected one of auto, True, None, got 'subprocess'"
    assert fault_of(Key("auto", choices=("auto",)), 3) == "k: expected one of auto, got 3"


def test_whole_number_too_large_for_a_float_is_refused_and_not_rounded():
    assert fault_of(1.0, 2**53 + 1).startswith("k: expected a number")


def test_whole_number_beyond_every_float_is_a_fault_and_not_a_crash():
    assert fault_of(1.0, 10**400).startswith("k: expected a number")


def test_several_kinds_may_stand_in_one_place():
    key = Key(None, kind=(int, list))
    assert value_of(key, 4.0) == 4
    assert value_of(key, [4, 5]) == [4, 5]
    assert fault_of(key, "four") == ("k: expected a whole number or a list, got the string 'four'")


def test_none_is_fine_only_where_it_is_optional_or_the_default():
    assert value_of(Key(1, optional=True), None) is None
    assert value_of(Key(None, kind=(int,)), None) is None
    assert fault_of(1, None) == "k: expected a whole number, got None"


def test_key_without_a_type_takes_anything():
    assert value_of(Key(None), {"a": [1, "b"]}) == {"a": [1, "b"]}


def test_open_dict_takes_any_key():
    raw = {"kwargs": {"render_mode": "rgb_array", "deep": {"a": 1}}}
    assert check(raw, SCHEMA) == (raw, [])


def test_section_that_is_not_a_dict_is_refused():
    assert only_fault({"learn": True}) == "learn: expected a dict, got True; write learn.adv_norm=True"
    assert only_fault({"learn": 3}) == (
        "learn: expected a dict, got 3; learn is a section, with the keys batch_size, learning_rate, "
        "clip_ratio, adv_norm"
    )


def test_empty_section_is_fine():
    assert check({"learn": {}}, SCHEMA) == ({"learn": {}}, [])


def test_long_value_is_shown_shortened():
    assert len(fault_of(1, "x" * 500)) < 150


# ------------------------------------------------------------------ ranges and choices


@pytest.mark.parametrize(
    ("key", "fine", "wrong", "wanted"),
    [
        (Key(1.0, low=0), 0.0, -1e-9, "at least 0"),
        (Key(1.0, high=2), 2.0, 2.001, "at most 2"),
        (Key(1.0, above=0), 1e-9, 0.0, "above 0"),
        (Key(1.0, below=2), 1.999, 2.0, "below 2"),
        (Key(0.5, low=0, high=1), 1.0, 1.5, "at least 0 and at most 1"),
    ],
)
def test_range_is_kept_and_named(key, fine, wrong, wanted):
    assert value_of(key, fine) == fine
    assert fault_of(key, wrong) == f"k: expected a number {wanted}, got {wrong!r}"


def test_range_holds_after_conversion():
    assert fault_of(Key(1, low=1), 0.0) == "k: expected a number at least 1, got 0"


@pytest.mark.parametrize("key", [Key(1.0), Key(1.0, low=0), Key(1.0, above=0, below=1), Key([1.0], low=0)])
def test_nan_is_refused_whatever_the_range(key):
    raw = [math.nan] if isinstance(key.default, list) else math.nan
    assert fault_of(key, raw) == "k: expected a finite number, got nan"


@pytest.mark.parametrize("value", [10**400, -(10**400), 10**5000], ids=["high", "low", "unprintable"])
@pytest.mark.parametrize("key", [Key(0, low=0), Key(0), Key([1], low=0)])
def test_integer_beyond_every_float_is_refused_whatever_the_range(key, value):
    fault = fault_of(key, [value] if isinstance(key.default, list) else value)
    assert fault == "k: expected a number from -1.7e+308 to 1.7e+308, got an integer beyond them"


def test_range_of_a_list_is_that_of_its_items():
    key = Key([64], low=1)
    assert value_of(key, [1, 2]) == [1, 2]
    assert value_of(key, []) == []
    assert fault_of(key, [64, 0]) == "k: expected a number at least 1, got 0"


@pytest.mark.parametrize("item", ["64", None, [64], True])
def test_item_of_a_list_with_a_range_must_be_a_number(item):
    assert fault_of(Key([64], low=1), [64, item]).startswith("k: ")


def test_choices_are_the_only_values_and_are_listed():
    key = Key("tanh", choices=("tanh", "relu"))
    assert value_of(key, "relu") == "relu"
    assert fault_of(key, "rleu") == ("k: expected one of tanh, relu, got 'rleu'; did you mean 'relu'?")


def test_choices_beside_a_type_are_further_values():
    key = Key("auto", kind=(int,), choices=("auto",), low=1)
    assert value_of(key, "auto") == "auto"
    assert value_of(key, 5) == 5
    assert fault_of(key, "often") == "k: expected a whole number or 'auto', got the string 'often'"
    assert fault_of(key, "atuo").endswith("got the string 'atuo'; did you mean 'auto'?")
    assert fault_of(key, 0) == "k: expected a number at least 1, got 0"


def test_true_is_not_the_choice_one():
    assert fault_of(Key(1, choices=(1, 2)), True).endswith("got True")


def test_fixed_key_takes_only_its_default_and_says_why():
    key = Key(None, fixed_because="networks have no normalisation layers here")
    assert check({"k": None}, as_schema({"k": key})) == ({}, [])
    assert fault_of(key, "LN") == (
        "k: only None is accepted, got the string 'LN': networks have no normalisation layers here"
    )


def test_fixed_key_is_left_out_of_the_defaults():
    assert default_values(as_schema({"a": 1, "b": Key(None, fixed_because="no")})) == {"a": 1}


# ------------------------------------------------------------------ unknown keys


def test_misspelt_key_names_the_one_beside_it():
    assert only_fault({"learn": {"batchsize": 4}}) == (
        "learn: unknown key 'batchsize'; did you mean 'batch_size'?"
    )


def test_key_in_the_wrong_section_is_reported_where_it_exists():
    assert only_fault({"learn": {"gae_lambda": 0.9}}) == (
        "learn: unknown key 'gae_lambda'; 'gae_lambda' exists at collect.gae_lambda"
    )


def test_misspelt_key_in_the_wrong_section_is_reported_its_whole_path():
    assert only_fault({"learn": {"gae_lamda": 0.9}}) == (
        "learn: unknown key 'gae_lamda'; did you mean 'collect.gae_lambda'?"
    )


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("lr", "learn.learning_rate"),
        ("minibatch_size", "learn.batch_size"),
        ("n_steps", "collect.n_sample: steps x environments"),
    ],
)
def test_name_from_another_library_is_translated(theirs, ours):
    assert only_fault({theirs: 1}).endswith(f"exists at {ours}")


def test_key_like_no_other_lists_what_is_known_here():
    assert only_fault({"collect": {"zzz": 1}}) == (
        "collect: unknown key 'zzz'; known here: gae_lambda, n_sample"
    )


def test_unknown_key_at_the_top_has_no_path_before_it():
    assert only_fault({"nmae": 1}) == "unknown key 'nmae'; did you mean 'name'?"


def test_key_that_is_not_a_string_is_unknown_and_does_not_crash():
    assert "unknown key '3'" in only_fault({3: 1})


def test_path_given_stands_before_every_fault():
    _, faults = check({"learn": {"batch_size": 0}, "nmae": 1}, SCHEMA, "policy")
    assert faults[0].startswith("policy.learn.batch_size: ")
    assert faults[1].startswith("policy: unknown key 'nmae'")


def test_no_synonym_points_at_another_synonym():
    assert not set(SYNONYMS) & set(SYNONYMS.values())


# ------------------------------------------------------------------ one pass


def test_all_faults_are_found_at_once_in_the_order_written():
    user = {
        "learn": {"batch_size": "64", "clip_ratio": 1.5, "unheard_of": 1, "learning_rate": 1},
        "collect": 5,
        "name": None,
    }
    _, faults = check(user, SCHEMA)
    assert [fault.split(": ")[0] for fault in faults] == [
        "learn.batch_size",
        "learn.clip_ratio",
        "learn",
        "collect",
        "name",
    ]


def test_only_what_was_said_is_returned():
    values, faults = check({"learn": {"batch_size": 32.0}}, SCHEMA)
    assert (values, faults) == ({"learn": {"batch_size": 32}}, [])


def test_all_defaults_pass_their_own_schema():
    assert check(default_values(SCHEMA), SCHEMA) == (default_values(SCHEMA), [])


def test_input_is_never_mutated():
    user = {"learn": {"batch_size": 64.0, "wrong": [1]}, "kwargs": {"deep": {"list": [1, 2]}}, "name": 5}
    before = copy.deepcopy(user)
    check(user, SCHEMA)
    assert user == before
    assert type(user["learn"]["batch_size"]) is float


def test_result_shares_no_container_with_the_input():
    user = {"kwargs": {"deep": {"list": [1, 2]}}, "sizes": [64]}
    values, _ = check(user, as_schema({"kwargs": {}, "sizes": [1]}))
    values["kwargs"]["deep"]["list"].append(3)
    values["sizes"].append(3)
    assert user == {"kwargs": {"deep": {"list": [1, 2]}}, "sizes": [64]}
