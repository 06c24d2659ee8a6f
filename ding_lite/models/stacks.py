"""Linear stacks: how a model declares that NumPy can run it, up to the last linear layers.

``model.stacks()`` returns ``{"actor": Stack, "critic": Stack}``, of PPG also ``"auxiliary"``, or None. NumPy
runs the layers, and torch the rest, on leaves of autograd::

    x = np.concatenate([features(leaf, value_at(obs, leaf.path)) for leaf in stack.encoder.leaves], 1)
    for layer in (*stack.encoder.layers, *stack.head):      # nn.Linear, or the name of an activation
        x = x @ layer.weight.T + layer.bias if isinstance(layer, nn.Linear) else activation(layer, x)
    raw = torch.from_numpy(x).requires_grad_()              # (N, K), the output of the last linear layer
    output = model.from_raw("actor", raw)                   # the logit; (N,) values for the others

Parameters are float32 on the CPU. Layers may be replaced at any time, so a caller asks for the stacks anew
when a rollout, an evaluation or a phase begins.

Shapes: N samples, F features, K raw outputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from ding_lite.models.encoders import ACTIVATIONS, Encoder, IndexEncoder, VectorEncoder

Layer = nn.Linear | str  # a linear layer with a bias, or a key of ``encoders.ACTIVATIONS``
NAMES = {kind: name for name, kind in ACTIVATIONS.items()}


@dataclass(frozen=True, eq=False)
class Leaf:
    """A leaf of the observation, with F features.

    Attributes:
        path: of the leaf; empty if the observation is the leaf.
        size: F.
        table: (rows, E), the learned vectors of indices; None: the leaf is a vector, whose features are its
            numbers, flattened and converted to float32.
        offset: (K,) integers; the features of indices (N, K) are ``table[index + offset]``, flattened.
    """

    path: tuple[str, ...]
    size: int
    table: Tensor | None = None
    offset: Tensor | None = None


@dataclass(frozen=True, eq=False)
class StackEncoder:
    """The features of all leaves, next to each other, and the layers behind them, perhaps none."""

    leaves: tuple[Leaf, ...]
    layers: tuple[Layer, ...]


@dataclass(frozen=True, eq=False)
class Stack:
    """A network.

    Attributes:
        encoder: the same object in stacks that share their features.
        head: layers behind the encoder; the last one is linear.
        detached: whether the gradient of the head stops at the features.
    """

    encoder: StackEncoder
    head: tuple[Layer, ...]
    detached: bool = False


def encoder_stack(encoder: nn.Module | None) -> StackEncoder | None:
    """Returns the description of an encoder; None if it is more than vectors, indices and linear layers."""
    if type(encoder) is not Encoder or encoder.dtype != torch.float32:
        return None
    leaves: list[Leaf] = []
    before: list[nn.Sequential] = []
    for path, leaf in zip(encoder.paths, encoder.leaves, strict=True):
        if type(leaf) is VectorEncoder:
            leaves.append(Leaf(path, leaf.in_features))
            before += [leaf.layers] if len(leaf.layers) else []
        elif type(leaf) is IndexEncoder:
            leaves.append(Leaf(path, leaf.out_features, leaf.table.weight, leaf.offset))
        else:
            return None
    if before and len(leaves) > 1:  # layers of one leaf alone
        return None
    layers = _described(*before, encoder.trunk)
    return None if layers is None else StackEncoder(tuple(leaves), layers)


def stack(encoder: StackEncoder | None, head: nn.Sequential, detached: bool = False) -> Stack | None:
    """Returns the description of a network; None if the encoder or the head has none."""
    layers = _described(head)
    return None if encoder is None or layers is None else Stack(encoder, layers, detached)


def _described(*parts: nn.Sequential) -> tuple[Layer, ...] | None:
    """Returns linear layers and the names of activations; None if there is another layer."""
    if any(type(part) is not nn.Sequential for part in parts):
        return None
    found: list[Layer] = []
    for layer in chain(*parts):
        if type(layer) in NAMES:
            found.append(NAMES[type(layer)])
        elif type(layer) is nn.Linear and _is_readable(layer.weight) and _is_readable(layer.bias):
            found.append(layer)
        else:
            return None
    return tuple(found)


def _is_readable(x: Any) -> bool:
    """Returns whether NumPy can read a weight; spectral_norm, for one, computes it at every call."""
    return isinstance(x, nn.Parameter) and x.is_cpu and x.dtype == torch.float32
