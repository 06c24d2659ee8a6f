"""The docstring examples that add a part: each runs as written, and a policy learns with the part."""

import copy
import inspect
import re
import sys
import textwrap
from abc import abstractmethod

import gymnasium as gym
import numpy as np
import pytest
import torch
from small_worlds import SeededBox, SeededEnv
from worlds import policy_for, trainee, vector_of

from ding_lite import ConfigError, PPOPolicy, SerialPipeline, load_policy
from ding_lite.config.compile import compile_config
from ding_lite.config.registry import ENCODER_REGISTRY, INTRINSIC_REGISTRY, MODEL_REGISTRY
from ding_lite.config.schema import default_values, merged_config
from ding_lite.data.collector import Collector
from ding_lite.errors import CheckpointError, ContractError, RegistryError
from ding_lite.models import PPG, VAC, actor_critic, encoders, heads
from ding_lite.models.heads import HEADS, make_head
from ding_lite.rl import distributions
from ding_lite.rl.distributions import BOX_DISTRIBUTIONS, LocationScale, Normal, register_box_distribution


@pytest.fixture(autouse=True)
def _tables_are_restored():
    tables = [BOX_DISTRIBUTIONS, HEADS, ENCODER_REGISTRY._entries, MODEL_REGISTRY._entries]
    before = [dict(table) for table in tables]
    yield
    for table, entries in zip(tables, before, strict=True):
        table.clear()
        table.update(entries)


def run_example(module, **names):
    """Runs the example in the docstring of a module, among the names of that module."""
    (example,) = re.findall(r"::\n\n((?: {4}.*\n|\n)+)", inspect.getdoc(module) + "\n")
    scope = {**vars(module), **names}
    exec(textwrap.dedent(example), scope)
    return scope


def assert_learns(world=SeededEnv, **policy):
    trained, collector = trainee("ppo", world, **policy)
    before = {name: p.detach().clone() for name, p in trained.model.named_parameters()}
    metrics = trained.learn_mode.forward(collector.collect())
    assert all(np.isfinite(value) for value in metrics.values())
    still = [name for name, p in trained.model.named_parameters() if torch.equal(p, before[name])]
    assert still == []
    return trained


# ------------------------------------------------------------------ a Box distribution


@pytest.mark.parametrize("sigma_type", ["independent", "conditioned"])
def test_example_of_a_box_distribution_is_learned_with(sigma_type):
    laplace = run_example(distributions)["Laplace"]
    policy = assert_learns(SeededBox, model={"box_distribution": "laplace", "sigma_type": sigma_type})
    dist = policy.model.distribution(policy.model.compute_actor(torch.zeros(1, *policy.obs_space.shape)))
    assert type(dist) is laplace


def test_example_of_a_box_distribution_is_that_of_torch():
    laplace = run_example(distributions)["Laplace"]
    draw = torch.Generator().manual_seed(0)
    mu, sigma, other_mu, other_sigma = (0.5 + torch.rand(5, 2, generator=draw) for _ in range(4))
    ours, other = laplace({"mu": mu, "sigma": sigma}), laplace({"mu": other_mu, "sigma": other_sigma})
    theirs = torch.distributions.Laplace(mu, sigma)
    kl = torch.distributions.kl_divergence(theirs, torch.distributions.Laplace(other_mu, other_sigma))
    action = ours.sample(torch.Generator().manual_seed(0))
    assert torch.allclose(ours.log_prob(action), theirs.log_prob(action).sum(-1))
    assert torch.allclose(ours.entropy(), theirs.entropy().sum(-1))
    assert torch.allclose(ours.kl(other), kl.sum(-1), atol=1e-6)
    wide = laplace({"mu": torch.zeros(40_000, 1), "sigma": torch.ones(40_000, 1)})
    sample = wide.sample(torch.Generator().manual_seed(0))
    assert sample.abs().mean().item() == pytest.approx(1.0, abs=0.03)  # the mean of |x| is the scale
    assert sample.mean().item() == pytest.approx(0.0, abs=0.03)


