"""The memory order of images and weights. Shapes and values do not change.

Shapes: N samples, C channels, H x W pixels.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

# A linear layer with more weights exceeds the cache of a core. Multiplying a few rows by it takes as long as
# reading it from memory.
BEYOND_CACHE = 2**18
SHUFFLE_DTYPES = (torch.uint8, torch.float32)  # torch.channel_shuffle does not support all dtypes


def lay_out(model: nn.Module) -> None:
    """Stores each weight of a network in the memory order that its layer reads fastest, in place.

    Afterwards the weights of convolutions, and on the CPU of large linear layers, are not contiguous.
    """
    # Convolutions are a fifth faster where the channels of a pixel are adjacent in memory.
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    for layer in model.modules():
        if type(layer) is not nn.Linear or layer.weight.device.type != "cpu":
            continue
        if layer.weight.numel() > BEYOND_CACHE:
            # F.linear multiplies by the transposed weight. Where the transposed weight is contiguous, acting
            # on 4 or 8 samples takes two thirds or half of the time; a gradient step takes the same time.
            layer.weight.data = layer.weight.data.t().contiguous().t()


def to_channels_last(x: Tensor) -> Tensor:
    """Returns images whose channels of a pixel are adjacent in memory (torch.channels_last).

    Shapes:
        (N, C, H, W) -> (N, C, H, W)
    """
    is_laid_out = x.is_contiguous(memory_format=torch.channels_last)
    can_shuffle = x.device.type == "cpu" and x.dtype in SHUFFLE_DTYPES
    if is_laid_out or not can_shuffle:
        return x.contiguous(memory_format=torch.channels_last)
    # torch.channel_shuffle with C groups transposes (C, H W) to (H W, C): the same copy as contiguous(), but
    # in blocks and not number by number. For four channels of bytes it takes a tenth of the time.
    n, c, h, w = x.shape
    flat = x.contiguous().as_strided((n, c * h * w, 1, 1), (c * h * w, 1, c * h * w, c * h * w))
    return torch.channel_shuffle(flat, c).as_strided(x.shape, (c * h * w, 1, c * w, c))
