"""Search spaces: what is parsed, what is refused, and that the config is asked about every key."""

from __future__ import annotations

import pytest

from ding_lite import compile_config
from ding_lite.errors import ConfigError
from ding_lite.tools.search import Values, check_space, parse_searches, search_space

CONFIG = {"env": {"env_id": "CartPole-v1"}}


@pytest.mark.parametrize(
    ("spec", "values"),
    [
        ("uniform(0, 0.5)", Values("uniform", 0.0, 0.5)),
        ("log(1e-5,1e-2)", Values("log", 1e-5, 1e-2)),
        (" int(-2, 10) ", Values("int", -2, 10)),
        (
            "choice(64, 0.5, tanh, 'a b', none, [1, 2])",
            Values("choice", 0, 0, (64, 0.5, "tanh", "a b", None, [1, 2])),
        ),
        ([64, 128], Values("choice", 0, 0, (64, 128))),
    ],
)
def test_values_of_a_key(spec, values):
    assert search_space({"policy.key": spec}) == {"policy.key": values}


@pytest.mark.parametrize(
    ("spec", "fault"),
    [
        ("lgo(1, 2)", "did you mean 'log'?"),
        ("3", "expected uniform(a, b), log(a, b), int(a, b) or choice(a, b, ...), got '3'"),
        ("log(", "got 'log('"),
        ("log(a=1)", "got 'log(a=1)'"),
        ("log(0, 1)", "log needs numbers above 0"),
        ("uniform(2, 1)", "two numbers, the lower one first"),
        ("uniform(1, 2, 3)", "two numbers"),
        ("uniform(True, 2)", "two numbers"),
        ("int(1, 2.5)", "two whole numbers"),
        ("choice(1)", "at least two values"),
        ("choice(a, 'a')", "the same value twice"),
        ("uniform(1, __import__('os'))", "expected numbers, strings or lists, got __import__('os')"),
    ],
)
def test_wrong_values_are_refused(spec, fault):
    with pytest.raises(ConfigError) as caught:
        search_space({"policy.key": spec})
    assert "policy.key: " in str(caught.value)
    assert fault in str(caught.value)


def test_all_faults_are_reported_at_once():
    with pytest.raises(ConfigError, match=r"one: (.|\n)*two: "):
        search_space({"one": "x", "fine": [1, 2], "two": "y"})


def test_seed_is_not_searched_and_a_space_is_needed():
    with pytest.raises(
        ConfigError, match="seed: cannot be searched: give the seeds of each trial as -s 0,1,2"
    ):
        search_space({"seed": "int(0, 3)"})
    with pytest.raises(ConfigError, match="no search space: give --search"):
        search_space({})


def test_options_are_split_at_the_first_equals_sign():
    assert parse_searches(["a.b=choice('x=y', z)"]) == {"a.b": "choice('x=y', z)"}
    for texts in (["a.b"], ["=log(1,2)"], ["a="]):
        with pytest.raises(ConfigError, match="as in policy.learn.learning_rate=log"):
            parse_searches(texts)
    with pytest.raises(ConfigError, match=r"a\.b is given twice"):
        parse_searches(["a.b=log(1,2)", "a.b=log(1,3)"])


def test_lists_have_names_in_the_storage():
    (values,) = search_space({"key": [[64, 64], [8], 3]}).values()
    assert values.labels() == {"[64, 64]": [64, 64], "[8]": [8], 3: 3}


@pytest.mark.parametrize(
    ("key", "spec", "fault"),
    [
        ("policy.learn.learning_rat", "log(1e-5, 1e-2)", "did you mean 'learning_rate'?"),
        ("policy.learn.gae_lambda", "uniform(0, 1)", "exists at policy.collect.gae_lambda"),
        ("policy.collect.gae_lambda", "uniform(0.5, 1.5)", "policy.collect.gae_lambda: expected a number"),
        ("policy.model.activation", "choice(tanh, tahn)", "did you mean 'tanh'?"),
        ("policy.learn.batch_size", "choice(64, 1000000)", "larger than a rollout"),
        (
            "policy.learn.batch_size",
            "log(64, 1024)",
            "policy.learn.batch_size: expected a whole number, and log gives numbers with a fraction; "
            "use int(64, 1024) or choice(64, 128, 256, 512, 1024)",
        ),
        (
            "policy.learn.epoch_per_collect",
            "uniform(1.5, 3)",
            "uniform gives numbers with a fraction; use int(2, 3)",
        ),
    ],
)
def test_config_refuses_a_key_or_value_before_a_trial(key, spec, fault):
    space = search_space({"policy.learn.epoch_per_collect": [1, 2], key: spec})
    with pytest.raises(ConfigError) as caught:
        check_space(space, lambda values: compile_config(CONFIG, values))
    assert fault in str(caught.value)


def test_value_that_needs_another_searched_value_beside_it_is_accepted():
    alone = {"policy.learn.batch_size": "choice(64, 4096)"}
    beside = {**alone, "policy.collect.n_sample": "choice(1024, 8192)"}
    check_space(search_space(beside), lambda values: compile_config(CONFIG, values))
    with pytest.raises(ConfigError, match="larger than a rollout"):
        check_space(search_space(alone), lambda values: compile_config(CONFIG, values))
