"""An encoder: Fourier features of a vector, which help a network with fine structure (arXiv:2006.10739)."""

import torch
from torch import nn

from ding_lite import ENCODER_REGISTRY, Key


@ENCODER_REGISTRY.register("my_encoder")
class MyEncoder(nn.Module):
    """Maps each number x to sin(pi 2^k x) and cos(pi 2^k x), for k = 0 .. frequencies - 1.

    The linear layers of policy.model.encoder_hidden_size_list follow it.

    Args:
        space: of one leaf of the observation, such as the Box "position" of a Dict.
        activation: policy.model.activation; not used here.
        frequencies: sines and cosines of each number.

    Attributes:
        out_features: F = 2 D frequencies.

    Shapes:
        (N, D) -> (N, F)
    """

    # The arguments, as keys of policy.model.encoder, with their defaults and ranges.
    config = dict(frequencies=Key(4, low=1))

    def __init__(self, space, activation="tanh", frequencies=4):
        super().__init__()
        self.register_buffer("scale", torch.pi * 2.0 ** torch.arange(frequencies), persistent=False)
        self.out_features = 2 * frequencies * space.shape[0]

    def forward(self, x):
        angle = (x.float().unsqueeze(-1) * self.scale).flatten(1)  # a leaf has the dtype of its space
        return torch.cat([angle.sin(), angle.cos()], -1)
