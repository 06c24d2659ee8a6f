"""Running statistics against NumPy on all samples at once, and against naive loops."""

import numpy as np
import pytest
import torch

from ding_lite.rl.scales import RewardScale, RunningMeanStd, ValueNorm

# ------------------------------------------------------------------ mean and variance


@pytest.mark.parametrize("shape", [(), (3,), (2, 4)])
def test_statistics_of_batches_equal_those_of_their_concatenation(shape):
    draw = np.random.default_rng(0)
    batches = [draw.normal(5, 3, (n, *shape)) for n in (1, 17, 256, 3)]
    stats = RunningMeanStd(shape)
    for batch in batches:
        stats.update(batch)
    together = np.concatenate(batches)
    np.testing.assert_allclose(stats.mean, together.mean(0), rtol=1e-12)
    np.testing.assert_allclose(stats.var, together.var(0), rtol=1e-12)
    np.testing.assert_allclose(stats.std, together.std(0), rtol=1e-12)
    assert stats.count == 277


def test_many_small_batches_far_from_zero_lose_no_precision():
    samples = 1e6 + np.random.default_rng(1).normal(size=3000)
    stats = RunningMeanStd()
    for one in samples:
        stats.update(np.array([one]))
    np.testing.assert_allclose(stats.mean, samples.mean(), rtol=1e-14)
    np.testing.assert_allclose(stats.var, samples.var(), rtol=1e-6)


def test_float32_samples_are_summed_in_float64():
    samples = np.full(1000, 16777216.0, np.float32)
    samples[::2] += 2
    stats = RunningMeanStd()
    stats.update(samples)
    assert stats.mean == 16777217.0
    assert stats.var == 1.0


def test_fresh_statistics_change_nothing():
    stats = RunningMeanStd((2,))
    assert stats.mean.tolist() == [0, 0]
    assert stats.std.tolist() == [1, 1]


def test_constant_stream_has_a_small_std_that_is_not_zero():
    stats = RunningMeanStd()
    stats.update(np.full(100, 7.0))
    stats.update(np.full(100, 7.0))
    assert stats.mean == 7.0
    assert stats.var == 0.0
    assert stats.std == pytest.approx(1e-4)


def test_empty_batch_changes_nothing():
    stats = RunningMeanStd((2,))
    stats.update(np.zeros((0, 2)))
    assert stats.count == 0
    stats.update(np.array([[1.0, 2.0], [3.0, 6.0]]))
    stats.update(np.zeros((0, 2)))
    assert stats.mean.tolist() == [2.0, 4.0]
    assert stats.var.tolist() == [1.0, 4.0]


def test_first_batch_forgets_the_initial_variance():
    stats = RunningMeanStd()
    stats.update(np.array([10.0, 10.0, 40.0]))
    assert stats.mean == 20.0
    assert stats.var == pytest.approx(200.0)


def test_samples_are_not_modified():
    samples = np.arange(4.0)
    RunningMeanStd().update(samples)
    assert samples.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("shape", [(), (3,)])
def test_state_round_trip_goes_on_as_the_original(shape):
    draw = np.random.default_rng(2)
    stats, other = RunningMeanStd(shape), RunningMeanStd(shape)
    stats.update(draw.normal(size=(5, *shape)))
    other.load_state_dict(stats.state_dict())
    more = draw.normal(size=(9, *shape))
    stats.update(more)
    other.update(more)
    assert np.array_equal(stats.mean, other.mean)
    assert np.array_equal(stats.var, other.var)
    assert stats.count == other.count == 14


def test_saved_state_does_not_change_with_later_updates():
    stats = RunningMeanStd()
    stats.update(np.array([1.0, 3.0]))
    state = stats.state_dict()
    stats.update(np.array([100.0]))
    assert state["mean"] == 2.0
    assert state["count"] == 2.0


# ------------------------------------------------------------------ PopArt


def value_heads(seed=0, count=2):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return tuple(torch.nn.Linear(8, 1) for _ in range(count))


def target_batches():
    draw = np.random.default_rng(3)
    return [draw.normal(mean, std, 200) for mean, std in ((0, 1), (50, 20), (-300, 4), (5, 0.1))]


def features():
    return torch.randn(32, 8, generator=torch.Generator().manual_seed(1))


def test_raw_predictions_stay_when_the_scale_moves():
    norm, heads, x = ValueNorm(), value_heads(), features()
    with torch.no_grad():
        before = [head(x) for head in heads]
        for targets in target_batches():
            old = [norm.denormalize(head(x)) for head in heads]
            norm.update_heads(targets, heads)
            new = [norm.denormalize(head(x)) for head in heads]
            for was, now in zip(old, new, strict=True):
                scale = max(1.0, abs(float(norm.mean)), float(norm.std))
                assert (was - now).abs().max() < 1e-5 * scale
    assert all(
        (norm.denormalize(head(x)) - was).abs().max() < 1e-3 for head, was in zip(heads, before, strict=True)
    )


