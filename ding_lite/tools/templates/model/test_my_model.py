"""Tests of my_model.py: run them with pytest."""

import gymnasium as gym
import torch
from my_model import MyModel, config

from ding_lite import SerialPipeline, check_policy


def test_one_pass_for_both_gives_the_same_numbers():
    model = MyModel(gym.spaces.Box(-1.0, 1.0, (4,)), gym.spaces.Discrete(3), width=16, blocks=2)
    obs = torch.randn(5, 4)
    logit, value = model.compute_actor_critic(obs)
    torch.testing.assert_close(logit, model.compute_actor(obs))
    torch.testing.assert_close(value, model.compute_critic(obs))


def test_ppo_works_with_the_model():
    check_policy("ppo", dict(model=dict(type=MyModel, width=32, blocks=1)), learns=False)


def test_config_trains(tmp_path):
    with SerialPipeline(config, folder=tmp_path / "run") as pipeline:
        assert next(iter(pipeline)).train_iter > 0  # after one iteration
    assert isinstance(pipeline.policy.model, MyModel)
