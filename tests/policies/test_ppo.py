"""PPO's iteration: its epochs, schedules, learning rates, scales, and steps that are not finite."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from small_worlds import SeededBox, SeededEnv
from worlds import digest, trainee

from ding_lite import ConfigError, NumericsError, PPOPolicy, compile_config
from ding_lite.data.samples import Batch
from ding_lite.errors import ContractError
from ding_lite.models import VAC


def parameters(policy):
    return [p.detach().clone() for p in policy.model.parameters()]


def equal(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


# ------------------------------------------------------------------ the KL decides: target_kl, adaptive rates


class Silent(PPOPolicy):
    def policy_loss(self, batch):
        return super().policy_loss(batch)[0], {}


def test_target_kl_stops_the_policy_and_the_value_goes_on():
    learn = dict(epoch_per_collect=6, learning_rate=0.02, value_norm=False)
    (policy, collector), (shorter, other) = (
        trainee("ppo", learn={**learn, **more}) for more in (dict(target_kl=1e-4), dict(epoch_per_collect=1))
    )
    before = digest(policy.model.actor_head.state_dict())
    metrics = policy.learn_mode.forward(collector.collect())
    assert (metrics["epochs"], metrics["updates"]) == (1, 6 * 4)
    shorter.learn_mode.forward(other.collect())
    actors, critics = (
        [digest(each.model.get_submodule(name).state_dict()) for each in (policy, shorter)]
        for name in ("actor_head", "critic_head")
    )
    assert actors[0] == actors[1] != before
    assert critics[0] != critics[1]
    policy, collector = trainee("ppo", learn=learn)
    assert policy.learn_mode.forward(collector.collect())["epochs"] == 6
    policy, collector = trainee("ppo", learn={**learn, "target_kl": 1e-4}, model=dict(share_encoder=True))
    assert policy.learn_mode.forward(collector.collect())["updates"] == 4, "steps of the value move both"


@pytest.mark.parametrize("learn", [{}, dict(target_kl=0.02), dict(lr_schedule="adaptive")])
def test_a_loss_without_approx_kl_is_refused_where_it_is_needed(learn):
    policy, collector = trainee("ppo", cls=Silent, learn=learn)
    rollout = collector.collect()
    if not learn:
        policy.learn_mode.forward(rollout)
        return
    with pytest.raises(ContractError, match="lr_schedule='adaptive' need the metric 'approx_kl'"):
        policy.learn_mode.forward(rollout)


def test_the_adaptive_rate_brings_the_kl_near_the_desired_one():
    learn = {"lr_schedule": "adaptive", "desired_kl": 0.01, "learning_rate": 1e-5}
    policy, collector = trainee("ppo", SeededBox, n_sample=256, learn=learn)
    kls = [policy.learn_mode.forward(collector.collect())["approx_kl"] for _ in range(12)]
    assert kls[0] < 0.002
    assert 0.004 < sum(kls[6:]) / 6 < 0.025


# ------------------------------------------------------------------ schedules, scales


@pytest.mark.parametrize("rate", [-1e-9, math.nan, math.inf])
def test_a_learning_rate_that_would_undo_learning_is_refused(rate):
    policy = trainee("ppo")[0]
    with pytest.raises(ContractError, match="learning_rate: expected a finite number at least 0, got"):
        policy.learning_rate = rate


def test_entropy_weight_defaults_to_a_bonus_for_discrete_actions_only():
    assert [float(trainee("ppo", world)[0].entropy_weight) for world in (SeededEnv, SeededBox)] == [0.01, 0.0]


class Headless(VAC):
    """A model that names no value heads."""

    def __init__(self, *spaces, **options):
        super().__init__(*spaces, **options)
        self.value_heads = ()


class WithoutBias(VAC):
    """A model whose value head has no bias, which PopArt could not correct."""

    def __init__(self, *spaces, **options):
        super().__init__(*spaces, **options)
        self.value_heads[0].bias = None


@pytest.mark.parametrize("model", [Headless, WithoutBias])
def test_value_norm_needs_value_heads_with_a_bias(model):
    policy = {"model": {"type": model}, "learn": {"value_norm": True}}
    cfg = compile_config({"env": {"type": SeededEnv}, "policy": policy})
    spaces = SeededEnv.observation_space, SeededEnv.action_space
    with pytest.raises(ConfigError, match=rf"value_norm: PopArt.*{model.__name__}.value_heads.*bias"):
        PPOPolicy(cfg.values.policy, *spaces)
    cfg.values.policy.learn.value_norm = False
    given = model(*spaces)
    before = [p.clone() for p in given.parameters()]
    policy = PPOPolicy(cfg.values.policy, *spaces, model=given)
    assert policy.model is given
    assert equal(before, given.parameters()), "a model passed in is never initialised again"


# ------------------------------------------------------------------ numbers that are not finite


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize(
    ("log_prob", "words"),
    [
        (math.nan, r"inputs that are not: log_prob; results: \{.*'policy_loss': nan"),
        (-200.0, r"inputs that are not: none found; results: \{.*'approx_kl': inf"),
    ],
)
def test_a_step_that_is_not_finite_changes_nothing_and_is_named(log_prob, words, own):
    class Own(PPOPolicy):
        def policy_loss(self, batch):
            return super().policy_loss(batch)

    policy, collector = trainee("ppo", cls=Own if own else None, learn=dict(value_norm=False))
    rollout = collector.collect()
    rollout.log_prob[:] = log_prob
    before, moments = parameters(policy), digest(policy.optimizer.state_dict())
    with pytest.raises(NumericsError, match=f"gradient step 1 of the loss was not finite .*{words}"):
        policy.learn_mode.forward(rollout)
    assert equal(before, parameters(policy))
    assert digest(policy.optimizer.state_dict()) == moments


class Huge(SeededEnv):
    def step(self, action):
        obs, reward, *rest = super().step(action)
        return (obs, 1e30 * reward, *rest)


def test_rewards_of_any_size_are_learned_from_in_their_own_scale():
    policy, collector = trainee("ppo", Huge, learn=dict(value_norm=True))
    for _ in range(3):
        assert np.isfinite(list(policy.learn_mode.forward(collector.collect()).values())).all()
    assert all(torch.isfinite(p).all() for p in policy.model.parameters())
    without, collector = trainee("ppo", Huge, learn=dict(value_norm=False))
    with pytest.raises(NumericsError, match=r"'value_loss': inf.*look at the scale of the rewards"):
        without.learn_mode.forward(collector.collect())


def test_a_minibatch_says_what_it_has():
    with pytest.raises(AttributeError, match="a minibatch has no 'rewards'; it has reward"):
        Batch(reward=torch.zeros(1)).rewards  # noqa: B018
