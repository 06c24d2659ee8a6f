"""The linear stacks that a model declares: NumPy and ``from_raw`` give what the model computes."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from precision import assert_accurate, float64
from torch import nn

from ding_lite.models import PPG, VAC
from ding_lite.trees import example_observations, map_tree, value_at

spaces = gym.spaces
VECTOR = spaces.Box(-1, 1, (2, 3), np.float64)
INDEX = spaces.Discrete(4, start=-2)
TREE = spaces.Dict(
    a=VECTOR,
    b=spaces.Tuple((spaces.MultiDiscrete([2, 3], start=[0, 5]), spaces.MultiBinary(3))),
    action_mask=spaces.MultiBinary(3),
)
BOX = spaces.Box(-1, 1, (2,))
ACTIONS = spaces.Dict(
    move=spaces.Discrete(3), arm=spaces.Tuple((BOX, spaces.MultiBinary(2))), k=spaces.MultiDiscrete([2, 4])
)
FUNCTIONS = {
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
    "elu": lambda x: np.where(x > 0, x, np.expm1(x)),
}


def model_for(obs_space=VECTOR, action_space=BOX, kind=VAC, **options):
    torch.manual_seed(0)
    model = kind(obs_space, action_space, **options)
    for parameter in model.parameters():  # biases and log sigmas too
        nn.init.normal_(parameter, std=0.5)
    return model


def features(leaf, x):
    if leaf.table is None:
        return x.reshape(len(x), -1).astype(np.float32)
    rows = x.reshape(len(x), -1) + leaf.offset.numpy()
    return leaf.table.detach().numpy()[rows].reshape(len(x), -1)


def raw_output(stack, obs):
    """Runs a stack in NumPy."""
    x = np.concatenate([features(leaf, value_at(obs, leaf.path)) for leaf in stack.encoder.leaves], 1)
    assert x.shape[1] == sum(leaf.size for leaf in stack.encoder.leaves)
    for layer in (*stack.encoder.layers, *stack.head):
        if isinstance(layer, str):
            x = FUNCTIONS[layer](x)
        else:
            x = x @ layer.weight.detach().numpy().T + layer.bias.detach().numpy()
    return torch.from_numpy(x)


def outputs(model, inputs):
    found = {"actor": model.compute_actor(inputs), "critic": model.compute_critic(inputs)}
    auxiliary = {"auxiliary": model.compute_auxiliary(inputs)[1]} if isinstance(model, PPG) else {}
    return found | auxiliary


@pytest.mark.parametrize(
    ("obs_space", "action_space", "options"),
    [
        (VECTOR, spaces.Discrete(3, start=1), {}),
        (VECTOR, BOX, {"share_encoder": True, "activation": "elu"}),
        (VECTOR, BOX, {"encoder": {"hidden_size_list": [9]}, "encoder_hidden_size_list": []}),
        (INDEX, spaces.Discrete(3), {"encoder_hidden_size_list": []}),
        (INDEX, BOX, {"encoder": {"embedding_size": 5}, "sigma_type": "conditioned", "bound_type": "soft"}),
        (TREE, spaces.MultiDiscrete([2, 3]), {"activation": "relu", "init": "normed"}),
        (TREE, ACTIONS, {"actor_head_hidden_size_list": [7, 6], "critic_head_hidden_size_list": [5]}),
        (VECTOR, ACTIONS, {"box_distribution": "beta"}),
        (VECTOR, BOX, {"box_distribution": "tanh_normal", "sigma_type": "fixed", "bound_type": "tanh"}),
    ],
)
@pytest.mark.parametrize("kind", [VAC, PPG])
def test_numpy_gives_what_the_model_computes(kind, obs_space, action_space, options):
    if kind is PPG and "share_encoder" in options:
        options = {"arch": "shared", "activation": "elu"}
    model = model_for(obs_space, action_space, kind, **options)
    obs = example_observations(obs_space, 4)
    inputs, stacks = map_tree(torch.as_tensor, obs), model.stacks()
    found = {name: model.from_raw(name, raw_output(stack, obs)) for name, stack in stacks.items()}
    expected, exact = (outputs(each, inputs) for each in (model, float64(model)))
    assert found.keys() == expected.keys()
    for name in found:
        assert_accurate(found[name], exact[name], expected[name])


@pytest.mark.parametrize("arch", ["dual", "shared", "detach"])
def test_shared_features_are_one_encoder_and_all_layers_are_in_the_stacks(arch):
    model = model_for(kind=PPG, arch=arch)
    actor, critic, auxiliary = model.stacks().values()
    assert actor.encoder is auxiliary.encoder
    assert (critic.encoder is actor.encoder) == (arch != "dual")
    assert [stack.detached for stack in (actor, critic, auxiliary)] == [False, arch == "detach", False]
    layers = {
        layer
        for stack in (actor, critic, auxiliary)
        for layer in (*stack.encoder.layers, *stack.head)
        if isinstance(layer, nn.Linear)
    }
    assert layers == {module for module in model.modules() if isinstance(module, nn.Linear)}


def test_a_raw_output_that_is_a_leaf_gets_the_gradient_of_the_last_layer():
    model, obs = model_for(action_space=ACTIONS), torch.randn(6, 2, 3)
    (log_sigma,) = (p for name, p in model.named_parameters() if name.endswith("log_sigma"))
    bias = model.actor_head.layers[-1].bias
    raw = model.actor_head.layers(model.actor_encoder(obs)).detach().requires_grad_()
    action = model.distribution(model.compute_actor(obs)).sample(torch.Generator().manual_seed(0))
    of_leaf, of_sigma = torch.autograd.grad(
        model.distribution(model.from_raw("actor", raw)).log_prob(action).sum(), [raw, log_sigma]
    )
    loss = model.distribution(model.compute_actor(obs)).log_prob(action).sum()
    torch.testing.assert_close((of_leaf.sum(0), of_sigma), torch.autograd.grad(loss, [bias, log_sigma]))


class Scaled(VAC):
    def compute_actor(self, obs):
        return super().compute_actor(obs)


class Auxiliary(PPG):
    def compute_auxiliary(self, obs):
        return super().compute_auxiliary(obs)


@pytest.mark.parametrize(
    "model",
    [
        lambda: VAC(spaces.Box(0, 255, (10, 10, 3), np.uint8), BOX),
        lambda: VAC(VECTOR, BOX, rnn="gru"),
        lambda: VAC(VECTOR, BOX, encoder_dtype="bfloat16"),
        lambda: VAC(TREE, BOX, encoder={"a": {"type": "mlp", "hidden_size_list": [4]}}),
        lambda: VAC(VECTOR, BOX).double(),
        lambda: Scaled(VECTOR, BOX),
        lambda: type("Later", (Scaled,), {})(VECTOR, BOX),
        lambda: Auxiliary(VECTOR, BOX),
    ],
)
def test_what_numpy_does_not_run_has_no_stacks(model):
    assert model().stacks() is None
