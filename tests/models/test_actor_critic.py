"""The model ``vac``: sharing of encoders, initialisation, and gradients of all parameters."""

import copy

import gymnasium as gym
import numpy as np
import pytest
import torch

from ding_lite.config.registry import MODEL_REGISTRY
from ding_lite.config.schema import check, default_values, merged_config
from ding_lite.models import VAC, ActorCritic
from ding_lite.models.encoders import VectorEncoder, _Residual
from ding_lite.models.init import normed_hidden_layers

spaces = gym.spaces
VECTOR = spaces.Box(-1, 1, (4,))
IMAGE = spaces.Box(0, 255, (10, 10, 3), np.uint8)
LARGE_IMAGE = spaces.Box(0, 255, (64, 64, 3), np.uint8)
TREE = spaces.Dict(board=VECTOR, index=spaces.Discrete(3))
DISCRETE = spaces.Discrete(3)
BOX = spaces.Box(-1, 1, (2,))


def model_for(obs_space, action_space, **options):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return VAC(obs_space, action_space, **options)


def batch(space, count=16):
    if isinstance(space, spaces.Dict):
        return {name: batch(child, count) for name, child in space.spaces.items()}
    space.seed(0)
    return torch.as_tensor(np.stack([space.sample() for _ in range(count)]))


def leaves(tree):
    return [leaf for v in tree.values() for leaf in leaves(v)] if isinstance(tree, dict) else [tree]


every_shape = pytest.mark.parametrize("obs_space", [VECTOR, IMAGE, TREE])
either_sharing = pytest.mark.parametrize("share_encoder", [False, True])

# ------------------------------------------------------------------ what it computes


@every_shape
@either_sharing
def test_joint_call_equals_the_two_single_ones(obs_space, share_encoder):
    model, obs = model_for(obs_space, DISCRETE, share_encoder=share_encoder), batch(obs_space)
    logit, value = model.compute_actor_critic(obs)
    assert torch.equal(logit, model.compute_actor(obs))
    assert torch.equal(value, model.compute_critic(obs))
    assert logit.shape == (16, 3)
    assert value.shape == (16,)


def test_value_has_no_trailing_dimension_even_for_one_observation():
    assert model_for(VECTOR, DISCRETE).compute_critic(torch.zeros(1, 4)).shape == (1,)


@pytest.mark.parametrize("action_space", [DISCRETE, BOX, spaces.Dict(a=DISCRETE, b=BOX)])
def test_distribution_is_made_from_the_logit(action_space):
    model, obs = model_for(VECTOR, action_space), batch(VECTOR)
    dist = model.distribution(model.compute_actor(obs))
    action = dist.sample(torch.Generator().manual_seed(0))
    assert dist.log_prob(action).shape == (16,)
    assert all(len(leaf) == 16 for leaf in leaves(action))


def test_mask_reaches_the_distribution():
    model = model_for(VECTOR, DISCRETE)
    mask = torch.tensor([[False, False, True]]).expand(16, -1)
    dist = model.distribution(model.compute_actor(batch(VECTOR)), mask)
    assert (dist.mode() == 2).all()


def test_rows_do_not_mix():
    model, obs = model_for(IMAGE, BOX), batch(IMAGE)
    value = model.compute_critic(obs)
    assert torch.allclose(model.compute_critic(obs[3:5]), value[3:5], atol=1e-5)


# ------------------------------------------------------------------ sharing


def test_vectors_get_encoders_of_their_own_and_images_share_one():
    assert model_for(VECTOR, DISCRETE).critic_encoder is not None
    assert model_for(IMAGE, DISCRETE).critic_encoder is None
    assert model_for(spaces.Dict(a=VECTOR, b=IMAGE), DISCRETE).critic_encoder is None


@either_sharing
def test_share_encoder_is_followed_for_every_space(share_encoder):
    for space in (VECTOR, IMAGE):
        assert (
            model_for(space, DISCRETE, share_encoder=share_encoder).critic_encoder is None
        ) == share_encoder


def test_value_gradient_leaves_a_separate_policy_alone():
    model = model_for(VECTOR, DISCRETE, share_encoder=False)
    model.compute_critic(batch(VECTOR)).sum().backward()
    assert all(p.grad is None for p in model.actor_encoder.parameters())
    assert all(p.grad is None for p in model.actor_head.parameters())


def test_value_gradient_reaches_a_shared_encoder():
    model = model_for(VECTOR, DISCRETE, share_encoder=True)
    model.compute_critic(batch(VECTOR)).sum().backward()
    assert all(p.grad.abs().sum() > 0 for p in model.actor_encoder.parameters())


def test_separate_encoders_start_with_different_weights():
    model = model_for(VECTOR, DISCRETE, share_encoder=False)
    assert not torch.equal(model.actor_encoder.trunk[0].weight, model.critic_encoder.trunk[0].weight)


