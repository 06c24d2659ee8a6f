"""An encoder: Fourier features of a vector, which help a network with fine structure (arXiv:2006.10739).

ding-lite train -c my_encoder.py
"""

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


config = dict(
    max_env_step=60_000,
    env=dict(env_id="CartPole-v1", stop_value=475),  # ends when evaluations reach this return
    policy=dict(
        # Of a Dict observation, encoder={"position": dict(type=...)} sets the encoder of one leaf.
        model=dict(encoder=dict(type=MyEncoder, frequencies=2), encoder_hidden_size_list=[64, 64]),
        learn=dict(epoch_per_collect=4, batch_size=256, learning_rate=1e-3),
        collect=dict(n_sample=1024),  # transitions of one iteration, over all environments
    ),
)
