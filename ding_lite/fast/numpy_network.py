"""The networks of a small model in NumPy: encoders of vectors, and the heads behind them.

Shapes: N samples, F features, A outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from ding_lite.data.minibatches import Batch
from ding_lite.fast.numpy_mlp import NumpyMLP, find_layers, max_weights
from ding_lite.models.encoders import Encoder, VectorEncoder

BLOCK = 2**10  # rows in one pass, so that activations stay in the processor's cache


class NumpyEncoder(NamedTuple):
    """The encoder of an observation that is one vector, and perhaps a mask.

    Attributes:
        mlp: its layers.
        path: of the leaf of the observation that it reads.
        in_features: numbers in that leaf.
    """

    mlp: NumpyMLP
    path: tuple[str, ...]
    in_features: int


class NumpyNetwork(NamedTuple):
    """An encoder and a head. Networks of one model may share an encoder.

    Attributes:
        encoder, head: the two.
        is_detached: whether the gradient of the head stops at the features.
    """

    encoder: NumpyEncoder
    head: NumpyMLP
    is_detached: bool = False

    @property
    def largest(self) -> int:
        """Number of weights in the largest layer."""
        return max(part.largest for part in self.parts)

    @property
    def parts(self) -> tuple[NumpyMLP, NumpyMLP]:
        """The layers of the encoder and those of the head."""
        return self.encoder.mlp, self.head

    def has_hooks(self) -> bool:
        """Returns whether a layer has a hook, which NumPy would not call."""
        return any(part.has_hooks() for part in self.parts)

    def rows(self, batch: Batch) -> np.ndarray:
        """Returns the input (N, F) float32 from the observations of a minibatch."""
        return _flat(batch.array("obs", *self.encoder.path))

    def forward(self, x: np.ndarray, block: int = BLOCK) -> np.ndarray:
        """Returns the output of the head, which is computed for at most ``block`` rows at a time.

        Shapes:
            (N, ...) -> (N, A)
        """
        x = _flat(x)
        if len(x) > block:
            return np.concatenate([self.forward(x[i : i + block], block) for i in range(0, len(x), block)])
        return self.head.forward(self.encoder.mlp.forward(x))


def find_encoder(model: nn.Module, encoder: Any) -> NumpyEncoder | None:
    """Returns the NumPy form of an encoder of ``model``, or None if it has none.

    It has one if the observation is one vector (and perhaps a mask), and ``find_layers`` knows its layers.
    """
    if type(encoder) is not Encoder or encoder.dtype != torch.float32:
        return None
    if [type(leaf) for leaf in encoder.leaves] != [VectorEncoder]:
        return None
    leaf: Any = encoder.leaves[0]
    mlp = find_layers(model, encoder, [leaf.layers, encoder.trunk])
    return None if mlp is None else NumpyEncoder(mlp, encoder.paths[0], leaf.in_features)


def find_network(
    model: nn.Module, encoder: NumpyEncoder | None, head: nn.Module | None, parts: Sequence[Any]
) -> NumpyNetwork | None:
    """Returns the NumPy form of a network of ``model``, or None if it has none.

    It has none if a layer is so large that torch is as fast.

    Args:
        model: with the head.
        encoder: that the head reads; None: it has no NumPy form.
        head: the module after the encoder; None: the model has none of that name.
        parts: of the head, in the order of the computation.
    """
    if encoder is None or head is None:
        return None
    layers = find_layers(model, head, parts)
    if layers is None:
        return None
    network = NumpyNetwork(encoder, layers)
    return None if network.largest > max_weights() else network


def _flat(x: np.ndarray) -> np.ndarray:
    if x.ndim == 2 and x.dtype == np.float32:
        return x
    return x.reshape(len(x), -1).astype(np.float32, copy=False)
