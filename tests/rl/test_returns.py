"""Credit assignment against numbers by hand, closed forms, sums by definition, and Stable-Baselines3."""

import warnings

import gymnasium as gym
import numpy as np
import pytest
import torch

from ding_lite.rl import returns
from ding_lite.rl.returns import explained_variance, following_rows, gae, nstep_return, values_after

with warnings.catch_warnings():
    # Dependencies of Stable-Baselines3 (plotting, TensorBoard) may warn at import.
    warnings.simplefilter("ignore")
    from stable_baselines3.common.buffers import RolloutBuffer

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


def by_definition(reward, value, next_value, terminated, truncated, trace=None, own=None, valid=None):
    """Returns A_t = sum_k delta_{t+k} prod_{1<=i<=k} gamma lambda c_{t+i} over valid rows, and V + own A."""
    gamma, lam = OPTIONS.values()
    advantage = np.zeros(reward.shape)
    for b in range(reward.shape[1]):
        rows = [t for t in range(len(reward)) if valid is None or valid[t, b]]
        for first, t in enumerate(rows):
            factor = 1.0
            for k in rows[first:]:
                if k > t:
                    factor *= gamma * lam * (1.0 if trace is None else float(trace[k, b]))
                future = 0.0 if terminated[k, b] else gamma * float(next_value[k, b])
                advantage[t, b] += factor * (float(reward[k, b]) + future - float(value[k, b]))
                if terminated[k, b] or truncated[k, b]:
                    break
    advantage = torch.as_tensor(advantage)
    return advantage, value + advantage * (1.0 if own is None else own)


def alike(found, expected):
    return all(torch.allclose(x, y, rtol=1e-10, atol=1e-12) for x, y in zip(found, expected, strict=True))


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


def test_own_weight_reaches_the_target_and_the_next_weight_the_advantage():
    zero, weight = column(0, 0), column(0.5, 0.25)
    ends = flags(2), flags(2)
    advantage, target = gae(column(1, 1), zero, zero, *ends, gamma=1.0, gae_lambda=1.0, weight=weight)
    assert advantage.flatten().tolist() == [1.25, 1.0]
    assert target.flatten().tolist() == [0.625, 0.25]


def test_nstep_returns_by_hand():
    next_value = column(10, 20, 30, torch.nan, 50)  # a value after a termination may be anything
    ends = flags(5, 3), flags(5, 1)
    found = nstep_return(column(1, 2, 4, 8, 16), next_value, *ends, gamma=0.5, nstep=2)
    # 1 + 2/2 + 20/4; truncated: 2 + 20/2; 4 + 8/2, terminated; 8; the last row: 16 + 50/2
    assert found.flatten().tolist() == [7.0, 12.0, 8.0, 8.0, 41.0]


# ------------------------------------------------------------------ closed forms


def test_constant_reward_is_a_geometric_sum_and_its_own_value_leaves_no_advantage():
    steps, gamma, lam = 30, 0.97, 0.9
    zero, no = torch.zeros(steps, 1, dtype=torch.float64), flags(steps)
    advantage, _ = gae(zero + 1, zero, zero, no, no, gamma=gamma, gae_lambda=lam)
    left = torch.arange(steps, 0, -1, dtype=torch.float64).unsqueeze(-1)
    assert torch.allclose(advantage, (1 - (gamma * lam) ** left) / (1 - gamma * lam), rtol=1e-13, atol=0)
    value = zero + 1 / (1 - gamma)
    advantage, _ = gae(zero + 1, value, value, no, no, gamma=gamma, gae_lambda=lam)
    assert advantage.abs().max() < 1e-12


# ------------------------------------------------------------------ by definition


