"""Small networks in NumPy: their linear layers, forward and backward, on the memory of torch's parameters.

On small batches calls to torch cost more than their arithmetic. A model names its networks
(``ActorCritic.stacks``); torch runs what is above them. :func:`numpy_stacks` takes the arrays once for a
rollout, an evaluation or a phase, in which nothing but gradient steps changes the model.

Shapes: N samples, F features, K outputs of a network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from threadpoolctl import ThreadpoolController
from torch import Tensor, nn

from ding_lite.data.rollout import view
from ding_lite.models.actor_critic import COMBINED, Stack
from ding_lite.models.encoders import Encoder, IndexEncoder, VectorEncoder
from ding_lite.trees import Tree, leading_size, map_tree, value_at

# Number of weights in a layer up to which NumPy is faster, with several threads and with one.
MAX_WEIGHTS, MAX_WEIGHTS_OF_ONE_THREAD = 2**14, 2**18
BLOCK = 2**10  # samples whose outputs of a layer stay in the cache of a core
MAX_INDICES = 8  # in an observation; above it torch looks them up as fast
ACTIVATIONS: dict[type, str] = {nn.Tanh: "tanh", nn.ReLU: "relu", nn.ELU: "elu"}
METHODS = frozenset(("forward", "logit", "stacks", *COMBINED["stacks"]))  # which NumPy does not call
PLAIN: list[tuple[tuple[str, ...], Any]] = [((), None)]  # leaves of observations that are vectors
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
    if not stacks or not stacks.keys() >= set(names) or is_changed(model):
        return None
    chosen = {name: stacks[name] for name in names}
    parts: dict[Any, Any] = {part: numpy_layers(part) for stack in chosen.values() for part in stack[:2]}
    if None in parts.values():
        return None
    return {name: NumpyStack(parts[s.encoder], parts[s.head], s.detached) for name, s in chosen.items()}


def numpy_layers(part: Any) -> NumpyLayers | None:
    """Returns an encoder, or layers in sequence, in NumPy; None if torch is as fast, or must run them.

    NumPy runs linear layers, each with an activation behind it or none, and tables of indices before them.
    """
    leaves = PLAIN
    layers: Any = part if type(part) is nn.Sequential else [part]
    if type(part) is Encoder:
        leaves = list(zip(part.paths, part.leaves, strict=True))
        before = [layer for leaf in part.leaves for layer in _layers_of(leaf)]
        layers = [*before, *part.trunk]
        if part.dtype != torch.float32 or (before and leaves[1:]):
            return None
    linear: list[tuple[nn.Linear, str | None]] = []
    for layer in layers:
        if _is_small(layer):
            linear.append((layer, None))
        elif type(layer) in ACTIVATIONS and linear and not linear[-1][1] and getattr(layer, "alpha", 1) == 1:
            linear[-1] = (linear[-1][0], ACTIVATIONS[type(layer)])
        else:
            return None
    return NumpyLayers(leaves, linear)


def _layers_of(leaf: nn.Module) -> Any:
    """Returns the layers in the encoder of a leaf; one that NumPy does not know is a layer itself."""
    if type(leaf) is IndexEncoder and leaf.offset.numel() <= MAX_INDICES:
        return ()
    return leaf.layers if type(leaf) is VectorEncoder else (leaf,)


def _is_small(layer: nn.Module) -> bool:
    """Returns whether a layer is linear and small, of float32 on the CPU."""
    if type(layer) is not nn.Linear:
        return False
    size, tensors = layer.weight.numel(), (layer.weight, layer.bias)
    if size > MAX_WEIGHTS_OF_ONE_THREAD or (size > MAX_WEIGHTS and not has_one_thread()):
        return False
    # spectral_norm, for one, computes a weight at every call.
    return all(isinstance(x, nn.Parameter) and x.is_cpu and x.dtype == torch.float32 for x in tensors)


class NumpyLayers:
    """Linear layers and activations in sequence, of an encoder behind the features of an observation.

    Args:
        leaves: path and encoder of each leaf of an observation.
        linear: the layers, and the name of the activation behind each.

    Attributes:
        parameters: the tables of indices; weight and bias of each linear layer.
        keys: the id of each parameter; asked for at each step it would take a twentieth of the gradient.
        gradients: where :meth:`backward` writes the gradient of each parameter; set by who calls it.
    """

    gradients: list[np.ndarray]

    def __init__(
        self, leaves: list[tuple[tuple[str, ...], Any]], linear: Sequence[tuple[nn.Linear, str | None]]
    ) -> None:
        self._leaves = leaves
        tables = [leaf.table.weight for _, leaf in leaves if type(leaf) is IndexEncoder]
        self.parameters = [*tables, *(p for layer, _ in linear for p in (layer.weight, layer.bias))]
        self.keys = [id(p) for p in self.parameters]
        self._layers = [(view(layer.weight), view(layer.bias), activation) for layer, activation in linear]

    def of(self, obs: Any) -> np.ndarray:
        """Returns the output (N, K) for observations (N, ...), arrays or tensors on the CPU."""
        self._obs, features = obs, []
        for path, leaf in self._leaves:
            x = value_at(obs, path)
            x = view(x) if isinstance(x, Tensor) else x
            if type(leaf) is IndexEncoder:
                x = view(leaf.table.weight).take(_rows(leaf, x), 0)
            if x.ndim != 2 or x.dtype != np.float32:
                x = x.reshape(len(x), -1).astype(np.float32, copy=False)
            features.append(x)
        return self.forward(features[0] if len(features) == 1 else np.concatenate(features, 1))

    def forward(self, x: np.ndarray) -> np.ndarray:
        """Returns the output (N, K) for features (N, F)."""
        outputs = self._outputs = [x]  # of all layers, for :meth:`backward`
        for weight, bias, activation in self._layers:
            x = x @ weight.T
            x += bias
            if activation == "tanh":
                np.tanh(x, out=x)
            elif activation is not None:
                np.maximum(x, 0 if activation == "relu" else np.exp(np.minimum(x, 0)) - 1, out=x)
            outputs.append(x)
        return x

    def backward(self, slope: np.ndarray, *, to_input: bool = False) -> np.ndarray | None:
        """Writes the gradient of the parameters, and returns that of the input if it is asked for.

        Args:
            slope: (N, K), the gradient of the last output.
            to_input: whether to compute the gradient of the input.
        """
        ones, left, outputs = _ones(len(slope)), len(self.parameters), self._outputs
        for k, (weight, _, activation) in reversed(list(enumerate(self._layers))):
            output = outputs[k + 1]
            if activation == "tanh":  # slope (1 - output^2)
                square = output * output
                square *= slope
                slope = np.subtract(slope, square, out=square)
            elif activation is not None:
                slope = slope * (output > 0 if activation == "relu" else np.minimum(output, 0) + 1)
            left -= 2
            np.matmul(slope.T, outputs[k], out=self.gradients[left])
            np.matmul(ones, slope, out=self.gradients[left + 1])  # the sum, in a third of the time
            if not (left or to_input):
                return None
            # With one output it is a product of vectors, in a quarter of the time.
            if slope.shape[1] == 1:
                slope = torch.from_numpy(slope).mul(torch.from_numpy(weight)).numpy()
            else:
                slope = slope @ weight
        if left:
            self._into_tables(slope)
        return slope

    def _into_tables(self, slope: np.ndarray) -> None:
        """Writes the gradient of the tables of indices, from that of all features (N, F)."""
        tables, end = iter(self.gradients), 0
        for path, leaf in self._leaves:
            is_index = type(leaf) is IndexEncoder
            start, end = end, end + (leaf.out_features if is_index else leaf.in_features)
            if is_index:
                x, table = value_at(self._obs, path), next(tables)
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
        if leading_size(obs) <= BLOCK:
            return self.head.forward(self.encoder.of(obs))
        return np.concatenate([self.head.forward(self.encoder.of(part)) for part in blocks(obs)])


def blocks(samples: Tree) -> list[Tree]:
    """Returns samples (N, ...) in parts whose numbers stay in the cache as a network runs on them."""
    count = leading_size(samples)
    return [map_tree(lambda x, k=k: x[k : k + BLOCK], samples) for k in range(0, count, BLOCK)]


def _rows(leaf: IndexEncoder, x: np.ndarray) -> np.ndarray:
    return x.reshape(len(x), -1).astype(np.int64, copy=False) + view(leaf.offset)