def test_raw_predictions_stay_to_1e_5_at_a_moderate_move():
    norm, heads, x = ValueNorm(), value_heads(), features()
    with torch.no_grad():
        before = [head(x) for head in heads]
        norm.update_heads(np.random.default_rng(4).normal(3, 2, 500), heads)
        after = [norm.denormalize(head(x)) for head in heads]
    assert norm.std == pytest.approx(2, rel=0.1)
    for was, now in zip(before, after, strict=True):
        assert (was - now).abs().max() < 1e-5


def test_negative_control_raw_predictions_change_when_heads_are_not_corrected():
    norm, (head,), x = ValueNorm(), value_heads(count=1), features()
    with torch.no_grad():
        before = norm.denormalize(head(x))
        norm.update_heads(np.random.default_rng(4).normal(3, 2, 500), ())
        after = norm.denormalize(head(x))
    assert (after - before).abs().max() > 1


def test_statistics_after_update_heads_are_those_of_the_targets():
    norm = ValueNorm()
    batches = target_batches()
    for targets in batches:
        norm.update_heads(targets, ())
    together = np.concatenate(batches)
    assert norm.mean == pytest.approx(together.mean())
    assert norm.std == pytest.approx(together.std())


def test_empty_targets_leave_heads_bit_equal():
    norm, (head,) = ValueNorm(), value_heads(count=1)
    norm.update(np.array([1.0, 5.0]))
    weight, bias = head.weight.clone(), head.bias.clone()
    norm.update_heads(np.zeros(0), (head,))
    assert torch.equal(head.weight, weight)
    assert torch.allclose(head.bias, bias, rtol=1e-6, atol=0)


def test_normalised_targets_have_mean_zero_and_std_one():
    norm, targets = ValueNorm(), np.random.default_rng(5).normal(200, 30, 400)
    norm.update_heads(targets, ())
    normal = norm.normalize(torch.as_tensor(targets))
    assert abs(normal.mean()) < 1e-12
    assert normal.std(correction=0).item() == pytest.approx(1.0)


def test_denormalise_undoes_normalise_and_keeps_float32():
    norm = ValueNorm()
    norm.update(np.array([10.0, 30.0]))
    value = torch.tensor([5.0, 20.0])
    assert norm.normalize(value).tolist() == [-1.5, 0.0]
    assert torch.equal(norm.denormalize(norm.normalize(value)), value)
    assert norm.normalize(value).dtype == torch.float32


@pytest.mark.parametrize("decay", [0.0, 0.3, 0.99])
def test_value_norm_is_the_debiased_exponential_mean(decay):
    norm, draw = ValueNorm(decay), np.random.default_rng(7)
    first = second = weight = 0.0
    for k in range(6):
        targets = draw.normal(100 - 10 * k, 1 + k, 50)
        norm.update(targets)
        first = decay * first + (1 - decay) * targets.mean()
        second = decay * second + (1 - decay) * (targets**2).mean()
        weight = decay * weight + (1 - decay)  # 1 - decay^k, Adam's correction for the start
        mean = first / weight
        assert norm.mean == pytest.approx(mean, rel=1e-12)
        assert norm.var == pytest.approx(second / weight - mean**2, rel=1e-9)


def test_value_norm_without_a_decay_forgets_nothing():
    norm, targets = ValueNorm(), np.random.default_rng(8).normal(3, 2, (5, 40))
    for part in targets:
        norm.update(part)
    assert norm.std == pytest.approx(targets.std(), rel=1e-12)


def test_value_norm_weighs_rollouts_by_their_samples():
    """A rollout of one sample changes the scale less than a rollout of a thousand."""
    norm = ValueNorm(decay=0.5)
    norm.update(np.zeros(1000))
    norm.update(np.ones(1))
    assert norm.mean == pytest.approx(1 / 501)


def test_nothing_to_take_in_lets_value_norm_forget_nothing():
    norm = ValueNorm(decay=0.5)
    norm.update(np.arange(4.0))
    norm.update(np.zeros(0))
    assert (norm.count, norm.mean) == (4.0, 1.5)


def test_value_norm_state_round_trip():
    norm, other = ValueNorm(), ValueNorm()
    norm.update(np.array([10.0, 30.0, 70.0]))
    other.load_state_dict(norm.state_dict())
    value = torch.tensor([5.0, 20.0])
    assert torch.equal(norm.normalize(value), other.normalize(value))


# ------------------------------------------------------------------ reward scale


def naive_returns(rollouts, gamma):
    """Returns the running discounted return of each valid row; it restarts at 0 where it is told to."""
    envs = rollouts[0][0].shape[1]
    running, seen = [0.0] * envs, []
    for reward, restarts, valid in rollouts:
        for t in range(len(reward)):
            for b in range(envs):
                if valid[t, b]:
                    running[b] = gamma * running[b] + float(reward[t, b])
                    seen.append(running[b])
                if restarts[t, b]:
                    running[b] = 0.0
    return np.array(seen), running


