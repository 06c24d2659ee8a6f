"""Gradients in closed form: torch's to the rounding, and left to torch where they are not known."""

from __future__ import annotations

import copy
import functools

import gymnasium as gym
import numpy as np
import pytest
import torch
from easydict import EasyDict
from small_worlds import SeededBox
from torch import nn
from worlds import gradient_of, take_step, trainee

from ding_lite import PPOPolicy, compile_config
from ding_lite.data.buffer import Limits
from ding_lite.data.samples import Batch
from ding_lite.fast.gradients import autograd_gradient
from ding_lite.models import PPG, VAC
from ding_lite.models.encoders import Encoder
from ding_lite.policies.ppg import PPGPolicy
from ding_lite.policies.replay import ReplaySource

spaces = gym.spaces
VECTOR = spaces.Box(-1, 1, (4,), np.float32)
DISCRETE = spaces.Discrete(3, start=2)
BOX = spaces.Box(-1, 1, (2, 3), np.float32)
MULTI = spaces.MultiDiscrete([[2], [3]], start=[[1], [0]])
MASKED = spaces.Dict(observation=VECTOR, action_mask=spaces.Box(0, 1, (3,), np.bool_))
MULTI_MASKED = spaces.Dict(observation=VECTOR, action_mask=spaces.Box(0, 1, (5,), np.bool_))
MASK_OF_PARTS = spaces.Dict(observation=VECTOR, action_mask=spaces.Tuple(map(spaces.MultiBinary, (2, 3))))
INDEX = spaces.Discrete(5, start=-2)
INDICES = spaces.MultiDiscrete([[2], [3]], start=[[1], [-1]])
VECTORS = spaces.Dict(a=VECTOR, b=spaces.Box(-1, 1, (), np.float32), c=spaces.MultiBinary((2, 2)))
MIXED = spaces.Dict(a=VECTOR, b=spaces.Dict(c=INDICES, d=INDEX), action_mask=spaces.Box(0, 1, (3,), np.bool_))
N = 48
TOLERANCE = 5e-6  # of sums in another order


def policy_for(obs_space=VECTOR, action_space=DISCRETE, kind=PPOPolicy, **options):
    """Returns a policy whose outputs are far from those of a fresh one."""
    name = "ppg" if issubclass(kind, PPGPolicy) else "ppo"
    cfg = compile_config({"env": {"env_id": "CartPole-v1"}, "policy": {"type": name, **options}})
    policy = kind(cfg.values.policy, obs_space, action_space)
    draw = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in policy.model.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=draw))
    return policy


def observations(space, n, draw):
    """Returns n observations of a space; vectors are uniform from -1 to 1."""
    if isinstance(space, spaces.Dict):
        return {name: observations(part, n, draw) for name, part in space.items()}
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        sizes = torch.as_tensor(getattr(space, "nvec", getattr(space, "n", None)))
        return (torch.rand(n, *space.shape, generator=draw) * sizes).long() + torch.as_tensor(space.start)
    return torch.rand(n, *space.shape, generator=draw) * 2 - 1


def batch_for(policy, n=N, weights=False, seed=0):
    """Returns a minibatch of an older policy: some of its ratios are outside of the clip, on both sides."""
    draw = torch.Generator().manual_seed(seed)
    obs = observations(policy.obs_space, n, draw)
    if isinstance(obs, dict) and "action_mask" in obs:
        obs["action_mask"] = torch.rand(n, *policy.obs_space["action_mask"].shape, generator=draw) > 0.4
        obs["action_mask"][:, 1::2] = True  # one action of each component
    with torch.no_grad():
        dist = policy.distribution(obs, policy.model.compute_actor(obs))
        action = dist.sample(draw)
        log_prob = dist.log_prob(action) + 0.4 * torch.randn(n, generator=draw)
    fields = dict(
        obs=obs,
        action=action,
        log_prob=log_prob,
        advantage=torch.randn(n, generator=draw),
        value=policy.model.compute_critic(obs).detach() + 0.5 * torch.randn(n, generator=draw),
        value_target=2 * torch.randn(n, generator=draw),
    )
    if weights:
        fields |= dict(
            policy_weight=torch.rand(n, generator=draw), value_weight=torch.rand(n, generator=draw)
        )
    return Batch(**fields)


def by_torch(optimizer, loss, batch):
    return autograd_gradient(loss, optimizer.parameters, [batch], optimizer.clip)


def compared(optimizer, loss, batch):
    """Returns the largest difference of closed form and torch over gradients, metrics and values.

    That of a tensor is in units of its largest number, where that is above 1.
    """
    assert optimizer.gradients.name_of(loss) == "closed form"
    mine = optimizer.gradients.of(loss)([batch], optimizer.clip)
    its = by_torch(optimizer, loss, batch)
    assert [v is None for v in mine.values] == [v is None for v in its.values]
    assert list(mine.metrics) == list(its.metrics)
    pairs = [(a, b) for a, b in zip(mine.values, its.values, strict=True) if a is not None]
    pairs += zip(mine.metrics.values(), its.metrics.values(), strict=True)
    pairs += [(mine.norm, its.norm), (mine.bad, its.bad)]
    pairs = [(torch.as_tensor(a), b) for a, b in pairs]
    assert all(a.shape == b.shape for a, b in pairs)
    return max(float((a - b).abs().max() / b.abs().max().clamp_min(1)) for a, b in pairs)


