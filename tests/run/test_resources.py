"""Threads of the process that a run trains in."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from ding_lite.envs.workers.cores import torch_threads
from ding_lite.run.resources import threads

VECTOR, IMAGE = gym.spaces.Box(-1, 1, (4,)), gym.spaces.Box(0, 255, (84, 84, 1), np.uint8)
BOTH = gym.spaces.Dict(camera=IMAGE, speed=VECTOR)


@pytest.mark.parametrize(
    ("num_threads", "space", "expected"),
    [("auto", VECTOR, 1), ("auto", IMAGE, 2), ("auto", BOTH, 2), (3, VECTOR, 3), (3, IMAGE, 3)],
)
@pytest.mark.parametrize(("cores", "of_torch"), [(2, 4), (4, 2)])
def test_images_get_every_core_and_vectors_one(num_threads, space, expected, cores, of_torch, monkeypatch):
    monkeypatch.setattr("ding_lite.run.resources.cores", lambda: cores)
    with torch_threads(of_torch), threads(num_threads, space):
        assert torch.get_num_threads() == expected
