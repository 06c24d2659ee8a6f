"""Tests of my_config.py: run them with pytest."""

from pathlib import Path

from ding_lite import SerialPipeline, load_config

CONFIG = Path(__file__).with_name("my_config.py")


def test_config_trains(tmp_path):
    with SerialPipeline(load_config(CONFIG), folder=tmp_path / "run") as pipeline:
        assert next(iter(pipeline)).train_iter > 0  # after one iteration
