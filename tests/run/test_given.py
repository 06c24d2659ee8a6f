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
from ding_lite.tools.export import export_policy

LONGER = 9999  # env steps: more than a run has done


class TenTimes(gym.RewardWrapper):
    def reward(self, reward):
        return 10.0 * reward


def make(cfg):
    return TenTimes(gym.make("CartPole-v1"))


SETTING = (make, [None] * 4, [None] * 2)


def network(activation="relu"):
    env = make(None)
    sizes = {"encoder_hidden_size_list": [8, 8]}
    return VAC(env.observation_space, env.action_space, activation=activation, **sizes)


def trained(folder, kind="ppo", **given):
    policy = {"type": kind, "model": {"encoder_hidden_size_list": [8, 8]}}
    config = small_config(policy=policy, env={"max_eval_steps": 20})
    pipeline = SerialPipeline(config, folder=folder, **given)
    for _ in pipeline:
        pass
    return pipeline


def test_environments_that_were_given_are_given_again(tmp_path):
    pipeline = trained(tmp_path / "run", env_setting=SETTING)
    assert pipeline.summary().endswith(f"try: load_policy('{tmp_path / 'run'}')")
    advice = r"given by a script.*SerialPipeline.resume\(RUN, env_setting=...\)"
    for override in (False, True):
        with pytest.raises(ConfigError, match=advice):
            SerialPipeline.resume(tmp_path / "run", max_env_step=LONGER, override=override)
    longer = pipeline.progress.env_step + 100
    again = SerialPipeline.resume(tmp_path / "run", max_env_step=longer, env_setting=SETTING)
    assert [progress.evaluation.mean % 10 for progress in again if progress.evaluation] == [0.0]
    assert load_policy(tmp_path / "run").act(make(None).reset(seed=0)[0]) in (0, 1)


def test_command_line_plays_in_no_other_environment_than_the_one_named(tmp_path, capsys):
    trained(tmp_path / "run", env_setting=SETTING)
    assert main(["eval", str(tmp_path / "run"), "-n", "1"]) == 2
    assert "env.env_id=ID" in capsys.readouterr().err
    assert main(["eval", str(tmp_path / "run"), "-n", "1", "env.env_id=CartPole-v1"]) == 0
    assert main(["train", "--resume", str(tmp_path / "run"), "--max-env-step", str(LONGER)]) == 2


def test_a_policy_is_not_exported_beside_other_environments(tmp_path):
    trained(tmp_path / "run", env_setting=SETTING)
    with pytest.raises(ConfigError, match="given by a script"):
        export_policy(tmp_path / "run", tmp_path / "policy.pt2")


def test_a_model_that_was_given_is_given_again(tmp_path):
    pipeline = trained(tmp_path / "run", model=network())
    assert pipeline.summary().endswith(f"try: load_policy('{tmp_path / 'run'}', model=...)")
    others = {"it is not given now": {}, "this VAC has other layers": {"model": network("elu")}}
    for problem, other in others.items():
        with pytest.raises(CheckpointError, match=f"given by a script, and {problem}. Give it again: "):
            load_policy(tmp_path / "run", **other)
        with pytest.raises(CheckpointError, match=f"given by a script, and {problem}. Give it again: "):
            SerialPipeline.resume(tmp_path / "run", max_env_step=LONGER, **other)
    obs = torch.randn(5, 4).numpy()
    loaded = load_policy(tmp_path / "run", checkpoint="last", model=network())
    assert (loaded.act(obs) == pipeline.policy.act(obs)).all()
    longer = pipeline.progress.env_step + 100
    again = SerialPipeline.resume(tmp_path / "run", max_env_step=longer, model=network())
    assert len(list(again)) == 1
    with pytest.raises(CheckpointError, match="it is not given now"):
        load_policy(tmp_path / "run")


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


def test_keys_that_given_objects_replace_are_told(tmp_path):
    config = small_config(
        env={"manager": {"type": "subprocess"}, "collector_env_num": 4, "evaluator_env_num": 3},
        policy={"model": {"encoder_hidden_size_list": [8, 8], "obs_shape": 4}},
    )
    with SerialPipeline(config, folder=tmp_path / "run", env_setting=SETTING, model=network()):
        log = (tmp_path / "run" / "log.txt").read_text()
    assert "env.evaluator_env_num=3 and env.manager.type='subprocess': no effect, since env_setting=" in log
    assert "policy.model.encoder_hidden_size_list=[8, 8]: no effect, since model= is given" in log
    with SerialPipeline(small_config(policy={"model": {"obs_shape": 4}}), folder=tmp_path / "other"):
        assert "no effect" not in (tmp_path / "other" / "log.txt").read_text()