def steps(policy):
    """Returns every loss of the policy phase, with the optimiser that goes down it."""
    if getattr(policy, "value_optimizer", None) is None:
        return [(policy.optimizer, policy.loss), (policy.optimizer, policy.critic_loss)]
    return [(policy.optimizer, policy.actor_loss), (policy.value_optimizer, policy.critic_loss)]


NETWORKS = {
    "discrete": (VECTOR, DISCRETE, {}),
    "relu": (VECTOR, DISCRETE, dict(activation="relu")),
    "masked": (MASKED, DISCRETE, {}),
    "multi-discrete": (VECTOR, MULTI, {}),
    "multi-discrete, masked": (MULTI_MASKED, MULTI, {}),
    "heads of layers": (
        VECTOR,
        DISCRETE,
        dict(actor_head_hidden_size_list=[7], critic_head_hidden_size_list=[5, 6]),
    ),
    "no hidden layer": (VECTOR, DISCRETE, dict(encoder_hidden_size_list=[])),
    "wide": (VECTOR, DISCRETE, dict(encoder_hidden_size_list=[128, 128])),
    "index": (INDEX, DISCRETE, {}),
    "index, no hidden layer": (INDEX, DISCRETE, dict(encoder_hidden_size_list=[])),
    "indices": (INDICES, DISCRETE, dict(encoder=dict(type="embedding", embedding_size=3))),
    "vectors": (VECTORS, DISCRETE, {}),
    "vectors and indices, masked": (MIXED, DISCRETE, {}),
    "box": (VECTOR, BOX, {}),
    "box, tanh": (VECTOR, BOX, dict(bound_type="tanh")),
    "box, soft": (VECTOR, BOX, dict(bound_type="soft")),
    "box, fixed sigma": (VECTOR, BOX, dict(sigma_type="fixed")),
}
# One encoder for policy and value.
SHARED = {
    "ppo": (PPOPolicy, dict(share_encoder=True)),
    "ppg": (PPGPolicy, dict(arch="shared")),
    "ppg, detached": (PPGPolicy, dict(arch="detach")),
}
# One option each; every one changes the gradient of the batch.
OPTIONS = {
    "plain": {},
    "no entropy": dict(entropy_weight=0.0),
    "much entropy": dict(entropy_weight=1.0),
    "narrow clip": dict(clip_ratio=0.05),
    "dual clip": dict(dual_clip=1.05),
    "value clip": dict(value_clip=0.2),
    "smooth l1": dict(value_loss="smooth_l1"),
    "value weight": dict(value_weight=2.0),
    "clip by value": dict(grad_clip_type="clip_value", grad_clip_value=0.01),
    "not clipped": dict(grad_clip_type=None),
}


@pytest.mark.parametrize(
    ("network", "kind"),
    [
        *((name, PPOPolicy) for name in NETWORKS),
        *((name, PPGPolicy) for name in NETWORKS if name != "no hidden layer"),  # nothing to distil into
    ],
)
def test_every_network_has_the_gradient_that_torch_finds(network, kind):
    obs_space, action_space, options = NETWORKS[network]
    policy = policy_for(obs_space, action_space, kind, model=options)
    for weights in (False, True):
        batch = batch_for(policy, weights=weights)
        for optimizer, loss in steps(policy):
            assert compared(optimizer, loss, batch) < TOLERANCE


@pytest.mark.parametrize(("kind", "model"), SHARED.values(), ids=SHARED)
@pytest.mark.parametrize(
    "network",
    ["discrete", "relu", "masked", "heads of layers", "vectors and indices, masked", "box, tanh"],
)
def test_a_shared_encoder_has_the_gradient_that_torch_finds(network, kind, model):
    obs_space, action_space, options = NETWORKS[network]
    for epochs in ({}, dict(critic_epoch_per_collect=2)) if kind is PPGPolicy else ({},):
        policy = policy_for(obs_space, action_space, kind, model=options | model, learn=epochs)
        batch = batch_for(policy, weights=True)
        for optimizer, loss in steps(policy):
            assert compared(optimizer, loss, batch) < TOLERANCE


def auxiliary_batch(policy):
    """Returns a minibatch of the auxiliary phase, from distributions that are not the policy's."""
    batch = batch_for(policy)
    with torch.no_grad():
        old = policy.model.compute_actor(batch.obs)
    draw = torch.Generator().manual_seed(1)
    if isinstance(old, dict):
        old = {
            "mu": old["mu"] + 0.3 * torch.randn(old["mu"].shape, generator=draw),
            "sigma": old["sigma"] * 1.2,
        }
    else:
        old = old + 0.5 * torch.randn(old.shape, generator=draw)
    return Batch(obs=batch.obs, old_logit=old, value_target=batch.value_target)


AUXILIARY_NETWORKS = [name for name in NETWORKS if name != "no hidden layer"]  # nothing to distil into


