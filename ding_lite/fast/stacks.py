"""Small networks in NumPy: their linear layers, forward and backward, on the memory of torch's parameters.

On small batches calls to torch cost more than their arithmetic. A model names its networks
(``ActorCritic.stacks``); torch runs what is above them. :func:`numpy_stacks` takes the arrays once for a
rollout, an evaluation or a phase, in which nothing but gradient steps changes the model.

Shapes: N samples, F features, K outputs of a network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache, partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from threadpoolctl import ThreadpoolController
from torch import Tensor, nn

from ding_lite.data.rollout import view
from ding_lite.models.actor_critic import COMBINED, Stack
from ding_lite.models.encoders import Encoder, IndexEncoder, VectorEncoder
from ding_lite.trees import value_at

# Number of weights in a layer up to which NumPy is faster, with several threads and with one.
MAX_WEIGHTS, MAX_WEIGHTS_OF_ONE_THREAD = 2**14, 2**18
MANY_NUMBERS = 2**13  # from here on torch runs what is not a product of matrices, in half the time
BLOCK = 2**10  # samples whose outputs of a layer stay in the cache of a core
MAX_INDICES = 8  # in an observation; above it torch looks them up as fast
THROUGH: dict[str, Any] = {  # torch's kernels: slope by the output, output -> slope by the input
    "tanh": torch.ops.aten.tanh_backward,
    "relu": lambda slope, output: torch.ops.aten.threshold_backward(slope, output, 0),
    "elu": lambda slope, output: torch.ops.aten.elu_backward(slope, 1, 1, 1, True, output),
}
METHODS = frozenset(("forward", "logit", "stacks", *COMBINED["stacks"]))  # which NumPy does not call
ACTIVATIONS: dict[type, str] = {nn.Tanh: "tanh", nn.ReLU: "relu", nn.ELU: "elu"}
_ones = lru_cache(partial(np.ones, dtype=np.float32))


def has_one_thread() -> bool:
    """Returns whether NumPy's products and torch have one thread each, as in a pipeline."""
    return torch.get_num_threads() == 1 and all(library.num_threads == 1 for library in _blas())


@cache
def _blas() -> Any:
    return ThreadpoolController().select(user_api="blas").lib_controllers


def is_changed(model: nn.Module) -> bool:
    """Returns whether a forward hook or a method is set on a module, which only calls of torch would run."""
    return any(
        module._forward_hooks or module._forward_pre_hooks or not METHODS.isdisjoint(vars(module))
        for module in model.modules()
    )


def numpy_stacks(model: Any, names: Sequence[str]) -> dict[str, NumpyStack] | None:
    """Returns the networks ``names`` of a model in NumPy; None if torch is as fast, or must run them.

    Networks that share features share an encoder.
    """
    stacks: Mapping[str, Stack] | None = model.stacks() if names else None
    if stacks is None or any(name not in stacks for name in names) or is_changed(model):
        return None
    chosen = {name: stacks[name] for name in names}
    layers: dict[nn.Module, NumpyLayers] = {}
    for part in dict.fromkeys(part for stack in chosen.values() for part in (stack.encoder, stack.head)):
        made = numpy_layers(part)
        if made is None:
            return None
        layers[part] = made
    return {name: NumpyStack(layers[s.encoder], layers[s.head], s.detached) for name, s in chosen.items()}


def numpy_layers(part: nn.Module) -> NumpyLayers | None:
    """Returns an encoder, or layers in sequence, in NumPy; None if torch is as fast, or must run them."""
    leaves: list[tuple[tuple[str, ...], Any]] = [((), None)]
    sequences: list[Any] = [part]
    if type(part) is Encoder and part.dtype == torch.float32:
        leaves = list(zip(part.paths, part.leaves, strict=True))
        sequences = [leaf.layers for leaf in part.leaves if type(leaf) is VectorEncoder and len(leaf.layers)]
        is_one_network = len(leaves) == 1 or not sequences
        if not is_one_network or any(type(leaf) not in (VectorEncoder, IndexEncoder) for _, leaf in leaves):
            return None
        sequences.append(part.trunk)
    if any(type(sequence) is not nn.Sequential for sequence in sequences):
        return None
    layers = list(chain(*sequences))
    for layer in layers:
        if type(layer) in ACTIVATIONS and getattr(layer, "alpha", 1.0) == 1.0:
            continue
        # spectral_norm, for one, computes a weight at every call.
        if type(layer) is not nn.Linear or not all(
            isinstance(x, nn.Parameter) and x.is_cpu and x.dtype == torch.float32
            for x in (layer.weight, layer.bias)
        ):
            return None
        size = layer.weight.numel()
        if size > MAX_WEIGHTS_OF_ONE_THREAD or (size > MAX_WEIGHTS and not has_one_thread()):
            return None
    if sum(leaf.offset.numel() for _, leaf in leaves if type(leaf) is IndexEncoder) > MAX_INDICES:
        return None
    return NumpyLayers(layers, leaves)


