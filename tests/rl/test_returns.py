"""Credit assignment against values computed by hand, closed forms, naive loops, and Stable-Baselines3."""

import warnings

import gymnasium as gym
import numpy as np
import pytest
import torch

from ding_lite.rl import returns
from ding_lite.rl.returns import explained_variance, gae, nstep_return

with warnings.catch_warnings():
    # Dependencies of Stable-Baselines3 (plotting, TensorBoard) may warn at import.
    warnings.simplefilter("ignore")
    from stable_baselines3.common.buffers import RolloutBuffer


def column(*numbers, dtype=torch.float64):
    return torch.tensor(numbers, dtype=dtype).unsqueeze(-1)


def flags(steps, *true_at):
    return torch.tensor([[t in true_at] for t in range(steps)])


def random_rollout(seed, steps=40, envs=7, dtype=torch.float64):
    """Returns a rollout with terminations and truncations, some on the same row, and V-trace weights."""
    draw = torch.Generator().manual_seed(seed)
    normal = [torch.randn(steps, envs, generator=draw, dtype=dtype) for _ in range(3)]
    terminated, truncated = (torch.rand(steps, envs, generator=draw) < 0.12 for _ in range(2))
    weight = torch.rand(steps, envs, generator=draw, dtype=dtype) * 1.6
    return *normal, terminated, truncated, weight.clamp_max(1.0)


def as_truncations(data, ignored):
    """Returns the data of a rollout, with its terminations made truncations if they are ignored."""
    *others, terminated, truncated = data
    if ignored:
        terminated, truncated = torch.zeros_like(terminated), terminated | truncated
    return *others, terminated, truncated


def naive_gae(reward, value, next_value, terminated, truncated, gamma, lam, weight=None, ignore_done=False):
    """Computes GAE from its definition as a sum, in Python floats.

    A_t = sum_k delta_{t+k} prod_{1<=i<=k} gamma lambda c_{t+i}, up to the end of the episode.
    """
    steps, envs = reward.shape
    advantage = np.zeros((steps, envs))
    for b in range(envs):
        for t in range(steps):
            total, factor = 0.0, 1.0
            for k in range(t, steps):
                if k > t:
                    factor *= gamma * lam * (1.0 if weight is None else float(weight[k, b]))
                ended = bool(terminated[k, b]) and not ignore_done
                future = 0.0 if ended else gamma * float(next_value[k, b])
                total += factor * (float(reward[k, b]) + future - float(value[k, b]))
                if terminated[k, b] or truncated[k, b]:
                    break
            advantage[t, b] = total
    return torch.as_tensor(advantage)


# ------------------------------------------------------------------ hand-worked numbers


def test_terminated_episode_gives_the_numbers_worked_by_hand():
    advantage, target = gae(
        column(1, 0, 2),
        column(0.5, 1, 0),
        column(1, 0, 4),
        flags(3, 2),
        flags(3),
        gamma=0.5,
        gae_lambda=0.5,
    )
    assert advantage.flatten().tolist() == [0.875, -0.5, 2.0]
    assert target.flatten().tolist() == [1.375, 0.5, 2.0]


def test_truncated_step_bootstraps_and_cuts_the_trace_as_worked_by_hand():
    advantage, target = gae(
        column(1, 0, 2),
        column(0.5, 1, 0),
        column(1, 8, 4),
        flags(3, 2),
        flags(3, 1),
        gamma=0.5,
        gae_lambda=0.5,
    )
    assert advantage.flatten().tolist() == [1.75, 3.0, 2.0]
    assert target.flatten().tolist() == [2.25, 4.0, 2.0]


def test_last_row_of_an_open_episode_bootstraps():
    advantage, _ = gae(column(1.0), column(0.5), column(4.0), flags(1), flags(1), gamma=0.5, gae_lambda=0.5)
    assert advantage.item() == 1 + 0.5 * 4 - 0.5