def reward_rollouts(seed=6, count=3, steps=25, envs=4):
    draw = np.random.default_rng(seed)
    return [
        (
            draw.normal(1, 2, (steps, envs)).astype(np.float32),
            draw.random((steps, envs)) < 0.2,
            draw.random((steps, envs)) < 0.8,
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("over_lost_rows", [True, False])
def test_reward_scale_equals_a_naive_loop_over_rollouts(over_lost_rows):
    scale, rollouts = RewardScale(gamma=0.9), reward_rollouts()
    if not over_lost_rows:
        rollouts = [(reward, done | ~valid, valid) for reward, done, valid in rollouts]
    for rollout in rollouts:
        scale.update_from(*rollout)
    seen, running = naive_returns(rollouts, 0.9)
    assert scale.std == pytest.approx(seen.std(), rel=1e-12)
    assert scale.mean == pytest.approx(seen.mean(), rel=1e-12)
    assert scale.count == len(seen)
    np.testing.assert_allclose(scale.running_return, running, rtol=1e-12)


def test_reward_scale_by_hand():
    scale = RewardScale(gamma=0.5)
    reward = np.array([[1.0], [2.0], [4.0]])
    done = np.array([[False], [True], [False]])
    scale.update_from(reward, done, np.ones((3, 1), bool))
    assert scale.mean == pytest.approx((1 + 2.5 + 4) / 3)
    assert scale.running_return.tolist() == [4.0]


def test_running_return_goes_on_over_rollouts():
    scale = RewardScale(gamma=0.5)
    no, yes = np.zeros((1, 1), bool), np.ones((1, 1), bool)
    scale.update_from(np.array([[4.0]]), no, yes)
    scale.update_from(np.array([[1.0]]), no, yes)
    assert scale.running_return.tolist() == [3.0]


@pytest.mark.parametrize("huge", [1e30, -1e30, np.nan, np.inf])
def test_rows_that_are_not_valid_change_nothing_whatever_they_hold(huge):
    clean, dirty = RewardScale(gamma=0.9), RewardScale(gamma=0.9)
    for reward, done, valid in reward_rollouts():
        clean.update_from(np.where(valid, reward, 0), done, valid)
        dirty.update_from(np.where(valid, reward, huge), done, valid)
    assert clean.std == dirty.std
    assert clean.count == dirty.count
    assert np.array_equal(clean.running_return, dirty.running_return)


def test_a_return_restarts_after_a_row_that_is_not_valid_if_it_is_told_to():
    scale, valid = RewardScale(gamma=1.0), np.array([[True], [False], [True]])
    scale.update_from(np.ones((3, 1)), ~valid, valid)
    assert (scale.count, scale.mean, scale.var) == (2, 1.0, 0.0)
    valid = np.array([[False], [True], [True]])
    scale.update_from(np.ones((3, 1)), ~valid, valid)
    assert scale.running_return.tolist() == [2.0]


def test_a_return_goes_on_over_a_row_that_is_not_valid_if_it_is_not_told_to_restart():
    scale, never = RewardScale(gamma=1.0), np.zeros((3, 1), bool)
    scale.update_from(np.ones((3, 1)), never, np.array([[True], [False], [True]]))
    assert (scale.count, scale.mean) == (2, 1.5)
    scale.update_from(np.ones((3, 1)), never, np.array([[False], [True], [True]]))
    assert scale.running_return.tolist() == [4.0]


def test_rollout_without_a_valid_row_changes_no_statistic():
    scale = RewardScale(gamma=0.9)
    reward = np.full((3, 2), 9.0)
    scale.update_from(reward, np.zeros((3, 2), bool), np.zeros((3, 2), bool))
    assert scale.count == 0
    assert scale.std == 1.0
    assert scale.running_return.tolist() == [0.0, 0.0]


def test_reward_scale_leaves_its_inputs_alone():
    (reward, done, valid), *_ = reward_rollouts()
    copies = reward.copy(), done.copy(), valid.copy()
    RewardScale(gamma=0.9).update_from(reward, done, valid)
    assert all(np.array_equal(x, y) for x, y in zip((reward, done, valid), copies, strict=True))


def test_reward_scale_state_round_trip_keeps_the_open_returns():
    first, second, third = reward_rollouts()
    scale, other = RewardScale(gamma=0.9), RewardScale(gamma=0.9)
    scale.update_from(*first)
    scale.update_from(*second)
    other.load_state_dict(scale.state_dict())
    scale.update_from(*third)
    other.update_from(*third)
    assert scale.std == other.std
    assert np.array_equal(scale.running_return, other.running_return)


def test_reward_scale_state_round_trip_before_the_first_rollout():
    other = RewardScale(gamma=0.9)
    other.load_state_dict(RewardScale(gamma=0.9).state_dict())
    assert other.running_return is None
    assert other.std == 1.0
