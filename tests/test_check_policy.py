"""``check_policy`` passes what is shipped, and finds distributions and losses that are wrong."""

from __future__ import annotations

import pytest
import torch

from ding_lite import BOX_DISTRIBUTION_REGISTRY, PPGPolicy, PPOPolicy, check_policy
from ding_lite.errors import ContractError
from ding_lite.models import PPG, VAC
from ding_lite.rl.distributions import Normal
from ding_lite.testing import ACTION_SPACES

# ------------------------------------------------------------------ what is shipped


@pytest.mark.parametrize(
    "model",
    [
        *(dict(box_distribution=kind) for kind in BOX_DISTRIBUTION_REGISTRY.names()),
        *(dict(box_distribution="tanh_normal", sigma_type=kind) for kind in ("conditioned", "fixed")),
    ],
    ids=str,
)
def test_every_distribution_of_a_box_passes(model):
    check_policy("ppo", dict(model=model), learns=False, action_spaces=["Box"])


@pytest.mark.parametrize("kind", [kind for kind in ACTION_SPACES if kind != "Box"])
def test_every_kind_of_action_passes(kind):
    check_policy("ppo", learns=False, action_spaces=[kind])


class DiscreteOnly(PPOPolicy):
    def policy_loss(self, batch):
        assert int(self.action_space.n) == 3
        return super().policy_loss(batch)


def test_kinds_of_actions_that_a_policy_is_not_for_are_named_and_can_be_left_out():
    with pytest.raises(AttributeError, match="'n'") as found:
        check_policy(DiscreteOnly, learns=False)
    assert found.value.__notes__[0].endswith("on MultiDiscrete actions")
    check_policy(DiscreteOnly, learns=False, action_spaces=["Discrete"])


# ------------------------------------------------------------------ distributions that are wrong


class NoLogSigma(Normal):
    def log_prob(self, action):
        return super().log_prob(action) + self.sigma.log().sum(-1)


class OtherSign(Normal):
    def entropy(self):
        return super().entropy() - 2 * self.sigma.log().sum(-1)


class ThreeKls(Normal):
    def kl(self, other):
        return 3 * super().kl(other)


class TooWide(Normal):
    """Its samples have twice its sigma."""

    def sample(self, generator=None):
        return self.mu.detach() + 2 * (super().sample(generator) - self.mu.detach())


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        (NoLogSigma, "NoLogSigma.log_prob"),
        (OtherSign, "OtherSign.entropy"),
        (ThreeKls, "ThreeKls.kl"),
        (TooWide, "TooWide.(log_prob|entropy)"),
    ],
)
def test_wrong_distribution_is_found(wrong, what):
    with pytest.raises(ContractError, match=f"on Box actions: expected: {what}"):
        check_policy("ppo", dict(model=dict(box_distribution=wrong)), learns=False, action_spaces=["Box"])


# ------------------------------------------------------------------ losses that write into their minibatch


class WritesAdvantage(PPOPolicy):
    def policy_loss(self, batch):
        batch.advantage.mul_(2)
        return super().policy_loss(batch)


class WritesObs(PPGPolicy):
    def auxiliary_loss(self, batch):
        result = super().auxiliary_loss(batch)
        with torch.no_grad():
            batch.obs.add_(1)
        return result


@pytest.mark.parametrize(
    ("policy", "what"),
    [
        (WritesAdvantage, "loss changes nothing in its minibatch, got other values in batch.advantage:"),
        (WritesObs, "auxiliary_loss changes .* in batch.obs:"),
    ],
)
def test_a_loss_that_writes_into_its_minibatch_is_found(policy, what):
    with pytest.raises(ContractError, match=what):
        check_policy(policy, learns=False, action_spaces=["Box"])


# ------------------------------------------------------------------ models that are wrong


class NewValueHead(VAC):
    """Replaces the layers of the value, and not ``value_heads``."""

    def __init__(self, *spaces, **options):
        super().__init__(*spaces, **options)
        self.critic_head = torch.nn.Sequential(torch.nn.Linear(self.critic_head[-1].in_features, 1))


def contrary(base, method, place):
    def joint(self, obs):
        outputs = list(getattr(base, method)(self, obs))
        outputs[place] = outputs[place] + 0.5
        return tuple(outputs)

    return type("Contrary", (base,), {method: joint})


@pytest.mark.parametrize(
    ("policy", "model", "told"),
    [
        ("ppo", contrary(VAC, "step", 1), "value recomputed"),
        ("ppo", NewValueHead, "values come from NewValueHead.value_heads"),
        ("ppo", contrary(VAC, "compute_actor_critic", 0), "compute_actor_critic .* output of compute_actor,"),
        ("ppg", contrary(PPG, "compute_auxiliary", 2), "compute_auxiliary .* output of compute_critic"),
    ],
)
def test_a_model_whose_methods_contradict_each_other_is_found(policy, model, told):
    rnn = "gru" if "step" in vars(model) else None
    config = {"model": {"type": model, "rnn": rnn}, "learn": {"value_norm": True}}
    with pytest.raises(ContractError, match=told):
        check_policy(policy, config, learns=False, action_spaces=["Discrete"])
