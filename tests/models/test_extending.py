"""Distributions and heads of a user; docs/own_parts.md has the other parts, and its examples run."""

import inspect
import sys

import gymnasium as gym
import numpy as np
import pytest
import torch
from small_worlds import SeededBox, SeededEnv
from worlds import trainee

from ding_lite.config.compile import compile_config
from ding_lite.config.registry import INTRINSIC_REGISTRY, MODEL_REGISTRY
from ding_lite.config.schema import default_values, merged_config
from ding_lite.models.heads import HEADS, Head
from ding_lite.rl.distributions import Categorical


def assert_learns(world=SeededEnv, **policy):
    trained, collector = trainee("ppo", world, **policy)
    before = {name: p.detach().clone() for name, p in trained.model.named_parameters()}
    metrics = trained.learn_mode.forward(collector.collect())
    assert all(np.isfinite(value) for value in metrics.values())
    still = [name for name, p in trained.model.named_parameters() if torch.equal(p, before[name])]
    assert still == []
    return trained


# ------------------------------------------------------------------ a Box distribution


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


# ------------------------------------------------------------------ an encoder


class Pretrained(torch.nn.Linear):
    def __init__(self, space):
        super().__init__(space.shape[0], 5)
        self.memory = torch.nn.GRU(5, 5)
        for parameter in self.parameters():
            torch.nn.init.constant_(parameter.requires_grad_(False), 0.5)


@pytest.mark.parametrize("init", ["orthogonal", "normed"])
def test_an_encoder_of_the_user_keeps_the_weights_that_it_was_made_with(init):
    own = {"encoder": {"type": f"{__name__}:Pretrained"}}
    policy, _ = trainee("ppo", model=own | {"init": init}, intrinsic={"type": "rnd", **own})
    for encoder in (policy.model.actor_encoder, policy.intrinsic.reward.target[0]):
        assert all((parameter == 0.5).all() for parameter in encoder.leaves.parameters())
        assert not (encoder.trunk[0].weight == 0.5).any()


# ------------------------------------------------------------------ a head


class SortedDiscrete(gym.spaces.Discrete):
    """Its actions are in an order."""


class SortedActions(SeededEnv):
    action_space = SortedDiscrete(3)


class SortedHead(Head):
    """Neighbours have similar probabilities."""

    def __init__(self, space, **box_options):
        super().__init__()
        self.size, self.start = 1, int(space.start)
        self.register_buffer("place", torch.linspace(-1, 1, int(space.n)))

    def logit(self, raw):
        return -(raw - self.place).square()

    def distribution(self, logit, mask=None):
        return Categorical(logit, mask)

    def to_env(self, action):
        return action + self.start


def test_a_head_of_another_space_is_learned_with(monkeypatch):
    monkeypatch.setitem(HEADS, SortedDiscrete, SortedHead)
    policy = assert_learns(SortedActions)
    assert type(policy.model.actor_head.out) is SortedHead


# ------------------------------------------------------------------ arguments


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
