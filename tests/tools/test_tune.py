"""``ding-lite profile --tune``: what is tried, and that the fastest setting is found with real processes."""

from __future__ import annotations

import re
import signal
import subprocess
import sys

import pytest

from ding_lite import compile_config
from ding_lite.cli import main
from ding_lite.tools.tune import settings, with_setting


def in_workers(**options):
    return {"env.manager.type": "subprocess", **{f"env.manager.{k}": v for k, v in options.items()}}


def config_of(manager, **options):
    env = dict(env_id="Acrobot-v1", collector_env_num=8, manager=manager)
    return compile_config(dict(env=env, **options))


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    monkeypatch.setattr("ding_lite.tools.tune.cores", lambda: 2)


@pytest.mark.parametrize(
    ("manager", "expected"),
    [
        ("auto", [in_workers(worker_num=n) for n in (1, 2, 4, 8)]),
        (
            dict(type="subprocess", worker_num=2),
            [{"env.manager.type": "base"}, *(in_workers(worker_num=n) for n in (1, 4, 8))],
        ),
        ("vector", []),
        ("env_pool", []),
    ],
)
def test_other_settings_than_the_present_ones_are_tried(manager, expected):
    found = settings(config_of(manager, num_threads=1))
    if expected:
        expected = [*expected, in_workers(double_buffer=True)]
    assert found == [*expected, {"num_threads": 2}]


def test_what_the_config_has_is_not_tried_and_a_setting_replaces_its_overrides():
    assert {"num_threads": 2} not in settings(config_of("base", num_threads=2))
    assert with_setting(["num_threads=2", "a.b=1"], {"num_threads": 1}) == ["a.b=1", "num_threads=1"]


@pytest.mark.slow
def test_the_present_setting_is_measured_first_and_the_command_names_the_fastest(monkeypatch, capfd):
    workers = {"env.manager.type": "subprocess", "env.manager.worker_num": 8}
    tried = [{"env.manager.type": "nonsense"}, workers, {"num_threads": 1}]
    monkeypatch.setattr("ding_lite.tools.tune.settings", lambda _: tried)
    waits = ["--env", "slow_worlds:SlowEnv", "policy.collect.n_sample=256", "env.kwargs.pause=0.005"]
    assert main(["profile", "--tune", *waits, "env.manager.type=base", "--iterations", "2"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[0] == "3 settings to try beside the present one"
    assert lines[1].startswith("as it is: ")
    assert re.fullmatch(r"about \d+ s are left", lines[2])
    assert lines[3].startswith("env.manager.type=nonsense: ")
    fastest = "env.manager.type=subprocess env.manager.worker_num=8"  # eight wait at the same time
    assert lines[5].startswith(f"{fastest} num_threads=1: ")  # on top of the fastest so far
    assert f"ding-lite train {' '.join(waits)} {fastest}" in lines[-1]


@pytest.mark.slow
def test_a_search_that_a_signal_ends_says_so_and_has_its_exit_code():
    words = ["profile", "--tune", "-c", "cartpole_ppo", "--iterations", "1"]
    with subprocess.Popen(
        [sys.executable, "-m", "ding_lite", *words], stdout=subprocess.PIPE, text=True
    ) as process:
        lines = [next(process.stdout) for _ in range(3)]
        process.send_signal(signal.SIGTERM)
        lines += process.stdout.read().splitlines()
    assert process.returncode == 143
    assert lines[3].startswith("ended after 0 of ")
    assert lines[-1] == "the fastest so far: ding-lite train -c cartpole_ppo"
