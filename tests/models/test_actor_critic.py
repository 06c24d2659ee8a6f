"""The models ``vac`` and ``ppg``: what they compute, who feels which gradient, and how they start."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from worlds import digest, policy_for

from ding_lite.errors import ConfigError
from ding_lite.models import PPG, VAC, ActorCritic
from ding_lite.models.encoders import _Residual
from ding_lite.trees import example_observations, map_tree

spaces = gym.spaces
VECTOR = spaces.Box(-1, 1, (4,))
IMAGE = spaces.Box(0, 255, (10, 10, 3), np.uint8)
TREE = spaces.Dict(board=VECTOR, eye=IMAGE, index=spaces.Discrete(3))
DISCRETE, BOX = spaces.Discrete(3), spaces.Box(-1, 1, (2,))
ACTION = spaces.Dict(move=DISCRETE, force=BOX)
ARCHS = ("dual", "shared", "detach")

every_space = pytest.mark.parametrize("obs_space", [VECTOR, IMAGE, TREE], ids=["vector", "image", "tree"])
every_arch = pytest.mark.parametrize("arch", ARCHS)


def model_for(obs_space=VECTOR, action_space=DISCRETE, cls=VAC, **options):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return cls(obs_space, action_space, **options)


def batch(space, count=16):
    return map_tree(torch.as_tensor, example_observations(space, count))


def total(tree):
    return sum(map(total, tree.values())) if isinstance(tree, dict) else tree.square().sum()


# ------------------------------------------------------------------ what it computes


@every_space
@every_arch
def test_all_methods_agree(arch, obs_space):
    model, obs = model_for(obs_space, cls=PPG, arch=arch), batch(obs_space)
    logit, auxiliary, value = model.compute_auxiliary(obs)
    joint_logit, joint_value = model.compute_actor_critic(obs)
    for other in (joint_logit, model.compute_actor(obs)):
        assert torch.equal(logit, other)
    for other in (joint_value, model.compute_critic(obs)):
        assert torch.equal(value, other)
    assert logit.shape == (16, 3)
    assert value.shape == auxiliary.shape == (16,)
    assert not torch.allclose(value, auxiliary), "the two heads are one"


def test_vectors_have_encoders_of_their_own_and_images_share_one_unless_the_config_says():
    assert model_for(VECTOR).critic_encoder is not None
    assert model_for(spaces.Dict(a=VECTOR, b=IMAGE)).critic_encoder is None
    for space in (VECTOR, IMAGE):
        for share in (False, True):
            assert (model_for(space, share_encoder=share).critic_encoder is None) == share
    actor, critic = model_for(VECTOR).actor_encoder, model_for(VECTOR).critic_encoder
    assert not torch.equal(actor.trunk[0].weight, critic.trunk[0].weight)


@every_space
@pytest.mark.parametrize("share_encoder", [False, True])
def test_state_dict_holds_no_weight_twice_and_makes_another_model_the_same(obs_space, share_encoder):
    model, other = (VAC(obs_space, BOX, share_encoder=share_encoder) for _ in range(2))
    state = model.state_dict()
    assert len({tensor.data_ptr() for tensor in state.values()}) == len(state)
    assert sum(t.numel() for t in state.values()) == sum(p.numel() for p in model.parameters())
    other.load_state_dict(state)
    obs = batch(obs_space)
    assert torch.equal(model.compute_critic(obs), other.compute_critic(obs))
    assert torch.equal(model.compute_actor(obs)["mu"], other.compute_actor(obs)["mu"])


# ------------------------------------------------------------------ gradients


def reached(model, output):
    """Returns the parts of the model in which the gradient of ``output`` is not exactly zero."""
    model.zero_grad(set_to_none=True)
    total(output).backward(retain_graph=True)
    named = model.named_parameters()
    return {name.split(".")[0] for name, p in named if p.grad is not None and torch.count_nonzero(p.grad)}


POLICY = {"actor_encoder", "actor_head"}
VALUE = {  # what the value trains, in both phases
    "dual": {"critic_encoder", "critic_head"},
    "shared": {"actor_encoder", "critic_head"},
    "detach": {"critic_head"},
}


@every_space
@every_arch
def test_gradients_reach_their_own_networks_in_both_phases(arch, obs_space):
    model, obs = model_for(obs_space, ACTION, PPG, arch=arch), batch(obs_space)
    joint_logit, joint_value = model.compute_actor_critic(obs)
    of_phase, auxiliary, value_of_phase = model.compute_auxiliary(obs)
    for logit in (joint_logit, model.compute_actor(obs), of_phase):
        assert reached(model, logit) == POLICY
    for value in (joint_value, model.compute_critic(obs), value_of_phase):
        assert reached(model, value) == VALUE[arch]
    assert reached(model, auxiliary) == {"actor_encoder", "auxiliary_head"}


# ------------------------------------------------------------------ how it starts


def assert_orthogonal(layer, gain):
    weight = layer.weight.detach().flatten(1)
    gram = weight @ weight.T if len(weight) <= weight.shape[1] else weight.T @ weight
    assert torch.allclose(gram, gain**2 * torch.eye(len(gram)), atol=1e-4 * gain**2)
    assert torch.count_nonzero(layer.bias) == 0


@every_space
@pytest.mark.parametrize("action_space", [DISCRETE, ACTION])
def test_orthogonal_gains_are_root_two_a_hundredth_and_one(obs_space, action_space):
    widths = dict(critic_head_hidden_size_list=[8], actor_head_hidden_size_list=[8])
    model = model_for(obs_space, action_space, PPG, **widths)
    last = {model.actor_head.layers[-1]: 0.01, **dict.fromkeys(model.value_heads, 1.0)}
    for layer in model.modules():
        if isinstance(layer, (torch.nn.Linear, torch.nn.Conv2d)):
            assert_orthogonal(layer, last.get(layer, 2**0.5))


def test_normed_init_gives_rows_the_norms_of_the_ppg_authors():
    """As in their ImpalaCNN: norm 1 for a stage's convolution, 6^(-1/4) = 0.639 in blocks."""
    image = spaces.Box(0, 255, (64, 64, 3), np.uint8)
    model = model_for(image, cls=PPG, init="normed", encoder={"type": "impala_cnn"})
    blocks = [m for m in model.modules() if isinstance(m, _Residual)]
    norms = dict.fromkeys((layer for block in blocks for layer in block.modules()), 6**-0.25)
    norms |= dict.fromkeys((model.actor_head.layers[-1], *model.value_heads), 0.1)
    layers = [m for m in model.modules() if isinstance(m, (torch.nn.Linear, torch.nn.Conv2d))]
    assert sum(layer in norms for layer in layers) == 24 + 3
    for layer in layers:
        usual = 1.0 if isinstance(layer, torch.nn.Conv2d) else 1.4
        rows = layer.weight.flatten(1).norm(dim=1)
        torch.testing.assert_close(rows, torch.full_like(rows, norms.get(layer, usual)), rtol=1e-5, atol=0)
        assert torch.count_nonzero(layer.bias) == 0


