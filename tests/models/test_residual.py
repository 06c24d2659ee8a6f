"""IMPALA's residual block against its formula."""

import torch
import torch.nn.functional as F

from ding_lite.models.encoders import _Residual


def test_a_residual_block_adds_what_two_convolutions_make_of_relu():
    torch.manual_seed(0)
    block, x = _Residual(4), torch.randn(2, 4, 5, 5)
    first, second = block.layers[1], block.layers[3]
    y = F.conv2d(F.relu(x), first.weight, first.bias, padding=1)
    expected = x + F.conv2d(F.relu(y), second.weight, second.bias, padding=1)
    before = x.clone()
    assert torch.allclose(block(x), expected, atol=1e-6)
    assert torch.equal(x, before), "its input is the skip's, and the caller's"
    assert not torch.allclose(expected, expected - x, atol=1e-2)
