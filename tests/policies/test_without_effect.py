"""Keys that another key leaves without effect are named in the first lines of a run."""

import gymnasium as gym
import numpy as np
import pytest
from small_worlds import SeededBox, SeededEnv
from worlds import trainee

from ding_lite.policies.without_effect import NEEDS


class Pixels(SeededBox):
    observation_space = gym.spaces.Box(0, 255, (12, 12, 3), np.uint8)

    def obs(self):
        return np.zeros((12, 12, 3), np.uint8)


def notes(kind="ppo", world=SeededBox, **policy):
    return [line for line in trainee(kind, world, **policy)[0].describe() if "no effect without" in line]


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
        ("ppo", {"learn": {"desired_kl": 0.1}}, "no effect without policy.learn.lr_schedule='adaptive'"),
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
        ("ppo", {"normalize": {"obs_clip": 5.0}}, "obs_clip=5.0: no effect without policy.normalize.obs"),
        (
            "ppo",
            {"normalize": {"obs_samples": 10}},
            "obs_samples=10: no effect without policy.normalize.obs or policy.intrinsic.type",
        ),
        ("ppo", {"world": Pixels, "normalize": {"obs": True}}, "obs=True: no effect without an observation"),
        (
            "ppg",
            {"learn": {"value_weight": 5.0, "critic_epoch_per_collect": 2}},
            "policy.learn.value_weight=5.0: no effect without one loop",
        ),
        ("ppo_offpolicy", {"learn": {"reuse": 1.0, "update_per_collect": 5}}, "update_per_collect=None"),
        ("ppo", {"learn": {"entropy_schedule": "linear"}}, "without policy.learn.entropy_weight, which is 0"),
        (
            "ppo",
            {"model": {"rnn": "gru", "init": "torch", "rnn_timescale": 500.0}},
            "policy.model.rnn_timescale=500.0: no effect without policy.model.init=",
        ),
        (
            "ppo",
            {"model": {"box_distribution": "beta", "bound_type": "tanh", "initial_sigma_value": 0.5}},
            "bound_type=tanh and policy.model.initial_sigma_value=0.5: no effect without a distribution with",
        ),
        ("ppo", {"normalize": {"reward_discount": 0.9}}, "no effect without policy.normalize.reward=True"),
        (
            "ppg",
            {"learn": {"aux_train_epoch": 0, "aux_freq": 2, "aux_batch_size": 8, "aux_grad_accum": 2}},
            "aux_batch_size=8 and policy.learn.aux_grad_accum=2: no effect without an auxiliary phase",
        ),
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
        ("ppo", {"intrinsic": {"type": "rnd"}, "normalize": {"obs_samples": 10}}),
        ("ppo", {"learn": {"value_weight": 5.0}}),
        ("ppg", {"learn": {"value_weight": 5.0}}),
        ("ppg", {"learn": {"critic_epoch_per_collect": 3, "value_weight": 0.0}}),
        ("ppo", {"learn": {"entropy_weight": 0.1, "entropy_schedule": "linear"}}),
        ("ppo", {"world": SeededEnv, "learn": {"entropy_schedule": "linear"}}),
        ("ppo", {"model": {"rnn": "gru", "init": "normed", "rnn_timescale": 500.0}}),
        ("ppo", {"model": {"box_distribution": "tanh_normal", "sigma_type": "conditioned"}}),
        ("ppo", {"learn": {"burn_in": 2}, "model": {"rnn": "gru", "rnn_layers": 2}}),
    ],
)
def test_a_key_with_an_effect_is_not_named(kind, policy):
    assert notes(kind, **policy) == []
