"""The memories of environments while a rollout is collected."""

from types import SimpleNamespace

import numpy as np
import torch

from ding_lite.data.hidden import Memories
from ding_lite.data.sequences import Grid


def step(*valid):
    never = np.zeros(len(valid), bool)
    return SimpleNamespace(valid=np.array(valid), terminated=never, truncated=never, final_obs=None)


def memories_of_two():
    memories = Memories(lambda n: {"h": torch.zeros(n, 2)}, Grid(4), [np.arange(2)])
    memories.begin_rollout()
    return memories


def test_the_memory_of_a_lost_step_is_the_one_that_its_action_was_chosen_with():
    memories = memories_of_two()
    memories.after(0, 0, {"h": torch.tensor([[1.0, 1.0], [2.0, 2.0]])}, step(True, True))
    memories.before(1, 0, slice(None))
    memories.after(1, 0, {"h": torch.full((2, 2), 9.0)}, step(True, False))
    assert memories.before_lost(1, np.array([1]))["h"].tolist() == [[2.0, 2.0]]
    assert memories.of_groups[0]["h"].tolist() == [[9.0, 9.0], [0.0, 0.0]]


def test_rows_without_a_step_keep_no_memory():
    memories = memories_of_two()
    for t in range(20):  # environment 1 waits, such as after its share of episodes
        memories.after(t, 0, {"h": torch.full((2, 2), float(t))}, step(True, False))
    assert memories._before_lost == {}
