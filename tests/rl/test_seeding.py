"""Random streams: one seed, and a separate stream for each name."""

import numpy as np
import torch

from ding_lite.policies.base import global_streams
from ding_lite.rl.seeding import integer_seed, seed_sequence, seeded_layers, torch_generator


def first_numbers(seed, *name):
    return tuple(np.random.default_rng(seed_sequence(seed, *name)).integers(0, 2**62, 4).tolist())


def test_known_streams_stay_as_they_were():
    assert seed_sequence(0, "env", 1).spawn_key == (4081402617, 1)
    assert integer_seed(0, "env", 1) == 1637284081
    assert integer_seed(123, "policy") == 677984854
    assert first_numbers(0, "env", 1)[:2] == (2029706096921960272, 1380302485048257627)


def test_every_name_has_a_stream_of_its_own():
    names = [(), ("env",), ("eval",), ("env", 0), ("env", 1), ("env", 0, 0), ("env", 1, 0), (0,)]
    assert len({first_numbers(0, *name) for name in names}) == len(names)


def test_streams_leave_the_global_generators_alone():
    before = np.random.get_state()[1].copy(), torch.get_rng_state()
    torch.rand(4, generator=torch_generator(0, "x"))
    with seeded_layers(0, "x"):
        first = torch.nn.Linear(2, 2).weight
    with seeded_layers(0, "x"):
        assert torch.equal(torch.nn.Linear(2, 2).weight, first)
    assert np.array_equal(np.random.get_state()[1], before[0])
    assert torch.equal(torch.get_rng_state(), before[1])


def test_global_draws_within_a_block_continue_a_stream_of_the_run():
    own, same, before = torch_generator(0, "layers"), torch_generator(0, "layers"), torch.get_rng_state()
    with global_streams([own]):
        found = torch.rand(3)
    assert torch.equal(found, torch.rand(3, generator=same))
    assert torch.equal(torch.rand(3, generator=own), torch.rand(3, generator=same))
    assert torch.equal(torch.get_rng_state(), before)
