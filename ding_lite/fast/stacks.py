"""Small networks in NumPy: their linear layers, forward and backward, on the memory of torch's parameters.

On small batches calls to torch cost more than their arithmetic. A model declares its stacks
(``models.stacks``); torch runs what is above them. :func:`numpy_stacks` takes the arrays once for a rollout,
an evaluation or a phase, in which nothing but gradient steps changes the model.

Shapes: N samples, F features, K outputs of a stack.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

import numpy as np
import torch
from threadpoolctl import ThreadpoolController
from torch import Tensor, nn

from ding_lite.data.rollout import view
from ding_lite.models.stacks import Layer, Leaf, Stack, StackEncoder
from ding_lite.trees import value_at

# Number of weights in a layer up to which NumPy is faster, with several threads and with one.
MAX_WEIGHTS, MAX_WEIGHTS_OF_ONE_THREAD = 2**14, 2**18
MANY_NUMBERS = 2**13  # torch's sigmoid is faster than NumPy's tanh from here on
MAX_INDICES = 8  # in an observation; above it torch looks them up as fast


def has_one_thread() -> bool:
    """Returns whether NumPy's products and torch have one thread each, as in a pipeline."""
    return torch.get_num_threads() == 1 and all(library.num_threads == 1 for library in _blas())


@cache
def _blas() -> Any:
    return ThreadpoolController().select(user_api="blas").lib_controllers


def has_hooks(model: nn.Module) -> bool:
    """Returns whether a forward hook listens to a module, which only torch calls."""
    return any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def numpy_stacks(model: Any, names: Sequence[str]) -> dict[str, NumpyStack] | None:
    """Returns the networks ``names`` of a model in NumPy; None if torch is as fast, or must run them.

    Networks that share features share an encoder.
    """
    declared = model.stacks() if names else None
    if declared is None or not all(name in declared for name in names):
        return None
    stacks = {name: declared[name] for name in names}
    layers = [layer for stack in stacks.values() for layer in (*stack.encoder.layers, *stack.head)]
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    most = MAX_WEIGHTS_OF_ONE_THREAD if has_one_thread() else MAX_WEIGHTS
    indices = [
        leaf.offset.numel() for s in stacks.values() for leaf in s.encoder.leaves if leaf.offset is not None
    ]
    if (
        any(layer.weight.numel() > most for layer in linear)
        or any(layer not in ("tanh", "relu") for layer in layers if isinstance(layer, str))
        or sum(indices) > MAX_INDICES * len(stacks)
        or has_hooks(model)
    ):
        return None
    encoders = {stack.encoder: NumpyEncoder(stack.encoder) for stack in stacks.values()}
    return {name: NumpyStack(stack, encoders[stack.encoder]) for name, stack in stacks.items()}


