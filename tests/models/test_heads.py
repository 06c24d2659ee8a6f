"""Action heads: parameters of distributions, and environment actions."""

import copy
import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from small_worlds import SeededBox, SeededTree
from worlds import trainee

from ding_lite.errors import ConfigError, ContractError
from ding_lite.models.heads import ActionHead, parameter_ranges
from ding_lite.rl import distributions as D

spaces = gym.spaces
FEATURES = 6
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


def to_numpy(tree):
    return {k: to_numpy(v) for k, v in tree.items()} if isinstance(tree, dict) else tree.numpy()


def sampled(head, count=200, scale=1.0):
    """Returns environment actions for ``count`` rows of random features."""
    with torch.no_grad():
        dist = head.distribution(head(features(count, scale)))
    return head.to_env(to_numpy(dist.sample(torch.Generator().manual_seed(2))))


def row(space, batch, i):
    """Returns one action of a batch in the form of the space's samples."""
    if isinstance(space, spaces.Dict):
        return {name: row(child, batch[name], i) for name, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(row(child, batch[str(k)], i) for k, child in enumerate(space.spaces))
    return batch[i]


# ------------------------------------------------------------------ every space


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(4),
        spaces.Discrete(4, start=-2),
        spaces.MultiDiscrete([2, 5, 3]),
        spaces.MultiDiscrete([2, 5], start=[-3, 10]),
        spaces.MultiDiscrete([[2, 3], [4, 5]]),
        spaces.MultiBinary(4),
        spaces.MultiBinary((2, 3)),
        spaces.Box(-1, 1, (2,)),
        spaces.Box(-1, 1, (2, 3)),
        spaces.Box(np.array([-1, 0], np.float32), np.array([1, np.inf], np.float32)),
        spaces.Box(-1, 1, (2,), np.float64),
        NESTED,
        spaces.Tuple((spaces.Discrete(2), spaces.Box(0, 1, (1,)))),
    ],
)
def test_every_environment_action_is_in_its_space(space):
    actions = sampled(head_for(space), scale=3.0)
    assert all(space.contains(row(space, actions, i)) for i in range(200))


@pytest.mark.parametrize("kind", ["tanh_normal", "beta"])
@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-1, 1, (2,)),
        spaces.Box(np.array([-0.1, 7], np.float32), np.array([0.3, 1e6], np.float32)),
        spaces.Box(-3, 0.7, (2, 2), np.float64),
        NESTED,
    ],
)
def test_bounded_actions_are_in_their_space_even_far_out(kind, space):
    actions = sampled(head_for(space, box_distribution=kind), scale=200.0)
    assert all(space.contains(row(space, actions, i)) for i in range(200))


@pytest.mark.parametrize(
    ("space", "size"),
    [
        (spaces.Discrete(4), 4),
        (spaces.MultiDiscrete([2, 5, 3]), 10),
        (spaces.MultiDiscrete([[2, 3], [4, 5]]), 14),
        (spaces.MultiBinary((2, 3)), 6),
    ],
)
def test_logit_has_one_entry_a_choice(space, size):
    assert head_for(space)(features(5)).shape == (5, size)


def test_log_prob_entropy_and_kl_of_a_nested_action_have_the_batch_shape():
    head = head_for(NESTED)
    dist = head.distribution(head(features(5)))
    action = dist.sample(torch.Generator().manual_seed(0))
    for result in (dist.log_prob(action), dist.entropy(), dist.kl(dist)):
        assert result.shape == (5,)


# ------------------------------------------------------------------ to_env by hand


def test_discrete_start_is_added():
    head = head_for(spaces.Discrete(4, start=-2))
    assert head.to_env(np.array([0, 1, 3])).tolist() == [-2, -1, 1]


def test_discrete_without_a_start_stays_an_index():
    assert head_for(spaces.Discrete(4)).to_env(np.array([0, 3])).tolist() == [0, 3]


def test_multi_discrete_start_is_added_column_by_column():
    head = head_for(spaces.MultiDiscrete([2, 5], start=[-3, 10]))
    assert head.to_env(np.array([[0, 0], [1, 4]])).tolist() == [[-3, 10], [-2, 14]]


def test_two_dimensional_multi_discrete_gets_its_shape_back():
    space = spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[0, 0], [10, 0]])
    action = head_for(space).to_env(np.array([[1, 2, 3, 4]]))
    assert action.tolist() == [[[1, 2], [13, 4]]]
    assert action.dtype == space.dtype


def test_multi_binary_gets_its_shape_and_dtype_back():
    action = head_for(spaces.MultiBinary((2, 2))).to_env(np.array([[1, 0, 0, 1]]))
    assert action.tolist() == [[[1, 0], [0, 1]]]
    assert action.dtype == np.int8


