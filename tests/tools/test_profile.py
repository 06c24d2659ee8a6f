"""``ding-lite profile``: the phases of the loop add up, and the blame goes where the time went."""

from __future__ import annotations

import json
import time
from functools import partial

import pytest
import torch
from slow_worlds import SlowEnv
from small_worlds import SeededEnv

from ding_lite import compile_config
from ding_lite.cli import main
from ding_lite.data.timer import PHASES
from ding_lite.policies.ppo import PPOPolicy
from ding_lite.tools.profile import ADVICE, profile


class SlowToAct(PPOPolicy):
    def _forward_collect(self, obs, hidden=None):
        time.sleep(0.02)
        return super()._forward_collect(obs)


class SlowToCredit(PPOPolicy):
    def _complete_rollout(self, rollout):
        time.sleep(0.5)  # it is called once
        return super()._complete_rollout(rollout)


class SlowToLearn(PPOPolicy):
    def policy_loss(self, batch):
        time.sleep(0.02)
        return super().policy_loss(batch)


def profiled(world=SeededEnv, kind="ppo", iterations=2, eval_freq=0, **learn):
    env = dict(type=world, collector_env_num=2, evaluator_env_num=1, n_evaluator_episode=1, max_eval_steps=5)
    env["stop_value"] = -1e9  # a solved task is measured like any other
    learn = dict(batch_size=16, **learn)
    policy = dict(type=kind, collect=dict(n_sample=32), learn=learn, eval=dict(eval_freq=eval_freq))
    return profile(compile_config(dict(env=env, policy=policy, max_train_iter=1)), iterations)


def test_threads_are_those_of_the_run():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    found = profiled()
    torch.set_num_threads(before)
    assert found["threads"] == 1


@pytest.mark.parametrize(
    ("options", "blamed"),
    [
        (dict(world=partial(SlowEnv, pause=0.01)), "env"),
        (dict(kind=SlowToAct), "act"),
        (dict(kind=SlowToCredit), "advantages"),
        (dict(kind=SlowToLearn), "updates"),
    ],
)
def test_blame_goes_where_the_time_went(options, blamed):
    found = profiled(**options)
    assert found["largest"] == blamed
    assert found["phases"][blamed]["percent"] > 40
    assert found["try"] == ADVICE[blamed]
    assert sum(phase["percent"] for phase in found["phases"].values()) == pytest.approx(100)


def test_default_covers_whole_auxiliary_cycles_and_what_falls_due():
    found = profiled(kind="ppg", aux_freq=4, iterations=None, eval_freq=64)
    assert (found["iterations"], found["env_steps"]) == (12, 12 * 32)
    assert found["phases"]["auxiliary"]["ms"] > 0
    assert found["phases"]["eval"]["ms"] > 0
    assert list(found["phases"]) == list(PHASES) == list(ADVICE)


def test_the_command_prints_a_table_and_an_advice_and_leaves_nothing(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    words = ["profile", "--env", "CartPole-v1", "--plain", "policy.collect.n_sample=128", "--iterations", "1"]
    assert main(words) == 0
    text = capfd.readouterr().out
    assert all(phase in text for phase in PHASES)
    assert "env steps/s" in text
    assert main([*words, "--json"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert set(report["phases"]) == set(PHASES)
    assert list(tmp_path.iterdir()) == []
