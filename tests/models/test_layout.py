"""The memory order of weights and images changes; values and shapes do not."""

import copy

import pytest
import torch
from torch import nn

from ding_lite.models.layout import BEYOND_CACHE, lay_out, to_channels_last

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
    "none": lambda x: x[:0],
    "one channel": lambda x: x[:, :1],
    "one pixel": lambda x: x[:, :, :1, :1],
}


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.float32, torch.float64])
@pytest.mark.parametrize("stored", HOW_STORED)
def test_channels_are_laid_side_by_side_and_no_number_changes_its_place(stored, dtype):
    for c in (2, 3, 4, 17):
        given = HOW_STORED[stored](images(c=c, dtype=dtype))
        result = to_channels_last(given)
        assert result.dtype == dtype
        assert torch.equal(result, given)
        assert result.is_contiguous(memory_format=LAST)


def test_a_gradient_goes_back_through_the_layout():
    given = images(dtype=torch.float32).requires_grad_()
    weight = torch.rand(given.shape)
    (to_channels_last(given) * weight).sum().backward()
    assert torch.equal(given.grad, weight)


def test_weights_keep_their_numbers_and_only_large_layers_and_convolutions_are_laid_out_anew():
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