@pytest.mark.parametrize("arch", ["dual", "shared", "detach"])
@pytest.mark.parametrize("network", AUXILIARY_NETWORKS)
def test_the_auxiliary_phase_has_the_gradient_that_torch_finds(network, arch):
    obs_space, action_space, options = NETWORKS[network]
    policy = policy_for(obs_space, action_space, PPGPolicy, model=options | dict(arch=arch))
    optimizer, loss = policy.auxiliary.optimizer, policy.checked_auxiliary_loss
    batch = auxiliary_batch(policy)
    assert compared(optimizer, loss, batch) < TOLERANCE
    values = gradient_of(optimizer, loss, batch).values
    assert all(value is not None and value.abs().max() > 1e-5 for value in values)


class OwnValueEncoder(PPG):
    """A value network with an encoder of its own, which nothing is detached from."""

    def __init__(self, *spaces, **options):
        super().__init__(*spaces, arch="detach", **options)
        self.critic_encoder = Encoder(VECTOR, None, None, "tanh")


def detach(model):
    model.detaches_value = True


def share(model):
    model.critic_encoder = model.actor_encoder


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (lambda: PPG(VECTOR, DISCRETE, arch="shared"), detach),
        (lambda: PPG(VECTOR, DISCRETE, arch="detach"), share),
        (lambda: OwnValueEncoder(VECTOR, DISCRETE), lambda model: None),
    ],
)
def test_what_the_value_trains_is_asked_anew(make, change):
    cfg = compile_config({"policy": {"type": "ppg"}, "env": {"env_id": "CartPole-v1"}}).values.policy
    policy = PPGPolicy(cfg, VECTOR, DISCRETE, model=make())
    phases = [
        (policy.optimizer, policy.loss, batch_for(policy)),
        (policy.auxiliary.optimizer, policy.checked_auxiliary_loss, auxiliary_batch(policy)),
    ]
    for optimizer, loss, batch in phases:
        assert compared(optimizer, loss, batch) < TOLERANCE
    change(policy.model)
    for optimizer, loss, batch in phases:
        mine, its = gradient_of(optimizer, loss, batch), by_torch(optimizer, loss, batch)
        assert [v is None for v in mine.values] == [v is None for v in its.values]
        assert abs(mine.norm - its.norm) < 1e-4


def without_critic_head():
    class OwnHead(VAC):
        def __init__(self, *spaces):
            super().__init__(*spaces, share_encoder=True)
            del self.critic_head
            self.own = nn.Linear(64, 1)
            self.value_heads = (self.own,)

        def compute_critic(self, obs):
            return self.own(self.actor_encoder(obs)).squeeze(-1)

    cfg = compile_config({"env": {"env_id": "CartPole-v1"}}).values.policy
    return PPOPolicy(cfg, VECTOR, DISCRETE, model=OwnHead(VECTOR, DISCRETE))


def without_auxiliary_head():
    class OwnHead(PPG):
        def __init__(self, *spaces):
            super().__init__(*spaces)
            del self.auxiliary_head
            self.own = nn.Linear(64, 1)
            self.value_heads = (self.value_heads[0], self.own)

        def compute_auxiliary(self, obs):
            features = self.actor_encoder(obs)
            return self.actor_head(features), self.own(features).squeeze(-1), self.compute_critic(obs)

    cfg = compile_config({"policy": {"type": "ppg"}, "env": {"env_id": "CartPole-v1"}}).values.policy
    return PPGPolicy(cfg, VECTOR, DISCRETE, model=OwnHead(VECTOR, DISCRETE))


@pytest.mark.parametrize("make", [without_critic_head, without_auxiliary_head])
def test_a_model_with_a_head_of_its_own_acts_in_numpy_and_learns_by_torch(make):
    policy = make()
    assert policy.fast.acting().name == "NumPy"
    optimizer, loss = policy.optimized_losses()[-1]
    assert optimizer.gradients.name_of(loss) != "closed form"


@pytest.mark.parametrize("kind", ["aux_bc_weight", "aux_value_weight"])
def test_a_weight_that_is_learned_is_left_to_torch(kind):
    policy = policy_for(kind=PPGPolicy)
    gradients, loss = policy.auxiliary.optimizer.gradients, policy.checked_auxiliary_loss
    policy.cfg.learn[kind] = torch.tensor(2.0)
    assert gradients.name_of(loss) == "closed form"
    policy.cfg.learn[kind] = torch.tensor(2.0, requires_grad=True)
    assert gradients.name_of(loss) != "closed form"


@pytest.mark.parametrize("network", ["discrete", "multi-discrete", "box, soft"])
@pytest.mark.parametrize("option", ["aux_bc_weight", "aux_value_weight"])
def test_weights_of_the_auxiliary_phase_have_the_gradient_that_torch_finds(option, network):
    obs_space, action_space, options = NETWORKS[network]
    found = []
    for weight in (0.0, 1.0, 3.0):
        learn = {option: weight, "grad_clip_type": None}
        policy = policy_for(obs_space, action_space, PPGPolicy, model=options, learn=learn)
        optimizer, loss, batch = (
            policy.auxiliary.optimizer,
            policy.checked_auxiliary_loss,
            auxiliary_batch(policy),
        )
        assert compared(optimizer, loss, batch) < TOLERANCE
        found.append(by_torch(optimizer, loss, batch).norm)
    assert len({round(float(norm), 4) for norm in found}) == 3, "the weight is without effect"


