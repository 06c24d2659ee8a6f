"""Random streams: one seed, and a separate stream for each name."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from ding_lite.rl.seeding import GeneratorState, integer_seed, numpy_generator, seed_sequence, torch_generator


def first_numbers(seed, *name):
    return numpy_generator(seed, *name).integers(0, 2**62, 4).tolist()


def test_same_seed_and_name_give_the_same_stream():
    assert first_numbers(3, "env", 5) == first_numbers(3, "env", 5)
    assert integer_seed(3, "env", 5) == integer_seed(3, "env", 5)


def test_every_name_has_a_stream_of_its_own():
    names = [
        (),
        ("env",),
        ("eval",),
        ("env", 0),
        ("env", 1),
        ("env", 0, 0),
        ("env", 0, 1),
        ("env", 1, 0),
        (0,),
    ]
    assert len({tuple(first_numbers(0, *name)) for name in names}) == len(names)


def test_neighbouring_seeds_are_unrelated():
    seeds = [integer_seed(seed, "env", i) for seed in range(50) for i in range(50)]
    assert len(set(seeds)) == len(seeds)
    gaps = np.diff(np.array(seeds, np.float64)) / 2**31
    assert abs(gaps).min() > 1e-6
    assert np.mean(seeds) / 2**31 == pytest.approx(0.5, abs=0.03)


def test_bits_of_neighbouring_seeds_differ_in_half_of_the_places():
    pairs = [integer_seed(s, "x") ^ integer_seed(s + 1, "x") for s in range(400)]
    assert np.mean([bin(pair).count("1") for pair in pairs]) == pytest.approx(15.5, abs=0.6)


def test_integer_seed_fits_what_reset_takes():
    seeds = [integer_seed(seed, "env", 0) for seed in range(500)]
    assert all(type(seed) is int and 0 <= seed < 2**31 for seed in seeds)
    assert max(seeds) > 2**30


def test_seed_is_the_same_in_another_process():
    code = "from ding_lite.rl.seeding import integer_seed; print(integer_seed(7, 'env', 3))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(run.stdout) == integer_seed(7, "env", 3)


def test_known_streams_stay_as_they_were():
    assert seed_sequence(0, "env", 1).spawn_key == (4081402617, 1)
    assert integer_seed(0, "env", 1) == 1637284081
    assert integer_seed(123, "policy") == 677984854
    assert numpy_generator(0, "env", 1).integers(0, 2**62, 2).tolist() == [
        2029706096921960272,
        1380302485048257627,
    ]


def test_very_large_seed_is_fine():
    assert integer_seed(2**100, "env") != integer_seed(2**100 + 1, "env")


def test_negative_seed_is_refused():
    with pytest.raises(ValueError, match="non-negative"):
        integer_seed(-1, "env")


def test_numpy_generator_leaves_the_global_state_alone():
    before = np.random.get_state()[1].copy()
    numpy_generator(0, "x").normal(size=10)
    assert np.array_equal(np.random.get_state()[1], before)


def test_torch_generators_of_two_names_differ_and_of_one_name_agree():
    draws = [torch.rand(4, generator=torch_generator(0, name)).tolist() for name in ("a", "a", "b")]
    assert draws[0] == draws[1]
    assert draws[0] != draws[2]


def test_torch_generator_leaves_the_global_state_alone():
    before = torch.get_rng_state()
    torch.rand(4, generator=torch_generator(0, "x"))
    assert torch.equal(torch.get_rng_state(), before)


def test_using_one_stream_never_shifts_another():
    alone = first_numbers(0, "b")
    numpy_generator(0, "a").normal(size=1000)
    assert first_numbers(0, "b") == alone


def test_generator_state_goes_on_where_it_was_saved():
    generator = torch_generator(0, "x")
    torch.rand(7, generator=generator)
    state = GeneratorState(generator).state_dict()
    expected = torch.rand(5, generator=generator)
    other = torch_generator(99, "y")
    GeneratorState(other).load_state_dict(state)
    assert torch.equal(torch.rand(5, generator=other), expected)


def test_saved_generator_state_does_not_change_with_later_draws():
    generator = torch_generator(0, "x")
    state = GeneratorState(generator).state_dict()
    copy = state["state"].clone()
    torch.rand(100, generator=generator)
    assert torch.equal(state["state"], copy)