@pytest.mark.parametrize("obs_space", [VECTOR, TREE])
@pytest.mark.parametrize("init", ["orthogonal", "torch"])
@every_arch
def test_all_but_the_auxiliary_head_of_ppg_starts_as_vac_does(arch, init, obs_space):
    options = dict(init=init, critic_head_hidden_size_list=[8])
    plain = model_for(obs_space, ACTION, share_encoder=arch != "dual", **options).state_dict()
    phasic = model_for(obs_space, ACTION, PPG, arch=arch, **options).state_dict()
    assert {name.split(".")[0] for name in phasic if name not in plain} == {"auxiliary_head"}
    assert all(torch.equal(plain[name], phasic[name]) for name in plain)


# ------------------------------------------------------------------ the config


def test_activation_is_tanh_for_vectors_and_relu_for_images_unless_named():
    def kinds(model):
        return {type(m).__name__ for m in model.modules()} & {"Tanh", "ReLU", "GELU"}

    assert kinds(model_for(VECTOR)) == {"Tanh"}
    assert kinds(model_for(IMAGE)) == {"ReLU"}
    assert kinds(model_for(IMAGE, activation="gelu")) == {"GELU"}


# ------------------------------------------------------------------ subclasses that replace an output


class Steeper(VAC):
    def compute_actor(self, obs):
        return 5.0 * super().compute_actor(obs)


