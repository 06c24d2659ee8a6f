"""Action heads: parameters of distributions, and environment actions."""

import copy
import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from small_worlds import SeededBox, SeededTree
from strategies import boxes
from worlds import trainee

from ding_lite.errors import ConfigError
from ding_lite.models.heads import ActionHead
from ding_lite.trees import map_tree

spaces = gym.spaces
FEATURES = 6
BOX = spaces.Box(-1, 1, (2,))
NESTED = spaces.Dict(
    move=spaces.Discrete(3, start=-1),
    arm=spaces.Tuple((spaces.Box(-2, 2, (2,)), spaces.MultiBinary(3))),
    grid=spaces.Dict(cells=spaces.MultiDiscrete([[2, 3], [4, 5]])),
)


def head_for(space, **options):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return ActionHead(space, FEATURES, **options)


def features(count, scale=1.0):
    return scale * torch.randn(count, FEATURES, generator=torch.Generator().manual_seed(1))


# ------------------------------------------------------------------ every space


@given(
    boxes([np.float32, np.float64], finite=True),
    st.sampled_from(["normal", "tanh_normal", "beta"]),
    st.data(),
)
def test_actions_of_a_box_are_stretched_to_its_bounds_and_in_it_even_far_out(box, kind, data):
    numbers = {"beta": st.floats(0, 1, width=32)}.get(kind, st.floats(-(2.0**99), 2.0**99, width=32))
    raw = data.draw(hnp.arrays(np.float32, (3, math.prod(box.shape)), elements=numbers))
    share = {"beta": lambda x: x, "tanh_normal": lambda x: (np.tanh(x) + 1) / 2}.get(kind)
    actions = head_for(box, box_distribution=kind).out.to_env(raw.copy())
    low, high = box.low.astype(float), box.high.astype(float)
    for action, one in zip(actions, raw.reshape(3, *box.shape).astype(float), strict=True):
        assert np.asarray(action) in box
        exact = one.clip(low, high) if share is None else low + share(one) * (high - low)
        np.testing.assert_allclose(action, exact, atol=1e-6 * np.abs([low, high]).max())


def test_the_branches_of_a_tree_read_their_own_raw_outputs():
    head = head_for(NESTED)
    raw = torch.arange(22.0).unsqueeze(0)
    logit = head.out.logit(raw)
    found = [logit["arm"]["0"]["mu"], logit["arm"]["1"], logit["grid"]["cells"], logit["move"]]
    assert sorted(x for part in found for x in part[0].tolist()) == list(range(22))
    assert all(part[0].diff().eq(1).all() for part in found)
    x = features(4)
    torch.testing.assert_close(head(x), head.out.logit(head.layers(x)))


# ------------------------------------------------------------------ to_env by hand


@pytest.mark.parametrize(
    ("space", "options", "raw", "expected"),
    [
        (spaces.Discrete(4), {}, np.array([0, 3]), [0, 3]),
        (spaces.Discrete(4, start=-2), {}, np.array([0, 1, 3]), [-2, -1, 1]),
        (spaces.MultiDiscrete([2, 5], start=[-3, 10]), {}, np.array([[0, 0], [1, 4]]), [[-3, 10], [-2, 14]]),
        (
            spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[0, 0], [10, 0]]),
            {},
            np.array([[1, 2, 3, 4]]),
            [[[1, 2], [13, 4]]],
        ),
        (spaces.MultiBinary((2, 2)), {}, np.array([[1, 0, 0, 1]]), [[[1, 0], [0, 1]]]),
        (spaces.Box(-np.inf, np.inf, (1,)), {}, np.float32([[1e9]]), [[1e9]]),
        (spaces.Box(-2, 6, (2,)), {"box_distribution": "tanh_normal"}, np.float32([[0, 100]]), [[2, 6]]),
        (spaces.Box(-2, 6, (3,)), {"box_distribution": "beta"}, np.float32([[0, 0.25, 1]]), [[-2, 0, 6]]),
    ],
)
def test_environment_actions_by_hand(space, options, raw, expected):
    given = raw.copy()
    action = head_for(space, **options).out.to_env(raw)
    assert action.tolist() == expected
    assert action.dtype == space.dtype
    action += 1
    assert np.array_equal(raw, given), "environments may write into their actions"


def test_tree_action_is_turned_branch_by_branch():
    raw = {
        "move": np.array([2]),
        "arm": {"0": np.array([[9.0, -0.5]], np.float32), "1": np.array([[1, 0, 1]])},
        "grid": {"cells": np.array([[1, 2, 3, 4]])},
    }
    action = map_tree(np.ndarray.tolist, head_for(NESTED).out.to_env(raw))
    arm = {"0": [[2, -0.5]], "1": [[1, 0, 1]]}
    assert action == {"move": [1], "arm": arm, "grid": {"cells": [[[1, 2], [3, 4]]]}}


@pytest.mark.parametrize("kind", ["tanh_normal", "beta"])
def test_density_is_that_of_the_environment_action(kind):
    """log_prob equals the raw density times d(raw)/d(env action), by finite differences."""
    head = head_for(spaces.Box(-2, 6, (1,), np.float64), box_distribution=kind)
    with torch.no_grad():
        dist = head.out.distribution(head(features(1)))
    raw, step = 0.3, 1e-4
    ends = head.out.to_env(np.array([[raw - step], [raw + step]], np.float64)).flatten()
    base = (
        torch.distributions.Normal(dist.mu, dist.sigma)
        if kind == "tanh_normal"
        else torch.distributions.Beta(dist.alpha, dist.beta)
    )
    expected = base.log_prob(torch.tensor(raw)).item() + math.log(2 * step / (ends[1] - ends[0]))
    assert dist.log_prob(torch.tensor([[raw]])).item() == pytest.approx(expected, abs=1e-4)


