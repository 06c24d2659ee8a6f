"""Networks in NumPy: the model's own numbers, and nothing known of networks that are not."""

from __future__ import annotations

import os
import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from ding_lite import PPOPolicy, compile_config
from ding_lite.fast.numpy_network import BLOCK
from ding_lite.models import VAC

spaces = gym.spaces
VECTOR = spaces.Box(-1, 1, (4,), np.float32)
DISCRETE = spaces.Discrete(3)


def policy_for(**options):
    cfg = compile_config({"env": {"env_id": "CartPole-v1"}, "policy": options}).values.policy
    return PPOPolicy(cfg, VECTOR, DISCRETE)


@pytest.mark.parametrize("n", [1, 7, BLOCK, BLOCK + 1, 2 * BLOCK + 3])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"model": dict(activation="relu")},
        {"model": dict(critic_head_hidden_size_list=[5])},
        {"model": dict(share_encoder=True)},
        {"normalize": {"obs": True}},
    ],
)
def test_values_are_the_models(options, n):
    policy = policy_for(**options)
    if policy.obs_norm is not None:
        policy.warm_up(3 * torch.randn(64, 4) + 1)
    obs = torch.randn(n, 4, generator=torch.Generator().manual_seed(n))
    mine = policy.values(obs)
    policy.fast.use_numpy = False
    assert torch.allclose(mine, policy.values(obs), atol=1e-5)
    assert mine.shape == (n,)
    assert n == 1 or mine.std() > 0.1, "it looks at nothing"


def test_values_of_an_index_outside_its_space_are_an_error_as_the_models():
    cfg = compile_config({"env": {"env_id": "CartPole-v1"}}).values.policy
    policy = PPOPolicy(cfg, spaces.Discrete(5), DISCRETE)
    assert policy.fast.critic() != policy.model.compute_critic
    assert policy.values(torch.tensor([0, 4])).shape == (2,)
    with pytest.raises(IndexError):
        policy.values(torch.tensor([0, -1]))


def test_a_network_that_is_changed_is_read_anew_and_one_that_is_listened_to_is_asked_itself():
    policy = policy_for(learn=dict(value_norm=True))
    obs = torch.randn(5, 4)
    before = policy.values(obs)
    policy.model.critic_encoder.trunk[0] = nn.Linear(4, 64)
    after = policy.values(obs)
    assert not torch.allclose(before, after, atol=1e-3)
    assert torch.allclose(after, policy.value_norm.denormalize(policy.model.compute_critic(obs)), atol=1e-5)
    heard = []
    policy.model.critic_encoder.trunk[0].register_forward_hook(lambda *args: heard.append(1))
    policy.values(obs)
    assert heard


class OwnValue(VAC):
    def compute_critic(self, obs):
        return 2 * super().compute_critic(obs)


class OwnBoth(VAC):
    def compute_actor_critic(self, obs):
        logit, value = super().compute_actor_critic(obs)
        return logit, 2 * value


@pytest.mark.parametrize("kind", [OwnValue, OwnBoth])
def test_values_of_ones_own_are_left_to_the_model(kind):
    obs = torch.randn(5, 4)
    for model in (VAC(VECTOR, DISCRETE), kind(VECTOR, DISCRETE)):
        policy = policy_for(learn=dict(value_norm=False))
        policy.model = model
        assert torch.allclose(policy.values(obs), model.compute_critic(obs), atol=1e-6)
        assert (policy.fast.critic() == model.compute_critic) is (type(model) is kind)


# Those that this process may run on, as OpenBLAS counts them. It makes its threads when NumPy is imported.
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
COUNTS_AND_SAYS = """
import os
import numpy
threads = len(os.listdir("/proc/self/task"))
from ding_lite.fast.numpy_mlp import products_have_one_thread
print(threads == 1, products_have_one_thread())
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="threads are counted in /proc")
@pytest.mark.skipif(CORES == 1, reason="on one core there is one thread whatever is told")
@pytest.mark.parametrize(
    ("told", "one"),
    [
        ({}, False),
        ({"OPENBLAS_NUM_THREADS": "1"}, True),
        ({"OMP_NUM_THREADS": "1"}, True),
        ({"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "2"}, False),
        ({"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "1"}, True),
    ],
)
def test_it_is_known_whether_products_have_one_thread(told, one):
    rest = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    found = subprocess.run(
        [sys.executable, "-c", COUNTS_AND_SAYS],
        env={**rest, **told},
        text=True,
        capture_output=True,
        check=True,
    )
    assert found.stdout.split() == [str(one)] * 2
