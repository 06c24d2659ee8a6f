"""The losses of PPO: values computed by hand, and gradients that are exactly zero."""

import math

import pytest
import torch
import torch.nn.functional as F

from ding_lite.rl.losses import (
    approx_kl,
    clip_fraction,
    clipped_surrogate,
    normalize_advantage,
    value_error,
    weighted_mean,
)


def surrogate_gradient(ratio, advantage, **options):
    """Returns the gradient of the objective with respect to log pi, for one sample."""
    log_ratio = torch.tensor([math.log(ratio)], dtype=torch.float64, requires_grad=True)
    objective = clipped_surrogate(log_ratio, torch.tensor([advantage], dtype=torch.float64), 0.2, **options)
    (gradient,) = torch.autograd.grad(objective.sum(), log_ratio)
    return gradient.item()


def surrogate(ratio, advantage, clip=0.2, **options):
    log_ratio = torch.tensor([ratio], dtype=torch.float64).log()
    advantage = torch.tensor([advantage], dtype=torch.float64)
    return clipped_surrogate(log_ratio, advantage, clip, **options).item()


# ------------------------------------------------------------------ clipped surrogate


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [
        (1.0, 2.0, 2.0),
        (1.1, 2.0, 2.2),
        (1.5, 2.0, 2.4),
        (0.5, 2.0, 1.0),
        (1.0, -2.0, -2.0),
        (1.5, -2.0, -3.0),
        (0.9, -2.0, -1.8),
        (0.5, -2.0, -1.6),
        (1.5, 0.0, 0.0),
    ],
)
def test_clipped_surrogate_equals_the_number_worked_by_hand(ratio, advantage, expected):
    assert surrogate(ratio, advantage) == pytest.approx(expected, abs=1e-12)


def test_clipped_surrogate_is_elementwise():
    log_ratio = torch.tensor([1.5, 0.5], dtype=torch.float64).log()
    objective = clipped_surrogate(log_ratio, torch.tensor([2.0, -2.0], dtype=torch.float64), 0.2)
    assert objective.tolist() == pytest.approx([2.4, -1.6])


def test_clip_ratio_may_be_a_tensor():
    log_ratio = torch.tensor([1.5, 1.5], dtype=torch.float64).log()
    advantage = torch.ones(2, dtype=torch.float64)
    objective = clipped_surrogate(log_ratio, advantage, torch.tensor([0.1, 0.3], dtype=torch.float64))
    assert objective.tolist() == pytest.approx([1.1, 1.3])


@pytest.mark.parametrize(("ratio", "advantage"), [(1.3, 1.0), (0.7, -1.0), (5.0, 3.0), (0.1, -3.0)])
def test_gradient_is_exactly_zero_past_the_clip_in_the_favoured_direction(ratio, advantage):
    assert surrogate_gradient(ratio, advantage) == 0.0


@pytest.mark.parametrize(
    ("ratio", "advantage"), [(0.7, 1.0), (1.3, -1.0), (1.1, 1.0), (0.9, 1.0), (1.1, -1.0), (0.9, -1.0)]
)
def test_gradient_is_ratio_times_advantage_wherever_the_clip_does_not_favour(ratio, advantage):
    assert surrogate_gradient(ratio, advantage) == pytest.approx(ratio * advantage, rel=1e-12)


def test_gradient_at_ratio_one_is_the_policy_gradient():
    assert surrogate_gradient(1.0, 3.0) == 3.0
    assert surrogate_gradient(1.0, -3.0) == -3.0


@pytest.mark.parametrize("size", [1.0, 88.0, 89.0, 100.0, 500.0])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_gradient_is_zero_past_the_clip_at_any_ratio(size, sign):
    """float32: exp(89) is inf, and inf times 0 is nan."""
    log_ratio = torch.tensor([sign * size], requires_grad=True)
    objective = clipped_surrogate(log_ratio, torch.tensor([sign * 2.0]), torch.tensor(0.2))
    (gradient,) = torch.autograd.grad(objective.sum(), log_ratio)
    assert gradient.item() == 0.0
    assert objective.item() == pytest.approx(sign * 2.0 * (1 + sign * 0.2), rel=1e-6)


def test_gradient_is_zero_without_an_advantage_at_any_ratio():
    log_ratio = torch.tensor([-500.0, -1.0, 0.0, 1.0, 500.0], requires_grad=True)
    objective = clipped_surrogate(log_ratio, torch.zeros(5), 0.2)
    (gradient,) = torch.autograd.grad(objective.sum(), log_ratio)
    assert objective.tolist() == gradient.tolist() == 5 * [0.0]


