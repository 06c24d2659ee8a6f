"""Environments and a model that a script gives a run: nothing else takes their place silently."""

import os

import gymnasium as gym
import pytest
import torch
from worlds import small_config

from ding_lite import SerialPipeline, load_policy
from ding_lite.cli.program import main
from ding_lite.errors import CheckpointError, ConfigError
from ding_lite.models import VAC


class TenTimes(gym.RewardWrapper):
    def reward(self, reward):
        return 10.0 * reward


def make(cfg):
    return TenTimes(gym.make("CartPole-v1"))


SETTING = (make, [None] * 4, [None] * 2)


def network(activation="relu"):
    env = make(None)
    return VAC(
        env.observation_space, env.action_space, encoder_hidden_size_list=[8, 8], activation=activation
    )


def trained(folder, **given):
    model = {"encoder_hidden_size_list": [8, 8]}
    config = small_config(policy={"model": model}, env={"max_eval_steps": 20})
    pipeline = SerialPipeline(config, folder=folder, **given)
    for _ in pipeline:
        pass
    return pipeline


def test_environments_that_were_given_are_given_again(tmp_path):
    pipeline = trained(tmp_path / "run", env_setting=SETTING)
    assert pipeline.summary().endswith(f"try: load_policy('{tmp_path / 'run'}')")
    longer = pipeline.progress.env_step + 100
    with pytest.raises(
        ConfigError, match=r"given by a script.*SerialPipeline.resume\(RUN, env_setting=...\)"
    ):
        SerialPipeline.resume(tmp_path / "run", max_env_step=longer)
    again = SerialPipeline.resume(tmp_path / "run", max_env_step=longer, env_setting=SETTING)
    assert [progress.evaluation.mean % 10 for progress in again if progress.evaluation] == [0.0]
    assert load_policy(tmp_path / "run").act(make(None).reset(seed=0)[0]) in (0, 1)


def test_command_line_plays_in_no_other_environment_than_the_one_named(tmp_path, capsys):
    trained(tmp_path / "run", env_setting=SETTING)
    assert main(["eval", str(tmp_path / "run"), "-n", "1"]) == 2
    assert "env.env_id=ID" in capsys.readouterr().err
    assert main(["eval", str(tmp_path / "run"), "-n", "1", "env.env_id=CartPole-v1"]) == 0
    assert main(["train", "--resume", str(tmp_path / "run"), "--max-env-step", "9999"]) == 2


def test_a_model_that_was_given_is_given_again(tmp_path):
    pipeline = trained(tmp_path / "run", model=network())
    assert pipeline.summary().endswith(f"try: load_policy('{tmp_path / 'run'}', model=...)")
    for other in ({}, {"model": network("elu")}):
        with pytest.raises(CheckpointError, match="other layers than this VAC. Give it again"):
            load_policy(tmp_path / "run", **other)
        with pytest.raises(CheckpointError, match="other layers than this VAC. Give it again"):
            SerialPipeline.resume(tmp_path / "run", max_env_step=9999, **other)
    obs = torch.randn(5, 4).numpy()
    loaded = load_policy(tmp_path / "run", checkpoint="last", model=network())
    assert (loaded.act(obs) == pipeline.policy.act(obs)).all()


def test_a_model_like_that_of_the_config_needs_not_be_given_again(tmp_path):
    pipeline = trained(tmp_path / "run", model=network("tanh"))
    obs = torch.randn(5, 4).numpy()
    assert (load_policy(tmp_path / "run", checkpoint="last").act(obs) == pipeline.policy.act(obs)).all()


class Wandering(gym.Wrapper):
    def step(self, action):
        os.chdir("/")
        return super().step(action)


def test_a_run_stays_together_when_its_environment_changes_the_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pipeline = trained("run", env_setting=(lambda cfg: Wandering(make(cfg)), [None] * 4, [None] * 2))
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"ckpt", "result.json", "metrics.csv", "log.txt"} <= names
    assert "run: run " in pipeline.summary(), "as it is called from the directory of the script"
