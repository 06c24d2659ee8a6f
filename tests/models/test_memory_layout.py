"""The memory order of weights and images changes; values and shapes do not."""

from __future__ import annotations

import copy

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from ding_lite import compile_config
from ding_lite.models.layout import BEYOND_CACHE, laid_out_as, lay_out, to_channels_last
from ding_lite.policies import PPOPolicy

LAST = torch.channels_last


def images(n=3, c=4, h=5, w=6, dtype=torch.uint8):
    numbers = torch.arange(n * c * h * w) % 251  # all different in an image, as far as bytes can be
    return numbers.view(n, c, h, w).to(dtype)


HOW_STORED = {
    "as torch does": lambda x: x,
    "every other one of twice as many": lambda x: x.repeat_interleave(2, 0)[::2],
    "channels last": lambda x: x.contiguous(memory_format=LAST),
    "channels at the end": lambda x: x.movedim(1, -1).contiguous().movedim(-1, 1),
    "a window of larger ones": lambda x: nn.functional.pad(x, (1, 1, 2, 2))[:, :, 2:-2, 1:-1],
    "turned": lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
    "all but the first": lambda x: x[1:],
    "none": lambda x: x[:0],
    "one": lambda x: x[:1],
    "one channel": lambda x: x[:, :1],
    "one pixel": lambda x: x[:, :, :1, :1],
}


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.bool, torch.uint16, torch.bfloat16, torch.float32, torch.float64]
)
@pytest.mark.parametrize("stored", HOW_STORED)
def test_channels_are_laid_side_by_side_and_no_number_changes_its_place(stored, dtype):
    given = HOW_STORED[stored](images(dtype=dtype))
    result = to_channels_last(given)
    assert result.dtype == dtype
    assert torch.equal(result, given)
    assert result.is_contiguous(memory_format=LAST)


@pytest.mark.parametrize("c", [2, 3, 4, 12, 17])
def test_any_number_of_channels_can_be_laid_side_by_side(c):
    given = images(c=c, h=20, w=13)
    assert torch.equal(to_channels_last(given), given)
    assert to_channels_last(given).stride() == given.contiguous(memory_format=LAST).stride()


def test_a_gradient_goes_back_through_the_layout():
    given = images(dtype=torch.float64).requires_grad_()
    weight = torch.rand(given.shape, dtype=torch.float64)
    (to_channels_last(given) * weight).sum().backward()
    assert torch.equal(given.grad, weight)


def test_weights_keep_their_numbers_and_only_large_layers_and_convolutions_are_laid_out_anew():
    torch.manual_seed(0)
    large = nn.Linear(BEYOND_CACHE // 256 + 1, 256)
    network = nn.ModuleList([nn.Conv2d(3, 8, 4), large, nn.Linear(64, 64)])
    before = copy.deepcopy(network)
    lay_out(network)
    for name, value in network.state_dict().items():
        assert torch.equal(value, before.state_dict()[name]), name
    assert network[0].weight.is_contiguous(memory_format=LAST)
    assert large.weight.t().is_contiguous()
    assert not large.weight.is_contiguous()
    assert network[2].weight.is_contiguous()


def test_numbers_are_laid_out_as_those_of_another_tensor_or_left_alone():
    x = torch.rand(3, 4)
    assert laid_out_as(torch.zeros(3, 4), x) is x
    turned = laid_out_as(torch.zeros(4, 3).t(), x)
    assert torch.equal(turned, x)
    assert turned.stride() == (1, 3)
    spread = laid_out_as(x, torch.ones(()).expand(3, 4))  # one number, shown as twelve
    assert torch.equal(spread, torch.ones(3, 4))
    assert spread.stride() == (4, 1)


def test_a_policy_of_images_is_laid_out_and_acts_as_its_network_says():
    obs_space = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    config = compile_config(dict(env=dict(env_id="CartPole-v1"), policy=dict(type="ppo")))
    policy = PPOPolicy(config.values.policy, obs_space, gym.spaces.Discrete(3))
    weights = dict(policy.model.named_parameters())
    assert [name for name, w in weights.items() if w.dim() == 2 and not w.is_contiguous()]
    plain = copy.deepcopy(policy.model)
    for parameter in plain.parameters():
        parameter.data = parameter.data.contiguous()
    obs = torch.from_numpy(np.random.default_rng(0).integers(256, size=(5, 4, 84, 84), dtype=np.uint8))
    with torch.no_grad():
        torch.testing.assert_close(policy.model.compute_critic(obs), plain.compute_critic(obs))
