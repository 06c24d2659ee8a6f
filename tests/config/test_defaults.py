"""The defaults of the four policies, in one table: a default is not changed by accident."""

import pytest

from ding_lite.config.compile import compile_config
from ding_lite.config.schema import leaves

PPO = {
    "learn.learning_rate": 3e-4,
    "learn.batch_size": 64,
    "learn.clip_ratio": 0.2,
    "learn.value_weight": 0.5,
    "learn.entropy_weight": None,  # 0.01 for discrete actions, 0 where a Box is among them
    "learn.adv_norm": "minibatch",
    "learn.adam_eps": 1e-5,
    "learn.grad_clip_type": "clip_norm",
    "learn.grad_clip_value": 0.5,
    "learn.value_clip": None,
    "learn.dual_clip": None,
    "learn.target_kl": None,
    "learn.value_norm": False,
    "learn.value_norm_decay": 0.95,
    "learn.sequence_length": 64,
    "collect.n_sample": 2048,
    "collect.discount_factor": 0.99,
    "collect.gae_lambda": 0.95,
    "recompute_adv": False,
    "nstep_return": False,
    "nstep": 3,
    "normalize.obs": False,
    "normalize.obs_clip": 10.0,
    "normalize.reward": False,
    "model.initial_sigma_value": 1.0,
    "model.sigma_type": "independent",
    "model.init": "orthogonal",
    "model.init_gain.policy": 0.01,
}
ON_POLICY = {"on_policy": True, "learn.epoch_per_collect": 10}
OFF_POLICY = {
    "on_policy": False,
    "learn.learning_rate": 1e-3,
    "learn.reuse": 3.0,
    "learn.update_per_collect": None,
    "learn.proximal": "decoupled",
    "learn.weight_bound": 2.0,
    "other.replay_buffer.replay_buffer_size": 10_000,
    "other.replay_buffer.max_use": 3,
    "other.replay_buffer.max_staleness": 4,
}
PPG = {
    "recompute_adv": True,
    "learn.value_norm": True,
    "learn.learning_rate": 5e-4,
    "learn.adv_norm": "batch",
    "learn.actor_epoch_per_collect": 1,
    "learn.critic_epoch_per_collect": 1,
    "learn.aux_freq": 8,
    "learn.aux_train_epoch": 6,
    "learn.aux_bc_weight": 1.0,
    "learn.aux_value_weight": 1.0,
    "learn.aux_learning_rate": None,
    "learn.allow_raw_values": False,
}
PPG_OFF_POLICY = {
    "on_policy": False,
    "learn.aux_freq": 16,
    **{f"other.replay_buffer.{buffer}.replay_buffer_size": None for buffer in ("policy", "value")},
    **{f"other.replay_buffer.{buffer}.max_use": 3 for buffer in ("policy", "value")},
    **{f"other.replay_buffer.{buffer}.max_staleness": 4 for buffer in ("policy", "value")},
}
POLICIES = {
    "ppo": PPO | ON_POLICY,
    "ppo_offpolicy": PPO | OFF_POLICY,
    "ppg": PPO | PPG,
    "ppg_offpolicy": PPO | PPG | PPG_OFF_POLICY,
}
RND = {"weight": 1.0, "extrinsic_weight": 2.0, "discount_factor": 0.99, "update_proportion": 0.25}


def defaults_of(**policy):
    config = compile_config({"env": {"env_id": "CartPole-v1"}, "policy": policy})
    return dict(leaves(config.values.policy))


@pytest.mark.parametrize("kind", POLICIES)
def test_policy_has_these_defaults(kind):
    found = defaults_of(type=kind)
    assert {path: found.get(path, "missing") for path in POLICIES[kind]} == POLICIES[kind]


def test_intrinsic_reward_has_these_defaults():
    found = defaults_of(intrinsic={"type": "rnd"})
    assert {name: found[f"intrinsic.{name}"] for name in RND} == RND