def test_box_distribution_that_is_not_registered_is_refused_by_the_config_and_by_the_head():
    config = {"env": {"type": SeededBox}, "policy": {"model": {"box_distribution": "laplace"}}}
    names = ", ".join(BOX_DISTRIBUTIONS)
    refused = rf"policy\.model\.box_distribution: .*{names}.*'laplace'"
    with pytest.raises(ConfigError, match=refused):
        compile_config(config)
    with pytest.raises(ConfigError, match=refused):
        make_head(gym.spaces.Box(-1, 1, (2,)), 3, box_distribution="laplace")
    run_example(distributions)
    assert compile_config(config).values.policy.model.box_distribution == "laplace"


def test_name_of_a_box_distribution_cannot_be_taken_twice():
    with pytest.raises(RegistryError, match=r"'normal'.*Normal"):
        register_box_distribution("normal")(type("Other", (Normal,), {}))
    assert BOX_DISTRIBUTIONS["normal"] is Normal
    assert register_box_distribution("normal")(Normal) is Normal


def changed(base, without=()):
    """Returns a subclass of a Box distribution in which methods are abstract again."""
    return type("Changed", (base,), {name: abstractmethod(lambda *args: None) for name in without})


@pytest.mark.parametrize(
    ("cls", "what"),
    [
        (changed(LocationScale), "Changed lacks entropy, kl, log_prob, sample"),
        (changed(Normal, without=["for_box", "mode"]), "Changed lacks for_box, mode"),
        (type("Apart", (), {}), "a subclass of .*BoxDistribution.*got <class '.*Apart'>"),
        (lambda logit: None, "a subclass of .*BoxDistribution.*lambda"),
    ],
)
def test_class_that_is_no_whole_box_distribution_is_refused_where_it_is_named(cls, what):
    with pytest.raises(ContractError, match=what):
        register_box_distribution("changed")(cls)
    assert "changed" not in BOX_DISTRIBUTIONS
    if isinstance(cls, type):
        with pytest.raises(ContractError, match=what):
            make_head(gym.spaces.Box(-1, 1, (2,)), 3, box_distribution=cls)


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """The name of a module with a Box distribution that is not registered."""
    text = "from ding_lite.rl.distributions import Normal\nclass Own(Normal): pass\n"
    (tmp_path / "own_distribution.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield "own_distribution"
    sys.modules.pop("own_distribution", None)


def test_box_distribution_is_an_import_path_or_a_class(own_module):
    path = f"{own_module}:Own"
    policy = assert_learns(SeededBox, model={"box_distribution": path})
    obs = torch.zeros(1, *policy.obs_space.shape)
    own = sys.modules[own_module].Own
    assert type(policy.model.distribution(policy.model.compute_actor(obs))) is own
    config = {"env": {"type": SeededBox}, "policy": {"model": {"box_distribution": own}}}
    assert compile_config(config).as_json()["config"]["policy"]["model"]["box_distribution"] == path


def test_import_path_of_a_box_distribution_that_leads_nowhere_is_named(own_module):
    for path in ("no_such_module:Own", f"{own_module}:Other"):
        with pytest.raises(RegistryError, match=f"Box distribution '{path}' cannot be imported"):
            make_head(gym.spaces.Box(-1, 1, (2,)), 3, box_distribution=path)
    for other in (3, None, "gauss"):
        names = ", ".join(BOX_DISTRIBUTIONS)
        with pytest.raises(ConfigError, match=rf'{names}.*{other}.*"package.module:Name"'):
            make_head(gym.spaces.Box(-1, 1, (2,)), 3, box_distribution=other)


def test_checkpoint_imports_the_module_of_a_box_distribution_only_if_it_is_trusted(own_module, tmp_path):
    policy = dict(
        model=dict(box_distribution=f"{own_module}:Own"), collect=dict(n_sample=16), learn=dict(batch_size=8)
    )
    env = dict(type=SeededBox, collector_env_num=2, evaluator_env_num=1, n_evaluator_episode=1)
    pipeline = SerialPipeline(dict(env=env, policy=policy, max_env_step=16), folder=tmp_path / "run")
    for _ in pipeline:
        pass
    del sys.modules[own_module]
    with pytest.raises(CheckpointError, match=f"module '{own_module}'.*not imported"):
        load_policy(tmp_path / "run", checkpoint="last")
    with pytest.raises(CheckpointError, match=own_module):
        SerialPipeline.resume(tmp_path / "run", trust=["small_worlds"])
    assert own_module not in sys.modules
    loaded = load_policy(tmp_path / "run", checkpoint="last", trust=[own_module])
    assert loaded.model.actor_head.out.kind == f"{own_module}:Own"


def test_checkpoint_with_a_box_distribution_that_is_not_registered_names_it(tmp_path):
    run_example(distributions)
    policy = dict(model=dict(box_distribution="laplace"), collect=dict(n_sample=16), learn=dict(batch_size=8))
    env = dict(type=SeededBox, collector_env_num=2, evaluator_env_num=1, n_evaluator_episode=1)
    pipeline = SerialPipeline(dict(env=env, policy=policy, max_env_step=16), folder=tmp_path / "run")
    for _ in pipeline:
        pass
    del BOX_DISTRIBUTIONS["laplace"]
    with pytest.raises(
        CheckpointError, match="needs the Box distribution 'laplace', which is not registered"
    ):
        load_policy(tmp_path / "run", checkpoint="last")


# ------------------------------------------------------------------ an encoder, a head, a model


def test_example_of_an_encoder_is_learned_with():
    fourier = run_example(encoders)["FourierEncoder"]
    policy = assert_learns(SeededBox, model={"encoder": {"type": "fourier", "frequencies": 2}})
    (leaf,) = policy.model.actor_encoder.leaves
    assert type(leaf) is fourier
    assert leaf(torch.zeros(3, 5)).shape == (3, 20)
    with pytest.raises(ConfigError, match="frequencies.*at least 1"):
        compile_config(
            {
                "env": {"type": SeededBox},
                "policy": {"model": {"encoder": {"type": "fourier", "frequencies": 0}}},
            }
        )


def test_example_of_a_head_is_learned_with():
    class SortedDiscrete(gym.spaces.Discrete):
        pass

    class SortedActions(SeededEnv):
        action_space = SortedDiscrete(3)

    sorted_head = run_example(heads, SortedDiscrete=SortedDiscrete)["SortedHead"]
    policy = assert_learns(SortedActions)
    assert type(policy.model.actor_head.out) is sorted_head


def test_subclass_of_a_space_has_the_head_of_that_space():
    class Renamed(gym.spaces.Discrete):
        pass

    assert type(make_head(Renamed(3), 2)) is heads.DiscreteHead


def test_example_of_a_model_is_learned_with():
    mine = run_example(actor_critic, torch=torch)["Mine"]
    envs = vector_of(lambda index: SeededBox(), 2)
    policy = policy_for(envs, model={"type": "mine", "width": 8}, learn={"batch_size": 8})
    assert type(policy.model) is mine
    before = copy.deepcopy(policy.model)
    policy.learn_mode.forward(Collector(envs, policy.collect_mode, 32).collect())
    for new, old in zip(policy.model.parameters(), before.parameters(), strict=True):
        assert not torch.equal(new, old)


@pytest.mark.parametrize(
    "cls",
    [registry.get(name) for registry in (MODEL_REGISTRY, INTRINSIC_REGISTRY) for name in registry.names()],
)
def test_defaults_of_the_arguments_are_those_of_the_keys(cls):
    """A model that a script makes is the one that a config makes; None leaves a choice to the class."""
    keys = default_values(merged_config(cls))
    compared = {}
    for owner in (owner for owner in cls.__mro__ if "__init__" in vars(owner)):
        for name, argument in inspect.signature(owner.__init__).parameters.items():
            if name in keys and argument.default not in (None, inspect.Parameter.empty):
                compared[owner.__name__, name] = (argument.default, keys[name])
    assert compared
    as_lists = {
        place: [list(x) if isinstance(x, tuple) else x for x in pair] for place, pair in compared.items()
    }
    assert {place: pair for place, pair in as_lists.items() if pair[0] != pair[1]} == {}


# ------------------------------------------------------------------ models that differ from the library's


class Steeper(VAC):
    """Replaces the policy's output alone."""

    def compute_actor(self, obs):
        return 5.0 * super().compute_actor(obs)


class Higher(PPG):
    """Replaces the value's output alone."""

    def compute_critic(self, obs):
        return super().compute_critic(obs) + 3.0


class SteeperPPG(PPG, Steeper):
    """Has a joint method from a class before the one that it has ``compute_actor`` from."""


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("kind", [Steeper, Higher, SteeperPPG])
def test_a_model_that_replaces_one_output_is_trained_on_what_it_acts_with(kind, share):
    is_ppg = issubclass(kind, PPG)
    layout = {"arch": "shared" if share else "dual"} if is_ppg else {"share_encoder": share}
    # What Higher adds is not in the units of its value head.
    learn = {"value_norm": False} | ({"allow_raw_values": True} if is_ppg else {})
    policy, collector = trainee("ppg" if is_ppg else "ppo", model={"type": kind, **layout}, learn=learn)
    batch, *_ = policy.minibatches(collector.collect())
    model, obs = policy.model, batch.obs
    logit, value = model.compute_actor_critic(obs)
    assert torch.equal(logit, model.compute_actor(obs))
    assert torch.equal(value, model.compute_critic(obs))
    assert float(policy.loss(batch)[1]["approx_kl"].detach()) < 1e-12
    if is_ppg:
        of_phase, _, value_of_phase = model.compute_auxiliary(obs)
        assert torch.equal(of_phase, logit)
        assert torch.equal(value_of_phase, value)


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("method", ["compute_actor", "compute_critic"])
@pytest.mark.parametrize("kind", ["ppo", "ppg"])
def test_an_output_that_is_assigned_to_a_model_is_what_it_acts_with_and_is_trained_on(kind, method, share):
    layout = {"arch": "shared" if share else "dual"} if kind == "ppg" else {"share_encoder": share}
    policy, collector = trainee(kind, model=layout)
    policy.learn_mode.forward(collector.collect())
    model = policy.model
    layers = getattr(model, method)
    setattr(model, method, lambda obs: 5.0 * layers(obs) + torch.ones(3 if method == "compute_actor" else 1))
    batch, *_ = policy.minibatches(collector.collect())
    logit, value = model.compute_actor_critic(batch.obs)
    assert torch.equal(logit, model.compute_actor(batch.obs))
    assert torch.equal(value, model.compute_critic(batch.obs))
    assert float(policy.loss(batch)[1]["approx_kl"].detach()) < 1e-12
    if kind == "ppg":
        logit, _, value = model.compute_auxiliary(batch.obs)
        assert torch.equal(logit, model.compute_actor(batch.obs))
        assert torch.equal(value, model.compute_critic(batch.obs))
    delattr(model, method)
    logit, value = model.compute_actor_critic(batch.obs)
    assert torch.equal(logit if method == "compute_actor" else value, layers(batch.obs))


def test_a_joint_method_that_is_assigned_too_is_taken_at_its_word():
    model = trainee("ppo")[0].model
    obs = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    layers, joint = model.compute_actor, model.compute_actor_critic
    expected = 1.0 + layers(obs)
    model.compute_actor = lambda obs: 1.0 + layers(obs)
    model.compute_actor_critic = lambda obs: (1.0 + joint(obs)[0], joint(obs)[1])
    assert torch.equal(model.compute_actor_critic(obs)[0], expected)


def test_a_model_with_a_memory_that_replaces_one_output_is_told_to_define_step():
    with pytest.raises(ContractError, match="it must define step"):
        trainee("ppo", model={"type": Steeper, "rnn": "gru"})[1].collect()
    policy, collector = trainee("ppo", model={"rnn": "gru"})
    collector.collect()
    layers = policy.model.compute_actor
    policy.model.compute_actor = lambda inputs: 5.0 * layers(inputs)
    with pytest.raises(ContractError, match="it must define step"):
        collector.collect()


class OwnJoint(VAC):
    """Returns both outputs in its own words, which begin with those of the library."""

    def compute_actor(self, obs):
        return super().compute_actor(obs) + torch.arange(3.0)

    def compute_actor_critic(self, obs):
        logit, value = super().compute_actor_critic(obs)
        return logit + torch.arange(3.0), value


class Written(OwnJoint):
    """Computes the same, and does more than that."""

    def compute_actor(self, obs):
        return super().compute_actor(obs).clone()


@pytest.mark.parametrize("kind", [OwnJoint, Written])
def test_a_joint_method_of_ones_own_gets_the_library_s_layers_from_the_library_s(kind):
    model = trainee("ppo", model={"type": kind})[0].model
    obs = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    logit, value = model.compute_actor_critic(obs)
    assert torch.equal(logit, model.compute_actor(obs))
    assert torch.equal(value, model.compute_critic(obs))


class Dropping(torch.nn.Module):
    """Notes whether it is in training mode, and drops half of its features there."""

    seen: list[bool] = []  # noqa: RUF012 - of the whole class

    def __init__(self, space):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(*space.shape, 8), torch.nn.Dropout(0.5))
        self.out_features = 8

    def forward(self, obs):
        self.seen.append(self.training)
        return self.layers(obs)


