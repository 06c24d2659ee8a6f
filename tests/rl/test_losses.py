"""The losses of PPO: values worked by hand, closed forms, and gradients that are exactly zero."""

import math

import pytest
import torch

from ding_lite.rl.losses import approx_kl, clipped_surrogate, value_error
from ding_lite.rl.returns import normalize_advantage


def doubles(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def with_gradient(function, x):
    """Returns the value of ``function`` at one number, and its derivative."""
    x = torch.tensor([x], dtype=torch.float64, requires_grad=True)
    y = function(x)
    return y.item(), torch.autograd.grad(y.sum(), x)[0].item()


# ------------------------------------------------------------------ clipped surrogate


@pytest.mark.parametrize(
    ("ratio", "advantage", "options", "objective", "slope"),
    [  # the slope is that with respect to log r: r A, or 0 past a bound
        (1.0, 2.0, {}, 2.0, 2.0),
        (1.1, 2.0, {}, 2.2, 2.2),
        (1.5, 2.0, {}, 2.4, 0.0),
        (0.5, 2.0, {}, 1.0, 1.0),
        (1.0, -2.0, {}, -2.0, -2.0),
        (1.5, -2.0, {}, -3.0, -3.0),
        (0.9, -2.0, {}, -1.8, -1.8),
        (0.5, -2.0, {}, -1.6, 0.0),
        (1.5, 0.0, {}, 0.0, 0.0),
        (0.01, -2.0, {"clip_ratio": 1.5}, -0.02, -0.02),  # from 1 on, r has no lower bound
        (9.0, 2.0, {"clip_ratio": 1.5}, 5.0, 0.0),
        (10.0, -2.0, {}, -20.0, -20.0),
        (10.0, -2.0, {"dual_clip": 3.0}, -6.0, 0.0),
        (2.0, -2.0, {"dual_clip": 3.0}, -4.0, -4.0),
        (10.0, 2.0, {"dual_clip": 3.0}, 2.4, 0.0),
        (0.5, -2.0, {"dual_clip": 3.0}, -1.6, 0.0),
    ],
)
def test_clipped_surrogate_by_hand(ratio, advantage, options, objective, slope):
    options = {"clip_ratio": 0.2, **options}
    found = with_gradient(lambda x: clipped_surrogate(x, doubles(advantage), **options), math.log(ratio))
    assert found == pytest.approx((objective, slope), rel=1e-12, abs=1e-15)
    assert (found[1] == 0) == (slope == 0)


@pytest.mark.parametrize("size", [1.0, 88.0, 89.0, 500.0])
@pytest.mark.parametrize(
    ("sign", "advantage", "dual_clip", "objective"),
    [(1, 2.0, None, 2.4), (-1, -2.0, None, -1.6), (1, 0.0, None, 0.0), (1, -2.0, 2.5, -5.0)],
)
def test_gradient_is_zero_past_the_clip_at_any_ratio(size, sign, advantage, dual_clip, objective):
    """float32: exp(89) is inf, and inf times 0 is nan."""
    log_ratio = torch.tensor([sign * size], requires_grad=True)
    found = clipped_surrogate(log_ratio, torch.tensor([advantage]), torch.tensor(0.2), dual_clip)
    (gradient,) = torch.autograd.grad(found.sum(), log_ratio)
    assert [found.item(), gradient.item()] == [pytest.approx(objective, rel=1e-6), 0.0]


# ------------------------------------------------------------------ value error


@pytest.mark.parametrize(
    ("value", "target", "clip", "kind", "error", "slope"),
    [  # the old value is 0
        (1.0, 4.0, None, "mse", 4.5, -3.0),
        (3.0, 4.0, 0.5, "mse", 0.5 * 3.5**2, 0.0),
        (3.0, 0.0, 0.5, "mse", 0.5 * 3.0**2, 3.0),
        (0.1, 4.0, 0.5, "mse", 0.5 * 3.9**2, -3.9),
        (3.0, 4.0, 2.0, "mse", 0.5 * 2.0**2, 0.0),
        (3.0, 4.0, 10.0, "mse", 0.5, -1.0),
        (0.5, 0.0, None, "smooth_l1", 0.125, 0.5),
        (3.0, 0.0, None, "smooth_l1", 2.5, 1.0),
        (3.0, 4.0, 0.5, "smooth_l1", 3.0, 0.0),
    ],
)
def test_value_error_by_hand(value, target, clip, kind, error, slope):
    found = with_gradient(lambda v: value_error(v, doubles(target), doubles(0), clip, kind), value)
    assert found == pytest.approx((error, slope), rel=1e-12)


# ------------------------------------------------------------------ KLs


def test_approx_kl_is_k3_of_the_old_policy_by_hand():
    expected = ((1 - math.log(2)) + (-0.5 + math.log(2)) + 0) / 3
    assert approx_kl(doubles(2, 0.5, 1).log()).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("sign", [1, -1])
def test_approx_kl_is_never_negative_even_in_float32(sign):
    assert all(approx_kl(one) >= 0 for one in (sign * torch.logspace(-12, 1, 1000)).split(1))


# ------------------------------------------------------------------ means


def test_normalised_advantages_by_hand():
    assert normalize_advantage(doubles(1, 3)).tolist() == pytest.approx([-1, 1], abs=1e-7)
    two = normalize_advantage(doubles(1, 3, 10, 30).view(2, 2))  # each minibatch by itself
    assert two.tolist() == [pytest.approx([-1, 1], abs=1e-7)] * 2
    by_others = normalize_advantage(doubles(1, 3), scale=(doubles(4), doubles(-1)))
    assert by_others.tolist() == pytest.approx([0.5, 1.0], abs=1e-7)
    assert normalize_advantage(doubles(-1e-8, 1e-8)).tolist() == pytest.approx([-0.5, 0.5], rel=1e-6)


@pytest.mark.parametrize("constant", [0.0, 0.1, -1 / 3, 1e6])
@pytest.mark.parametrize("count", [1, 3, 1000, 4097])
def test_constant_advantage_becomes_exactly_zero(constant, count):
    advantage = torch.full((count,), constant)
    assert torch.count_nonzero(normalize_advantage(advantage)) == 0


def test_a_spread_within_the_rounding_of_the_mean_counts_as_constant_and_a_small_one_does_not():
    assert normalize_advantage(1e6 + 0.0625 * torch.arange(4.0)).tolist() == 4 * [0.0]
    assert normalize_advantage(torch.tensor([-1e-3, 1e-3])).tolist() == pytest.approx([-1.0, 1.0], abs=1e-4)
