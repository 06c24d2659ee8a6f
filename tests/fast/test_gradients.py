"""Gradients by autograd, NumPy stacks, and slopes in NumPy are equal for every network and loss."""

import pytest
import torch
from cases import drawn
from fast_cases import (
    ARCHS,
    BOX,
    DISCRETE,
    IMAGE,
    MASKED,
    MIXED,
    NETWORKS,
    VECTOR,
    batch_for,
    observations,
    policy_for,
    spaces,
)
from precision import assert_accurate, doubles, flat, float64
from threadpoolctl import threadpool_limits
from torch import nn
from worlds import trainee

from ding_lite import PPOPolicy
from ding_lite.data.samples import Batch
from ding_lite.errors import ContractError
from ding_lite.fast import stacks
from ding_lite.fast.cuda_graphs import GraphPool
from ding_lite.fast.gradients import ByAutograd, ThroughStacks
from ding_lite.models import VAC, ActionHead, ActorCritic
from ding_lite.models.actor_critic import Stack


def objectives(policy):
    """Returns every loss that a policy goes down."""
    own = [policy.objective, policy.objective._replace(reads=("critic",))]
    if not hasattr(policy, "store"):
        return own
    return [*own, policy.objective._replace(reads=("actor",)), policy.auxiliary_objective]


BOTH = [("actor", "critic"), ("critic",)]


def in_torch(policy, objective, batch):
    return ByAutograd(objective, policy.model, policy.optimizer.parameters)(batch)


def in_float64(policy, objective, batch):
    exact = float64(policy)
    loss = getattr(exact, objective.loss.__name__)
    objective = objective._replace(loss=loss, with_outputs=exact.with_outputs)
    fields = {name: doubles(field) for name, field in vars(batch).items() if field is not None}
    return in_torch(exact, objective, Batch(**fields))


def in_numpy(policy, objective, batch):
    gradient_of = policy.optimizer.gradient_of(objective)
    assert isinstance(gradient_of, ThroughStacks)
    return gradient_of(batch)


def assert_equal(found, plain, exact):
    """Compares a gradient with those of torch in float32 and in float64."""
    values, numbers = [], []
    for gradient in (found, exact, plain):
        reached = {str(k): value for k, value in enumerate(gradient.parts) if value is not None}
        values.append(reached)
        numbers.append({**gradient.metrics, "total": gradient.loss})
        assert [(k, value.shape) for k, value in reached.items()] == [
            (k, x.shape) for k, x in values[0].items()
        ]
        assert list(numbers[-1]) == list(numbers[0])
    assert_accurate(*values)
    assert_accurate(*numbers)
    assert float(found.flat.square().sum()) == pytest.approx(float(flat(values[0]).square().sum()), rel=1e-4)


def compare(policy, batch):
    """Compares the gradients of every loss; returns what those with slopes in NumPy read."""
    with_slopes = []
    for objective in objectives(policy):
        expected = in_torch(policy, objective, batch), in_float64(policy, objective, batch)
        assert_equal(in_numpy(policy, objective._replace(slopes=None), batch), *expected)
        if objective.slopes is not None:
            assert_equal(in_numpy(policy, objective, batch), *expected)
            with_slopes.append(objective.reads)
    return with_slopes


@pytest.mark.parametrize(("network", "arch"), drawn(2 * len(NETWORKS), NETWORKS, ARCHS))
def test_every_network_has_the_gradient_that_torch_finds(network, arch):
    obs_space, action_space, options, has_slopes = NETWORKS[network]
    kind, shares = ARCHS[arch]
    if kind == "ppg" and network == "index":
        options = {}  # with no hidden layer there is nothing to distil into
    policy = policy_for(obs_space, action_space, kind, model=options | shares)
    found = compare(policy, batch_for(policy))
    expected = [*BOTH, ("actor",)] if kind == "ppg" else BOTH
    assert found == (expected if has_slopes else [])


@pytest.mark.parametrize("activation", ["tanh", "relu", "elu"])
@pytest.mark.parametrize(
    ("obs_space", "action_space"), [(MASKED, DISCRETE), (MIXED, DISCRETE), (VECTOR, BOX)]
)
def test_many_samples_are_learned_from_in_blocks(obs_space, action_space, activation, monkeypatch):
    monkeypatch.setattr(stacks, "BLOCK", 450)  # 7 samples at once for 64 units
    policy = policy_for(obs_space, action_space, model={"activation": activation})
    assert compare(policy, batch_for(policy)) == BOTH