@pytest.mark.parametrize("kind", ["ppo", "ppg", "ppo_offpolicy"])
def test_layers_such_as_dropout_are_in_training_mode_in_gradient_steps_alone(kind):
    learn = {"aux_freq": 1} if kind == "ppg" else {}
    policy, collector = trainee(kind, model={"encoder": {"type": Dropping}}, learn=learn)
    Dropping.seen.clear()
    rollout = collector.collect()
    assert not any(Dropping.seen)
    obs = policy.obs_space.sample()
    assert len({int(policy.act(obs)) for _ in range(20)}) == 1
    policy.learn_mode.forward(rollout)
    assert any(Dropping.seen)
    assert not policy.model.training


@pytest.mark.parametrize("change", ["unfrozen", "replaced"])
def test_a_layer_that_no_optimiser_has_is_refused(change):
    class Frozen(VAC):
        def __init__(self, *spaces, **options):
            super().__init__(*spaces, **options)
            self.actor_encoder.requires_grad_(False)

    policy, collector = trainee("ppo", model={"type": Frozen})
    policy.learn_mode.forward(collector.collect())
    if change == "unfrozen":
        policy.model.actor_encoder.requires_grad_(True)
    else:
        policy.model.critic_head[-1] = torch.nn.Linear(8, 1)
    name = "actor_encoder.trunk.0.weight" if change == "unfrozen" else "critic_head.0.weight"
    with pytest.raises(ContractError, match=f"the optimisers do not have the model's {name}"):
        policy.learn_mode.forward(collector.collect())