def test_a_clip_ratio_above_one_bounds_no_ratio_from_below():
    assert surrogate(0.01, -2.0, clip=1.5) == pytest.approx(-0.02)
    assert surrogate(9.0, 2.0, clip=1.5) == pytest.approx(5.0)


# ------------------------------------------------------------------ dual clip


def test_dual_clip_bounds_the_objective_of_a_negative_advantage():
    assert surrogate(10.0, -2.0, dual_clip=3.0) == pytest.approx(-6.0, rel=1e-12)
    assert surrogate(10.0, -2.0) == pytest.approx(-20.0)


def test_dual_clip_stops_the_gradient_of_a_negative_advantage():
    assert surrogate_gradient(10.0, -2.0, dual_clip=3.0) == 0.0
    assert surrogate_gradient(10.0, -2.0) == pytest.approx(-20.0)


@pytest.mark.parametrize("size", [89.0, 500.0])
def test_dual_clip_stops_the_gradient_at_any_ratio(size):
    log_ratio = torch.tensor([size], requires_grad=True)
    objective = clipped_surrogate(log_ratio, torch.tensor([-2.0]), 0.2, dual_clip=3.0)
    (gradient,) = torch.autograd.grad(objective.sum(), log_ratio)
    assert [objective.item(), gradient.item()] == [pytest.approx(-6.0), 0.0]


def test_dual_clip_below_its_bound_changes_nothing():
    assert surrogate(2.0, -2.0, dual_clip=3.0) == surrogate(2.0, -2.0)
    assert surrogate_gradient(2.0, -2.0, dual_clip=3.0) == pytest.approx(-4.0)


@pytest.mark.parametrize("ratio", [0.01, 0.5, 1.0, 1.1, 10.0])
def test_dual_clip_leaves_a_positive_advantage_unchanged(ratio):
    assert surrogate(ratio, 2.0, dual_clip=3.0) == surrogate(ratio, 2.0)
    assert surrogate_gradient(ratio, 2.0, dual_clip=3.0) == surrogate_gradient(ratio, 2.0)


# ------------------------------------------------------------------ value error


def test_value_error_is_half_the_squared_error():
    error = value_error(torch.tensor([1.0, 2.0]), torch.tensor([4.0, 2.0]))
    assert error.tolist() == [4.5, 0.0]


def test_value_error_gradient_is_the_error():
    value = torch.tensor([1.0, 2.0], requires_grad=True)
    value_error(value, torch.tensor([4.0, 1.0])).sum().backward()
    assert value.grad.tolist() == [-3.0, 1.0]


def test_clipped_value_error_is_the_larger_of_the_two():
    value, target, old = torch.tensor([3.0, 3.0, 0.1]), torch.tensor([4.0, 0.0, 4.0]), torch.zeros(3)
    error = value_error(value, target, old, value_clip=0.5)
    assert error.tolist() == pytest.approx([0.5 * 3.5**2, 0.5 * 3.0**2, 0.5 * 3.9**2])


def test_value_clip_is_its_own_range():
    value, target, old = torch.tensor([3.0]), torch.tensor([4.0]), torch.zeros(1)
    assert value_error(value, target, old, value_clip=2.0).item() == 0.5 * 2.0**2
    assert value_error(value, target, old, value_clip=10.0).item() == 0.5


def test_clipped_value_error_has_no_gradient_once_the_value_moved_past_the_range():
    value = torch.tensor([3.0], requires_grad=True)
    value_error(value, torch.tensor([4.0]), torch.zeros(1), value_clip=0.5).sum().backward()
    assert value.grad.item() == 0.0


def test_smooth_l1_is_that_of_torch():
    draw = torch.Generator().manual_seed(0)
    value, target = 2 * torch.randn(2, 100, generator=draw)
    expected = F.smooth_l1_loss(value, target, reduction="none")
    assert torch.equal(value_error(value, target, kind="smooth_l1"), expected)


def test_smooth_l1_by_hand():
    error = value_error(torch.tensor([0.5, 3.0]), torch.zeros(2), kind="smooth_l1")
    assert error.tolist() == [0.125, 2.5]


def test_smooth_l1_is_clipped_too():
    value, target, old = torch.tensor([3.0]), torch.tensor([4.0]), torch.zeros(1)
    assert value_error(value, target, old, 0.5, kind="smooth_l1").item() == 3.0


def test_value_clip_without_the_old_value_is_refused():
    with pytest.raises(ValueError, match="old_value"):
        value_error(torch.zeros(1), torch.zeros(1), value_clip=0.2)