# One option each; every one changes the gradient of the batch.
OPTIONS = {
    "no entropy": {"entropy_weight": 0.0},
    "much entropy": {"entropy_weight": 1.0},
    "narrow clip": {"clip_ratio": 0.05},
    "clip of one": {"clip_ratio": 1.0},
    "clip above one": {"clip_ratio": 1.5},
    "dual clip": {"dual_clip": 1.05},
    "value clip": {"value_clip": 0.2},
    "smooth l1": {"value_loss": "smooth_l1"},
    "value weight": {"value_weight": 2.0},
    "value norm std": {"value_norm_std": 1.0},
}


@pytest.mark.parametrize(("obs_space", "action_space"), [(MASKED, DISCRETE), (VECTOR, BOX)])
@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_has_the_gradient_that_torch_finds_and_changes_it(option, obs_space, action_space):
    base = {"entropy_weight": 0.01}
    plain = policy_for(obs_space, action_space, learn=base)
    policy = policy_for(obs_space, action_space, learn=base | OPTIONS[option])
    batch = batch_for(policy)
    batch.log_prob[:8] += 3.0  # ratios near 0.05
    assert compare(policy, batch) == ([] if option == "smooth l1" else BOTH)
    found, before = (in_torch(each, each.objective, batch).parts for each in (policy, plain))
    assert any(not torch.allclose(a, b, rtol=1e-3) for a, b in zip(found, before, strict=True))
    batch.policy_weight = None
    compare(policy, batch)
    assert not torch.allclose(in_torch(policy, policy.objective, batch).parts[0], found[0], rtol=1e-3)


# ------------------------------------------------------------------ losses of the user


class OtherPolicyLoss(PPOPolicy):
    def policy_loss(self, batch):
        loss, metrics = super().policy_loss(batch)
        return 2 * loss + batch.dist.entropy().square().mean(), {**metrics, "twice": 2 * loss}


class Predicting(VAC):
    """Predicts the observation by a head of its own, behind the encoder of the policy."""

    def __init__(self, obs_space, action_space):
        super().__init__(obs_space, action_space)
        self.prediction = nn.Linear(self.actor_encoder.out_features, 4)


class WithPrediction(PPOPolicy):
    predicts = True

    def policy_loss(self, batch):
        loss, metrics = super().policy_loss(batch)
        if not self.predicts:
            return loss, metrics
        found = self.model.prediction(self.model.actor_encoder(batch.obs))
        error = (found - batch.obs).square().mean()
        return loss + error, {**metrics, "prediction": error}


@pytest.mark.parametrize(
    ("cls", "model"),
    [
        (OtherPolicyLoss, None),
        (WithPrediction, Predicting(VECTOR, DISCRETE)),
    ],
)
def test_an_overridden_loss_runs_on_the_outputs_of_numpy(cls, model):
    policy = policy_for(cls=cls, made=model)
    assert compare(policy, batch_for(policy)) == []
    values = in_numpy(policy, policy.objective, batch_for(policy)).parts
    assert all(value is not None and value.abs().max() > 1e-5 for value in values)


def test_a_parameter_that_only_an_earlier_step_has_reached_is_not_in_the_norm():
    policy = policy_for(cls=WithPrediction, made=Predicting(VECTOR, DISCRETE))
    gradient_of, batch = policy.optimizer.gradient_of(policy.objective), batch_for(policy)
    assert all(value is not None for value in gradient_of(batch).parts)
    policy.predicts = False
    found = gradient_of(batch)
    assert any(value is None for value in found.parts)
    assert_equal(found, *(way(policy, policy.objective, batch) for way in (in_torch, in_float64)))


# ------------------------------------------------------------------ what is left to torch


class OtherActor(VAC):
    def compute_actor(self, obs):
        return super().compute_actor(obs)


def hook(policy):
    policy.model.actor_encoder.trunk.register_forward_hook(lambda module, inputs, output: 2 * output)


def layer_norm(policy):
    policy.model.critic_encoder.trunk.insert(1, nn.LayerNorm(64, elementwise_affine=False))


def gradient_hook(policy):
    policy.model.actor_encoder.trunk[0].weight.register_hook(lambda gradient: 0 * gradient)


def tied(policy):
    policy.model.critic_encoder.trunk[0].weight = policy.model.actor_encoder.trunk[0].weight