class NumpyLayers:
    """Linear layers and activations in sequence, of an encoder behind the features of an observation.

    Attributes:
        parameters: of an encoder the tables of indices; weight and bias of each linear layer.
    """

    def __init__(self, layers: Sequence[Any], leaves: Sequence[tuple[tuple[str, ...], Any]]) -> None:
        self._leaves = leaves
        tables = [leaf.table.weight for _, leaf in leaves if type(leaf) is IndexEncoder]
        linear = [layer for layer in layers if type(layer) is nn.Linear]
        self._tables = len(tables)
        self.parameters: list[Tensor] = [
            *tables,
            *(p for layer in linear for p in (layer.weight, layer.bias)),
        ]
        # The name of an activation, or the arrays of a linear layer: bias, weight (out, in), and (in, out).
        self._steps: list[Any] = [
            ACTIVATIONS.get(type(x)) or (view(x.bias), view(x.weight), view(x.weight).T) for x in layers
        ]

    def features(self, obs: Any) -> np.ndarray:
        """Returns the features (N, F) of observations (N, ...), arrays or tensors on the CPU."""
        features = []
        for path, leaf in self._leaves:
            x = value_at(obs, path)
            x = view(x) if isinstance(x, Tensor) else x
            if type(leaf) is IndexEncoder:
                x = view(leaf.table.weight).take(_rows(leaf, x), 0)
            if x.ndim != 2 or x.dtype != np.float32:
                x = x.reshape(len(x), -1).astype(np.float32, copy=False)
            features.append(x)
        return features[0] if len(features) == 1 else np.concatenate(features, 1)

    def trace(self, x: np.ndarray) -> list[np.ndarray]:
        """Returns ``x`` (N, F) and the outputs of all layers; an activation overwrites its input."""
        outputs = [x]
        for step in self._steps:
            if isinstance(step, tuple):
                x = x @ step[2]
                if x.size < MANY_NUMBERS:
                    x += step[0]
                else:
                    torch.from_numpy(x).add_(torch.from_numpy(step[0]))
            else:
                x = x if len(outputs) > 1 else x.copy()
                _activate(step, x)
            outputs.append(x)
        return outputs

    def backward(
        self,
        outputs: list[np.ndarray],
        slope: np.ndarray,
        into: list[np.ndarray],
        *,
        obs: Any = None,
        to_input: bool = False,
    ) -> np.ndarray | None:
        """Writes the gradient of the parameters, and returns that of the input if it is asked for.

        Args:
            outputs: from :meth:`trace`.
            slope: (N, K), the gradient of the last output.
            into: an array for each of ``parameters``.
            obs: of an encoder, that the features are of.
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
                slope = _outer(slope, step[1]) if slope.shape[1] == 1 else slope @ step[1]
            else:
                slope = _through(step, slope, output)
        if self._tables:
            self._into_tables(obs, slope, into)
        return slope

    def _into_tables(self, obs: Any, slope: np.ndarray, into: list[np.ndarray]) -> None:
        """Writes the gradient of the tables of indices, from that of all features (N, F)."""
        tables, end = iter(into), 0
        for path, leaf in self._leaves:
            is_index = type(leaf) is IndexEncoder
            start, end = end, end + (leaf.out_features if is_index else leaf.in_features)
            if is_index:
                x, table = value_at(obs, path), next(tables)
                table.fill(0)
                slopes = torch.from_numpy(slope[:, start:end].reshape(-1, table.shape[1]))
                rows = _rows(leaf, view(x) if isinstance(x, Tensor) else x).ravel()
                # A tenth of the time of np.add.at for 30 indices.
                torch.from_numpy(table).index_add_(0, torch.from_numpy(rows), slopes)


class NumpyStack(NamedTuple):
    """A network: an encoder, which others may share, and a head.

    Attributes:
        detached: whether the gradient of the head stops at the features.
    """

    encoder: NumpyLayers
    head: NumpyLayers
    detached: bool

    def __call__(self, obs: Any) -> np.ndarray:
        """Returns raw outputs (N, K) of observations (N, ...)."""
        features = self.encoder.features(obs)
        parts = [
            self.head.trace(self.encoder.trace(features[rows])[-1])[-1] for rows in blocks(len(features))
        ]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


def blocks(samples: int) -> list[slice]:
    """Returns the rows of samples that a network is given at once: their numbers stay in the cache."""
    return [slice(start, start + BLOCK) for start in range(0, max(samples, 1), BLOCK)]


def _activate(name: str, x: np.ndarray) -> None:
    """Writes the activations of ``x`` over it."""
    if name == "relu":
        np.maximum(x, 0, out=x)
    elif name == "elu":  # max(x, exp(min(x, 0)) - 1)
        tensor = torch.from_numpy(x)
        torch.maximum(tensor, tensor.clamp(max=0).exp_().sub_(1), out=tensor)
    elif x.size < MANY_NUMBERS:
        np.tanh(x, out=x)
    else:
        torch.from_numpy(x).tanh_()


def _through(name: str, slope: np.ndarray, output: np.ndarray) -> np.ndarray:
    """Returns the slope by the input of an activation, from that by its output."""
    if name == "elu" or output.size >= MANY_NUMBERS:
        through: np.ndarray = THROUGH[name](torch.from_numpy(slope), torch.from_numpy(output)).numpy()
        return through
    if name == "relu":
        return slope * (output > 0)
    square = output * output  # slope (1 - output^2)
    square *= slope
    return np.subtract(slope, square, out=square)


def _outer(slope: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Returns the products (N, F) of (N, 1) and (1, F)."""
    if len(slope) * weight.size < MANY_NUMBERS:
        return slope * weight
    product: np.ndarray = torch.from_numpy(slope).mul(torch.from_numpy(weight)).numpy()
    return product


def _rows(leaf: IndexEncoder, x: np.ndarray) -> np.ndarray:
    return x.reshape(len(x), -1).astype(np.int64, copy=False) + view(leaf.offset)
