"""The model ``ppg``: gradients of its heads in both phases, and initialisation."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from ding_lite import ConfigError, compile_config
from ding_lite.config.registry import MODEL_REGISTRY
from ding_lite.models import PPG, VAC, PhasicActorCritic
from ding_lite.rl.scales import ValueNorm

spaces = gym.spaces
VECTOR = spaces.Box(-1, 1, (4,))
IMAGE = spaces.Box(0, 255, (10, 10, 3), np.uint8)
TREE = spaces.Dict(board=VECTOR, eye=IMAGE, index=spaces.Discrete(3))
DISCRETE = spaces.Discrete(3)
ACTION = spaces.Dict(move=DISCRETE, force=spaces.Box(-1, 1, (2,)))
ARCHS = ("dual", "shared", "detach")
PARTS = ("actor_encoder", "actor_head", "critic_encoder", "critic_head", "auxiliary_head")

every_space = pytest.mark.parametrize("obs_space", [VECTOR, IMAGE, TREE], ids=["vector", "image", "tree"])
every_arch = pytest.mark.parametrize("arch", ARCHS)


def model_for(cls, obs_space, action_space=DISCRETE, **options):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return cls(obs_space, action_space, **options)


def batch(space, count=16):
    if isinstance(space, spaces.Dict):
        return {name: batch(child, count) for name, child in space.spaces.items()}
    space.seed(0)
    return torch.as_tensor(np.stack([space.sample() for _ in range(count)]))


def total(tree):
    return sum(map(total, tree.values())) if isinstance(tree, dict) else tree.square().sum()


def reached(model, output):
    """Returns the parts of the model in which the gradient of ``output`` is not exactly zero."""
    model.zero_grad(set_to_none=True)
    total(output).backward(retain_graph=True)
    found = set()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and torch.count_nonzero(parameter.grad):
            found.add(name.split(".")[0])
    return found


# ------------------------------------------------------------------ who feels what

POLICY = {"actor_encoder", "actor_head"}
# What the value moves: in the policy phase, and in the auxiliary one.
VALUE = {
    "dual": {"critic_encoder", "critic_head"},
    "shared": {"actor_encoder", "critic_head"},
    "detach": {"critic_head"},
}


@every_space
@every_arch
def test_gradients_of_the_policy_phase_reach_only_their_own_network(arch, obs_space):
    model, obs = model_for(PPG, obs_space, ACTION, arch=arch), batch(obs_space)
    joint_logit, joint_value = model.compute_actor_critic(obs)
    for logit in (joint_logit, model.compute_actor(obs)):
        assert reached(model, logit) == POLICY
    for value in (joint_value, model.compute_critic(obs)):
        assert reached(model, value) == VALUE[arch]


@every_space
@every_arch
def test_gradients_of_the_auxiliary_phase_reach_the_policy_trunk_through_the_auxiliary_head(arch, obs_space):
    model, obs = model_for(PPG, obs_space, ACTION, arch=arch), batch(obs_space)
    logit, auxiliary, value = model.compute_auxiliary(obs)
    assert reached(model, logit) == POLICY
    assert reached(model, auxiliary) == {"actor_encoder", "auxiliary_head"}
    assert reached(model, value) == VALUE[arch]


@every_arch
def test_every_parameter_feels_one_of_the_phases(arch):
    model, obs = model_for(PPG, TREE, ACTION, arch=arch, critic_head_hidden_size_list=[8]), batch(TREE)
    logit, auxiliary, value = model.compute_auxiliary(obs)
    (total(logit) + total(auxiliary) + total(value)).backward()
    assert [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []
    expected = set(PARTS) - ({"critic_encoder"} if arch != "dual" else set())
    assert {name.split(".")[0] for name, _ in model.named_parameters()} == expected


@every_space
@every_arch
def test_all_four_calls_agree(arch, obs_space):
    model, obs = model_for(PPG, obs_space, arch=arch), batch(obs_space)
    logit, auxiliary, value = model.compute_auxiliary(obs)
    joint_logit, joint_value = model.compute_actor_critic(obs)
    for other in (joint_logit, model.compute_actor(obs)):
        assert torch.equal(logit, other)
    for other in (joint_value, model.compute_critic(obs)):
        assert torch.equal(value, other)
    assert value.shape == auxiliary.shape == (16,)
    assert not torch.allclose(value, auxiliary), "the two heads are one"


def test_detach_and_shared_compute_the_same_numbers():
    shared, detached = (model_for(PPG, IMAGE, arch=arch) for arch in ("shared", "detach"))
    for one, other in zip(*(m.compute_auxiliary(batch(IMAGE)) for m in (shared, detached)), strict=True):
        assert torch.equal(one, other)


# ------------------------------------------------------------------ how it starts


@every_space
@pytest.mark.parametrize("init", ["orthogonal", "normed", "torch"])
@every_arch
def test_all_but_the_auxiliary_head_starts_as_vac_does(arch, init, obs_space):
    options = dict(init=init, critic_head_hidden_size_list=[8])
    plain = model_for(VAC, obs_space, ACTION, share_encoder=arch != "dual", **options).state_dict()
    phasic = model_for(PPG, obs_space, ACTION, arch=arch, **options).state_dict()
    assert [name for name in phasic if name not in plain] == [
        f"auxiliary_head.{layer}.{kind}" for layer in (0, 2) for kind in ("weight", "bias")
    ]
    assert all(torch.equal(plain[name], phasic[name]) for name in plain)


def test_auxiliary_head_starts_like_the_value_head_and_with_weights_of_its_own():
    gains = {"value": 3.0, "hidden": 0.5}
    model = model_for(PPG, VECTOR, init_gain=gains, critic_head_hidden_size_list=[8])
    for head in (model.critic_head, model.auxiliary_head):
        assert float(head[-1].weight.detach().norm()) == pytest.approx(3.0, rel=1e-5)
        assert float(torch.linalg.matrix_norm(head[0].weight.detach(), 2)) == pytest.approx(0.5, rel=1e-4)
        assert not head[-1].bias.any()
    assert not torch.equal(model.critic_head[-1].weight, model.auxiliary_head[-1].weight)
    normed = model_for(PPG, VECTOR, init="normed")
    for head in (normed.critic_head, normed.auxiliary_head):
        assert float(head[-1].weight.detach().norm()) == pytest.approx(0.1, rel=1e-5)


# ------------------------------------------------------------------ value_norm


@every_arch
def test_both_value_heads_keep_their_raw_values_when_the_scale_moves(arch):
    model, obs = model_for(PPG, VECTOR, arch=arch, critic_head_hidden_size_list=[8]), batch(VECTOR)
    assert model.value_heads == (model.critic_head[-1], model.auxiliary_head[-1])
    norm = ValueNorm()
    norm.update(np.array([1.0, 3.0]))
    with torch.no_grad():
        before = [norm.denormalize(value) for value in model.compute_auxiliary(obs)[1:]]
        norm.update_heads(np.array([500.0, 700.0, 900.0]), model.value_heads)
        units = model.compute_auxiliary(obs)[1:]
    for value, old in zip(units, before, strict=True):
        assert torch.allclose(norm.denormalize(value), old, atol=1e-3)
        assert not torch.allclose(norm.denormalize(old), old, atol=1)  # had it not been corrected


# ------------------------------------------------------------------ the config


def config(**model):
    return compile_config({"env": {"env_id": "CartPole-v1"}, "policy": {"type": "ppg", "model": model}})


@pytest.mark.parametrize("value", [False, True])
def test_share_encoder_is_refused_with_the_key_that_says_it_here(value):
    with pytest.raises(ConfigError, match=r"share_encoder: .*model\.arch"):
        config(share_encoder=value)


def test_the_rest_of_the_config_is_taken():
    assert config(arch="detach").values.policy.model.arch == "detach"


def test_an_unknown_arch_is_refused_and_the_others_are_listed():
    with pytest.raises(ConfigError, match=r"model\.arch: .*dual, shared, detach.*'single'"):
        config(arch="single")


def test_ppg_is_registered_under_its_name_and_keeps_the_contract_of_its_phase():
    assert MODEL_REGISTRY.get("ppg") is PPG
    assert issubclass(PPG, PhasicActorCritic)
    with pytest.raises(NotImplementedError, match=r"Half must define compute_auxiliary\(obs\)"):
        type("Half", (PhasicActorCritic,), {})(VECTOR, DISCRETE).compute_auxiliary(torch.zeros(1, 4))