class Higher(PPG):
    def compute_critic(self, obs):
        return super().compute_critic(obs) + 3.0


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("kind", [Steeper, Higher])
def test_joint_methods_return_what_a_subclass_computes(kind, share):
    arch = {"arch": "shared" if share else "dual"} if issubclass(kind, PPG) else {"share_encoder": share}
    model, obs = model_for(cls=kind, **arch), batch(VECTOR)
    logit, value = model.compute_actor_critic(obs)
    assert torch.equal(logit, model.compute_actor(obs))
    assert torch.equal(value, model.compute_critic(obs))
    if issubclass(kind, PPG):
        of_phase, _, value_of_phase = model.compute_auxiliary(obs)
        assert torch.equal(of_phase, logit)
        assert torch.equal(value_of_phase, value)


def test_a_recurrent_subclass_that_replaces_an_output_must_define_step():
    with pytest.raises(NotImplementedError, match=r"Steeper must define step\(inputs\)"):
        model_for(cls=Steeper, rnn="gru").step(None)
    assert ActorCritic(VECTOR, DISCRETE).initial_hidden(3) is None


# ------------------------------------------------------------------ groups of observations


ROBOT = spaces.Dict(policy=VECTOR, privileged=spaces.Box(-1, 1, (2,)))
GROUPS = {"actor": ["policy"], "critic": ["policy", "privileged"]}


@pytest.mark.parametrize("widths", [[8], []], ids=["same", "other"])  # features of actor and critic
@pytest.mark.parametrize("cls", [VAC, PPG])
def test_only_the_critic_reads_what_is_in_its_groups_alone(cls, widths):
    options = {"obs_groups": GROUPS, "encoder_hidden_size_list": widths}
    model, obs = model_for(ROBOT, cls=cls, **options), batch(ROBOT)
    other = {**obs, "privileged": obs["privileged"] + 1}
    assert torch.equal(model.compute_actor(obs), model.compute_actor(other))
    assert not torch.isclose(model.compute_critic(obs), model.compute_critic(other)).any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"a group .privileged.. Name .*: \[.policy.\], .critic.: \[.policy., .privileged.\]"),
        ({"obs_groups": {**GROUPS, "actor": ["robot"]}}, "unknown group 'robot'; the groups .*'policy'"),
        ({"obs_groups": GROUPS, "share_encoder": True}, "share an encoder"),
    ],
)
def test_groups_must_be_named_and_exist(options, message):
    with pytest.raises(ConfigError, match=message):
        model_for(ROBOT, **options)


@pytest.mark.parametrize("rnn", [None, "lstm"])
def test_a_policy_acts_by_the_groups_of_the_actor_alone(rnn):
    env = type("Env", (), {"obs_space": ROBOT, "action_space": BOX})
    model = {"obs_groups": GROUPS, "rnn": rnn, "rnn_hidden_size": 8}
    policy = policy_for(env, model=model, normalize={"obs": True})
    obs = map_tree(np.array, example_observations(ROBOT, 5))
    policy.warm_up(obs)
    whole = policy.act(obs)
    policy.reset()
    assert digest(policy.act({"policy": obs["policy"]})) == digest(whole)
    policy.reset()
    assert np.allclose(policy.act({"policy": obs["policy"][0]}), whole[0])
