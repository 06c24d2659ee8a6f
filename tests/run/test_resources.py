"""Threads of the process that a run trains in."""

import gymnasium as gym
import numpy as np
import pytest

from ding_lite.envs.workers.cores import cores
from ding_lite.run.resources import thread_count

VECTOR, IMAGE = gym.spaces.Box(-1, 1, (4,)), gym.spaces.Box(0, 255, (84, 84, 1), np.uint8)


@pytest.mark.parametrize(
    ("num_threads", "space", "threads"),
    [
        ("auto", VECTOR, 1),
        ("auto", IMAGE, cores()),
        ("auto", gym.spaces.Dict(camera=IMAGE, speed=VECTOR), cores()),
        (3, VECTOR, 3),
        (3, IMAGE, 3),
    ],
)
def test_images_get_every_core_and_vectors_one(num_threads, space, threads, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert thread_count(num_threads, space) == threads


@pytest.mark.parametrize(("variable", "threads"), [("1", 1), ("4", 4), ("99", 8), ("", 8), ("many", 8)])
def test_images_get_no_more_threads_than_the_variable_allows(variable, threads, monkeypatch):
    monkeypatch.setattr("ding_lite.run.resources.cores", lambda: 8)
    monkeypatch.setenv("OMP_NUM_THREADS", variable)
    assert thread_count("auto", IMAGE) == threads