class OtherAuxiliaryLoss(PPGPolicy):
    def auxiliary_loss(self, batch):
        loss, terms = super().auxiliary_loss(batch)
        return 2 * loss, terms


class OtherAuxiliaryValue(PPG):
    def compute_auxiliary(self, obs):
        logit, auxiliary, value = super().compute_auxiliary(obs)
        return logit, 2 * auxiliary, value


def other_auxiliary_value():
    learn = dict(value_norm=False, allow_raw_values=True)  # PopArt would refuse the factor
    config = {"policy": {"type": "ppg", "learn": learn}, "env": {"env_id": "CartPole-v1"}}
    model = OtherAuxiliaryValue(VECTOR, DISCRETE)
    return PPGPolicy(compile_config(config).values.policy, VECTOR, DISCRETE, model=model)


def heard_auxiliary_head():
    policy = policy_for(kind=PPGPolicy)
    policy.model.auxiliary_head.register_forward_hook(lambda module, given, output: 2 * output)
    return policy


@pytest.mark.parametrize(
    ("make", "policy_phase"),
    [
        (lambda: policy_for(kind=OtherAuxiliaryLoss), True),
        (other_auxiliary_value, True),
        (heard_auxiliary_head, True),
        (lambda: policy_for(kind=PPGPolicy, learn=dict(aux_grad_accum=2)), True),
        (lambda: policy_for(kind=PPGPolicy, action_space=BOX, model=dict(box_distribution="beta")), False),
    ],
)
def test_an_auxiliary_phase_that_is_not_known_is_left_to_torch(make, policy_phase):
    policy = make()
    phase, gradients = policy.auxiliary, policy.auxiliary.optimizer.gradients
    assert gradients.name_of(policy.checked_auxiliary_loss) != "closed form"
    assert (policy.optimizer.gradients.name_of(policy.loss) == "closed form") is policy_phase
    if policy_phase:
        mine = gradient_of(phase.optimizer, policy.checked_auxiliary_loss, auxiliary_batch(policy))
        its = by_torch(phase.optimizer, policy.checked_auxiliary_loss, auxiliary_batch(policy))
        assert all(map(torch.equal, mine.values, its.values))


@pytest.mark.parametrize("action_space", [DISCRETE, MULTI, BOX])
@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_has_the_gradient_that_torch_finds(option, action_space):
    learn = dict(grad_clip_value=1e3, entropy_weight=0.1) | OPTIONS[option]
    policy = policy_for(action_space=action_space, learn=learn)
    plain = policy_for(action_space=action_space, learn=dict(grad_clip_value=1e3, entropy_weight=0.1))
    batch = batch_for(policy)
    assert compared(policy.optimizer, policy.loss, batch) < TOLERANCE
    theirs = by_torch(plain.optimizer, plain.loss, batch).values
    values = by_torch(policy.optimizer, policy.loss, batch).values
    differ = max(float((a - b).abs().max()) for a, b in zip(theirs, values, strict=True))
    # The negative control: the comparison above would see this option left out.
    assert (differ > 1e-4) == (option not in ("plain", "not clipped"))


@pytest.mark.parametrize("beyond", [3.0, -2.5])
def test_a_log_sigma_beyond_its_range_has_a_gradient_and_returns_in_one_step(beyond, monkeypatch):
    monkeypatch.setattr("ding_lite.models.heads.LOG_SIGMA_RANGE", (-2.0, 2.0))
    policy = policy_for(action_space=BOX)
    log_sigma = policy.model.actor_head.out.log_sigma
    with torch.no_grad():
        log_sigma[:2] = torch.tensor([beyond, 0.1])
    batch = batch_for(policy)
    place = [p is log_sigma for p in policy.optimizer.parameters].index(True)
    gradient = gradient_of(policy.optimizer, policy.loss, batch).values[place]
    assert gradient[0] != 0
    torch.testing.assert_close(gradient, by_torch(policy.optimizer, policy.loss, batch).values[place])
    take_step(policy.optimizer, policy.loss, batch)
    assert log_sigma[0] == max(-2.0, min(2.0, beyond))
    assert abs(log_sigma[1] - 0.1) < 0.01, "inside of the range a step is Adam's"


def test_schedules_move_the_closed_form_along():
    learn = dict(clip_schedule="linear", entropy_schedule="linear", value_clip=0.3, schedule_env_step=100)
    policy = policy_for(learn=learn)
    batch = batch_for(policy)
    found = []
    for policy.progress.env_step in (0, 50, 90):
        policy._apply_schedules()
        assert compared(policy.optimizer, policy.loss, batch) < TOLERANCE
        found.append(gradient_of(policy.optimizer, policy.loss, batch).metrics["clipfrac"])
    assert found[0] < found[1] < found[2]


