"""PPG: who trains what and when, its auxiliary phase, what it refuses, and losses of the user."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from anything import Anything
from worlds import trainee

from ding_lite import PPGPolicy, check_policy
from ding_lite.errors import ContractError
from ding_lite.models import PPG

# ------------------------------------------------------------------ the policy phase


def spied(policy):
    """Returns the list that the name of each optimiser is put into at each of its steps."""
    log = []
    for name, optimizer in policy.parts.items():
        if name.endswith("optimizer"):
            step = optimizer._step
            optimizer._step = lambda *arguments, n=name, step=step: log.append(n) or step(*arguments)
    return log


@pytest.mark.parametrize(("actor", "critic"), [(1, 2), (4, 2), (3, 3)])
def test_unequal_epochs_are_value_first_then_policy_and_equal_ones_are_one_loop(actor, critic):
    epochs = dict(actor_epoch_per_collect=actor, critic_epoch_per_collect=critic)
    policy, collector = trainee("ppg", learn=epochs | dict(aux_freq=2, aux_train_epoch=2))
    loops = "one loop, one Adam" if actor == critic else "a loop and an Adam each"
    assert [line for line in policy.lines if line.startswith(f"policy and value: {loops}")]
    log = spied(policy)
    for iteration in (1, 2):
        told = policy.learn_mode.forward(collector.collect())
        phase = ["aux_optimizer"] * 2 * 8 * (iteration == 2)
        value = ["value_optimizer"] * 4 * critic if actor != critic else []
        assert log == value + ["optimizer"] * 4 * actor + phase
        log.clear()
        assert told["updates"] == 4 * (actor + critic if actor != critic else actor)
        assert told["epochs"] == actor
        assert told.get("aux_updates", 0) == len(phase)


# ------------------------------------------------------------------ the auxiliary phase


def test_the_kl_that_is_told_is_of_the_end_of_the_phase_from_old_to_new():
    learn = dict(aux_freq=1, aux_train_epoch=2, aux_learning_rate=0.1, aux_bc_weight=0.0)
    policy, collector = trainee("ppg", learn=learn, model=dict(init_gain=dict(policy=2.0)))
    phase, found = policy.auxiliary_phase, {}

    @torch.no_grad()
    def dist_of(obs):
        inputs = policy._inputs(obs)
        return policy.distribution(inputs, policy.model.compute_actor(inputs))

    def recorded():
        obs = policy.store.samples().fields["obs"].clone()
        old = dist_of(obs)
        found["told"] = phase()["aux_kl"]
        new = dist_of(obs)
        found.update(right=float(old.kl(new).mean()), wrong=float(new.kl(old).mean()))
        return {}

    policy.auxiliary_phase = recorded
    policy.learn_mode.forward(collector.collect())
    assert found["told"] == pytest.approx(found["right"], rel=1e-4)
    assert found["told"] != pytest.approx(found["wrong"], rel=1e-2)


def test_the_store_holds_raw_images_at_their_own_dtype():
    world = partial(Anything, "image-hwc", "discrete")
    policy, collector = trainee("ppg", world, learn=dict(aux_freq=2), normalize=dict(obs=True))
    rollout = collector.collect()
    policy.learn_mode.forward(rollout)
    stored = policy.store.samples().fields["obs"]
    assert stored.dtype == torch.uint8
    assert torch.equal(stored.sum(), rollout.obs.sum())


DI_ENGINE = {
    *("policy_loss", "value_loss", "entropy_loss", "policy_adv_abs_max"),
    *("approx_kl", "clipfrac", "aux_value_loss", "auxiliary_loss", "behavioral_cloning_loss"),
}


@pytest.mark.parametrize("critic", [1, 2])
@pytest.mark.parametrize("kind", ["ppg", "ppg_offpolicy"])
def test_metrics_are_finite_and_those_of_di_engine_are_among_them(kind, critic):
    policy, collector = trainee(kind, learn=dict(aux_freq=2, critic_epoch_per_collect=critic))
    rollout = collector.collect()
    rollout.advantage[3, 1] = -1000.0
    told = policy.learn_mode.forward(rollout)
    assert told["policy_adv_abs_max"] == 1000.0
    told |= policy.learn_mode.forward(collector.collect())
    assert all(math.isfinite(value) for value in told.values())
    assert told.keys() >= DI_ENGINE
    assert ("value_grad_norm" in told) == (critic == 2)


def test_new_episodes_begin_with_an_empty_store():
    """Its samples may be of other environments."""
    policy, collector = trainee("ppg", learn=dict(aux_freq=3))
    policy.learn_mode.forward(collector.collect())
    assert policy.store.size
    policy.forget_stored()
    assert (policy.store.iterations, policy.store.size) == (0, 0)


@pytest.mark.parametrize(("options", "warned"), [({}, 1), ({"reward": True}, 0), ({"phase": 0}, 0)])
def test_values_without_a_scale_are_warned_of(options, warned):
    learn = dict(value_norm=False, aux_train_epoch=options.get("phase", 1))
    policy, _ = trainee("ppg", learn=learn, normalize=dict(reward=options.get("reward", False)))
    assert sum("WARNING: the errors of unscaled values" in line for line in policy.lines) == warned


# ------------------------------------------------------------------ models and losses of the user


class Leaky(PPG):
    """Says that its value has an encoder of its own, and reads the policy's."""

    def compute_critic(self, obs):
        return self.actor_encoder(obs).sum(-1) + super().compute_critic(obs)

    def compute_actor_critic(self, obs):
        return self.compute_actor(obs), self.compute_critic(obs)

    def compute_auxiliary(self, obs):
        return self.compute_actor(obs), super().compute_auxiliary(obs)[1], self.compute_critic(obs)


