"""Schedules: both ends, the middle, progress out of range, and the rate that follows the KL."""

import math
from types import SimpleNamespace

import pytest

from ding_lite.rl.schedules import Schedules, adapted_rate, schedule


@pytest.mark.parametrize(
    ("kind", "final", "factors"),
    [
        ("constant", 0.1, [1.0, 1.0, 1.0, 1.0]),
        ("adaptive", 0.1, [1.0, 1.0, 1.0, 1.0]),
        ("linear", 0.0, [1.0, 0.75, 0.5, 0.0]),
        ("linear", 0.2, [1.0, 0.8, 0.6, 0.2]),
        ("linear", 3.0, [1.0, 1.5, 2.0, 3.0]),
        ("cosine", 0.0, [1.0, (1 + math.sqrt(0.5)) / 2, 0.5, 0.0]),
        ("cosine", 0.2, [1.0, 0.2 + 0.4 * (1 + math.sqrt(0.5)), 0.6, 0.2]),
    ],
)
def test_factors_over_the_schedule_and_beyond_its_ends(kind, final, factors):
    assert [schedule(kind, p, final) for p in (0.0, 0.25, 0.5, 1.0)] == pytest.approx(factors, abs=1e-15)
    assert [schedule(kind, p, final) for p in (-0.5, 1.7)] == pytest.approx([factors[0], factors[-1]])


@pytest.mark.parametrize(
    ("rate", "kl", "expected"),
    [
        (3e-4, 0.0201, 2e-4),
        (3e-4, 0.02, 3e-4),
        (3e-4, 0.005, 3e-4),
        (3e-4, 0.0049, 4.5e-4),
        (3e-4, 0.0, 3e-4),  # the policy has not moved
        (3e-4, math.nan, 3e-4),
        (1.2e-5, 1.0, 1e-5),
        (9e-3, 1e-5, 1e-2),
    ],
)
def test_rate_that_follows_the_kl(rate, kl, expected):
    assert adapted_rate(rate, kl, 0.01) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("configured", "expected"), [(1e-3, 7e-4), (2e-3, 2e-3)])
def test_progress_keeps_an_assigned_rate_unless_the_config_has_another(configured, expected):
    saved, resumed = (Schedules(SimpleNamespace(learning_rate=rate)) for rate in (1e-3, configured))
    saved.env_step, saved.learning_rate = 640, 7e-4
    resumed.load_state_dict(saved.state_dict())
    assert (resumed.env_step, resumed.learning_rate) == (640, expected)
