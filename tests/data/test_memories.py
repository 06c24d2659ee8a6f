"""The memories of environments while a rollout is collected."""

from types import SimpleNamespace

import numpy as np
import torch

from ding_lite.data.memories import Memories
from ding_lite.data.sequences import Grid


def test_the_memory_of_a_lost_step_is_the_one_that_its_action_was_chosen_with():

    memories = Memories(lambda n: {"h": torch.zeros(n, 2)}, Grid(4), [np.arange(2)])
    memories.of_groups = [{"h": torch.tensor([[1.0, 1.0], [2.0, 2.0]])}]
    memories.begin_rollout()
    memories.before(1, 0, slice(None))
    never = np.zeros(2, bool)
    lost = SimpleNamespace(valid=np.array([True, False]), terminated=never, truncated=never, final_obs=None)
    memories.after(1, 0, {"h": torch.full((2, 2), 9.0)}, lost)
    assert memories.before_lost(1, np.array([1]))["h"].tolist() == [[2.0, 2.0]]
    assert memories.of_groups[0]["h"].tolist() == [[9.0, 9.0], [0.0, 0.0]]