def test_unknown_kind_of_value_error_is_refused():
    with pytest.raises(ValueError, match="'mse' or 'smooth_l1', got 'huber'"):
        value_error(torch.zeros(1), torch.zeros(1), kind="huber")


# ------------------------------------------------------------------ what is watched


def test_approx_kl_is_k3_worked_by_hand():
    log_ratio = torch.tensor([2.0, 0.5, 1.0], dtype=torch.float64).log()
    expected = ((1 - math.log(2)) + (-0.5 + math.log(2)) + 0) / 3
    assert approx_kl(log_ratio).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("sign", [1, -1])
def test_approx_kl_is_never_negative_even_in_float32(sign):
    tiny = sign * torch.logspace(-12, 1, 5000)
    assert all(approx_kl(one) >= 0 for one in tiny.split(1))


def test_approx_kl_estimates_the_kl_of_two_categoricals():
    draw = torch.Generator().manual_seed(0)
    old, new = torch.randn(2, 6, generator=draw, dtype=torch.float64).log_softmax(-1)
    samples = torch.multinomial(old.exp(), 200_000, replacement=True, generator=draw)
    exact = (old.exp() * (old - new)).sum()
    assert approx_kl((new - old)[samples]).item() == pytest.approx(exact.item(), rel=0.02)


def test_clip_fraction_counts_ratios_outside_the_range_on_both_sides():
    log_ratio = torch.tensor([1.0, 1.19, 1.21, 0.79, 0.81], dtype=torch.float64).log()
    assert clip_fraction(log_ratio, 0.2).item() == pytest.approx(2 / 5)


def test_clip_fraction_of_an_unchanged_policy_is_zero():
    assert clip_fraction(torch.zeros(8), 0.2) == 0.0


# ------------------------------------------------------------------ advantage normalisation


def test_normalised_advantage_has_mean_zero_and_population_std_one():
    advantage = 5 + 3 * torch.randn(1000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    normal = normalize_advantage(advantage)
    assert abs(normal.mean()) < 1e-12
    assert normal.std(correction=0).item() == pytest.approx(1.0, abs=1e-7)


def test_normalised_advantage_by_hand():
    normal = normalize_advantage(torch.tensor([1.0, 3.0]))
    assert normal.tolist() == pytest.approx([-1.0, 1.0], abs=1e-6)


def test_normalisation_undoes_scale_and_shift():
    advantage = torch.randn(64, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(
        normalize_advantage(1000 * advantage - 7), normalize_advantage(advantage), atol=1e-7
    )


@pytest.mark.parametrize("constant", [0.0, 0.1, -0.1, 1 / 3, 1e-6, 1e6, -123.456])
@pytest.mark.parametrize("count", [2, 3, 64, 1000, 4097, 100_003])
def test_constant_advantage_becomes_exactly_zero(constant, count):
    normal = normalize_advantage(torch.full((count,), constant))
    assert torch.count_nonzero(normal) == 0
    assert torch.isfinite(normal).all()


@pytest.mark.parametrize("mean", [1e6, -1e6])
def test_a_spread_within_the_rounding_of_the_mean_becomes_exactly_zero(mean):
    advantage = mean + 0.0625 * torch.arange(4.0)
    assert advantage.std() > 0.05
    assert normalize_advantage(advantage).tolist() == 4 * [0.0]


def test_a_spread_of_the_size_of_eps_is_damped():
    normal = normalize_advantage(torch.tensor([-1e-8, 1e-8]), eps=1e-8)
    assert normal.tolist() == pytest.approx([-0.5, 0.5], rel=1e-3)


def test_single_sample_becomes_zero():
    assert normalize_advantage(torch.tensor([42.5])).tolist() == [0.0]


def test_small_spread_around_zero_is_not_taken_for_a_constant():
    normal = normalize_advantage(torch.tensor([-1e-3, 1e-3]))
    assert normal.tolist() == pytest.approx([-1.0, 1.0], abs=1e-4)


def test_negative_control_plain_division_trains_on_the_rounding_of_a_constant():
    advantage = torch.full((1000,), 0.1)
    plain = (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8)
    assert plain.abs().max() > 0.1


# ------------------------------------------------------------------ weighted mean


def test_weighted_mean_divides_by_the_count_not_by_the_weights():
    assert weighted_mean(torch.tensor([2.0, 4.0]), torch.tensor([0.5, 0.25])).item() == 1.0


def test_weighted_mean_without_weights_is_the_mean():
    assert weighted_mean(torch.tensor([2.0, 4.0])).item() == 3.0