def test_normal_box_is_clipped_and_not_squashed():
    head = head_for(spaces.Box(np.array([-1, 0], np.float32), np.array([1, 5], np.float32)))
    action = head.to_env(np.array([[-7, -7], [0.5, 0.5], [7, 7]], np.float32))
    assert action.tolist() == [[-1, 0], [0.5, 0.5], [1, 5]]
    assert action.dtype == np.float32


def test_normal_box_without_bounds_is_left_as_it_is():
    head = head_for(spaces.Box(-np.inf, np.inf, (1,)))
    assert head.to_env(np.array([[1e9]], np.float32)).tolist() == [[1e9]]


def test_tanh_box_is_squashed_and_stretched():
    head = head_for(spaces.Box(-2, 6, (3,)), box_distribution="tanh_normal")
    action = head.to_env(np.array([[0.0, 100.0, math.atanh(0.5)]], np.float32))
    assert action[0].tolist() == pytest.approx([2, 6, 4], abs=1e-6)


def test_beta_box_is_stretched():
    head = head_for(spaces.Box(-2, 6, (3,)), box_distribution="beta")
    action = head.to_env(np.array([[0.0, 0.25, 1.0]], np.float32))
    assert action[0].tolist() == pytest.approx([-2, 0, 6])


def test_tree_action_is_turned_branch_by_branch():
    raw = {
        "move": np.array([2]),
        "arm": {"0": np.array([[9.0, -0.5]], np.float32), "1": np.array([[1, 0, 1]])},
        "grid": {"cells": np.array([[1, 2, 3, 4]])},
    }
    action = head_for(NESTED).to_env(raw)
    assert action["move"].tolist() == [1]
    assert action["arm"]["0"].tolist() == [[2, -0.5]]
    assert action["arm"]["1"].tolist() == [[1, 0, 1]]
    assert action["grid"]["cells"].tolist() == [[[1, 2], [3, 4]]]


def test_to_env_leaves_the_raw_action_alone():
    raw = np.array([[9.0, -9.0]], np.float32)
    head_for(spaces.Box(-1, 1, (2,))).to_env(raw)
    assert raw.tolist() == [[9, -9]]


@pytest.mark.parametrize("kind", ["tanh_normal", "beta"])
def test_density_is_that_of_the_environment_action(kind):
    """log_prob equals the raw density times d(raw)/d(env action), by finite differences."""
    head = head_for(spaces.Box(-2, 6, (1,), np.float64), box_distribution=kind)
    with torch.no_grad():
        dist = head.distribution(head(features(1)))
    raw, step = 0.3, 1e-4
    ends = head.to_env(np.array([[raw - step], [raw + step]], np.float64)).flatten()
    base = (
        torch.distributions.Normal(dist.mu, dist.sigma)
        if kind == "tanh_normal"
        else torch.distributions.Beta(dist.alpha, dist.beta)
    )
    expected = base.log_prob(torch.tensor(raw)).item() + math.log(2 * step / (ends[1] - ends[0]))
    assert dist.log_prob(torch.tensor([[raw]])).item() == pytest.approx(expected, abs=1e-4)


# ------------------------------------------------------------------ Box parameters


def box_logit(scale=1.0, **options):
    head = head_for(spaces.Box(-1, 1, (2,)), **options)
    return head, head(features(50, scale))


def test_independent_sigma_is_one_at_first_and_alike_for_all_features():
    head, logit = box_logit()
    assert (logit["sigma"] == 1).all()
    assert head.out.log_sigma.shape == (2,)


def test_independent_sigma_begins_at_its_initial_value_and_learns():
    head, logit = box_logit(initial_sigma_value=0.25)
    torch.testing.assert_close(logit["sigma"], torch.full((50, 2), 0.25))
    logit["sigma"].sum().backward()
    assert (head.out.log_sigma.grad != 0).all()


def test_fixed_sigma_is_its_value_and_no_parameter():
    head, logit = box_logit(sigma_type="fixed", fixed_sigma_value=0.25)
    assert (logit["sigma"] == 0.25).all()
    assert not any("sigma" in name for name in head.state_dict())


def test_conditioned_sigma_is_one_at_zero_features():
    head = head_for(spaces.Box(-1, 1, (2,)), sigma_type="conditioned")
    torch.nn.init.zeros_(head.out.layer.bias)
    sigma = head(torch.zeros(1, FEATURES))["sigma"]
    assert sigma[0].tolist() == pytest.approx([1, 1], abs=1e-6)


