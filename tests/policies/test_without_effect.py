"""Keys that another key leaves without effect are named in the first lines of a run."""

import pytest
from small_worlds import SeededBox
from worlds import trainee

from ding_lite.policies.without_effect import NEEDS


def notes(kind="ppo", **policy):
    return [line for line in trainee(kind, SeededBox, **policy)[0].describe() if "no effect without" in line]


@pytest.mark.parametrize("kind", ["ppo", "ppo_offpolicy", "ppg", "ppg_offpolicy"])
def test_defaults_have_no_notes(kind):
    assert notes(kind) == []


@pytest.mark.parametrize(
    ("kind", "policy", "said"),
    [
        ("ppo", {"nstep": 5}, "policy.nstep=5: no effect without policy.nstep_return"),
        (
            "ppg",
            {"learn": {"target_kl": 0.01}},
            "policy.learn.target_kl=0.01: no effect without a second pass",
        ),
        ("ppo", {"learn": {"kl_penalty": 1.0, "clip_ratio": 0.1}}, "policy.learn.clip_ratio=0.1: no effect"),
        ("ppo", {"learn": {"kl_type": "k1"}}, "no effect without policy.learn.kl_beta"),
        ("ppo", {"learn": {"lr_final": 0.1}}, "no effect without policy.learn.lr_schedule"),
        ("ppo", {"learn": {"clip_final": 0.1}}, "no effect without policy.learn.clip_schedule"),
        ("ppo", {"learn": {"entropy_final": 0.1}}, "no effect without policy.learn.entropy_schedule"),
        (
            "ppo",
            {"learn": {"grad_clip_type": None, "grad_clip_value": 1.0}},
            "policy.learn.grad_clip_value=1.0",
        ),
        (
            "ppo",
            {"learn": {"value_norm": False, "value_norm_decay": 0.9}},
            "policy.learn.value_norm_decay=0.9",
        ),
        ("ppo_offpolicy", {"learn": {"proximal": "behaviour", "weight_bound": 3.0}}, "weight_bound=3.0"),
        ("ppo_offpolicy", {"other": {"replay_buffer": {"alpha": 0.5}}}, "without policy.priority=True"),
        ("ppo_offpolicy", {"other": {"replay_buffer": {"beta": 0.5}}}, "policy.priority_IS_weight=True"),
        (
            "ppo",
            {"normalize": {"obs_clip": 5.0, "obs_samples": 10}},
            "obs_clip=5.0 and policy.normalize.obs_",
        ),
        ("ppo", {"normalize": {"reward_discount": 0.9}}, "no effect without policy.normalize.reward=True"),
        ("ppg", {"learn": {"aux_train_epoch": 0, "aux_freq": 2}}, "no effect without an auxiliary phase"),
        ("ppo", {"learn": {"burn_in": 2}, "model": {"rnn_layers": 2}}, "no effect without policy.model.rnn"),
        ("ppo", {"model": {"sigma_type": "conditioned", "initial_sigma_value": 2.0}}, "'independent'"),
        ("ppo", {"model": {"fixed_sigma_value": 0.5}}, "no effect without policy.model.sigma_type='fixed'"),
        ("ppo", {"model": {"init": "torch", "init_gain": {"hidden": 1.0}}}, "policy.model.init='orthogonal'"),
    ],
)
def test_a_key_without_effect_is_named_with_what_it_needs(kind, policy, said):
    (line,) = notes(kind, **policy)
    assert said in line


def test_every_need_is_named_here():
    (mark,) = test_a_key_without_effect_is_named_with_what_it_needs.pytestmark
    assert len(mark.args[1]) == len(NEEDS)


@pytest.mark.parametrize(
    ("kind", "policy"),
    [
        ("ppo", {"nstep_return": True, "nstep": 5, "on_policy": False}),
        ("ppo", {"learn": {"target_kl": 0.01}}),
        ("ppg", {"learn": {"target_kl": 0.01, "actor_epoch_per_collect": 2}}),
        ("ppo", {"learn": {"kl_penalty": 1.0, "clip_ratio": 0.1, "value_clip": 0.2}}),
        ("ppo", {"learn": {"lr_final": 0.1, "lr_schedule": "linear"}}),
        ("ppo", {"learn": {"burn_in": 2}, "model": {"rnn": "gru", "rnn_layers": 2}}),
    ],
)
def test_a_key_with_an_effect_is_not_named(kind, policy):
    assert notes(kind, **policy) == []
