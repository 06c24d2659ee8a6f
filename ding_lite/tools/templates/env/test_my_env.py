"""Tests of my_env.py: run them with pytest."""

import numpy as np
from my_env import MyEnv, config

from ding_lite import SerialPipeline
from ding_lite.tools.env_check import check_env


def test_environment_keeps_to_gymnasium_and_to_its_spaces():
    findings = check_env(MyEnv)  # the lines that `ding-lite check-env my_env:MyEnv` prints
    assert [finding for finding in findings if finding.verdict == "FAIL"] == []


def test_episode_without_success_is_truncated_and_not_terminated():
    env = MyEnv(max_steps=5)
    env.reset(seed=0)
    env.position, env.target = -1.0, 1.0
    ends = [env.step(np.zeros(1, np.float32))[2:4] for _ in range(5)]
    assert ends == [(False, False)] * 4 + [(False, True)]


def test_stopping_at_the_target_ends_the_task():
    env = MyEnv()
    env.reset(seed=0)
    env.position = env.target
    _, reward, terminated, truncated, info = env.step(np.zeros(1, np.float32))
    assert (reward, terminated, truncated, info) == (10.0, True, False, {"is_success": 1.0})


def test_config_trains(tmp_path):
    with SerialPipeline(config, folder=tmp_path / "run") as pipeline:
        assert next(iter(pipeline)).train_iter > 0  # after one iteration
