"""How images and weights lie in memory; their shapes and numbers stay what they are.

Shapes: N samples, C channels, H, W pixels.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

# Weights of a linear layer that are more than a core keeps in its cache: what a product of a few rows with
# them takes is the time to read them.
LARGE_LAYER = 2**18
IN_BLOCKS = (torch.uint8, torch.float32)  # what channels are shuffled of; torch cannot do all others


def lay_out(model: nn.Module) -> None:
    """Lays a network's weights out as what reads them most runs fastest.

    Those of large linear layers are not contiguous then, on the CPU, as those of convolutions are not.
    """
    # Convolutions are a fifth faster where the channels of a pixel lie together.
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    for layer in model.modules():
        if type(layer) is not nn.Linear or layer.weight.device.type != "cpu":
            continue
        if layer.weight.numel() > LARGE_LAYER:
            # F.linear multiplies by the transposed weight. Where that is the one that is contiguous, acting
            # on 4 or 8 samples takes two thirds or half as long, and a gradient step as long as before.
            layer.weight.data = layer.weight.data.t().contiguous().t()


def channels_side_by_side(x: Tensor) -> Tensor:
    """Returns images with the channels of a pixel side by side in memory, torch.channels_last.

    Shapes:
        (N, C, H, W) -> (N, C, H, W)
    """
    done = x.is_contiguous(memory_format=torch.channels_last)
    shuffles = x.device.type == "cpu" and x.dtype in IN_BLOCKS and not torch.compiler.is_compiling()
    if done or not shuffles:
        return x.contiguous(memory_format=torch.channels_last)
    # Numbers shuffled as C groups come out as H W groups of C: the same copy, for four channels of bytes in a
    # tenth of the time. Torch moves them in blocks here, where contiguous() takes them one by one.
    n, c, h, w = x.shape
    numbers = x.contiguous().as_strided((n, c * h * w, 1, 1), (c * h * w, 1, c * h * w, c * h * w))
    return torch.channel_shuffle(numbers, c).as_strided(x.shape, (c * h * w, 1, c * w, c))


def laid_out_as(like: Tensor, x: Tensor) -> Tensor:
    """Returns ``x`` with its numbers in memory as those of ``like``, of the same shape, are; itself if so."""
    return x if x.stride() == like.stride() else torch.empty_like(like).copy_(x)