def test_termination_wins_where_both_flags_are_set():
    advantage, _ = gae(
        column(1.0), column(0.5), column(100.0), flags(1, 0), flags(1, 0), gamma=0.5, gae_lambda=0.5
    )
    assert advantage.item() == 0.5


def test_the_value_after_a_termination_may_be_nan():
    after = column(1.0, float("nan"))
    ends, options = (flags(2, 1), flags(2)), dict(gamma=0.5)
    advantage, _ = gae(column(1.0, 1.0), column(0.5, 0.5), after, *ends, gae_lambda=0.5, **options)
    assert advantage.flatten().tolist() == [1.125, 0.5]
    target = nstep_return(column(1.0, 1.0), after, *ends, nstep=2, **options)
    assert target.flatten().tolist() == [1.5, 1.0]


def test_own_weight_reaches_the_target_and_the_next_weight_the_advantage():
    advantage, target = gae(
        column(1, 1),
        column(0, 0),
        column(0, 0),
        flags(2),
        flags(2),
        gamma=1.0,
        gae_lambda=1.0,
        weight=column(0.5, 0.25),
    )
    assert advantage.flatten().tolist() == [1.25, 1.0]
    assert target.flatten().tolist() == [0.625, 0.25]


# ------------------------------------------------------------------ closed forms


def test_constant_reward_and_its_own_value_leave_no_advantage():
    gamma = 0.9
    value = torch.full((20, 3), 1 / (1 - gamma), dtype=torch.float64)
    no = torch.zeros(20, 3, dtype=torch.bool)
    advantage, target = gae(torch.ones_like(value), value, value, no, no, gamma=gamma, gae_lambda=0.95)
    assert advantage.abs().max() < 1e-13
    assert torch.equal(target, value + advantage)


def test_constant_reward_without_values_is_a_geometric_sum():
    steps, gamma, lam = 30, 0.97, 0.9
    zero = torch.zeros(steps, 1, dtype=torch.float64)
    advantage, _ = gae(zero + 1, zero, zero, zero.bool(), zero.bool(), gamma=gamma, gae_lambda=lam)
    left = torch.arange(steps, 0, -1, dtype=torch.float64).unsqueeze(-1)
    expected = (1 - (gamma * lam) ** left) / (1 - gamma * lam)
    assert torch.allclose(advantage, expected, rtol=1e-13, atol=0)


def test_lambda_zero_is_the_one_step_error():
    reward, value, next_value, terminated, truncated, _ = random_rollout(0)
    advantage, _ = gae(reward, value, next_value, terminated, truncated, gamma=0.99, gae_lambda=0.0)
    assert torch.equal(advantage, reward + 0.99 * (~terminated).double() * next_value - value)


