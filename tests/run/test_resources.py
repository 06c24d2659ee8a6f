"""Threads of the process that a run trains in."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from ding_lite.run.resources import threads

VECTOR, IMAGE = gym.spaces.Box(-1, 1, (4,)), gym.spaces.Box(0, 255, (84, 84, 1), np.uint8)


@pytest.mark.parametrize(
    ("num_threads", "space", "expected"),
    [
        ("auto", VECTOR, 1),
        ("auto", IMAGE, 4),
        ("auto", gym.spaces.Dict(camera=IMAGE, speed=VECTOR), 4),
        (3, VECTOR, 3),
        (3, IMAGE, 3),
    ],
)
def test_images_get_every_core_and_vectors_one(num_threads, space, expected, monkeypatch):
    before = torch.get_num_threads()
    try:
        for cores, of_torch in ((4, 8), (8, 4)):
            monkeypatch.setattr("ding_lite.run.resources.cores", lambda n=cores: n)
            torch.set_num_threads(of_torch)
            with threads(num_threads, space):
                assert torch.get_num_threads() == expected
            assert torch.get_num_threads() == of_torch
    finally:
        torch.set_num_threads(before)