def test_a_module_that_a_policy_has_beside_its_model_is_said_not_to_be_trained():
    class Owner(PPOPolicy):
        def _init_shared(self):
            super()._init_shared()
            self.extra = torch.nn.Linear(4, 1)

    policy, _ = trainee("ppo", cls=Owner)
    assert any(
        line.startswith("WARNING: policy.extra is no part of policy.model") for line in policy.describe()
    )
    assert not any("is no part of" in line for line in trainee("ppo")[0].describe())


def test_coefficients_that_are_assigned_hold_from_the_next_iteration_on():
    policy, _ = trainee("ppo")
    assert float(policy.entropy_weight) == 0.01  # the default of discrete actions
    policy.cfg.learn.entropy_weight = 0.5
    assert float(policy.entropy_weight) == 0.5


@pytest.mark.parametrize(
    "normed", [torch.nn.utils.spectral_norm, torch.nn.utils.parametrizations.spectral_norm]
)
def test_spectral_norm_is_in_training_mode_in_gradient_steps(normed):
    class Normed(torch.nn.Module):
        def __init__(self, space):
            super().__init__()
            self.layer = normed(torch.nn.Linear(*space.shape, 8))
            self.out_features = 8

        def forward(self, obs):
            return self.layer(obs)

    Normed.__module__ = "ding_lite.models"  # only the layer tells that there is a mode
    policy, collector = trainee("ppo", model={"encoder": {"type": Normed}})
    layer = policy.model.actor_encoder
    while not isinstance(layer, Normed):
        layer = next(layer.children())
    before = {name: buffer.clone() for name, buffer in layer.named_buffers()}
    assert before
    policy.learn_mode.forward(collector.collect())
    assert all(not torch.equal(buffer, before[name]) for name, buffer in layer.named_buffers())