def test_what_is_not_finite_is_told():
    policy = policy_for()
    for name, value in (
        ("advantage", torch.nan),
        ("log_prob", torch.nan),
        ("value_target", torch.nan),
        ("value_target", 3e19),  # whose error is beyond float32, and whose gradient is not
    ):
        batch = batch_for(policy)
        getattr(batch, name)[3] = value
        assert gradient_of(policy.optimizer, policy.loss, batch).bad == 1
        assert by_torch(policy.optimizer, policy.loss, batch).bad == 1


@pytest.mark.parametrize(
    ("advantage", "dual_clip"), [(1.0, None), (1.0, 3.0), (-1.0, 3.0)], ids=["clip", "both", "dual clip"]
)
def test_a_ratio_beyond_float32_moves_nothing_where_the_clip_holds(advantage, dual_clip):
    policy = policy_for(learn=dict(dual_clip=dual_clip))
    batch = batch_for(policy)
    for name, value in (("log_prob", -200.0), ("advantage", advantage)):
        getattr(batch, name)[3] = value
    found = gradient_of(policy.optimizer, policy.loss, batch)
    batch.log_prob[3] = -20.0  # as far outside of the clip, and inside of float32
    expected = gradient_of(policy.optimizer, policy.loss, batch).norm
    assert (found.bad, found.norm) == (0, pytest.approx(expected, rel=1e-6))


@pytest.mark.parametrize("action_space", [DISCRETE, MULTI])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32])
def test_actions_of_few_bits_are_the_same_actions(dtype, action_space):
    policy = policy_for(action_space=action_space)
    batch = batch_for(policy, n=300)
    expected = gradient_of(policy.optimizer, policy.loss, batch).norm
    batch.action = batch.action.to(dtype)
    assert gradient_of(policy.optimizer, policy.loss, batch).norm == expected