def test_lambda_one_is_the_discounted_return_less_the_value():
    gamma, steps = 0.9, 12
    reward, value = torch.randn(2, steps, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    next_value = torch.cat([value[1:], torch.full((1, 1), 3.0)])
    _, target = gae(reward, value, next_value, flags(steps), flags(steps), gamma=gamma, gae_lambda=1.0)
    discounts = gamma ** torch.arange(steps + 1, dtype=torch.float64)
    expected = [
        (discounts[: steps - t] * reward[t:, 0]).sum() + discounts[steps - t] * 3.0 for t in range(steps)
    ]
    assert torch.allclose(target[:, 0], torch.stack(expected), rtol=1e-12)


def test_lambda_one_with_a_terminal_step_does_not_depend_on_the_values():
    reward = column(1, 2, 3)
    value = column(7.0, -5.0, 11.0)
    next_value = torch.cat([value[1:], column(99.0)])
    _, target = gae(reward, value, next_value, flags(3, 2), flags(3), gamma=0.5, gae_lambda=1.0)
    assert torch.allclose(target, column(1 + 1 + 0.75, 2 + 1.5, 3.0), rtol=1e-14)


# ------------------------------------------------------------------ random inputs


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("ignore_done", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("as_array", [False, True])
def test_random_rollout_equals_a_naive_loop(seed, ignore_done, weighted, as_array, monkeypatch):
    monkeypatch.setattr(returns, "_numpy_can_view", lambda x: as_array)
    *data, weight = random_rollout(seed)
    weight = weight if weighted else None
    given = as_truncations(data, ignore_done)
    advantage, target = gae(*given, gamma=0.97, gae_lambda=0.93, weight=weight)
    expected = naive_gae(*data, 0.97, 0.93, weight, ignore_done)
    own = expected if weight is None else weight * expected
    assert torch.allclose(advantage, expected, rtol=1e-11, atol=1e-12)
    assert torch.allclose(target, data[1] + own, rtol=1e-11, atol=1e-12)


def test_float32_rollout_agrees_with_float64_to_1e_5():
    *data, weight = random_rollout(5, steps=128)
    single = [x.float() if x.is_floating_point() else x for x in data]
    expected, _ = gae(*data, gamma=0.99, gae_lambda=0.95, weight=weight)
    advantage, _ = gae(*single, gamma=0.99, gae_lambda=0.95, weight=weight.float())
    assert advantage.dtype == torch.float32
    assert (advantage - expected).abs().max() < 1e-5


def test_targets_are_those_of_vtrace_equation_1():
    """arXiv:1802.01561: v_s = V_s + sum_t gamma^(t-s) (prod_{i<t} c_i) rho_t delta_t."""
    reward, value, next_value, terminated, truncated, _ = random_rollout(3)
    gamma, lam = 0.97, 0.9
    rho = torch.exp(
        0.8 * torch.randn(value.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    )
    clipped = rho.clamp_max(1.0)
    _, target = gae(
        reward, value, next_value, terminated, truncated, gamma=gamma, gae_lambda=lam, weight=clipped
    )

    steps, envs = value.shape
    expected = value.clone()
    for b in range(envs):
        for s in range(steps):
            factor = 1.0
            for t in range(s, steps):
                future = 0.0 if terminated[t, b] else gamma * next_value[t, b]
                delta = clipped[t, b] * (reward[t, b] + future - value[t, b])
                expected[s, b] += factor * delta
                if terminated[t, b] or truncated[t, b]:
                    break
                factor *= gamma * lam * clipped[t, b]
    assert torch.allclose(target, expected, rtol=1e-11, atol=1e-12)


def test_weight_one_equals_no_weight_bit_for_bit():
    *data, weight = random_rollout(6, dtype=torch.float32)
    plain = gae(*data, gamma=0.99, gae_lambda=0.95)
    weighted = gae(*data, gamma=0.99, gae_lambda=0.95, weight=torch.ones_like(weight))
    assert torch.equal(plain[0], weighted[0])
    assert torch.equal(plain[1], weighted[1])


def test_weight_of_the_first_step_never_reaches_an_advantage():
    *data, weight = random_rollout(7)
    changed = weight.clone()
    changed[0] = 0.0
    before, _ = gae(*data, gamma=0.99, gae_lambda=0.95, weight=weight)
    after, target = gae(*data, gamma=0.99, gae_lambda=0.95, weight=changed)
    assert torch.equal(before, after)
    assert torch.equal(target[0], data[1][0])


def test_terminations_only_agree_with_stable_baselines3():
    steps, envs, gamma, lam = 64, 5, 0.98, 0.93
    draw = np.random.default_rng(0)
    reward, value = draw.normal(size=(2, steps, envs)).astype(np.float32)
    last_value = draw.normal(size=envs).astype(np.float32)
    terminated = draw.random((steps, envs)) < 0.1

    theirs = RolloutBuffer(
        steps, gym.spaces.Box(-1, 1, (1,)), gym.spaces.Discrete(2), "cpu", lam, gamma, envs
    )
    starts = np.vstack([np.zeros((1, envs), bool), terminated[:-1]])
    zeros = np.zeros((envs, 1), np.float32)
    for t in range(steps):
        theirs.add(zeros, zeros, reward[t], starts[t], torch.as_tensor(value[t]), torch.zeros(envs))
    theirs.compute_returns_and_advantage(torch.as_tensor(last_value), terminated[-1])

    tensors = [
        torch.as_tensor(x) for x in (reward, value, np.vstack([value[1:], last_value[None]]), terminated)
    ]
    advantage, target = gae(*tensors, torch.zeros(steps, envs, dtype=torch.bool), gamma=gamma, gae_lambda=lam)
    assert np.abs(advantage.numpy() - theirs.advantages).max() < 1e-6 * max(
        1, np.abs(theirs.advantages).max()
    )
    assert np.abs(target.numpy() - theirs.returns).max() < 1e-6 * max(1, np.abs(theirs.returns).max())


# ------------------------------------------------------------------ contract


def test_inputs_are_not_modified():
    *data, weight = random_rollout(8)
    copies = [x.clone() for x in (*data, weight)]
    gae(*data, gamma=0.9, gae_lambda=0.9, weight=weight)
    assert all(torch.equal(x, copy) for x, copy in zip((*data, weight), copies, strict=True))


def test_result_has_no_gradient():
    *data, _ = random_rollout(9)
    data[1].requires_grad_()
    advantage, target = gae(*data, gamma=0.9, gae_lambda=0.9)
    assert not advantage.requires_grad
    assert not target.requires_grad


def test_environments_do_not_mix():
    *data, weight = random_rollout(10)
    together, _ = gae(*data, gamma=0.9, gae_lambda=0.9, weight=weight)
    alone, _ = gae(*(x[:, 2:3] for x in data), gamma=0.9, gae_lambda=0.9, weight=weight[:, 2:3])
    assert torch.equal(together[:, 2:3], alone)


@pytest.mark.parametrize("position", range(5))
def test_argument_of_another_shape_is_refused(position):
    *data, _ = random_rollout(0)
    data[position] = data[position][:-1]
    with pytest.raises(ValueError, match=r"all tensors .* \(T, B\).*\(39, 7\).*\(40, 7\)"):
        gae(*data, gamma=0.9, gae_lambda=0.9)


def test_argument_that_would_broadcast_is_refused():
    *data, _ = random_rollout(0)
    data[1] = data[1][:, :1]
    with pytest.raises(ValueError, match=r"\(40, 1\)"):
        gae(*data, gamma=0.9, gae_lambda=0.9)


def test_vectors_are_refused():
    data = [x[:, 0] for x in random_rollout(0)[:5]]
    with pytest.raises(ValueError, match=r"\(T, B\)"):
        gae(*data, gamma=0.9, gae_lambda=0.9)


@pytest.mark.parametrize("wrong", [lambda w: w[:, :1], lambda w: w[:-1], lambda w: w[0]])
def test_weight_of_another_shape_is_refused(wrong):
    *data, weight = random_rollout(0)
    with pytest.raises(ValueError, match=r"\(T, B\)"):
        gae(*data, gamma=0.9, gae_lambda=0.9, weight=wrong(weight))


def test_negative_control_truncation_taken_for_termination_gives_other_numbers():
    reward, value, next_value, _, truncated, _ = random_rollout(11)
    no = torch.zeros_like(truncated)
    right, _ = gae(reward, value, next_value, no, truncated, gamma=0.9, gae_lambda=0.9)
    wrong, _ = gae(reward, value, next_value, truncated, no, gamma=0.9, gae_lambda=0.9)
    assert torch.allclose((right - wrong)[truncated], 0.9 * next_value[truncated], rtol=1e-12)
    assert (right - wrong)[truncated].abs().mean() > 0.3


# ------------------------------------------------------------------ V-trace: the comparisons would notice


def vtrace(data, trace, own):
    """Returns advantage and target, with weights ``trace`` of later steps and ``own`` of the step itself."""
    advantage = naive_gae(*data, 0.97, 0.93, trace)
    return advantage, data[1] + own * advantage


MUTATIONS = {
    "own weight in the advantage": lambda data, w: (w * vtrace(data, w, w)[0], vtrace(data, w, w)[1]),
    "weight of the step before": lambda data, w: vtrace(data, torch.roll(w, 1, 0), w),
    "weight not bounded by 1": lambda data, w: vtrace(data, 1.5 * w, 1.5 * w),
    "no own weight in the target": lambda data, w: vtrace(data, w, 1.0),
    "own weight twice in the target": lambda data, w: vtrace(data, w, w * w),
}


@pytest.mark.parametrize("mutation", MUTATIONS.values(), ids=MUTATIONS)
def test_negative_control_mutated_vtrace_gives_other_numbers(mutation):
    *data, weight = random_rollout(12)
    found = gae(*data, gamma=0.97, gae_lambda=0.93, weight=weight)

    def alike(expected):
        return all(torch.allclose(x, y, rtol=1e-9) for x, y in zip(found, expected, strict=True))

    assert alike(vtrace(data, weight, weight))
    assert not alike(mutation(data, weight))


def test_trace_is_cut_where_the_weight_is_zero():
    """pi gives the action of step 2 probability 0, so the advantage of step 1 is its one-step error."""
    *data, weight = random_rollout(13)
    weight[2] = 0.0
    advantage, target = gae(*data, gamma=0.97, gae_lambda=0.93, weight=weight)
    reward, value, next_value, terminated, _ = data
    one_step = reward + 0.97 * (~terminated).double() * next_value - value
    assert torch.equal(advantage[1], one_step[1])
    assert torch.equal(target[2], value[2])


# ------------------------------------------------------------------ n-step returns


def naive_nstep(reward, next_value, terminated, truncated, gamma, nstep, ignore_done=False):
    """Computes n-step returns with one loop per step, in Python floats."""
    steps, envs = reward.shape
    result = np.zeros((steps, envs))
    for b in range(envs):
        for t in range(steps):
            total = 0.0
            for k in range(nstep):
                total += gamma**k * float(reward[t + k, b])
                last = t + k
                if terminated[last, b] or truncated[last, b] or last == steps - 1:
                    break
            ended = bool(terminated[last, b]) and not ignore_done
            result[t, b] = total + (0.0 if ended else gamma ** (k + 1) * float(next_value[last, b]))
    return torch.as_tensor(result)


def nstep_arguments(seed):
    reward, _, next_value, terminated, truncated, _ = random_rollout(seed)
    return reward, next_value, terminated, truncated


@pytest.mark.parametrize("nstep", [1, 2, 3, 7, 40, 10**9])  # the last one in as many steps as a rollout has
@pytest.mark.parametrize("ignore_done", [False, True])
def test_nstep_return_equals_a_naive_loop(nstep, ignore_done):
    data = nstep_arguments(14)
    found = nstep_return(*as_truncations(data, ignore_done), gamma=0.97, nstep=nstep)
    assert torch.allclose(found, naive_nstep(*data, 0.97, nstep, ignore_done), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("change", ["nstep", "gamma", "ignore_done", "truncated", "terminated"])
def test_negative_control_nstep_return_of_something_else_differs(change):
    data = list(nstep_arguments(15))
    options = dict(gamma=0.97, nstep=3, ignore_done=False)
    found = nstep_return(*data, gamma=0.97, nstep=3)
    if change in options:
        options[change] = {"nstep": 4, "gamma": 0.96, "ignore_done": True}[change]
    else:
        position = ["reward", "next_value", "terminated", "truncated"].index(change)
        data[position] = torch.zeros_like(data[position])
    assert not torch.allclose(found, naive_nstep(*data, *options.values()), rtol=1e-3)


def test_nstep_return_gives_the_numbers_worked_by_hand():
    found = nstep_return(
        column(1, 2, 4, 8, 16),
        column(10, 20, 30, 40, 50),
        flags(5, 3),
        flags(5, 1),
        gamma=0.5,
        nstep=2,
    )
    # 1 + 2/2 + 20/4; truncated: 2 + 20/2; 4 + 8/2, terminated; 8; the last row: 16 + 50/2
    assert found.flatten().tolist() == [7.0, 12.0, 8.0, 8.0, 41.0]


def test_one_step_return_is_the_target_of_lambda_zero():
    reward, value, next_value, terminated, truncated, _ = random_rollout(16)
    _, target = gae(reward, value, next_value, terminated, truncated, gamma=0.9, gae_lambda=0.0)
    found = nstep_return(reward, next_value, terminated, truncated, gamma=0.9, nstep=1)
    assert torch.allclose(found, target, rtol=1e-13)


def test_endless_nstep_return_is_the_target_of_lambda_one():
    reward, value, next_value, terminated, truncated, _ = random_rollout(17)
    goes_on = ~(terminated | truncated)
    next_value[:-1] = torch.where(goes_on[:-1], value[1:], next_value[:-1])
    _, target = gae(reward, value, next_value, terminated, truncated, gamma=0.9, gae_lambda=1.0)
    found = nstep_return(reward, next_value, terminated, truncated, gamma=0.9, nstep=40)
    assert torch.allclose(found, target, rtol=1e-11)


def test_nstep_return_modifies_nothing_and_does_not_mix_environments():
    data = nstep_arguments(18)
    copies = [x.clone() for x in data]
    together = nstep_return(*data, gamma=0.9, nstep=5)
    assert all(torch.equal(x, copy) for x, copy in zip(data, copies, strict=True))
    alone = nstep_return(*(x[:, 2:3] for x in data), gamma=0.9, nstep=5)
    assert torch.equal(together[:, 2:3], alone)


# ------------------------------------------------------------------ explained variance


def test_perfect_prediction_explains_all_variance():
    target = torch.tensor([1.0, 2.0, 5.0])
    assert explained_variance(target, target) == 1.0


def test_prediction_off_by_a_constant_explains_all_variance():
    target = torch.tensor([1.0, 2.0, 5.0])
    assert explained_variance(target + 8, target) == 1.0


def test_scale_of_the_targets_does_not_matter_even_where_their_squares_are_beyond_float32():
    target, value = torch.tensor([1.0, 2.0, 6.0]), torch.tensor([1.0, 3.0, 5.0])
    expected = explained_variance(value, target)
    for scale in (1e-3, 1e3, 1e30):
        assert torch.allclose(explained_variance(scale * value, scale * target), expected)


def test_constant_prediction_explains_nothing():
    assert explained_variance(torch.full((3,), 4.0), torch.tensor([1.0, 2.0, 6.0])) == 0.0


def test_opposite_prediction_explains_minus_three():
    target = torch.tensor([-1.0, 1.0])
    assert explained_variance(-target, target) == -3.0


def test_half_of_the_target_explains_three_quarters():
    target = torch.tensor([-2.0, 0.0, 2.0])
    assert explained_variance(target / 2, target).item() == pytest.approx(0.75)


@pytest.mark.parametrize("constant", [0.0, 0.1, 3.3, -7.7, 1e6])
@pytest.mark.parametrize("count", [1, 7, 1000])
def test_constant_target_gives_zero(constant, count):
    value = torch.linspace(-1, 1, count)
    assert explained_variance(value, torch.full((count,), constant)) == 0.0


def test_a_small_spread_around_a_large_mean_is_no_constant():
    target = 100 + 0.01 * torch.tensor([-1.0, 0.0, 2.0], dtype=torch.float64)
    assert explained_variance(target, target) == 1.0


@pytest.mark.parametrize("sign", [1, -1])
def test_scale_of_the_targets_does_not_matter_whatever_their_sign(sign):
    target, value = torch.tensor([1.0, 2.0, 6.0]), torch.tensor([1.0, 3.0, 5.0])
    expected = explained_variance(value, target)
    for scale in (1e-3, 1e3, 1e30):
        assert torch.allclose(explained_variance(sign * scale * value, sign * scale * target), expected)