def test_conditioned_sigma_depends_on_the_features_and_has_a_floor():
    _, logit = box_logit(scale=300.0, sigma_type="conditioned")
    assert logit["sigma"].min().item() == pytest.approx(1e-4)
    assert logit["sigma"].max() > 1


def test_conditioned_sigma_has_a_gradient_at_its_floor():
    head = head_for(spaces.Box(-1, 1, (2,)), sigma_type="conditioned")
    bias = head.out.layer.bias
    torch.nn.init.constant_(bias, -12.0)
    sigma = head(torch.zeros(1, FEATURES))["sigma"]
    assert sigma[0].tolist() == pytest.approx([1e-4, 1e-4])
    sigma.log().sum().backward()
    assert bias.grad[:2].tolist() == [0, 0]
    assert (bias.grad[2:] > 0.01).all()


def test_independent_sigma_has_a_gradient_outside_of_its_range():
    head = head_for(spaces.Box(-1, 1, (2,)))
    with torch.no_grad():
        head.out.log_sigma.copy_(torch.tensor([-21.0, 2.5]))
    sigma = head(features(1))["sigma"][0]
    sigma.log().sum().backward()
    assert sigma.tolist() == pytest.approx([math.exp(-21), math.exp(2.5)], rel=1e-5)
    assert head.out.log_sigma.grad.tolist() == [1.0, 1.0]


def test_mean_is_not_bounded_by_default():
    _, logit = box_logit(scale=100.0)
    assert logit["mu"].abs().max() > 20


@pytest.mark.parametrize(("bound_type", "limit"), [("tanh", 1.0), ("soft", 5.0)])
def test_bound_type_bounds_the_mean(bound_type, limit):
    _, plain = box_logit(scale=100.0)
    _, logit = box_logit(scale=100.0, bound_type=bound_type)
    assert logit["mu"].abs().max() <= limit
    assert torch.allclose(logit["mu"], limit * torch.tanh(plain["mu"] / limit))


def test_beta_parameters_are_above_one():
    _, logit = box_logit(scale=3.0, box_distribution="beta")
    assert logit["alpha"].min() > 1
    assert logit["beta"].min() > 1


def test_greedy_beta_action_stays_finite_where_both_parameters_reach_one():
    head = head_for(spaces.Box(-1, 1, (1,)), box_distribution="beta")
    with torch.no_grad():
        head.out.layer.bias.fill_(-30.0)
        dist = head.distribution(head(torch.zeros(1, FEATURES)))
    assert torch.isfinite(dist.mode()).all()


@pytest.mark.parametrize(
    ("kind", "cls"), [("normal", D.Normal), ("tanh_normal", D.TanhNormal), ("beta", D.Beta)]
)
def test_box_distribution_is_chosen_by_name(kind, cls):
    head, logit = box_logit(box_distribution=kind)
    assert type(head.distribution(logit)) is cls


def test_box_options_reach_the_branches_of_a_tree():
    head = head_for(NESTED, box_distribution="beta")
    assert set(head(features(2))["arm"]["0"]) == {"alpha", "beta"}


# ------------------------------------------------------------------ masks and hidden layers


def test_mask_reaches_a_discrete_head():
    head = head_for(spaces.Discrete(3))
    mask = torch.tensor([[False, True, False]]).expand(100, -1)
    dist = head.distribution(head(features(100)), mask)
    assert (dist.sample(torch.Generator().manual_seed(0)) == 1).all()


def test_mask_of_a_tree_reaches_its_branch_and_leaves_the_others():
    head = head_for(NESTED)
    logit = head(features(100))
    mask = {"move": torch.tensor([[False, False, True]]).expand(100, -1)}
    dist = head.distribution(logit, mask)
    assert (dist.sample(torch.Generator().manual_seed(0))["move"] == 2).all()
    assert torch.equal(dist.parts["arm"].entropy(), head.distribution(logit).parts["arm"].entropy())


def test_hidden_layers_stand_before_the_last_layer():
    head = head_for(spaces.Discrete(3), hidden_size_list=[8, 5], activation="relu")
    x = features(4)
    assert head.out.layer.in_features == 5
    assert torch.equal(head(x), head.out.layer(head.hidden(x)))


# ------------------------------------------------------------------ refused


def test_unsupported_action_space_is_refused_by_name():
    with pytest.raises(ConfigError, match="Text.*Discrete"):
        head_for(spaces.Text(5))


def test_unsupported_branch_is_refused_too():
    with pytest.raises(ConfigError, match="Text"):
        head_for(spaces.Dict(a=spaces.Discrete(2), b=spaces.Text(5)))