def flattened(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("turned", [False, True])
def test_steps_go_where_torchs_go(turned):
    trained = []
    for known in (True, False):
        policy = policy_for(learn=dict(learning_rate=1e-2))
        for weight in policy.model.parameters() if turned else ():  # not as the closed form's gradients lie
            weight.data = weight.data.t().contiguous().t()
        if not known:
            policy.fast.use_numpy = False
        for seed in range(20):
            take_step(policy.optimizer, policy.loss, batch_for(policy, seed=seed))
        trained.append(flattened(policy.model))
    assert torch.allclose(*trained, atol=1e-4)
    fresh = flattened(policy_for().model)
    assert (trained[0] - fresh).abs().max() > 0.05


class OtherPolicyLoss(PPOPolicy):
    def policy_loss(self, batch):
        loss, metrics = super().policy_loss(batch)
        return 2 * loss, metrics


class OtherValueLoss(PPOPolicy):
    def value_loss(self, batch):
        loss, metrics = super().value_loss(batch)
        return 2 * loss, metrics


class OtherLoss(PPOPolicy):
    def loss(self, batch):
        loss, metrics = super().loss(batch)
        return 2 * loss, metrics


class OtherPolicyTerm(PPOPolicy):
    def _policy_term(self, batch, logit):
        loss, metrics = super()._policy_term(batch, logit)
        return 2 * loss, metrics


class OtherValueTerm(PPOPolicy):
    def _value_term(self, batch, value):
        loss, metrics = super()._value_term(batch, value)
        return 2 * loss, metrics


@pytest.mark.parametrize(
    "kind", [OtherPolicyLoss, OtherValueLoss, OtherLoss, OtherPolicyTerm, OtherValueTerm]
)
def test_a_loss_of_ones_own_is_left_to_torch(kind):
    policy = policy_for(kind=kind)
    batch = batch_for(policy)
    mine = gradient_of(policy.optimizer, policy.loss, batch)
    assert policy.optimizer.gradients.name_of(policy.loss) != "closed form"
    assert all(map(torch.equal, mine.values, by_torch(policy.optimizer, policy.loss, batch).values))


class OtherOptions(PPOPolicy):
    def closed_form_options(self):
        return super().closed_form_options()._replace(clip_ratio=0.5)


class OtherAuxiliaryOptions(PPGPolicy):
    def auxiliary_closed_form_options(self):
        return super().auxiliary_closed_form_options()._replace(bc_weight=9.0)


def other_options_laid_over():
    policy = policy_for()
    policy.closed_form_options = lambda: PPOPolicy.closed_form_options(policy)._replace(clip_ratio=0.5)
    return policy


@pytest.mark.parametrize(
    ("make", "changed"),
    [
        (lambda: policy_for(kind=OtherOptions), "policy"),
        (other_options_laid_over, "policy"),
        (lambda: policy_for(kind=OtherAuxiliaryOptions), "auxiliary"),
    ],
)
def test_options_of_ones_own_leave_their_loss_to_torch_and_no_other(make, changed):
    policy = make()
    phases = {"policy": (policy.optimizer, policy.loss, batch_for(policy))}
    if isinstance(policy, PPGPolicy):
        loss = policy.checked_auxiliary_loss
        phases["auxiliary"] = (policy.auxiliary.optimizer, loss, auxiliary_batch(policy))
    for phase, (optimizer, loss, batch) in phases.items():
        assert (optimizer.gradients.name_of(loss) == "closed form") is (phase != changed)
        mine, its = gradient_of(optimizer, loss, batch), by_torch(optimizer, loss, batch)
        assert mine.norm == pytest.approx(float(its.norm), rel=1e-4)


class Heard(EasyDict):
    """A section of a config that notes the keys that are read."""

    def __getattribute__(self, name):
        if name in dict.keys(self):
            HEARD.add(name)
        return super().__getattribute__(name)


HEARD = set()


def keys_read(policy, function, *args):
    HEARD.clear()
    policy.cfg.learn = Heard(policy.cfg.learn)
    function(*args)
    return set(HEARD)


@pytest.mark.parametrize("kind", [PPOPolicy, PPGPolicy])
def test_the_options_look_at_every_key_that_their_loss_reads(kind):
    """So that a new term of a loss, which a key turns on, is not forgotten there."""
    policy = policy_for(kind=kind)
    losses = [(policy.loss, policy.closed_form_options, batch_for(policy))]
    if kind is PPGPolicy:
        losses.append(
            (
                policy.checked_auxiliary_loss,
                policy.auxiliary_closed_form_options,
                auxiliary_batch(policy),
            )
        )
    for loss, options, batch in losses:
        of_loss = keys_read(policy, loss, batch)
        assert of_loss
        assert of_loss <= keys_read(policy, options)


@pytest.mark.parametrize(
    ("obs_space", "action_space", "options"),
    [
        (MASK_OF_PARTS, MULTI, {}),
        (VECTOR, BOX, dict(model=dict(box_distribution="beta"))),
        (VECTOR, BOX, dict(model=dict(sigma_type="conditioned"))),
        (spaces.Box(0, 255, (10, 10, 3), np.uint8), DISCRETE, {}),
        (spaces.Dict(a=INDEX, b=spaces.Box(0, 255, (10, 10, 3), np.uint8)), DISCRETE, {}),
        (VECTORS, DISCRETE, dict(model=dict(encoder=dict(type="mlp", hidden_size_list=[8])))),
        (VECTOR, DISCRETE, dict(model=dict(activation="gelu"))),
        (VECTOR, DISCRETE, dict(model=dict(encoder_hidden_size_list=[1024, 1024]))),
        (VECTOR, DISCRETE, dict(learn=dict(kl_penalty=0.5))),
    ],
)
def test_what_is_not_known_is_left_to_torch(obs_space, action_space, options):
    policy = policy_for(obs_space, action_space, **options)
    assert policy.optimizer.gradients.name_of(policy.loss) != "closed form"


def test_steps_that_are_to_be_compiled_are_not_taken_in_closed_form():
    policy = policy_for(learn=dict(compile=True))
    assert policy.optimizer.gradients.name_of(policy.loss) == "compiled"


@pytest.mark.parametrize(("threads", "blas", "known"), [(1, "1", True), (4, "1", False), (1, "2", False)])
def test_wide_layers_are_left_to_torch_unless_both_have_one_thread(threads, blas, known, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", blas)
    policy = policy_for(model=dict(encoder_hidden_size_list=[256, 256]))
    assert (policy.optimizer.gradients.name_of(policy.loss) == "closed form") is known


def change_nothing(policy):
    pass


def listen(policy):
    policy.model.actor_encoder.trunk[0].register_forward_hook(lambda module, given, output: 2 * output)


def change_gradient(policy):
    policy.model.critic_encoder.trunk[0].weight.register_hook(lambda gradient: 0 * gradient)


def replace_layer(policy):
    policy.model.critic_encoder.trunk[0] = nn.Linear(4, 64)


def replace_loss(policy):
    policy.policy_loss = lambda batch: PPOPolicy.policy_loss(policy, batch)


def replace_forward(policy):
    layer = policy.model.actor_encoder.trunk[2]
    layer.forward = lambda x: 2 * nn.Linear.forward(layer, x)


def replace_method(policy):
    model = policy.model
    critic = model.compute_critic
    model.compute_actor_critic = lambda obs: (model.compute_actor(obs), 2 * critic(obs))


def replace_distribution(policy):
    distribution = policy.distribution
    policy.distribution = lambda obs, logit: distribution(obs, 2 * logit)


def tie_networks(policy):
    policy.model.critic_encoder = policy.model.actor_encoder


def tie_layers(policy):
    policy.model.critic_encoder.trunk[2] = policy.model.actor_encoder.trunk[2]


def wrap_layers(policy):
    class Twice(nn.Sequential):
        def forward(self, x):
            return 2 * super().forward(x)

    policy.model.actor_encoder.trunk = Twice(*policy.model.actor_encoder.trunk)


def begin_with_an_activation(policy):
    policy.model.actor_encoder.trunk = nn.Sequential(nn.Tanh(), *policy.model.actor_encoder.trunk)


def follow_an_activation_by_another(policy):
    policy.model.critic_encoder.trunk = nn.Sequential(*policy.model.critic_encoder.trunk, nn.ReLU())


def replace_parameter(policy):
    layer = policy.model.actor_encoder.trunk[0]
    layer.weight = nn.Parameter(layer.weight.data)  # on the same memory, and not the optimiser's


def double_the_clip(policy):
    policy.cfg.learn.update(clip_ratio=0.4, value_weight=2.0)


def replace_config(policy):
    policy.cfg.learn = type(policy.cfg.learn)({**policy.cfg.learn, "value_weight": 2.0})


@pytest.mark.parametrize(
    ("change", "known"),
    [
        *((change, True) for change in (change_nothing, double_the_clip, replace_config)),
        *((change, False) for change in (listen, change_gradient, replace_loss, replace_forward)),
        *((change, False) for change in (replace_method, replace_distribution, tie_networks, tie_layers)),
        *((change, False) for change in (wrap_layers, begin_with_an_activation)),
        *((change, False) for change in (replace_layer, replace_parameter, follow_an_activation_by_another)),
    ],
)
def test_what_is_changed_later_changes_the_gradient_as_torchs(change, known):
    policy = policy_for(learn=dict(grad_clip_type=None))
    batch = batch_for(policy)
    assert policy.optimizer.gradients.name_of(policy.loss) == "closed form"
    change(policy)
    assert (policy.optimizer.gradients.name_of(policy.loss) == "closed form") is known
    if change is not replace_layer:  # whose parameters the optimiser has not
        mine = gradient_of(policy.optimizer, policy.loss, batch).values
        its = by_torch(policy.optimizer, policy.loss, batch).values
        assert all(
            torch.allclose(a, b, atol=1e-5) if b is not None else a is None
            for a, b in zip(mine, its, strict=True)
        )


def test_a_network_that_is_frozen_later_is_not_trained():
    policy = policy_for()
    policy.model.critic_encoder.requires_grad_(False)
    before = {name: p.detach().clone() for name, p in policy.model.named_parameters()}
    take_step(policy.optimizer, policy.loss, batch_for(policy))
    moved = {name for name, p in policy.model.named_parameters() if not torch.equal(p, before[name])}
    assert moved == {name for name in before if not name.startswith("critic_encoder")}


def test_another_model_is_read_anew():
    policy, other = policy_for(), policy_for(model=dict(encoder_hidden_size_list=[9]))
    batch = batch_for(policy)
    policy.model = other.model
    assert torch.equal(policy.values(batch.obs), other.values(batch.obs))
    assert (
        policy.optimizer.gradients.name_of(policy.loss) != "closed form"
    )  # the optimiser is still of the old one
    assert other.optimizer.gradients.name_of(other.loss) == "closed form"


class Decorated(PPOPolicy):
    @functools.wraps(PPOPolicy.policy_loss)
    def policy_loss(self, batch):
        loss, metrics = PPOPolicy.policy_loss(self, batch)
        return 3 * loss, metrics


class LearnedEntropyWeight(PPOPolicy):
    @property
    def entropy_weight(self):
        return self.model.critic_head[-1].bias.exp()[0]


class SampleClip(PPOPolicy):
    @property
    def clip_ratio(self):
        return torch.full((N,), 0.2)


@pytest.mark.parametrize("kind", [Decorated, LearnedEntropyWeight, SampleClip])
def test_what_looks_like_the_original_and_is_not_is_left_to_torch(kind):
    policy = policy_for(kind=kind)
    batch = batch_for(policy)
    mine = gradient_of(policy.optimizer, policy.loss, batch).values
    assert all(map(torch.equal, mine, by_torch(policy.optimizer, policy.loss, batch).values))


def test_values_inside_of_the_clip_move_whatever_the_rounding():
    policy = policy_for(learn=dict(value_clip=0.5, grad_clip_type=None, entropy_weight=0.0))
    last = policy.model.critic_head[-1]
    with torch.no_grad():  # values near 0, where old + (value - old) is not the value
        last.weight.mul_(1e-4)
        last.bias.fill_(1e-3)
    batch = batch_for(policy, n=4096)
    batch.value = policy.model.compute_critic(batch.obs).detach() + 0.3 * torch.randn(4096)
    place = [p is last.bias for p in policy.optimizer.parameters].index(True)
    mine = gradient_of(policy.optimizer, policy.loss, batch).values[place]
    its = by_torch(policy.optimizer, policy.loss, batch).values[place]
    assert float((mine - its).abs()) < 1e-5


@pytest.mark.parametrize(("obs_space", "action_space"), [(MASKED, DISCRETE), (MULTI_MASKED, MULTI)])
def test_a_row_without_a_legal_action_moves_nothing(obs_space, action_space):
    policy = policy_for(obs_space, action_space)
    batch = batch_for(policy)
    batch.obs["action_mask"][:5] = False
    assert compared(policy.optimizer, policy.loss, batch) < TOLERANCE


def test_a_critic_of_one_layer_is_known_too():
    class OneLayer(VAC):
        def __init__(self, *spaces, **options):
            super().__init__(*spaces, **options)
            self.critic_head = nn.Linear(64, 1)
            self.value_heads = (self.critic_head,)

    cfg = compile_config({"env": {"env_id": "CartPole-v1"}}).values.policy
    policy = PPOPolicy(cfg, VECTOR, DISCRETE, model=OneLayer(VECTOR, DISCRETE))
    assert compared(policy.optimizer, policy.loss, batch_for(policy)) < TOLERANCE


def test_each_iteration_looks_at_the_policy_anew():
    policy, collector = trainee("ppo", world=SeededBox)
    policy.learn_mode.forward(collector.collect())
    assert policy.optimizer.gradients.name_of(policy.loss) == "closed form"
    asked = []
    policy.value_loss = lambda batch: asked.append(batch) or PPOPolicy.value_loss(policy, batch)
    updates = policy.learn_mode.forward(collector.collect())["updates"]
    assert len(asked) == updates


def test_nothing_is_read_of_a_policy_whose_loss_is_not_known():
    class OneWeightABranch(OtherPolicyLoss):
        entropy_weight = property(lambda self: pytest.fail("its losses alone know what this is"))

    policy = policy_for(kind=OneWeightABranch)
    assert policy.optimizer.gradients.name_of(policy.loss) != "closed form"


def test_closed_forms_are_looked_up_once_a_phase_and_each_time_outside_of_one(monkeypatch):
    policy, collector = trainee("ppo", world=SeededBox, learn=dict(epoch_per_collect=3))
    asked, find = [], policy.optimizer.gradients.of
    monkeypatch.setattr(policy.optimizer.gradients, "of", lambda loss: asked.append(loss) or find(loss))
    rollout = collector.collect()
    policy.learn_mode.forward(rollout)
    assert asked == [policy.loss]
    batch = next(policy.minibatches(rollout))
    for count in (2, 3):  # outside of one, each time
        gradient_of(policy.optimizer, policy.loss, batch)
        assert len(asked) == count


def test_a_copy_is_read_for_itself():
    policy = policy_for()
    batch = batch_for(policy)
    take_step(policy.optimizer, policy.loss, batch)
    other = copy.deepcopy(policy)
    with torch.no_grad():
        for p in other.model.parameters():
            p.mul_(2)
    for one in (other, policy):
        assert compared(one.optimizer, one.loss, batch) < 1e-5
        mine = gradient_of(one.optimizer, one.loss, batch).values
        its = by_torch(one.optimizer, one.loss, batch).values
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(mine, its, strict=True))
    replace_forward(other)
    assert other.optimizer.gradients.name_of(other.loss) != "closed form"
    assert policy.optimizer.gradients.name_of(policy.loss) == "closed form"


class MarkedSource(ReplaySource):
    def passes(self, clip_ratio, *, values_moved=False):
        for minibatches in super().passes(clip_ratio, values_moved=values_moved):
            yield (Batch(**batch.fields(), marked=True, remake=batch.remake) for batch in minibatches)


def test_minibatches_of_ones_own_making_are_used():
    class Marked(PPOPolicy):
        def _make_sources(self):
            return {"policy": MarkedSource(self, Limits(max_use=1), self.minibatch_generator, "buffer")}

    _, collector = trainee("ppo", cls=Marked)
    policy = collector.mode.get_train_sample.__self__
    seen = []
    policy.policy_loss = lambda batch: seen.append(batch.marked) or PPOPolicy.policy_loss(policy, batch)
    policy.learn_mode.forward(collector.collect())
    assert seen
    assert all(seen)


def test_a_model_on_other_memory_is_read_anew():
    policy = policy_for()
    batch = batch_for(policy)
    before = gradient_of(policy.optimizer, policy.loss, batch).values[0].clone()
    with torch.no_grad():
        for p in policy.model.parameters():
            p.data = 2 * p.data  # new memory behind the same parameter
    assert compared(policy.optimizer, policy.loss, batch) < 1e-5
    assert not torch.allclose(before, gradient_of(policy.optimizer, policy.loss, batch).values[0])


@pytest.mark.parametrize("action_space", [DISCRETE, MULTI, BOX])
@pytest.mark.parametrize("clip", [1.0, 1.5])
def test_a_clip_of_one_or_more_bounds_nothing_from_below(clip, action_space):
    policy = policy_for(action_space=action_space, learn=dict(clip_ratio=clip, grad_clip_type=None))
    batch = batch_for(policy)
    batch.log_prob[:8] += 3.0  # ratios near 0.05
    assert compared(policy.optimizer, policy.loss, batch) < TOLERANCE


@pytest.mark.parametrize(("advantage", "log_prob"), [(0.0, -200.0), (0.0, 200.0)])
def test_a_sample_without_an_advantage_moves_nothing_at_any_ratio(advantage, log_prob):
    policy = policy_for()
    batch = batch_for(policy)
    batch.advantage[3], batch.log_prob[3] = advantage, log_prob
    found = gradient_of(policy.optimizer, policy.loss, batch)
    batch.log_prob[3] = -2.0
    expected = gradient_of(policy.optimizer, policy.loss, batch).norm
    assert (found.bad, found.norm) == (0, pytest.approx(expected, rel=1e-6))


def test_a_gradient_beyond_float32_of_a_finite_loss_is_told():

    policy = policy_for()
    batch = batch_for(policy)
    batch.advantage[3], batch.log_prob[3] = 1e25, float(batch.log_prob[3])
    with torch.no_grad():
        dist = policy.distribution(batch.obs, policy.model.compute_actor(batch.obs))
        batch.log_prob = dist.log_prob(batch.action)
    assert gradient_of(policy.optimizer, policy.loss, batch).bad == 1
    assert by_torch(policy.optimizer, policy.loss, batch).bad == 1
