"""The networks of a small model in NumPy: encoders of vectors and indices, and the heads behind them.

Shapes: N samples, F features, A outputs. An input is a list of the leaves (N, ...) that the encoder reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ding_lite.data.minibatches import Batch
from ding_lite.data.rollout import view
from ding_lite.fast.numpy_mlp import NumpyMLP, find_layers, max_weights
from ding_lite.models.encoders import Encoder, IndexEncoder, VectorEncoder
from ding_lite.trees import leaf_at

BLOCK = 2**10  # rows in one pass, so that activations stay in the processor's cache
MAX_INDICES = 8  # in an observation; above it torch looks them up as fast


class NumpyTable(NamedTuple):
    """The learned vectors of an :class:`~ding_lite.models.encoders.IndexEncoder`.

    Attributes:
        parameter: the vectors.
        vectors: an array on the memory of ``parameter``.
        offset: (K,), the row of ``vectors`` for an index of 0.
    """

    parameter: Tensor
    vectors: np.ndarray
    offset: np.ndarray

    def rows(self, leaf: np.ndarray) -> np.ndarray:
        """Returns the rows of ``vectors`` for indices (N,) or (N, ...), as (N, K)."""
        return leaf.reshape(len(leaf), -1).astype(np.int64, copy=False) + self.offset

    def has(self, leaf: np.ndarray) -> bool:
        """Returns whether there is a row for each index; NumPy would count negative ones from the end."""
        rows = self.rows(leaf)
        return bool(rows.min() >= 0 and rows.max() < len(self.vectors))

    def forward(self, leaf: np.ndarray) -> np.ndarray:
        """Returns the vectors of indices.

        Shapes:
            (N,) or (N, ...) -> (N, K F)
        """
        return self.vectors.take(self.rows(leaf), 0).reshape(len(leaf), -1)

    def backward(self, leaf: np.ndarray, slope: np.ndarray, into: np.ndarray) -> None:
        """Writes the gradient of ``vectors``, given that (N, K F) of the output."""
        into.fill(0)
        slopes = torch.from_numpy(slope.reshape(-1, into.shape[1]))
        # A tenth of the time of np.add.at for 30 indices.
        torch.from_numpy(into).index_add_(0, torch.from_numpy(self.rows(leaf).ravel()), slopes)


class Leaf(NamedTuple):
    """A leaf of the observation.

    Attributes:
        path: of the leaf.
        in_features: numbers in it.
        out_features: of its encoder.
        table: of indices; None: the leaf is a vector.
    """

    path: tuple[str, ...]
    in_features: int
    out_features: int
    table: NumpyTable | None

    def features(self, leaf: np.ndarray) -> np.ndarray:
        """Returns the features (N, F) of the leaf."""
        return _flat(leaf) if self.table is None else self.table.forward(leaf)


class NumpyEncoder:
    """The encoder of an observation of vectors and indices; made by :func:`find_encoder`.

    Args:
        leaves: that it reads.
        mlp: the layers after them.

    Attributes:
        parameters: the tables of indices, then those of ``mlp``.
        largest: number of weights in the largest layer.
    """

    def __init__(self, leaves: Sequence[Leaf], mlp: NumpyMLP) -> None:
        self.leaves, self.mlp = tuple(leaves), mlp
        tables = [leaf.table.parameter for leaf in self.leaves if leaf.table is not None]
        self._num_tables = len(tables)
        self.parameters: list[Tensor] = [*tables, *mlp.parameters]
        self.largest = mlp.largest

    def is_current(self) -> bool:
        """Returns whether the model still has the same modules, parameters and methods."""
        return self.mlp.is_current()

    def has_hooks(self) -> bool:
        """Returns whether a layer has a hook, which NumPy would not call."""
        return self.mlp.has_hooks()

    def leaves_of(self, obs: Any) -> list[np.ndarray] | None:
        """Returns the input of an observation, or None if a leaf is no array of its shape and range."""
        found = [leaf_at(obs, leaf.path) for leaf in self.leaves]
        return found if self.can_read(found) else None

    def can_read(self, leaves: Sequence[Any]) -> bool:
        """Returns whether leaves are arrays of the shapes and ranges of an input, with a row at least."""
        return all(
            isinstance(x, np.ndarray)
            and bool(x.size)
            and x.size == len(x) * leaf.in_features
            and (leaf.table is None or leaf.table.has(x))
            for leaf, x in zip(self.leaves, leaves, strict=True)
        )

    def rows(self, batch: Batch) -> list[np.ndarray]:
        """Returns the input from the observations of a minibatch."""
        return [batch.array("obs", *leaf.path) for leaf in self.leaves]

    def forward(self, leaves: Sequence[np.ndarray]) -> np.ndarray:
        """Returns the features.

        Shapes:
            (N, ...) of each leaf -> (N, F)
        """
        return self.mlp.forward(self._joined(leaves))

    def trace(self, leaves: Sequence[np.ndarray]) -> list[Any]:
        """Returns the input, and the outputs (N, ...) of all layers; the last are the features."""
        return [leaves, *self.mlp.trace(self._joined(leaves))]

    def backward(self, outputs: list[Any], slope: np.ndarray, into: list[np.ndarray]) -> None:
        """Writes the gradient of the parameters ``into`` arrays of their shapes.

        Args:
            outputs: from :meth:`trace`.
            slope: (N, F), the gradient of the features.
            into: one array for each of ``parameters``.
        """
        tables = iter(into[: self._num_tables])
        of_joined = self.mlp.backward(
            outputs[1:], slope, into[self._num_tables :], to_input=self._num_tables > 0
        )
        end = 0
        for leaf, x in zip(self.leaves, outputs[0], strict=True):
            start, end = end, end + leaf.out_features
            if leaf.table is not None and of_joined is not None:
                leaf.table.backward(x, of_joined[:, start:end], next(tables))

    def _joined(self, leaves: Sequence[np.ndarray]) -> np.ndarray:
        """Returns the features of all leaves, next to each other."""
        features = [leaf.features(x) for leaf, x in zip(self.leaves, leaves, strict=True)]
        return features[0] if len(features) == 1 else np.concatenate(features, 1)


NumpyPart = NumpyEncoder | NumpyMLP


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
    def parts(self) -> tuple[NumpyPart, NumpyPart]:
        """The encoder and the head."""
        return self.encoder, self.head

    def has_hooks(self) -> bool:
        """Returns whether a layer has a hook, which NumPy would not call."""
        return any(part.has_hooks() for part in self.parts)

    def forward(self, leaves: Sequence[np.ndarray], block: int = BLOCK) -> np.ndarray:
        """Returns the output of the head, which is computed for at most ``block`` rows at a time.

        Shapes:
            (N, ...) of each leaf -> (N, A)
        """
        count = len(leaves[0])
        if count > block:
            starts = range(0, count, block)
            return np.concatenate([self.forward([x[i : i + block] for x in leaves], block) for i in starts])
        return self.head.forward(self.encoder.forward(leaves))


def find_encoder(model: nn.Module, encoder: Any) -> NumpyEncoder | None:
    """Returns the NumPy form of an encoder of ``model``, or None if it has none.

    It has one if the observation consists of vectors and indices (and perhaps a mask), and ``find_layers``
    knows the layers after them. There may be ``MAX_INDICES`` indices at most, and one of several vectors may
    have no layers of its own.
    """
    if type(encoder) is not Encoder or encoder.dtype != torch.float32:
        return None
    leaves: list[Leaf] = []
    layers: list[Any] = []
    for path, leaf in zip(encoder.paths, encoder.leaves, strict=True):
        find_leaf = FINDERS.get(type(leaf))
        found = None if find_leaf is None else find_leaf(path, leaf)
        if found is None:
            return None
        leaves.append(found)
        layers += [leaf.layers] if isinstance(leaf, VectorEncoder) and len(leaf.layers) else []
    if layers and len(leaves) > 1:
        return None
    if sum(leaf.in_features for leaf in leaves if leaf.table is not None) > MAX_INDICES:
        return None
    mlp = find_layers(model, encoder, [*layers, encoder.trunk])
    return None if mlp is None else NumpyEncoder(leaves, mlp)


def _vector(path: tuple[str, ...], encoder: VectorEncoder) -> Leaf:
    return Leaf(path, encoder.in_features, encoder.out_features, None)


def _indices(path: tuple[str, ...], encoder: IndexEncoder) -> Leaf | None:
    """Returns the NumPy form of an encoder of indices; None if its table does more than to look up."""
    table = encoder.table
    is_plain = table.max_norm is None and table.padding_idx is None and not table.scale_grad_by_freq
    if type(table) is not nn.Embedding or not is_plain or table.sparse:
        return None
    if any(numbers.device.type != "cpu" for numbers in (table.weight, encoder.offset)):
        return None
    offset = view(encoder.offset)
    return Leaf(path, len(offset), encoder.out_features, NumpyTable(table.weight, view(table.weight), offset))


# By the encoder of a leaf: returns its NumPy form, or None.
FINDERS: dict[type, Callable[[tuple[str, ...], Any], Leaf | None]] = {
    VectorEncoder: _vector,
    IndexEncoder: _indices,
}


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
