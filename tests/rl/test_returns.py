"""Credit assignment against numbers by hand and closed forms; tests/reference has the recursions."""

import pytest
import torch

from ding_lite.rl.returns import explained_variance, following_rows, gae, nstep_return

OPTIONS = dict(gamma=0.97, gae_lambda=0.93)


def column(*numbers):
    return torch.tensor(numbers, dtype=torch.float64).unsqueeze(-1)


def flags(steps, *true_at):
    return torch.tensor([[t in true_at] for t in range(steps)])


def random_rollout(seed, steps=40, envs=7):
    """Returns the five arguments of gae, both flags on some rows, and weights of V-trace."""
    draw = torch.Generator().manual_seed(seed)
    normal = [torch.randn(steps, envs, generator=draw, dtype=torch.float64) for _ in range(3)]
    terminated, truncated = (torch.rand(steps, envs, generator=draw) < 0.12 for _ in range(2))
    weight = torch.rand(steps, envs, generator=draw, dtype=torch.float64) * 1.6
    return *normal, terminated, truncated, weight.clamp_max(1.0)


# ------------------------------------------------------------------ by hand

REWARD, VALUE, NEXT = column(1, 0, 2), column(0.5, 1, 0), column(1, 8, 4)
HALF = dict(gamma=0.5, gae_lambda=0.5)


@pytest.mark.parametrize(
    ("terminated", "truncated", "expected"),
    [  # delta: 1 + 1/2 - 1/2 = 1; 0 + 8/2 - 1 = 3, -1 if terminated; 2 + 4/2 = 4, 2 if terminated
        ([2], [], [1 + 3.5 / 4, 3 + 2 / 4, 2]),
        ([2], [1], [1 + 3 / 4, 3, 2]),  # a truncation bootstraps and cuts the trace
        ([], [1], [1 + 3 / 4, 3, 4]),  # so does an open end
        ([1, 2], [1, 2], [1 - 1 / 4, -1, 2]),  # termination wins
    ],
)
def test_advantages_by_hand(terminated, truncated, expected):
    found, target = gae(REWARD, VALUE, NEXT, flags(3, *terminated), flags(3, *truncated), **HALF)
    assert found.flatten().tolist() == expected
    assert torch.equal(target, VALUE + column(*expected))


def test_nstep_returns_by_hand():
    next_value = column(10, 20, 30, torch.nan, 50)  # a value after a termination may be anything
    ends = flags(5, 3), flags(5, 1)
    found = nstep_return(column(1, 2, 4, 8, 16), next_value, *ends, gamma=0.5, nstep=2)
    # 1 + 2/2 + 20/4; truncated: 2 + 20/2; 4 + 8/2, terminated; 8; the last row: 16 + 50/2
    assert found.flatten().tolist() == [7.0, 12.0, 8.0, 8.0, 41.0]


# ------------------------------------------------------------------ closed forms


def test_own_weight_reaches_the_target_and_the_next_weight_the_advantage():
    zero, weight = column(0, 0), column(0.5, 0.25)
    ends = flags(2), flags(2)
    advantage, target = gae(column(1, 1), zero, zero, *ends, gamma=1.0, gae_lambda=1.0, weight=weight)
    assert advantage.flatten().tolist() == [1.25, 1.0]
    assert target.flatten().tolist() == [0.625, 0.25]


def test_constant_reward_is_a_geometric_sum_and_its_own_value_leaves_no_advantage():
    steps, gamma, lam = 30, 0.97, 0.9
    zero, no = torch.zeros(steps, 1, dtype=torch.float64), flags(steps)
    advantage, _ = gae(zero + 1, zero, zero, no, no, gamma=gamma, gae_lambda=lam)
    left = torch.arange(steps, 0, -1, dtype=torch.float64).unsqueeze(-1)
    assert torch.allclose(advantage, (1 - (gamma * lam) ** left) / (1 - gamma * lam), rtol=1e-13, atol=0)
    value = zero + 1 / (1 - gamma)
    advantage, _ = gae(zero + 1, value, value, no, no, gamma=gamma, gae_lambda=lam)
    assert advantage.abs().max() < 1e-12


def test_the_next_valid_row_of_each_row():
    valid = torch.tensor([[1, 1, 0, 0, 1, 0], [1, 0, 1, 1, 1, 1]]).bool().T
    assert following_rows(valid).T.tolist() == [[1, 4, 4, 4, 6, 6], [2, 2, 3, 4, 5, 6]]


# ------------------------------------------------------------------ contract


def test_weight_one_and_all_rows_valid_change_no_bit():
    *data, weight = random_rollout(6)
    single = [x.float() if x.is_floating_point() else x for x in data]
    plain, one = gae(*single, **OPTIONS), torch.ones_like(single[0])
    for other in (gae(*single, **OPTIONS, weight=one), gae(*single, one.bool(), **OPTIONS)):
        assert torch.equal(plain[0], other[0])
        assert torch.equal(plain[1], other[1])


def test_inputs_are_not_modified_and_results_have_no_gradient():
    *data, weight = random_rollout(8)
    data[1].requires_grad_()
    copies = [x.detach().clone() for x in (*data, weight)]
    found = gae(*data, **OPTIONS, weight=weight)
    nstep_return(data[0], *data[2:], gamma=0.9, nstep=5)
    assert all(torch.equal(x, copy) for x, copy in zip((*data, weight), copies, strict=True))
    assert not any(x.requires_grad for x in found)


# ------------------------------------------------------------------ explained variance

TARGET = [1.0, 2.0, 6.0]


@pytest.mark.parametrize(
    ("value", "target", "expected"),
    [
        (TARGET, TARGET, 1.0),
        ([9.0, 10.0, 14.0], TARGET, 1.0),  # off by a constant
        ([4.0, 4.0, 4.0], TARGET, 0.0),
        ([1.0, -1.0], [-1.0, 1.0], -3.0),
        ([-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], 0.75),
        ([1e30, 2e30, 3e30], [1e30, 2e30, 6e30], 1 - (2 / 9 * 9) / (14 / 3)),  # squares overflow float32
        ([-1.0, 0.0, 1.0], [0.1, 0.1, 0.1], 0.0),  # nothing to explain
        ([5.0], [-7.7], 0.0),
    ],
)
def test_explained_variance_by_hand(value, target, expected):
    assert explained_variance(torch.tensor(value), torch.tensor(target)).item() == pytest.approx(expected)
