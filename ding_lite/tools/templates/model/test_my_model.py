"""Tests of my_model.py: run them with pytest."""

from my_model import MyModel, config

from ding_lite import SerialPipeline, check_policy


def test_ppo_works_with_the_model():
    check_policy("ppo", dict(model=dict(type=MyModel, width=32, blocks=1)), learns=False)


def test_config_trains(tmp_path):
    with SerialPipeline(config, folder=tmp_path / "run") as pipeline:
        assert next(iter(pipeline)).train_iter > 0  # after one iteration
