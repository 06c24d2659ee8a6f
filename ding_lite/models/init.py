"""How fresh networks are initialised. Only models that the library builds pass through here."""

from __future__ import annotations

import math

import torch
from torch import nn

LAYERS = (nn.Linear, nn.Conv2d)


def orthogonal(module: nn.Module, gain: float = math.sqrt(2)) -> None:
    """Makes every layer of ``module`` orthogonal with ``gain``, its bias 0 (37 details, core 2)."""
    for layer in module.modules():
        if isinstance(layer, LAYERS):
            nn.init.orthogonal_(layer.weight, gain)
            _zero_bias(layer)


def normed(module: nn.Module, scale: float) -> None:
    """Gives every output row of each layer the norm ``scale``, its bias 0 (the PPG authors' init)."""
    for layer in module.modules():
        if isinstance(layer, LAYERS):
            with torch.no_grad():
                rows = layer.weight.flatten(1)
                norm = rows.norm(dim=1).view(-1, *[1] * (layer.weight.dim() - 1))
                layer.weight.mul_(scale / norm)
            _zero_bias(layer)


def normed_hidden_layers(module: nn.Module) -> None:
    """Gives the layers of ``module`` the PPG authors' norms.

    A linear layer has 1.4, a convolution 1. Where a module has a number ``normed_scale``, as residual blocks
    do, the layers inside it have that number.
    """
    for layer in module.modules():
        if isinstance(layer, LAYERS):
            normed(layer, 1.4 if isinstance(layer, nn.Linear) else 1.0)
    for block in module.modules():
        scale = getattr(block, "normed_scale", None)
        if isinstance(scale, (int, float)):
            normed(block, scale)


def _zero_bias(layer: nn.Module) -> None:
    bias = getattr(layer, "bias", None)
    if bias is not None:
        nn.init.zeros_(bias)