# ------------------------------------------------------------------ Box parameters


def box_logit(scale=1.0, **options):
    head = head_for(BOX, **options)
    return head, head(features(50, scale))


@pytest.mark.parametrize(
    ("options", "sigma"),
    [
        ({}, 1.0),
        ({"initial_sigma_value": 0.25}, 0.25),
        ({"sigma_type": "fixed", "fixed_sigma_value": 0.25}, 0.25),
    ],
)
def test_sigma_is_its_value_for_all_features_and_learned_if_it_is_free(options, sigma):
    head, logit = box_logit(**options)
    torch.testing.assert_close(logit["sigma"], torch.full((50, 2), sigma))
    assert any("sigma" in name for name in head.state_dict()) == ("sigma_type" not in options)
    assert logit["mu"].abs().max() < 5


def test_conditioned_sigma_is_one_at_zero_and_has_a_floor_with_a_gradient():
    head = head_for(BOX, sigma_type="conditioned")
    assert head.out.logit(torch.zeros(1, 4))["sigma"][0].tolist() == pytest.approx([1, 1], abs=1e-6)
    raw = torch.full((1, 4), -12.0, requires_grad=True)
    sigma = head.out.logit(raw)["sigma"]
    assert sigma[0].tolist() == pytest.approx([1e-4, 1e-4])
    sigma.log().sum().backward()
    assert raw.grad[0, :2].tolist() == [0, 0]
    assert (raw.grad[0, 2:] > 0.01).all()


def test_independent_sigma_has_a_gradient_outside_of_its_range():
    head = head_for(BOX)
    with torch.no_grad():
        head.out.log_sigma.copy_(torch.tensor([-21.0, 2.5]))
    sigma = head(features(1))["sigma"][0]
    sigma.log().sum().backward()
    assert sigma.tolist() == pytest.approx([math.exp(-21), math.exp(2.5)], rel=1e-5)
    assert head.out.log_sigma.grad.tolist() == [1.0, 1.0]


def test_beta_parameters_are_above_one_and_the_mode_is_finite_where_they_reach_it():
    head, logit = box_logit(scale=3.0, box_distribution="beta")
    assert min(logit["alpha"].min(), logit["beta"].min()) > 1
    assert torch.isfinite(head.out.distribution(head.out.logit(torch.full((1, 4), -30.0))).mode()).all()


# ------------------------------------------------------------------ masks and layers


def test_mask_of_a_tree_reaches_its_branch_and_leaves_the_others():
    head = head_for(NESTED)
    logit = head(features(100))
    mask = {"move": torch.tensor([[False, False, True]]).expand(100, -1)}
    dist = head.out.distribution(logit, mask)
    assert (dist.sample(torch.Generator().manual_seed(0))["move"] == 2).all()
    assert torch.equal(dist.parts["arm"].entropy(), head.out.distribution(logit).parts["arm"].entropy())


# ------------------------------------------------------------------ refused


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Text(5), "Text.*Discrete"),
        (spaces.Dict(a=spaces.Discrete(2), b=spaces.Text(5)), "Text"),
        (spaces.Box(0, 5, (2,), np.int64), "int64.*Discrete or MultiDiscrete"),
    ],
)
def test_unsupported_action_spaces_are_refused_by_name(space, message):
    with pytest.raises(ConfigError, match=message):
        head_for(space)


@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [("tanh_normal", 0, np.array([1, np.inf], np.float32)), ("beta", -3e38, 3e38)],  # too wide for float32
)
def test_bounded_distribution_without_finite_bounds_is_refused(kind, low, high):
    with pytest.raises(ConfigError, match=rf"policy\.model\.box_distribution='{kind}'.*'normal'"):
        head_for(spaces.Box(low, high, (2,)), box_distribution=kind)


# ------------------------------------------------------------------ parameters with a range


@pytest.mark.parametrize(
    ("kind", "world", "options"),
    [("ppo", SeededBox, {"model": {"activation": "gelu"}}), ("ppg", SeededTree, {"learn": {"aux_freq": 1}})],
)
def test_a_log_sigma_outside_of_its_range_is_back_after_an_iteration(kind, world, options):
    policy, collector = trainee(kind, world, **options)
    (own,) = [p for name, p in policy.model.named_parameters() if name.endswith("log_sigma")]
    with torch.no_grad():
        own.fill_(2.05)
    policy.learn_mode.forward(collector.collect())
    assert own.max() <= 2.0


@pytest.mark.parametrize(("saved", "bound"), [(100.0, 2.0), (-100.0, -20.0)])
def test_loaded_weights_are_clamped_to_their_range(saved, bound):
    policy, _ = trainee("ppo", SeededBox)
    state = copy.deepcopy(policy.state_dict())
    state["model"]["actor_head.out.log_sigma"].fill_(saved)
    policy.load_state_dict(state)
    assert policy.model.actor_head.out.log_sigma.tolist() == [bound, bound]