class NumpyLayers:
    """Linear layers and activations in sequence.

    Attributes:
        parameters: weight and bias of each linear layer, in order.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
        self.parameters: list[Tensor] = [p for layer in linear for p in (layer.weight, layer.bias)]
        # An activation by its name, or the arrays of a linear layer: bias, weight (out, in), and (in, out).
        self._steps: list[Any] = [
            x if isinstance(x, str) else (view(x.bias), view(x.weight), view(x.weight).T) for x in layers
        ]

    def trace(self, x: np.ndarray) -> list[np.ndarray]:
        """Returns ``x`` (N, F) and the outputs of all layers; an activation overwrites those of its layer."""
        outputs = [x]
        for step in self._steps:
            if isinstance(step, tuple):
                x = x @ step[2]
                x += step[0]
            elif step == "tanh":
                x = _tanh(x, out=x if len(outputs) > 1 else None)
            else:
                x = np.maximum(x, 0, out=x if len(outputs) > 1 else None)
            outputs.append(x)
        return outputs

    def backward(
        self, outputs: list[np.ndarray], slope: np.ndarray, into: list[np.ndarray], *, to_input: bool
    ) -> np.ndarray | None:
        """Writes the gradient of the parameters, and returns that of the input if it is asked for.

        Args:
            outputs: from :meth:`trace`.
            slope: (N, K), the gradient of the last output.
            into: an array for each of ``parameters``.
            to_input: whether to compute the gradient of the input.
        """
        ones, left = _ones(len(slope)), len(into)
        for k in reversed(range(len(self._steps))):
            step, output = self._steps[k], outputs[k + 1]
            if isinstance(step, tuple):
                left -= 2
                np.matmul(slope.T, outputs[k], out=into[left])
                np.matmul(ones, slope, out=into[left + 1])  # the sum over samples, in a third of the time
                if not (left or to_input):
                    return None
                # With one output it is a product of vectors, in a quarter of the time.
                slope = slope * step[1] if slope.shape[1] == 1 else slope @ step[1]
            elif step == "tanh":  # slope (1 - output^2)
                held = output * output
                held *= slope
                slope = np.subtract(slope, held, out=held)
            else:
                slope = slope * (output > 0)
        return slope if to_input else None


def _tanh(x: np.ndarray, out: np.ndarray | None) -> np.ndarray:
    """Returns tanh x; of many numbers as 2 sigmoid(2 x) - 1, within 2e-7 and in half the time."""
    if x.size < MANY_NUMBERS:
        return np.tanh(x, out=out)
    out = np.add(x, x, out=out)
    torch.from_numpy(out).sigmoid_()
    out += out
    out -= 1
    return out


@lru_cache
def _ones(n: int) -> np.ndarray:
    return np.ones(n, np.float32)


class NumpyEncoder:
    """The features of an observation, and the layers behind them.

    Attributes:
        parameters: the tables of indices, then weights and biases.
    """

    def __init__(self, encoder: StackEncoder) -> None:
        self.leaves, self.layers = encoder.leaves, NumpyLayers(encoder.layers)
        self._tables = [leaf.table for leaf in self.leaves if leaf.table is not None]
        self.parameters: list[Tensor] = [*self._tables, *self.layers.parameters]

    def features(self, obs: Any) -> np.ndarray:
        """Returns the features (N, F) of observations (N, ...), arrays or tensors on the CPU."""
        features = []
        for leaf in self.leaves:
            x = value_at(obs, leaf.path)
            x = view(x) if isinstance(x, Tensor) else x
            if leaf.table is not None:
                x = view(leaf.table).take(_rows(leaf, x), 0)
            if x.ndim != 2 or x.dtype != np.float32:
                x = x.reshape(len(x), -1).astype(np.float32, copy=False)
            features.append(x)
        return features[0] if len(features) == 1 else np.concatenate(features, 1)

    def backward(
        self, obs: Any, outputs: list[np.ndarray], slope: np.ndarray, into: list[np.ndarray]
    ) -> None:
        """Writes the gradient of the parameters ``into`` arrays.

        Args:
            obs: that the features are of.
            outputs: of the layers, from their ``trace``.
            slope: (N, K), the gradient of the last output.
            into: an array for each of ``parameters``.
        """
        count = len(self._tables)
        of_features = self.layers.backward(outputs, slope, into[count:], to_input=count > 0)
        if of_features is None:
            return
        tables, end = iter(into), 0
        for leaf in self.leaves:
            start, end = end, end + leaf.size
            if leaf.table is not None:
                x, table = value_at(obs, leaf.path), next(tables)
                table.fill(0)
                slopes = torch.from_numpy(of_features[:, start:end].reshape(-1, table.shape[1]))
                rows = _rows(leaf, view(x) if isinstance(x, Tensor) else x).ravel()
                # A tenth of the time of np.add.at for 30 indices.
                torch.from_numpy(table).index_add_(0, torch.from_numpy(rows), slopes)


class NumpyStack:
    """A network: an encoder, which others may share, and a head.

    Attributes:
        detached: whether the gradient of the head stops at the features.
    """

    def __init__(self, stack: Stack, encoder: NumpyEncoder) -> None:
        self.encoder, self.head, self.detached = encoder, NumpyLayers(stack.head), stack.detached
        self.parameters = [*encoder.parameters, *self.head.parameters]

    def __call__(self, obs: Any, block: int = 2**10) -> np.ndarray:
        """Returns raw outputs (N, K), computing ``block`` rows at a time, so that they stay in the cache."""
        x = self.encoder.features(obs)
        parts = [x] if len(x) <= block else np.split(x, range(block, len(x), block))
        found = [self.head.trace(self.encoder.layers.trace(part)[-1])[-1] for part in parts]
        return found[0] if len(found) == 1 else np.concatenate(found)


def _rows(leaf: Leaf, x: np.ndarray) -> np.ndarray:
    assert leaf.offset is not None
    return x.reshape(len(x), -1).astype(np.int64, copy=False) + view(leaf.offset)
