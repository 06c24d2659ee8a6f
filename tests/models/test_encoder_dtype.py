"""Encoders in bfloat16: features are rounded; parameters, heads and losses are float32."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from worlds import digest, trainee

from ding_lite import ConfigError, compile_config
from ding_lite.models.encoders import Encoder
from ding_lite.policies.diagnostics import dead_units

FRAMES = gym.spaces.Box(0, 255, (36, 36, 4), np.uint8)
VECTORS = gym.spaces.Box(-1, 1, (6,), np.float32)
UNIT = 2.0**-8  # the relative rounding of bfloat16, which keeps 8 bits
BF16 = {"model": {"encoder_dtype": "bfloat16"}}


class Frames(gym.Env):
    """Images of one brightness; the action that equals the brightness has reward 1."""

    observation_space, action_space = FRAMES, gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.look(), {}

    def look(self):
        self.bright = int(self.np_random.integers(2))
        return np.full(FRAMES.shape, 200 * self.bright, np.uint8)

    def step(self, action):
        reward, self.t = float(action == self.bright), self.t + 1
        return self.look(), reward, False, self.t == 16, {}


def encoders(space, **options):
    found = []
    for dtype in ("float32", "bfloat16"):
        torch.manual_seed(0)
        found.append(Encoder(space, None, None, "relu", dtype))
    return found


@pytest.mark.parametrize("space", [FRAMES, VECTORS])
def test_features_and_gradients_are_float32_and_rounded_as_bfloat16(space):
    space.seed(0)
    obs = torch.as_tensor(np.stack([space.sample() for _ in range(16)]))
    exact, rounded = encoders(space)
    features = [encoder(obs) for encoder in (exact, rounded)]
    weight = torch.randn(features[0].shape, generator=torch.Generator().manual_seed(1))
    assert features[1].dtype == torch.float32
    difference = ((features[1] - features[0]).norm() / features[0].norm()).detach()
    assert UNIT / 20 < float(difference) < 4 * UNIT, "rounded, and no more than that"
    gradients = [
        torch.autograd.grad((out * weight).sum(), list(encoder.parameters()))
        for out, encoder in zip(features, (exact, rounded), strict=True)
    ]
    for one, other in zip(*gradients, strict=True):
        assert other.dtype == torch.float32
        assert float(torch.nn.functional.cosine_similarity(one.flatten(), other.flatten(), dim=0)) > 0.98
    assert all(p.dtype == torch.float32 for p in rounded.parameters())


def test_a_step_is_seen_by_the_next_forward():
    """Converted weights must not be cached between calls."""
    _, encoder = encoders(VECTORS)
    obs = torch.ones(1, 6)
    with torch.no_grad():
        before = encoder(obs)
        for p in encoder.parameters():
            p.mul_(2)
        assert not torch.allclose(encoder(obs), before)
    assert encoder(obs).requires_grad


@pytest.mark.daily(1)
@pytest.mark.parametrize(("world", "kind"), [(Frames, "ppo"), (Frames, "ppg"), (None, "ppo")])
def test_the_ratio_of_the_first_minibatch_is_nearly_one(world, kind):
    policy, collector = trainee(kind, **({} if world is None else {"world": world}), **BF16)
    assert policy.fast.acting().name == "torch", "acting must round as learning does"
    rollout = collector.collect()
    batch = next(policy.minibatches(rollout))
    logit, value = policy.model.compute_actor_critic(batch.obs)
    batch = batch.with_outputs(dist=policy.distribution(batch.obs, logit), new_value=value)
    ratio = (batch.dist.log_prob(batch.action) - batch.log_prob).exp()
    assert torch.allclose(ratio, torch.ones_like(ratio), atol=5e-3)
    assert batch.new_value.dtype == batch.log_prob.dtype == torch.float32
    metrics = policy.learn_mode.forward(rollout)
    assert np.isfinite(list(metrics.values())).all()
    assert float(dead_units(policy.model, batch.obs)) >= 0


def test_gradient_steps_have_no_closed_form():
    policy, _ = trainee("ppo", **BF16)
    assert policy.optimizer.gradients.name_of(policy.loss) != "closed form"
    policy, _ = trainee("ppo")
    assert policy.optimizer.gradients.name_of(policy.loss) == "closed form"


def test_an_encoder_without_parameters_does_too():
    policy, collector = trainee("ppo", model={"encoder_dtype": "bfloat16", "encoder_hidden_size_list": []})
    assert list(policy.model.actor_encoder.parameters()) == []
    assert policy.learn_mode.forward(collector.collect())["updates"] > 0


@pytest.mark.slow
def test_it_learns_and_learns_the_same_twice():
    states = []
    for _ in range(2):
        policy, collector = trainee(
            "ppo",
            Frames,
            n_sample=256,
            model={"encoder_dtype": "bfloat16", "encoder_hidden_size_list": [32]},
            learn={"batch_size": 64, "epoch_per_collect": 4, "learning_rate": 1e-3},
            collect={"discount_factor": 0.1},
        )
        for _ in range(9):
            rollout = collector.collect()
            policy.learn_mode.forward(rollout)
        states.append(digest(policy.state_dict()))
    assert states[0] == states[1]
    assert float(collector.collect().reward.mean()) > 0.75, "0.5 is chance"


def test_other_types_are_refused_by_name():
    message = r"policy\.model\.encoder_dtype: .*float32, bfloat16.*'float16'"
    with pytest.raises(ConfigError, match=message):
        compile_config({"env": {"type": Frames}, "policy": {"model": {"encoder_dtype": "float16"}}})


@pytest.mark.parametrize("kind", ["ppo", "ppo_offpolicy", "ppg", "ppg_offpolicy"])
def test_every_policy_has_the_key(kind):
    config = compile_config({"env": {"type": Frames}, "policy": {"type": kind, **BF16}})
    assert config.values.policy.model.encoder_dtype == "bfloat16"
