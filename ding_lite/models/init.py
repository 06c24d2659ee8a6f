"""Initialisation of new networks: of the library's models, and not of a user's encoders in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import nn

LAYERS = (nn.Linear, nn.Conv2d)


def modules_of(module: nn.Module) -> Iterator[nn.Module]:
    """Yields a module and all modules in it, without the encoders of the user, which may be pretrained."""
    if not getattr(module, "keeps_weights", False):
        yield module
        for part in module.children():
            yield from modules_of(part)


def initialize(
    module: nn.Module,
    kind: str,
    gain: Mapping[str, float],
    *,
    value_layer: nn.Module,
    policy_layers: nn.Module | None = None,
) -> None:
    """Initialises the layers of a new module, in place.

    Args:
        module: contains all layers.
        kind: "orthogonal", "normed" or "torch" (leaves the layers as torch made them).
        gain: of the orthogonal init, by "hidden", "policy" and "value".
        value_layer: the last layer of the value head.
        policy_layers: the last layers of the policy head, if the module has one.
    """
    if kind == "torch":
        return
    if kind == "orthogonal":
        orthogonal(module, gain.get("hidden", 2**0.5))
        if policy_layers is not None:
            orthogonal(policy_layers, gain.get("policy", 0.01))
        orthogonal(value_layer, gain.get("value", 1.0))
        return
    for layer in modules_of(module):  # rows of linear layers have the norm 1.4, rows of convolutions 1
        if isinstance(layer, LAYERS):
            normed(layer, 1.4 if isinstance(layer, nn.Linear) else 1.0)
    for block in modules_of(module):  # rows inside a residual block have the norm normed_scale
        if (scale := getattr(block, "normed_scale", None)) is not None:
            normed(block, scale)
    if policy_layers is not None:
        normed(policy_layers, 0.1)
    normed(value_layer, 0.1)


def orthogonal(module: nn.Module, gain: float) -> None:
    """Initialises each layer of ``module`` with an orthogonal weight times ``gain`` and a bias of 0.

    The weights of recurrent layers have a gain of 1.

    Source: detail 2, and the LSTM's detail 1, of "The 37 implementation details of PPO"
    (iclr-blog-track.github.io, 2022).
    """
    for layer in modules_of(module):
        if isinstance(layer, LAYERS):
            nn.init.orthogonal_(layer.weight, gain)
            _zero_bias(layer)
        elif isinstance(layer, nn.RNNBase):
            for name, parameter in layer.named_parameters():
                if name.startswith("weight"):
                    nn.init.orthogonal_(parameter)
                else:
                    nn.init.zeros_(parameter)


@torch.no_grad()
def chrono(module: nn.Module, timescale: float) -> None:
    """Sets the biases of recurrent layers such that their units remember 1 to ``timescale`` steps.

    The bias of an LSTM's forget gate or a GRU's update gate is log(u), with u uniform in 1 .. timescale - 1;
    the bias of an LSTM's input gate is -log(u). With biases of 0 a unit forgets half of its content at every
    step. (Chrono initialisation, arXiv:1804.11188, section 2.2.)
    """
    for layer in modules_of(module):
        if not isinstance(layer, nn.RNNBase):
            continue
        n = layer.hidden_size
        for name, bias in layer.named_parameters():
            if name.startswith("bias_ih"):
                keep = torch.empty(n).uniform_(1.0, max(1.0, timescale - 1.0)).log()
                bias[n : 2 * n] = keep  # the forget gate of an LSTM, the update gate of a GRU
                if isinstance(layer, nn.LSTM):
                    bias[:n] = -keep


def normed(module: nn.Module, scale: float) -> None:
    """Scales each row of each weight to the norm ``scale``, and sets biases to 0 (the PPG authors' init)."""
    for layer in modules_of(module):
        if isinstance(layer, LAYERS):
            with torch.no_grad():
                rows = layer.weight.flatten(1)
                norm = rows.norm(dim=1).view(-1, *[1] * (layer.weight.dim() - 1))
                layer.weight.mul_(scale / norm)
            _zero_bias(layer)


def _zero_bias(layer: nn.Module) -> None:
    """Sets the bias of a layer to 0, if it has one."""
    bias = getattr(layer, "bias", None)
    if bias is not None:
        nn.init.zeros_(bias)
