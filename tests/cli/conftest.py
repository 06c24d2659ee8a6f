"""Runs commands in this process, in a folder of the test."""

import sys
from typing import NamedTuple

import pytest

from ding_lite.cli import main

TINY = """\
config = dict(
    exp_name="tiny",
    max_env_step=512,
    env=dict(env_id="CartPole-v1", collector_env_num=4, evaluator_env_num=2, n_evaluator_episode=4),
    policy=dict(
        collect=dict(n_sample=256),
        eval=dict(eval_freq=256),
        learn=dict(epoch_per_collect=2, learning_rate=1e-3),
    ),
)
"""


class Done(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def ding_lite(tmp_path, monkeypatch, capfd):
    """Runs a command in the test's folder; modules that it imports from there are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "tiny.py").write_text(TINY)

    def call(*words):
        code = main([str(word) for word in words])
        return Done(code, *capfd.readouterr())

    yield call
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def well(ding_lite):
    """Runs a command that must succeed and say nothing on standard error; returns what it printed."""

    def call(*words):
        done = ding_lite(*words)
        assert (done.code, done.err) == (0, ""), done.out
        return done.out

    return call