class Deaf(PPG):
    """Its auxiliary head hears nothing."""

    def compute_auxiliary(self, obs):
        logit, value = self.compute_actor_critic(obs)
        return logit, value, value


@pytest.mark.parametrize(
    ("model", "what"),
    [(Leaky, r"value loss .*actor_encoder"), (Deaf, r"auxiliary_head")],
)
def test_check_policy_finds_a_model_whose_gradients_go_astray(model, what):
    config = dict(model=dict(type=model), learn=dict(value_norm=False))  # PopArt refuses Leaky before
    with pytest.raises(ContractError, match=what):
        check_policy("ppg", config, learns=False, action_spaces=["Discrete"])


class TwoHeads(PPG):
    """Has a second auxiliary head, which only a custom loss reads."""

    def __init__(self, *spaces, **options):
        super().__init__(*spaces, **options)
        self.sign_head = torch.nn.Linear(self.actor_encoder.out_features, 1)


class SignPPG(PPGPolicy):
    def auxiliary_loss(self, batch):
        loss, metrics = super().auxiliary_loss(batch)
        found = self.model.sign_head(self.model.actor_encoder(batch.obs)).squeeze(-1)
        target = (batch.value_target > 0).float()
        sign = torch.nn.functional.binary_cross_entropy_with_logits(found, target)
        return loss + sign, {**metrics, "sign_loss": sign}


@pytest.mark.parametrize("critic", [1, 2])
def test_a_head_that_only_a_custom_auxiliary_loss_reads_is_trained(critic):
    model, learn = dict(type=TwoHeads), dict(aux_freq=1, critic_epoch_per_collect=critic)
    check_policy(SignPPG, dict(model=model, learn=learn), learns=False, action_spaces=["Discrete"])
    policy, collector = trainee("ppg", cls=SignPPG, model=model, learn=learn)
    before = policy.model.sign_head.weight.detach().clone()
    assert policy.learn_mode.forward(collector.collect())["sign_loss"] > 0
    assert not torch.equal(policy.model.sign_head.weight, before)