def test_a_model_whose_layers_are_all_frozen_is_refused():
    class Frozen(VAC):
        def __init__(self, *spaces, **options):
            super().__init__(*spaces, **options)
            self.requires_grad_(False)

    with pytest.raises(ContractError, match="no parameter: all layers that its loss reaches are frozen"):
        trainee("ppo", model={"type": Frozen})


class NewValueHead(VAC):
    """Replaces the layers of the value, and not ``value_heads``."""

    def __init__(self, *spaces, **options):
        super().__init__(*spaces, **options)
        features = self.critic_head[-1].in_features
        self.critic_head = torch.nn.Sequential(torch.nn.Linear(features, 1))


class SmallerOfTwo(VAC):
    """Has a second value, which it does not name."""

    def __init__(self, *spaces, **options):
        super().__init__(*spaces, **options)
        self.second = torch.nn.Linear(self.critic_head[-1].in_features, 1)

    def compute_critic(self, obs):
        features = self.critic_encoder(obs)
        return torch.minimum(self.critic_head(features), self.second(features)).squeeze(-1)


@pytest.mark.parametrize("kind", [NewValueHead, SmallerOfTwo])
def test_a_value_that_popart_would_not_rescale_is_refused(kind):
    message = rf"the values of {kind.__name__}\.compute_critic do not come from its value_heads"
    with pytest.raises(ContractError, match=message):
        trainee("ppo", model={"type": kind})
    policy, _ = trainee("ppo", model={"type": kind}, learn={"value_norm": False})
    named = kind(policy.obs_space, policy.action_space)
    named.value_heads = (named.critic_head[-1], *([named.second] if kind is SmallerOfTwo else []))
    weights = [head.weight.clone() for head in named.value_heads]
    PPOPolicy(trainee("ppo")[0].cfg, policy.obs_space, policy.action_space, model=named)
    assert all(torch.equal(head.weight, w) for head, w in zip(named.value_heads, weights, strict=True))


@pytest.mark.parametrize(
    ("kind", "method", "place", "told"),
    [
        ("ppo", "compute_actor_critic", 0, "compute_actor_critic returns another output than compute_actor"),
        ("ppo", "compute_actor_critic", 1, "compute_actor_critic returns another output than compute_critic"),
        ("ppg", "compute_auxiliary", 0, "compute_auxiliary returns another output than compute_actor"),
        ("ppg", "compute_auxiliary", 2, "compute_auxiliary returns another output than compute_critic"),
    ],
)
def test_a_joint_method_that_contradicts_the_single_ones_is_refused(kind, method, place, told):
    base = PPG if kind == "ppg" else VAC

    def joint(self, obs):
        outputs = list(getattr(base, method)(self, obs))
        outputs[place] = outputs[place] + 0.5
        return tuple(outputs)

    with pytest.raises(ContractError, match=told):
        trainee(kind, model={"type": type("Contrary", (base,), {method: joint})})