def test_box_of_whole_numbers_is_refused():
    with pytest.raises(ConfigError, match="int64.*Discrete or MultiDiscrete"):
        head_for(spaces.Box(0, 5, (2,), np.int64))


def test_box_with_nothing_in_it_is_refused():
    with pytest.raises(ConfigError, match=r"Box.*\(0,\).*empty"):
        head_for(spaces.Box(-1, 1, (0,)))


def test_box_with_an_empty_dimension_is_refused():
    with pytest.raises(ConfigError, match="low >= high"):
        head_for(spaces.Box(np.zeros(2, np.float32), np.array([1, 0], np.float32)))


@pytest.mark.parametrize("kind", ["tanh_normal", "beta"])
@pytest.mark.parametrize(
    ("low", "high"),
    [(0, np.inf), (0, np.array([1, np.inf], np.float32)), (-np.inf, np.inf), (-3e38, 3e38)],
    ids=["half", "one dimension", "both", "wider than float32 can tell"],
)
def test_bounded_distribution_without_finite_bounds_is_refused(kind, low, high):
    with pytest.raises(ConfigError, match=rf"policy\.model\.box_distribution='{kind}'.*'normal'"):
        head_for(spaces.Box(low, high, (2,)), box_distribution=kind)


# ------------------------------------------------------------------ gradients


@pytest.mark.parametrize(
    ("space", "options"),
    [
        (spaces.Discrete(3), {"hidden_size_list": [4]}),
        (spaces.Box(-1, 1, (2,)), {}),
        (spaces.Box(-1, 1, (2,)), {"sigma_type": "conditioned", "box_distribution": "tanh_normal"}),
        (spaces.Box(-1, 1, (2,)), {"box_distribution": "beta"}),
        (NESTED, {}),
    ],
)
def test_gradient_of_log_prob_reaches_every_parameter_of_a_head(space, options):
    head = head_for(space, **options)
    dist = head.distribution(head(features(20)))
    dist.log_prob(dist.sample(torch.Generator().manual_seed(0))).sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in head.parameters())


# ------------------------------------------------------------------ parameters with a range


@pytest.mark.parametrize("world", [SeededBox, SeededTree])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("ppo", {}),
        ("ppo", {"model": {"activation": "gelu"}}),  # by autograd
        ("ppg", {"learn": {"critic_epoch_per_collect": 2, "aux_freq": 1, "aux_batch_size": 16}}),
    ],
)
def test_a_log_sigma_outside_of_its_range_is_back_after_an_iteration(world, kind, options):
    policy, collector = trainee(kind, world, **options)
    own = [p for name, p in policy.model.named_parameters() if name.endswith("log_sigma")]
    assert len(own) == 1
    with torch.no_grad():
        own[0].fill_(2.05)
    policy.learn_mode.forward(collector.collect())
    assert own[0].max() <= 2.0
    if kind == "ppg":
        assert [p is own[0] for p, _, _ in policy.auxiliary.optimizer.ranges] == [True]
        assert policy.value_optimizer.ranges == [], "the value's loss does not reach it"


@pytest.mark.parametrize(("saved", "bound"), [(100.0, 2.0), (-100.0, -20.0)])
def test_loaded_weights_are_clamped_to_their_range(saved, bound):
    policy, _ = trainee("ppo", SeededBox)
    state = copy.deepcopy(policy.state_dict())
    state["model"]["actor_head.out.log_sigma"].fill_(saved)
    policy.load_state_dict(state)
    assert policy.model.actor_head.out.log_sigma.tolist() == [bound, bound]


def test_a_range_of_what_is_no_parameter_is_an_error():
    class Misspelt(torch.nn.Module):
        parameter_ranges = {"log_sgima": (-1.0, 1.0)}

        def __init__(self):
            super().__init__()
            self.log_sigma = torch.nn.Parameter(torch.zeros(1))

    with pytest.raises(ContractError, match="Misspelt.*'log_sgima'.*: log_sigma"):
        parameter_ranges(torch.nn.Sequential(Misspelt()))


@pytest.mark.parametrize("shape", [(4,), (2, 2), (4, 1)])
def test_masked_bits_of_any_shape_are_zero(shape):
    head = head_for(spaces.MultiBinary(shape))
    mask = torch.tensor([True, False, True, False]).view(shape).expand(50, *shape)
    dist = head.distribution(head(features(50)), mask)
    action = dist.sample(torch.Generator().manual_seed(0))
    assert action.shape == (50, 4)
    assert not action[:, [1, 3]].any()
    assert action[:, [0, 2]].any()
    assert dist.log_prob(action).shape == dist.entropy().shape == (50,)
