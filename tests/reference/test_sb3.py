"""PPO of Stable-Baselines3 and of the library: the same weights, rollout, advantages and gradient steps.

Stable-Baselines3 collects and bootstraps with its own code. What differs by design is configured
away: its std of advantages divides by N - 1, so the test normalises the library's; its value loss has no 1/2;
its clipped value loss has no maximum with the error that is not clipped, so there the library is given this
loss as one of a user.
"""

import gymnasium as gym
import numpy as np
import pytest
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import CallbackList
from stable_baselines3.common.vec_env import DummyVecEnv

from reference import taps
from reference.recording import Reader, RecordingEnv, World

ROWS, ENVS, EPOCHS, WIDTH = 32, 4, 4, 16
LEARNING_RATE, CLIP, VALUE_CLIP, ENTROPY, VALUE_WEIGHT = 3e-3, 0.05, 0.02, 0.02, 0.5
ADVANTAGE, PARAMETER = 1e-5, 1e-5  # relative errors in float32; twice for log sigma, which is near 0


def env_of(action, log):
    env = RecordingEnv(World(action=action, ends=(0.1, 0.1)))
    if action == "discrete":
        env.action_space = gym.spaces.Discrete(3)  # Stable-Baselines3 has no other start than 0
    log.append(env.log)
    return env


def other_ppo(action, value_clip, logs):
    envs = DummyVecEnv([lambda: env_of(action, logs)] * ENVS)
    return PPO(
        "MlpPolicy",
        envs,
        learning_rate=LEARNING_RATE,
        n_steps=ROWS,
        batch_size=ROWS * ENVS,
        n_epochs=EPOCHS,
        gamma=0.9,
        gae_lambda=0.8,
        clip_range=CLIP,
        clip_range_vf=value_clip,
        normalize_advantage=True,
        ent_coef=ENTROPY,
        vf_coef=VALUE_WEIGHT / 2,
        max_grad_norm=0.5,
        policy_kwargs={"net_arch": {"pi": [WIDTH], "vf": [WIDTH]}},
        seed=0,
        device="cpu",
    )


def own_ppo(action, value_clip, value_loss=None):
    policy = {
        "type": "ppo",
        "recompute_adv": False,
        "collect": {"n_sample": ROWS * ENVS, "discount_factor": 0.9, "gae_lambda": 0.8},
        "model": {"encoder_hidden_size_list": [WIDTH], "share_encoder": False},
        "learn": {
            "learning_rate": LEARNING_RATE,
            "batch_size": ROWS * ENVS,
            "epoch_per_collect": EPOCHS,
            "clip_ratio": CLIP,
            "value_clip": value_clip,
            "adv_norm": False,
            "value_norm": False,
            "entropy_weight": ENTROPY,
            "value_weight": VALUE_WEIGHT,
            "grad_clip_value": 0.5,
            "adam_eps": 1e-5,
        },
    }
    env = env_of(action, [])
    config = taps.compiled_config(type(env), ENVS, policy)
    return taps.policy_of(config, env.observation_space, env.action_space, value_loss=value_loss)


def clip_alone(policy, batch):
    """Returns 0.5 (V_old + clip(V - V_old) - R)^2: it has no gradient outside of the clip."""
    held = batch.value + (batch.new_value - batch.value).clamp(-VALUE_CLIP, VALUE_CLIP)
    return 0.5 * (held - batch.value_target).square().mean(), {}


def collected(other, logs):
    """Returns the rollout that Stable-Baselines3 collected, and the ends of its truncated episodes."""
    buffer = other.rollout_buffer
    readers = [Reader(log, "same_step") for log in logs]
    for reader in readers:
        reader.begin()
    columns = [[reader.row(0, env, t) for t in range(ROWS)] for env, reader in enumerate(readers)]

    def field(name, dtype):
        return np.array([[getattr(step, name) for step in column] for column in columns], dtype).T

    action = buffer.actions
    rollout = {
        "obs": buffer.observations,
        "action": action[..., 0].astype(np.int64) if action.shape[-1] == 1 else action,
        "log_prob": buffer.log_probs,
        "reward": field("reward", np.float32),
        "terminated": field("terminated", bool),
        "truncated": field("truncated", bool),
        "valid": np.ones((ROWS, ENVS), bool),
        "last_obs": other._last_obs,
    }
    ends = {step.key[:0:-1]: step.next_obs for column in columns for step in column if step.truncated}
    return rollout, ends


def off(found, expected):
    """Returns the largest error, relative to the largest number."""
    found, expected = np.asarray(found, float), np.asarray(expected, float)
    return np.abs(found - expected).max() / np.abs(expected).max()


@pytest.mark.parametrize("action", ["discrete", "box"])
@pytest.mark.parametrize("value_clip", [None, VALUE_CLIP])
def test_advantages_and_parameters_equal_those_of_stable_baselines3(action, value_clip):
    logs = []
    other = other_ppo(action, value_clip, logs)
    own = own_ppo(action, value_clip, None if value_clip is None else clip_alone)
    names = {name: taps.named_as_in_stable_baselines3(name) for name in own.model.state_dict()}
    theirs = other.policy.state_dict()
    own.model.load_state_dict({name: theirs[their].clone() for name, their in names.items()})
    start = {name: leaf.clone() for name, leaf in own.model.state_dict().items()}

    _, callback = other._setup_learn(10**6, CallbackList([]))
    other.collect_rollouts(other.env, callback, other.rollout_buffer, ROWS)
    rollout, ends = collected(other, logs)
    assert rollout["terminated"].any()
    assert rollout["truncated"].any()
    sample = taps.with_credit(own, rollout, ends)
    buffer = other.rollout_buffer
    for found, expected in (
        (sample.value, buffer.values),
        (sample.advantage, buffer.advantages),
        (sample.value_target, buffer.returns),
    ):
        assert off(found, expected) < ADVANTAGE

    spread, mean = torch.std_mean(sample.advantage, correction=1)
    sample.advantage = (sample.advantage - mean) / (spread + 1e-8)
    metrics = own.learn_mode.forward(sample)
    other.train()
    assert other.policy.state_dict().keys() == set(names.values())
    logged = other.logger.name_to_value
    assert 0.04 < metrics["clipfrac"] == pytest.approx(logged["train/clip_fraction"], abs=1e-6)
    for name, leaf in own.model.state_dict().items():
        expected = other.policy.state_dict()[names[name]]
        assert off(leaf, expected) < (2 if name.endswith("log_sigma") else 1) * PARAMETER, name
        assert (leaf - start[name]).abs().max() > LEARNING_RATE / 10, name
    with torch.no_grad():
        moved = other.policy.predict_values(torch.as_tensor(rollout["obs"]).flatten(0, 1))
    outside = (moved[:, 0].view(ROWS, ENVS) - sample.value).abs() > VALUE_CLIP
    assert outside.float().mean() > 0.5