def elu(policy):
    policy.model.critic_encoder.trunk[1] = nn.ELU(alpha=0.5)


def spectral(policy):
    nn.utils.parametrizations.spectral_norm(policy.model.critic_encoder.trunk[0])


def actor_of_the_instance(policy):
    policy.model.compute_actor = lambda obs: 2 * VAC.compute_actor(policy.model, obs)


def layer_of_the_instance(policy):
    layer = policy.model.actor_encoder.trunk[0]
    layer.forward = lambda x: 2 * nn.Linear.forward(layer, x)


LEFT_TO_TORCH = {
    "large layers": lambda: policy_for(model={"encoder_hidden_size_list": [1024, 1024]}),
    "many indices": lambda: policy_for(spaces.MultiDiscrete([3] * 9)),
    "compute_actor": lambda: policy_for(made=OtherActor(VECTOR, DISCRETE)),
    "images": lambda: policy_for(IMAGE),
    "bfloat16": lambda: policy_for(model={"encoder_dtype": "bfloat16"}),
    "layers of one leaf of several": lambda: policy_for(
        MIXED, model={"encoder": {"a": {"type": "mlp", "hidden_size_list": [4]}}}
    ),
}


@pytest.mark.parametrize("make", LEFT_TO_TORCH.values(), ids=LEFT_TO_TORCH)
def test_what_numpy_does_not_run_is_left_to_torch(make):
    is_left_to_torch(make())


CHANGES = [hook, gradient_hook, tied, layer_norm, elu, spectral]
CHANGES += [actor_of_the_instance, layer_of_the_instance]


@pytest.mark.parametrize("change", CHANGES)
def test_a_model_that_is_changed_is_left_to_torch(change):
    policy = policy_for()
    assert policy.optimizer.gradient_of(policy.objective).name == "NumPy"
    change(policy)
    is_left_to_torch(policy)


def test_a_parameter_that_the_optimiser_does_not_have_is_refused():
    policy = policy_for()
    policy.model.actor_head.layers[0] = nn.Linear(64, 2)
    with pytest.raises(ContractError, match="replaced or unfrozen"):
        policy.optimizer.gradient_of(policy.objective)


def test_a_model_with_a_hook_is_no_part_of_a_graph():
    policy = policy_for()
    policy.optimizer.pool = GraphPool()  # as on a GPU
    assert policy.optimizer.gradient_of(policy.objective).name == "CUDA graph"
    hook(policy)
    assert policy.optimizer.gradient_of(policy.objective).name == "autograd"


@pytest.mark.parametrize("change", [hook, actor_of_the_instance, layer_of_the_instance])
def test_a_method_or_hook_that_is_set_on_a_model_acts(change):
    policy, obs = policy_for(), observations(VECTOR, 8, torch.Generator().manual_seed(0))
    assert policy.acting().name == "NumPy"
    change(policy)
    assert policy.acting().name == "torch"
    inputs = policy.scaled(obs)
    expected = policy.distribution(inputs, policy.model.compute_actor(inputs)).mode()
    torch.testing.assert_close(policy.acting().greedy(obs)["action"], expected)


class Small(ActorCritic):
    """A model that declares its layers."""

    def __init__(self, obs_space, action_space):
        super().__init__(obs_space, action_space)
        self.body = nn.Sequential(nn.Linear(4, 8), nn.Tanh())
        self.actor_head, self.value = ActionHead(action_space, 8), nn.Sequential(nn.Linear(8, 1))
        self.value_heads = (self.value[0],)

    def compute_actor(self, obs):
        return self.actor_head(self.body(obs))

    def compute_critic(self, obs):
        return self.value(self.body(obs)).squeeze(-1)

    def stacks(self):
        return {"actor": Stack(self.body, self.actor_head.layers), "critic": Stack(self.body, self.value)}


def test_a_model_of_the_user_that_declares_its_layers_runs_in_numpy():
    policy = policy_for(made=Small(VECTOR, DISCRETE))
    assert compare(policy, batch_for(policy)) == BOTH
    assert policy.acting().name == "NumPy"


def is_left_to_torch(policy):
    assert policy.optimizer.gradient_of(policy.objective).name == "autograd"


