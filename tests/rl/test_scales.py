"""Running statistics against NumPy on all samples at once, and the scales against naive loops."""

import copy

import gymnasium as gym
import numpy as np
import pytest
import torch
from worlds import digest

from ding_lite.rl import scales
from ding_lite.rl.scales import ObservationNorm, RunningMeanStd, ValueNorm
from ding_lite.trees import map_tree

# ------------------------------------------------------------------ mean and variance


@pytest.mark.parametrize("chunk", [1, 100, 2**23])
@pytest.mark.parametrize("shape", [(), (3,), (2, 4)])
def test_statistics_of_batches_equal_those_of_their_concatenation(shape, chunk, monkeypatch):
    monkeypatch.setattr(scales, "CHUNK", chunk)
    draw = np.random.default_rng(0)
    batches = [draw.normal(5, 3, (n, *shape)) for n in (1, 17, 0, 256, 3)]
    stats = RunningMeanStd(shape)
    for batch in batches:
        stats.update(torch.as_tensor(batch))
    together = np.concatenate(batches)
    np.testing.assert_allclose(stats.mean, together.mean(0), rtol=1e-12)
    np.testing.assert_allclose(stats.var, together.var(0), rtol=1e-12)
    np.testing.assert_allclose(stats.std, together.std(0), rtol=1e-12)
    assert stats.count == 277


def test_numbers_far_from_zero_lose_no_precision():
    samples = 1e6 + np.random.default_rng(1).normal(size=3000)
    stats, of_floats = RunningMeanStd(), RunningMeanStd()
    for one in samples:
        stats.update(torch.tensor([one]))
    np.testing.assert_allclose(stats.mean, samples.mean(), rtol=1e-14)
    np.testing.assert_allclose(stats.var, samples.var(), rtol=1e-6)
    of_floats.update(torch.tensor([16777216.0, 16777218.0]))  # whose sum float32 rounds
    assert (of_floats.mean, of_floats.var) == (16777217.0, 1.0)


def test_no_sample_changes_nothing_and_a_constant_one_has_a_small_std():
    stats = RunningMeanStd((2,))
    stats.update(torch.zeros(0, 2))
    assert [stats.mean.tolist(), stats.std.tolist(), stats.count] == [[0, 0], [1, 1], 0]
    stats.update(torch.full((100, 2), 7.0))
    assert [stats.mean.tolist(), stats.var.tolist()] == [[7, 7], [0, 0]]
    assert stats.std.tolist() == pytest.approx([1e-4, 1e-4])


# ------------------------------------------------------------------ PopArt


@pytest.mark.parametrize(("heads", "moved"), [(2, 0.0), (0, 1.0)], ids=["corrected", "negative control"])
def test_raw_predictions_stay_when_the_scale_moves(heads, moved):
    torch.manual_seed(0)
    layers, x = [torch.nn.Linear(8, 1) for _ in range(2)], torch.randn(32, 8)
    norm, draw = ValueNorm(), np.random.default_rng(3)
    norm.update_and_rescale(torch.from_numpy(draw.normal(0, 1, 200)), ())
    for mean, std in ((3, 2), (50, 20), (-300, 4), (5, 0.1)):
        before = [norm.denormalize(layer(x)) for layer in layers]
        norm.update_and_rescale(torch.as_tensor(draw.normal(mean, std, 200)), tuple(layers[:heads]))
        for layer, raw in zip(layers, before, strict=True):
            largest = (norm.denormalize(layer(x)) - raw).abs().max() / max(1.0, abs(norm.mean), norm.std)
            assert largest > 0.01 if moved else largest < 1e-5


def test_values_are_the_mean_until_targets_differ_and_heads_stay_until_then():
    torch.manual_seed(0)
    head, x = torch.nn.Linear(2, 1), torch.randn(5, 2)
    before = copy.deepcopy(head.state_dict())
    assert (ValueNorm().denormalize(head(x)) == 0).all()
    for constant in (0.0, 3e-9, -7.0):
        norm = ValueNorm()
        norm.update_and_rescale(torch.full((3,), constant), (head,))
        value = norm.denormalize(head(x))
        assert (value == constant).all()
        assert (norm.normalize(value + 1) == 0).all()
    norm.update_and_rescale(torch.tensor([-7.0, -9.0]), (head,))
    torch.testing.assert_close(norm.denormalize(head(x)), head(x) * float(norm.std) + float(norm.mean))
    assert all(torch.equal(head.state_dict()[name], before[name]) for name in before)


def test_targets_that_are_equal_but_for_rounding_leave_a_scale_as_it_is():
    norm, head, draw = ValueNorm(0.5), torch.nn.Linear(2, 1), np.random.default_rng(0)
    norm.update_and_rescale(torch.from_numpy(draw.normal(5, 2, 100)), (head,))
    before = copy.deepcopy((norm.state_dict(), head.state_dict()))
    for targets in (np.zeros(9), np.full(9, 1e6), draw.normal(0, 1e-7, 9), np.zeros(0)):
        norm.update_and_rescale(torch.as_tensor(targets), (head,))
        assert digest((norm.state_dict(), head.state_dict())) == digest(before)
    norm.update_and_rescale(torch.from_numpy(draw.normal(0, 1e-4, 9)), (head,))
    assert norm.mean != before[0]["mean"]


# ------------------------------------------------------------------ observations

SPACE = gym.spaces.Dict(
    action_mask=gym.spaces.Box(0, 1, (2,), np.float32),
    count=gym.spaces.Box(0, 9, (3,), np.int64),
    deep=gym.spaces.Dict(speed=gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)),
    pixels=gym.spaces.Box(0, 255, (4, 4, 1), np.uint8),
)


def observations(seed=0, steps=30, envs=2):
    draw = np.random.default_rng(seed)
    obs = {
        "action_mask": np.ones((steps, envs, 2), np.float32),
        "count": draw.integers(0, 10, (steps, envs, 3)),
        "deep": {"speed": draw.normal([5, -2], [3, 0.5], (steps, envs, 2)).astype(np.float32)},
        "pixels": draw.integers(0, 256, (steps, envs, 4, 4, 1)).astype(np.uint8),
    }
    obs["deep"]["speed"][..., 0][3:5] = 5 + 12.0  # four times the std
    return obs, draw.random((steps, envs)) < 0.8


@pytest.mark.parametrize("images", [False, True])
def test_observations_are_scaled_by_their_valid_rows_as_tensors_and_as_arrays(images):
    obs, valid = observations()
    norm = ObservationNorm(SPACE, 3.0, torch.device("cpu"), images=images)
    tensors = map_tree(torch.as_tensor, obs)
    assert norm.is_empty
    norm.update(tensors, torch.as_tensor(valid))
    found = norm(tensors)
    for path in [("deep", "speed"), ("count",), *([("pixels",)] if images else [])]:
        leaf, of_torch = obs, found
        for name in path:
            leaf, of_torch = leaf[name], of_torch[name]
        x, rows = leaf.astype(np.float64), leaf[valid].astype(np.float64)
        expected = ((x - rows.mean(0)) / rows.std(0)).clip(-3, 3)
        np.testing.assert_allclose(of_torch, expected, atol=1e-5)
        np.testing.assert_array_equal(norm(leaf, path), of_torch)
        assert of_torch.dtype == torch.float32
    untouched = ["action_mask", *([] if images else ["pixels"])]
    assert all(found[name] is tensors[name] for name in untouched)
    assert not norm.is_empty