@every_shape
@either_sharing
def test_state_dict_holds_no_weight_twice(obs_space, share_encoder):
    model = model_for(obs_space, BOX, share_encoder=share_encoder)
    state = model.state_dict()
    assert len({tensor.data_ptr() for tensor in state.values()}) == len(state)
    assert sum(t.numel() for t in state.values()) == sum(p.numel() for p in model.parameters())


def test_state_dict_makes_another_model_the_same():
    model, other = model_for(TREE, BOX), VAC(TREE, BOX)
    other.load_state_dict(model.state_dict())
    obs = batch(TREE)
    assert torch.equal(model.compute_critic(obs), other.compute_critic(obs))
    assert torch.equal(model.compute_actor(obs)["mu"], other.compute_actor(obs)["mu"])


def test_value_heads_of_a_copy_are_those_of_the_copy():
    copied = copy.deepcopy(model_for(VECTOR, DISCRETE))
    assert copied.value_heads[0] is copied.critic_head[-1]


def test_value_heads_are_the_last_linear_layers():
    model = model_for(VECTOR, DISCRETE, critic_head_hidden_size_list=[8])
    (head,) = model.value_heads
    assert (head.in_features, head.out_features) == (8, 1)
    assert head is model.critic_head[-1]


# ------------------------------------------------------------------ gradients


@every_shape
@either_sharing
@pytest.mark.parametrize("action_space", [DISCRETE, BOX, spaces.Tuple((DISCRETE, BOX))])
def test_gradient_reaches_every_parameter(obs_space, share_encoder, action_space):
    options = dict(
        share_encoder=share_encoder, actor_head_hidden_size_list=[8], critic_head_hidden_size_list=[8]
    )
    model = model_for(obs_space, action_space, **options)
    logit, value = model.compute_actor_critic(batch(obs_space))
    dist = model.distribution(logit)
    loss = dist.log_prob(dist.sample(torch.Generator().manual_seed(0))).sum() + value.square().sum()
    loss.backward()
    dead = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert dead == []


@pytest.mark.slow
def test_image_model_can_be_fitted_to_four_images():
    model, obs = model_for(IMAGE, DISCRETE), batch(IMAGE, 4)
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    target = torch.tensor([1.0, -1.0, 2.0, 0.0])
    for _ in range(60):
        optimiser.zero_grad()
        loss = (model.compute_critic(obs) - target).square().mean()
        loss.backward()
        optimiser.step()
    assert loss.item() < 0.01


# ------------------------------------------------------------------ how it starts


def gram(layer):
    """Returns the smaller of W W^T and W^T W for the flattened weight."""
    weight = layer.weight.detach().flatten(1)
    return weight @ weight.T if len(weight) <= weight.shape[1] else weight.T @ weight


def assert_orthogonal(layer, gain):
    size = min(layer.weight.flatten(1).shape)
    assert torch.allclose(gram(layer), gain**2 * torch.eye(size), atol=1e-4 * gain**2)
    assert torch.count_nonzero(layer.bias) == 0


@every_shape
def test_orthogonal_gains_are_root_two_a_hundredth_and_one(obs_space):
    model = model_for(obs_space, DISCRETE, critic_head_hidden_size_list=[8], actor_head_hidden_size_list=[8])
    last = {model.actor_head.layers[0]: 0.01, model.critic_head[-1]: 1.0}
    linear = [m for m in model.modules() if isinstance(m, (torch.nn.Linear, torch.nn.Conv2d))]
    for layer in linear:
        assert_orthogonal(layer, last.get(layer, 2**0.5))


def test_gains_can_be_set():
    gains = {"hidden": 0.5, "policy": 2.0, "value": 3.0}
    model = model_for(VECTOR, DISCRETE, init_gain=gains)
    assert_orthogonal(model.actor_encoder.trunk[0], 0.5)
    assert_orthogonal(model.critic_encoder.trunk[2], 0.5)
    assert_orthogonal(model.actor_head.layers[0], 2.0)
    assert_orthogonal(model.critic_head[-1], 3.0)


def test_every_branch_of_a_tree_action_starts_small():
    model = model_for(VECTOR, spaces.Dict(a=DISCRETE, b=spaces.Tuple((BOX, DISCRETE))))
    for layer in model.actor_head.out.modules():
        if isinstance(layer, torch.nn.Linear):
            assert_orthogonal(layer, 0.01)


def test_policy_is_almost_uniform_at_first():
    model = model_for(VECTOR, DISCRETE)
    obs = 10 * torch.randn(100, 4, generator=torch.Generator().manual_seed(0))
    probs = model.compute_actor(obs).softmax(-1)
    assert (probs - 1 / 3).abs().max() < 0.02


def test_normed_init_gives_every_row_its_norm():
    model = model_for(IMAGE, DISCRETE, init="normed")
    norms = {
        model.actor_encoder.leaves[0].layers[0]: 1.0,
        model.actor_encoder.trunk[0]: 1.4,
        model.actor_head.layers[0]: 0.1,
        model.critic_head[-1]: 0.1,
    }
    for layer, norm in norms.items():
        rows = layer.weight.flatten(1).norm(dim=1)
        assert torch.allclose(rows, torch.full_like(rows, norm), rtol=1e-5)
        assert torch.count_nonzero(layer.bias) == 0


