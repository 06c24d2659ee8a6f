"""Schedules: both ends, the middle, and progress out of range."""

import math

import pytest

from ding_lite.rl.schedules import SCHEDULES, schedule


@pytest.mark.parametrize("kind", SCHEDULES)
def test_factor_starts_at_one(kind):
    assert schedule(kind, 0.0, final=0.1) == 1.0


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_factor_ends_at_final(kind):
    assert schedule(kind, 1.0, final=0.1) == pytest.approx(0.1, abs=1e-15)
    assert schedule(kind, 1.0) == pytest.approx(0.0, abs=1e-15)


@pytest.mark.parametrize("progress", [0.0, 0.3, 1.0, 7.0])
def test_constant_stays_at_one_whatever_its_final_is(progress):
    assert schedule("constant", progress, final=0.1) == 1.0


def test_linear_is_a_straight_line():
    assert [schedule("linear", p / 4) for p in range(5)] == [1.0, 0.75, 0.5, 0.25, 0.0]
    assert schedule("linear", 0.5, final=0.2) == pytest.approx(0.6)


def test_linear_may_grow():
    assert schedule("linear", 0.5, final=3.0) == 2.0


def test_cosine_is_half_a_period():
    assert schedule("cosine", 0.5) == pytest.approx(0.5)
    assert schedule("cosine", 0.25) == pytest.approx((1 + math.sqrt(0.5)) / 2)
    assert schedule("cosine", 0.5, final=0.2) == pytest.approx(0.6)


@pytest.mark.parametrize("kind", SCHEDULES)
def test_progress_past_the_end_stays_at_the_end(kind):
    assert schedule(kind, 1.7, final=0.3) == schedule(kind, 1.0, final=0.3)


@pytest.mark.parametrize("kind", SCHEDULES)
def test_negative_progress_stays_at_the_start(kind):
    assert schedule(kind, -0.5, final=0.3) == 1.0


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_decay_is_strict_and_monotone(kind):
    factors = [schedule(kind, p / 20, final=0.1) for p in range(21)]
    assert all(after < before for before, after in zip(factors, factors[1:], strict=False))


def test_unknown_kind_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="constant, linear, cosine, got 'step'"):
        schedule("step", 0.5)