@pytest.mark.parametrize("as_array", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("skips", [False, True])
def test_random_rollout_equals_the_sum_by_definition(skips, weighted, as_array, monkeypatch):
    monkeypatch.setattr(returns, "_numpy_can_view", lambda x: as_array)
    *data, weight = random_rollout(0)
    valid = torch.rand(weight.shape, generator=torch.Generator().manual_seed(1)) < 0.7 if skips else None
    used = weight if weighted else None
    expected = by_definition(*data, used, used, valid)
    if skips:
        expected = [x.masked_fill(~valid, 0.0) for x in expected]
        data[:3] = [x.masked_fill(~valid, torch.nan) for x in data[:3]]
        used = None if used is None else used.masked_fill(~valid, torch.nan)
    assert alike(gae(*data, valid, **OPTIONS, weight=used), expected)


def test_targets_are_those_of_vtrace_equation_1():
    """arXiv:1802.01561: v_s = V_s + sum_t gamma^(t-s) (prod_{i<t} c_i) rho_t delta_t."""
    *data, weight = random_rollout(3)
    reward, value, next_value, terminated, truncated = data
    gamma, lam = OPTIONS.values()
    expected = value.clone()
    for b in range(value.shape[1]):
        for s in range(len(value)):
            factor = 1.0
            for t in range(s, len(value)):
                future = 0.0 if terminated[t, b] else gamma * next_value[t, b]
                expected[s, b] += factor * weight[t, b] * (reward[t, b] + future - value[t, b])
                if terminated[t, b] or truncated[t, b]:
                    break
                factor *= gamma * lam * weight[t, b]
    assert torch.allclose(gae(*data, **OPTIONS, weight=weight)[1], expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("nstep", [1, 3, 40, 10**9])
def test_nstep_return_equals_the_sum_by_definition(nstep):
    reward, _, next_value, terminated, truncated, _ = random_rollout(14)
    found = nstep_return(reward, next_value, terminated, truncated, gamma=0.97, nstep=nstep)
    for b in range(reward.shape[1]):
        for t in range(len(reward)):
            total = 0.0
            for k in range(min(nstep, 40)):
                total += 0.97**k * float(reward[t + k, b])
                last = t + k
                if terminated[last, b] or truncated[last, b] or last == len(reward) - 1:
                    break
            future = 0.0 if terminated[last, b] else 0.97 ** (k + 1) * float(next_value[last, b])
            assert float(found[t, b]) == pytest.approx(total + future, rel=1e-11, abs=1e-12)


def test_returns_that_continue_are_those_of_one_long_episode():
    """As intrinsic returns: the steps of all episodes one after the other, without the rows between them."""
    reward, value, *_, weight = random_rollout(5)
    last_value, valid = value[0] + 1, torch.rand(40, 7, generator=torch.Generator().manual_seed(6)) < 0.6
    after, never = values_after(value, last_value, valid), torch.zeros_like(valid)
    advantage, target = gae(reward, value, after, never, never, valid, **OPTIONS, weight=weight)
    for b in range(7):
        rows = valid[:, b]
        one = [x[rows, b][:, None] for x in (reward, value, weight)]
        ends = torch.zeros_like(one[0], dtype=torch.bool)
        next_value = torch.cat([one[1][1:], last_value[None, b : b + 1]])
        expected = gae(*one[:2], next_value, ends, ends, **OPTIONS, weight=one[2])
        assert alike((advantage[rows, b], target[rows, b]), [x[:, 0] for x in expected])
        assert not advantage[~rows, b].any()
        assert not target[~rows, b].any()


def test_the_next_valid_row_of_each_row():
    valid = torch.tensor([[1, 1, 0, 0, 1, 0], [1, 0, 1, 1, 1, 1]]).bool().T
    assert following_rows(valid).T.tolist() == [[1, 4, 4, 4, 6, 6], [2, 2, 3, 4, 5, 6]]


def test_terminations_only_agree_with_stable_baselines3():
    steps, envs, gamma, lam = 64, 5, 0.98, 0.93
    draw = np.random.default_rng(0)
    reward, value = draw.normal(size=(2, steps, envs)).astype(np.float32)
    last_value = draw.normal(size=envs).astype(np.float32)
    terminated = draw.random((steps, envs)) < 0.1
    spaces = gym.spaces.Box(-1, 1, (1,)), gym.spaces.Discrete(2)
    theirs = RolloutBuffer(steps, *spaces, "cpu", lam, gamma, envs)
    starts = np.vstack([np.zeros((1, envs), bool), terminated[:-1]])
    zeros = np.zeros((envs, 1), np.float32)
    for t in range(steps):
        theirs.add(zeros, zeros, reward[t], starts[t], torch.as_tensor(value[t]), torch.zeros(envs))
    theirs.compute_returns_and_advantage(torch.as_tensor(last_value), terminated[-1])
    next_value = np.vstack([value[1:], last_value[None]])
    given = [torch.as_tensor(x) for x in (reward, value, next_value, terminated, np.zeros_like(terminated))]
    advantage, target = gae(*given, gamma=gamma, gae_lambda=lam)
    assert advantage.dtype == torch.float32
    np.testing.assert_allclose(advantage, theirs.advantages, atol=1e-5)
    np.testing.assert_allclose(target, theirs.returns, atol=1e-5)


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


@pytest.mark.parametrize("position", range(7))
def test_argument_that_would_broadcast_is_refused(position):
    *data, weight = random_rollout(0)
    data += [torch.ones_like(weight, dtype=torch.bool), weight]
    data[position] = data[position][:, :1]
    with pytest.raises(ValueError, match=r"\(T, B\).*\(40, 1\), \(40, 7\)"):
        gae(*data[:6], **OPTIONS, weight=data[6])


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