def test_normed_init_makes_only_the_convolutions_of_residual_blocks_small():
    """As in the PPG authors' ImpalaCNN: norm 1 for a stage's convolution, 6^(-1/4) = 0.639 in blocks."""
    model = model_for(LARGE_IMAGE, DISCRETE, init="normed", encoder={"type": "impala_cnn"})
    inside = {m for block in model.modules() if isinstance(block, _Residual) for m in block.modules()}
    norms = {True: [], False: []}
    for layer in model.modules():
        if isinstance(layer, torch.nn.Conv2d):
            norms[layer in inside].append(layer.weight.flatten(1).norm(dim=1))
    assert [len(norms[True]), len(norms[False])] == [12, 3]
    assert torch.allclose(torch.cat(norms[True]), torch.tensor(0.6389), atol=1e-4)
    assert torch.allclose(torch.cat(norms[False]), torch.tensor(1.0), atol=1e-5)


@pytest.mark.parametrize("scale", [2, 0.5])
def test_normed_init_gives_layers_the_scale_of_the_module_around_them(scale):
    block = torch.nn.Sequential(torch.nn.Linear(3, 4))
    block.normed_scale = scale
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), block)
    normed_hidden_layers(model)
    norms = [layer.weight.norm(dim=1) for layer in (model[0], block[0])]
    assert torch.allclose(norms[0], torch.tensor(1.4))
    assert torch.allclose(norms[1], torch.tensor(float(scale)))


def test_torch_init_leaves_the_layers_as_torch_made_them():
    model = model_for(VECTOR, DISCRETE, init="torch")
    assert torch.count_nonzero(model.critic_head[-1].bias) == 1
    assert model.critic_head[-1].weight.abs().max() <= 64**-0.5


def test_activation_is_tanh_for_vectors_and_relu_for_images_unless_named():
    def kinds(model):
        found = {type(m).__name__ for m in model.modules()}
        return found & {"Tanh", "ReLU", "GELU"}

    assert kinds(model_for(VECTOR, DISCRETE)) == {"Tanh"}
    assert kinds(model_for(IMAGE, DISCRETE)) == {"ReLU"}
    assert kinds(model_for(IMAGE, DISCRETE, activation="gelu")) == {"GELU"}


def test_hidden_sizes_are_those_of_the_config():
    model = model_for(VECTOR, DISCRETE, encoder_hidden_size_list=[7, 5], actor_head_hidden_size_list=[3])
    assert [m.out_features for m in model.actor_encoder.trunk if hasattr(m, "out_features")] == [7, 5]
    assert model.actor_head.layers[0].in_features == 3
    assert model.critic_head[-1].in_features == 5


def test_encoder_option_reaches_both_encoders():
    model = model_for(VECTOR, DISCRETE, encoder={"type": "mlp", "hidden_size_list": [9]})
    for encoder in (model.actor_encoder, model.critic_encoder):
        assert isinstance(encoder.leaves[0], VectorEncoder)
        assert encoder.leaves[0].out_features == 9


def test_same_torch_seed_makes_the_same_model():
    first, second = (model_for(TREE, BOX).state_dict() for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


# ------------------------------------------------------------------ the config


def test_unknown_option_is_a_type_error_that_names_it():
    with pytest.raises(TypeError, match="activatoin"):
        VAC(VECTOR, DISCRETE, activatoin="relu")


def test_defaults_of_the_config_build_the_model():
    model = VAC(VECTOR, DISCRETE, **default_values(merged_config(VAC)))
    assert model.critic_encoder is not None


@pytest.mark.parametrize(
    ("name", "wrong", "listed"),
    [
        ("activation", "relo", ", leaky_relu"),
        ("bound_type", "tan", ", soft"),
        ("init", "orthogonl", "orthogonal, "),
        ("box_distribution", "gauss", "tanh_normal, beta"),
    ],
)
def test_config_refuses_a_name_that_does_not_exist_and_lists_the_others(name, wrong, listed):
    _, faults = check({name: wrong}, merged_config(VAC))
    assert len(faults) == 1
    assert listed in faults[0]


def test_config_names_the_key_that_replaces_one_of_di_engine():
    _, faults = check({"impala_cnn_encoder": True}, merged_config(VAC))
    assert "encoder={'type': 'impala_cnn'}" in faults[0]


def test_vac_is_registered_under_its_name():
    assert MODEL_REGISTRY.get("vac") is VAC


# ------------------------------------------------------------------ the contract


@pytest.mark.parametrize("method", ["compute_actor", "compute_critic", "compute_actor_critic"])
def test_model_without_its_methods_says_which_is_missing(method):
    class Half(ActorCritic):
        pass

    with pytest.raises(NotImplementedError, match=r"Half must define compute_(actor|critic)\(obs\)"):
        getattr(Half(VECTOR, DISCRETE), method)(torch.zeros(1, 4))
