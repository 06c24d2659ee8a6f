"""The docstring examples that add a part: each runs as written, and a policy learns with the part."""

import copy
import inspect
import re
import sys
import textwrap

import gymnasium as gym
import numpy as np
import pytest
import torch
from small_worlds import SeededBox, SeededEnv
from worlds import policy_for, trainee, vector_of

from ding_lite import ConfigError, SerialPipeline, load_policy
from ding_lite.config.compile import compile_config
from ding_lite.config.registry import (
    BOX_DISTRIBUTION_REGISTRY,
    ENCODER_REGISTRY,
    INTRINSIC_REGISTRY,
    MODEL_REGISTRY,
)
from ding_lite.config.schema import default_values, merged_config
from ding_lite.data.collector import Collector
from ding_lite.errors import CheckpointError
from ding_lite.models import actor_critic, encoders, heads
from ding_lite.models.heads import HEADS
from ding_lite.rl import distributions


@pytest.fixture(autouse=True)
def _tables_are_restored():
    tables = [BOX_DISTRIBUTION_REGISTRY.entries, HEADS, ENCODER_REGISTRY.entries, MODEL_REGISTRY.entries]
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


def run_laplace():
    return run_example(distributions, BOX_DISTRIBUTION_REGISTRY=BOX_DISTRIBUTION_REGISTRY)


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
    laplace = run_laplace()["Laplace"]
    policy = assert_learns(SeededBox, model={"box_distribution": "laplace", "sigma_type": sigma_type})
    dist = policy.model.distribution(policy.model.compute_actor(torch.zeros(1, *policy.obs_space.shape)))
    assert type(dist) is laplace


def test_example_of_a_box_distribution_is_that_of_torch():
    laplace = run_laplace()["Laplace"]
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


def test_box_distribution_that_is_not_registered_is_refused():
    config = {"env": {"type": SeededBox}, "policy": {"model": {"box_distribution": "laplace"}}}
    refused = r"policy\.model\.box_distribution: .*named 'laplace'.* tanh_normal"
    with pytest.raises(ConfigError, match=refused):
        compile_config(config)
    run_laplace()
    assert compile_config(config).values.policy.model.box_distribution == "laplace"


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


def test_checkpoint_imports_the_module_of_a_box_distribution_only_if_it_is_trusted(own_module, tmp_path):
    policy = dict(
        model=dict(box_distribution=f"{own_module}:Own"), collect=dict(n_sample=16), learn=dict(batch_size=8)
    )
    env = dict(type=SeededBox, collector_env_num=2, evaluator_env_num=1, n_evaluator_episode=1)
    pipeline = SerialPipeline(dict(env=env, policy=policy, max_env_step=16), folder=tmp_path / "run")
    for _ in pipeline:
        pass
    del sys.modules[own_module]
    with pytest.raises(CheckpointError, match=own_module):
        load_policy(tmp_path / "run", checkpoint="last")
    with pytest.raises(CheckpointError, match=own_module):
        SerialPipeline.resume(tmp_path / "run", trust=["small_worlds"])
    assert own_module not in sys.modules
    loaded = load_policy(tmp_path / "run", checkpoint="last", trust=[own_module])
    assert loaded.model.actor_head.out.kind == f"{own_module}:Own"


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


def test_example_of_a_model_is_learned_with():
    mine = run_example(actor_critic, torch=torch)["Mine"]
    envs = vector_of(lambda index: SeededBox(), 2)
    policy = policy_for(envs, model={"type": "mine", "width": 8}, learn={"batch_size": 8})
    assert type(policy.model) is mine
    before = copy.deepcopy(policy.model)
    policy.learn_mode.forward(Collector(envs, policy, 32).collect())
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