@pytest.mark.parametrize(("threads", "blas", "known"), [(1, 1, True), (4, 1, False), (1, 2, False)])
def test_wide_layers_are_left_to_torch_unless_both_have_one_thread(threads, blas, known, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    policy = policy_for(model={"encoder_hidden_size_list": [256, 256]})
    with threadpool_limits(blas, user_api="blas"):
        assert (policy.optimizer.gradient_of(policy.objective).name == "NumPy") is known
        assert stacks.has_one_thread() is known


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("part", ["critic_encoder", "actor_head.out", "actor_head.layers"])
def test_frozen_layers_have_no_gradient(part, when):
    model = VAC(VECTOR, BOX)
    if when == "before":
        model.get_submodule(part).requires_grad_(False)
    policy = policy_for(VECTOR, BOX, made=model)
    model.get_submodule(part).requires_grad_(False)
    frozen, batch = {id(p) for p in model.get_submodule(part).parameters()}, batch_for(policy)
    for objective in (policy.objective, policy.objective._replace(slopes=None)):
        found = policy.optimizer.gradient_of(objective)(batch)
        assert_equal(found, in_torch(policy, objective, batch), in_float64(policy, objective, batch))
        reached = {
            id(p) for p, x in zip(policy.optimizer.parameters, found.parts, strict=True) if x is not None
        }
        assert reached == {id(p) for p in model.parameters()} - frozen


# ------------------------------------------------------------------ far from the clip


def policy_by(way, **learn):
    activation = "gelu" if way == "autograd" else "tanh"
    policy = policy_for(
        model={"activation": activation}, learn={"entropy_weight": 0.0, "value_norm": False, **learn}
    )
    objective = policy.objective._replace(**({"slopes": None} if way == "stacks" else {}))
    return policy, policy.optimizer.gradient_of(objective)


every_way = pytest.mark.parametrize("way", ["slopes", "stacks", "autograd"])


def batch_at_ratio(policy, log_ratio, advantage):
    batch = batch_for(policy, 16, weights=False)
    with torch.no_grad():
        log_prob = policy.log_prob(batch.obs, batch.action)
    return batch.plus(log_prob=log_prob - log_ratio, advantage=advantage)


@every_way
def test_where_the_clip_holds_the_gradient_is_zero_at_any_ratio(way):
    """Half of the samples lie beyond a bound, by up to 500 nats, where exp overflows; the rest have r = 1."""
    policy, gradient_of = policy_by(way, dual_clip=3.0, value_weight=0.0)
    advantage, beyond = torch.linspace(-1, 1, 16), torch.arange(16) % 2 == 0
    falls = (advantage < 0) & (torch.arange(16) % 4 == 0)  # below 1 - eps; the others above 1 + eps or c

    def gradient(far):
        log_ratio = torch.where(beyond, torch.where(falls, -far, far), 0.0)
        found = gradient_of(batch_at_ratio(policy, log_ratio, advantage)).parts
        return torch.cat([value.flatten().clone() for value in found if value is not None])

    near = gradient(2.0)
    assert near.norm() > 1e-2, "the other half has a gradient"
    for far in (88.0, 89.0, 100.0, 500.0):
        torch.testing.assert_close(gradient(far), near, rtol=0, atol=1e-6)


# ------------------------------------------------------------------ CUDA graphs


class Overwriting:
    """Puts the results of all calls where those of the first one lie, as a replay does."""

    def __init__(self, pool, function, name):
        self.function, self.calls = function, []

    def __call__(self, arguments):
        self.calls.append(self.function(arguments))
        old, new = ([*x.parts, *x.metrics.values(), x.loss] for x in (self.calls[0], self.calls[-1]))
        torch._foreach_copy_(old, new)
        return self.calls[0]


def test_results_that_the_next_replay_writes_over_are_kept(monkeypatch):
    monkeypatch.setattr("ding_lite.fast.gradients.CapturedFunction", Overwriting)
    learn = {"epoch_per_collect": 2, "batch_size": 24}
    (plain, collector), (policy, _) = (
        trainee("ppo", learn=learn, model={"activation": "gelu"}) for _ in range(2)
    )
    policy.optimizer.pool = GraphPool()
    plain.optimizer.on_host, policy.optimizer.on_host = False, False
    rollout = collector.collect()
    expected, told = plain.learn_mode.forward(rollout), policy.learn_mode.forward(rollout)
    assert told == pytest.approx(expected, rel=1e-5)
    assert all(
        torch.equal(a, b) for a, b in zip(plain.model.parameters(), policy.model.parameters(), strict=True)
    )
