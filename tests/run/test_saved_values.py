"""The values of a config are the same wherever a run makes its environments, or no run is made."""

import contextlib
import json
import math
import shutil
from functools import partial
from pathlib import Path
from typing import NamedTuple

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_worlds import RecordingEnv
from strategies import SCALARS, config_values, places, same
from worlds import finished, small_config

from ding_lite import SerialPipeline
from ding_lite.config.compile import compile_config, differences, load_config, python_source, save_config
from ding_lite.config.values import decode, encode
from ding_lite.errors import ConfigError
from ding_lite.tools.evaluate import evaluate_checkpoint

# One of each kind.
VALUE = [
    {"pose.arm": {"sizes": ((1, 2), [(), None, True])}},
    [float("nan"), -math.inf, "x"],
    {1, 2, 3},
    frozenset({("a", 1)}),
    Path("maps") / "one",
    np.array([[0.1, np.nan], [-np.inf, 1e-45]], np.float32),
    np.zeros((0, 3), ">i2"),
]


@given(config_values())
def test_a_value_comes_back_from_json_and_from_a_config_file(value):
    data = json.dumps(encode({"x": value}))
    assert same(decode(json.loads(data)), {"x": value})
    assert same(decode({"x": value}), {"x": value})
    names = {}
    exec(python_source({"x": value}, ["two\nlines"]), names)
    assert same(decode(names["config"]), {"x": value})
    assert json.dumps(encode(decode(names["config"]))) == data, "equal values have equal data"


@given(config_values(), st.data())
def test_a_forged_value_is_a_value_or_refused(value, data):
    forged = json.loads(json.dumps(encode({"x": (value, np.ones(2))})))
    node, key = data.draw(st.sampled_from(list(places(forged))))
    node[key] = data.draw(SCALARS | st.sampled_from([[], [[1]], {}, {"__kind__": "set", "value": [[]]}, "O"]))
    with contextlib.suppress(ConfigError):
        encode(decode(forged))


def test_environments_have_the_same_arguments_wherever_they_are_made(tmp_path):
    record, run, trust = tmp_path / "record", tmp_path / "run", ["small_worlds"]
    kwargs = {"file": str(record), "value": VALUE}
    config = small_config(RecordingEnv, max_env_step=256, env={"kwargs": kwargs, "manager": {"type": "base"}})

    def made():
        text = record.read_text()
        record.unlink()
        return set(text.splitlines())

    finished(SerialPipeline(config, folder=run))
    trained = made()
    assert trained == set(repr(VALUE).splitlines())
    evaluate_checkpoint(run, episodes=1, trust=trust)
    assert made() == trained
    finished(SerialPipeline.resume(run, changes={"max_env_step": 512}, trust=trust))
    assert made() == trained
    assert "env.kwargs" not in (run / "log.txt").read_text()
    written = compile_config(config)
    save_config(written, tmp_path / "config.py")
    for file in (run / "config.json", tmp_path / "config.py"):
        read = load_config(file)
        assert not differences({"env": written.values.env}, {"env": read.values.env})
        finished(SerialPipeline(read, folder=tmp_path / file.stem))
        assert made() == trained
        shutil.rmtree(tmp_path / file.stem)


class Pair(NamedTuple):
    one: int
    two: int


class Table:
    """As a data frame, it has no truth value and no equality."""

    def __eq__(self, other):
        return np.zeros(2) == 1

    def __bool__(self):
        raise ValueError("The truth value is ambiguous")


@pytest.mark.parametrize(
    ("value", "what"),
    [(Pair(1, 2), "a Pair"), (Pair, "the class Pair"), (torch.ones(1), "a Tensor"), (Table(), "a Table")],
)
def test_value_that_cannot_be_saved_is_refused_when_the_run_is_built(value, what, tmp_path):
    kwargs = {"file": str(tmp_path / "record"), "value": [{"mode": (1, value)}]}
    env = {"type": RecordingEnv, "kwargs": kwargs}
    with pytest.raises(ConfigError) as caught:
        SerialPipeline(small_config(env=env), folder=tmp_path / "run")
    message = str(caught.value)
    assert message.startswith(f"env.kwargs.value[0].mode[1]: {what} cannot be saved with the run; give a ")
    assert "convert it in the environment" in message
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", [lambda: gym.make("CartPole-v1"), partial(gym.make, "CartPole-v1")])
def test_a_run_says_which_of_its_classes_nothing_can_load_again(kind, tmp_path):
    SerialPipeline(small_config(env={"type": kind}), folder=tmp_path / "run").close()
    assert "WARNING: env.type: nothing can load" in (tmp_path / "run" / "log.txt").read_text()


@pytest.mark.parametrize(
    "data",
    [
        {"__kind__": "object", "value": []},
        {"__kind__": "tuple"},
        {"__kind__": "array", "value": [1], "dtype": "O", "shape": [1]},
    ],
    ids=str,
)
def test_forged_value_is_refused(data):
    with pytest.raises(ConfigError, match="not a saved value"):
        decode({"env": {"kwargs": {"x": [data]}}})
