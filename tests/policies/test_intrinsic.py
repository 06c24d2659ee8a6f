"""Intrinsic rewards: RND, its scales, its returns over the ends of episodes, and its part of a policy."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn
from worlds import digest, trainee

from ding_lite import INTRINSIC_REGISTRY, IntrinsicReward, Key, check_policy, compile_config
from ding_lite.errors import ConfigError, ContractError

KINDS = ("ppo", "ppo_offpolicy", "ppg", "ppg_offpolicy")
SMALL = dict(type="rnd", feature_size=8, encoder_hidden_size_list=[8])


def curious(kind="ppo", intrinsic=None, **options):
    """Returns a small policy with RND, which has seen random observations, and its collector."""
    policy, collector = trainee(kind, intrinsic=SMALL | (intrinsic or {}), **options)
    shape = (256, *policy.obs_space.shape)
    policy.warm_up(torch.randn(shape, generator=torch.Generator().manual_seed(0)))
    return policy, collector


@pytest.mark.parametrize("kind", KINDS)
def test_without_weight_the_policy_learns_as_without_the_part(kind):
    """Bit for bit; a weight of 1 is the control."""
    digests = []
    for weight in (None, 0.0, 1.0):
        if weight is None:
            policy, collector = trainee(kind)
        else:
            policy, collector = curious(kind, dict(extrinsic_weight=1.0, weight=weight))
        for _ in range(3):
            metrics = policy.learn_mode.forward(collector.collect())
        metrics = {name: x for name, x in metrics.items() if not name.startswith("intrinsic")}
        digests.append(digest([policy.model.state_dict(), metrics]))
    assert digests[0] == digests[1] != digests[2]


def test_the_share_of_steps_that_train_the_predictor_and_the_passes():
    policy, collector = curious(intrinsic=dict(update_proportion=0.3, epoch_per_collect=25))
    seen, targets, loss = [], [], policy.intrinsic.loss

    def noted(batch):
        seen.append(batch.reward_weight > 0)
        targets.append(batch.value_target)
        return loss(batch)

    policy.intrinsic.loss = noted
    policy.learn_mode.forward(collector.collect())
    assert float(torch.cat(seen).float().mean()) == pytest.approx(0.3, abs=0.05)
    passes = torch.cat(targets).split(64)
    assert len(passes) == 25
    assert not torch.equal(passes[0], passes[1])
    assert all(torch.equal(one.sort().values, passes[0].sort().values) for one in passes)


class Frames(gym.Env):
    """Images of noise; only the last column of pixels depends on the action."""

    observation_space = gym.spaces.Box(0, 255, (12, 12, 3), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def frame(self):
        return self.np_random.integers(0, 50, (12, 12, 3), dtype=np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.frame(), {}

    def step(self, action):
        self.t += 1
        frame = self.frame()
        frame[:, -1] = 200 * action
        return frame, float(action), self.t == 7, False, {}


def test_images_are_scaled_by_their_own_statistics():
    policy, collector = trainee("ppo", Frames, intrinsic=dict(type="rnd"))
    frames = np.random.default_rng(0).integers(0, 50, (200, 12, 12, 3), dtype=np.uint8)
    policy.warm_up(torch.from_numpy(frames))
    seen, reward = [], policy.intrinsic.reward
    of_steps = reward.loss
    reward.loss = lambda steps: (seen.append(steps.next_obs), of_steps(steps))[1]
    policy.learn_mode.forward(collector.collect())
    frames = torch.cat(seen)
    assert frames.dtype == torch.float32
    assert float(frames[:, :, :-1].std()) == pytest.approx(1.0, abs=0.15)
    assert float(frames.abs().max()) == 5.0, "obs_clip"


class ForwardError(IntrinsicReward):
    """The reward of a user: the error of a model of the next observation."""

    config = dict(width=Key(16, low=1))

    def __init__(self, obs_space, action_space, width=16):
        super().__init__(obs_space, action_space)
        size = obs_space.shape[0]
        self.model = nn.Sequential(
            nn.Linear(size + int(action_space.n), width), nn.ReLU(), nn.Linear(width, size)
        )

    def reward(self, steps):
        return self.loss(steps)

    def loss(self, steps):
        action = nn.functional.one_hot(steps.action, int(self.action_space.n))
        error = (self.model(torch.cat([steps.obs, action], -1)) - steps.next_obs).square().mean(-1)
        return error.masked_fill(steps.done, 0.0)


def test_an_intrinsic_reward_of_the_user(monkeypatch):
    monkeypatch.setattr(INTRINSIC_REGISTRY, "entries", dict(INTRINSIC_REGISTRY.entries))
    INTRINSIC_REGISTRY.register("forward_error")(ForwardError)
    policy, collector = trainee("ppg", intrinsic=dict(type="forward_error", width=4))
    policy.warm_up(torch.randn(64, *policy.obs_space.shape))
    rollout = collector.collect()
    assert policy.learn_mode.forward(rollout)["intrinsic_reward"] > 0
    assert not rollout.intrinsic_reward[rollout.terminated | rollout.truncated].any()
    with pytest.raises(ConfigError, match=r"policy.intrinsic.*widht.*width"):
        trainee("ppo", intrinsic=dict(type="forward_error", widht=4))


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64])
def test_rewards_may_be_of_another_dtype(dtype):
    policy, collector = curious()
    policy.intrinsic.reward.reward = lambda steps: torch.ones(len(steps.done), dtype=dtype)
    rollout = collector.collect()
    assert torch.equal(rollout.intrinsic_reward, torch.ones_like(rollout.reward))


class Unused(ForwardError):
    """Has a layer that its loss does not reach."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.spare = nn.Linear(2, 2)


class Forgetful(ForwardError):
    """Counts how often an action was taken, in a tensor that is not in its state."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.counts = torch.zeros(8)

    def reward(self, steps):
        return (self.counts[steps.action] + 1).rsqrt()

    def loss(self, steps):
        self.counts += 1
        return super().loss(steps)


@pytest.mark.parametrize(
    ("reward", "words"),
    [
        (Unused, "spare.weight"),
        (Forgetful, "the same intrinsic rewards, got others"),
    ],
)
def test_check_policy_names_what_is_wrong_with_a_reward(reward, words):
    with pytest.raises(ContractError, match=words):
        check_policy("ppo", dict(intrinsic=dict(type=reward)), learns=False, action_spaces=["Discrete"])


def test_check_policy_passes_with_rnd():
    check_policy("ppg_offpolicy", dict(intrinsic=SMALL), learns=False, action_spaces=["Discrete", "Dict"])


@pytest.mark.parametrize(
    ("intrinsic", "words"),
    [
        (dict(type="rdn"), "rnd"),
        (dict(type="rnd", weigth=2.0), "weight"),
        (dict(type="rnd", discount_factor=1.0), "discount_factor"),
        (dict(weight=2.0), "policy.intrinsic"),
        (dict(type="rnd", encoder={"type": "nature"}), "nature_cnn"),
    ],
)
def test_faults_of_the_section_are_named(intrinsic, words):
    with pytest.raises(ConfigError, match=words):
        compile_config({"env": {"env_id": "CartPole-v1"}, "policy": {"intrinsic": intrinsic}})
