"""Shapes of what a model returns are checked when a policy is made."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from small_worlds import SeededEnv
from torch import nn
from worlds import digest, trainee

from ding_lite import ActorCritic, PPOPolicy
from ding_lite.errors import ContractError
from ding_lite.models.heads import ActionHead
from ding_lite.trees import example_observations, space_leaves, value_at

SPACE = gym.spaces.Box(-1, 1, (3,), np.float32)


# ------------------------------------------------------------------ models


class Small(ActorCritic):
    """A correct model."""

    config = dict(encoder_hidden_size_list=[])  # a key of ``small_config``

    def __init__(self, obs_space, action_space, encoder_hidden_size_list=()):
        super().__init__(obs_space, action_space)
        self.body = nn.Linear(obs_space.shape[0], 4)
        self.actor_head = ActionHead(action_space, 4)
        self.critic_head = nn.Linear(4, 1)
        self.value_heads = (self.critic_head,)

    def compute_actor(self, obs):
        return self.actor_head(self.body(obs))

    def compute_critic(self, obs):
        return self.critic_head(self.body(obs)).squeeze(-1)


def wrong_model(method, change):
    original = getattr(Small, method)
    return type("Wrong", (Small,), {method: lambda self, obs: change(original(self, obs))})


@pytest.mark.parametrize(
    ("method", "change", "fault"),
    [
        ("compute_critic", lambda x: x.unsqueeze(-1), r"compute_critic returned \(5, 1\) for 5 obs"),
        ("compute_critic", lambda x: x.no_such, "compute_critic raised AttributeError"),
        ("compute_actor", lambda x: x.unsqueeze(1), r"Categorical.log_prob must .*\(5,\); got \(5, 1\)"),
        ("compute_actor", lambda x: x[:1], r"Categorical.sample must .*\(5,\) .*; got \(1,\)"),
    ],
)  # fmt: skip
def test_wrong_output_of_a_model_is_named(method, change, fault):
    with pytest.raises(ContractError, match=fault):
        policy_with(wrong_model(method, change)(SPACE, SeededEnv.action_space))


def policy_with(model, kind=PPOPolicy, **options):
    cfg = trainee("ppo", SeededEnv)[0].cfg
    return kind(cfg, model.obs_space, model.action_space, model=model, **options)


def test_a_policy_that_only_acts_needs_no_value():
    model = wrong_model("compute_critic", lambda x: x.unsqueeze(-1))(SPACE, gym.spaces.Discrete(3))
    assert policy_with(model, enable_field=("eval",)).act(np.zeros(3)) in range(3)


def test_a_policy_may_say_itself_what_the_output_of_the_model_means():
    class Own(PPOPolicy):
        def distribution(self, obs, logit):
            return self.model.distribution(logit[:, 0])

    model = wrong_model("compute_actor", lambda x: x.unsqueeze(1))(SPACE, gym.spaces.Discrete(3))
    assert policy_with(model, Own).act(np.zeros((4, 3))).shape == (4,)


# ------------------------------------------------------------------ nothing changes


def test_a_check_draws_no_random_number():
    class Noisy(Small):
        def compute_actor(self, obs):
            return super().compute_actor(obs + torch.randn(obs.shape))

    model = Noisy(SPACE, gym.spaces.Discrete(3))
    state = torch.get_rng_state()
    policy_with(model)
    assert torch.equal(torch.get_rng_state(), state)


# ------------------------------------------------------------------ observations for a check


@pytest.mark.parametrize(
    "space",
    [
        gym.spaces.Box(-np.inf, np.inf, (3,), np.float64),
        gym.spaces.Box(np.float32(-3.4e38), np.float32(3.4e38), (3,), np.float32),
        gym.spaces.Box(100, 200, (2, 2), np.float32),
        gym.spaces.Box(0, 255, (8, 8, 3), np.uint8),
        gym.spaces.Discrete(3, start=5),
        gym.spaces.MultiDiscrete([2, 3]),
        gym.spaces.Tuple([gym.spaces.Discrete(2), gym.spaces.Dict(a=SPACE)]),
        gym.spaces.Dict(obs=SPACE, action_mask=gym.spaces.MultiBinary(5)),
    ],
    ids=str,
)
def test_examples_are_observations_of_the_space_and_always_the_same(space):
    batch = example_observations(space, 2)
    assert digest(batch) == digest(example_observations(space, 2))
    for path, leaf in space_leaves(space):
        values = value_at(batch, path)
        assert all(leaf.contains(leaf.dtype.type(x) if x.ndim == 0 else x.astype(leaf.dtype)) for x in values)
        assert np.abs(values.astype(float)).max() <= 255
        assert path != ("action_mask",) or values.all()
