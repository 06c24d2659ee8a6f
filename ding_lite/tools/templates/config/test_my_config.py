"""Tests of my_config.py: run them with pytest."""

import math
from pathlib import Path

from ding_lite import SerialPipeline, load_config

CONFIG = Path(__file__).with_name("my_config.py")


def test_keys_exist_and_values_are_in_range():
    config = load_config(CONFIG).values  # reports all faults at once
    assert config.env.env_id == "CartPole-v1"


def test_config_trains(tmp_path):
    pipeline = SerialPipeline(load_config(CONFIG), folder=tmp_path / "run")
    progress = next(iter(pipeline))  # one iteration
    pipeline.close()
    assert progress.train_iter > 0
    assert math.isfinite(progress.metrics["learn/policy_loss"])
