"""Tests of my_encoder.py: run them with pytest."""

import gymnasium as gym
import torch
from my_encoder import MyEncoder, config

from ding_lite import SerialPipeline, check_policy


def test_shapes():
    encoder = MyEncoder(gym.spaces.Box(-1.0, 1.0, (3,)), frequencies=2)
    assert encoder.out_features == 12
    assert encoder(torch.randn(5, 3)).shape == (5, 12)


def test_features_are_sines_and_cosines():
    encoder = MyEncoder(gym.spaces.Box(-1.0, 1.0, (1,)), frequencies=2)
    features = encoder(torch.tensor([[0.5]]))
    torch.testing.assert_close(features, torch.tensor([[1.0, 0.0, 0.0, -1.0]]), atol=1e-6, rtol=0)


def test_ppo_works_with_the_encoder():
    check_policy("ppo", dict(model=dict(encoder=dict(type=MyEncoder, frequencies=2))), learns=False)


def test_config_trains(tmp_path):
    with SerialPipeline(config, folder=tmp_path / "run") as pipeline:
        assert next(iter(pipeline)).train_iter > 0  # after one iteration
    assert any(isinstance(part, MyEncoder) for part in pipeline.policy.model.modules())
