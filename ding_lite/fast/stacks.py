"""Small networks in NumPy: their linear layers, forward and backward, on the memory of torch's parameters.

On small batches calls to torch cost more than their arithmetic. A model names its networks
(``ActorCritic.stacks``). :func:`numpy_stacks` reads the parameters' arrays once for a rollout, an evaluation
or a phase, during which only gradient steps may change the model.

Shapes: N samples, F features, K outputs of a network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from threadpoolctl import ThreadpoolController
from torch import nn

from ding_lite.data.rollout import view
from ding_lite.models.actor_critic import COMBINED, Stack
from ding_lite.models.encoders import Encoder, IndexEncoder, VectorEncoder
from ding_lite.trees import value_at

# Number of weights in a layer up to which NumPy is faster, with several threads and with one.
MAX_WEIGHTS, MAX_WEIGHTS_OF_ONE_THREAD = 2**14, 2**18
LARGE = 2**16  # weights of a layer whose order in memory decides how fast it acts
BLOCK = 2**16  # samples x units of the widest layer that run at once: they stay in the cache of a core
MAX_INDICES = 8  # in a leaf of an observation; torch looks up more indices as fast
# If a module has one of these hooks, or such a method of its own, torch must run it.
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
METHODS = frozenset(("forward", "logit", "stacks", *COMBINED["stacks"]))
Leaves = list[tuple[tuple[str, ...], Any]]
PLAIN: Leaves = [((), None)]  # of observations that are vectors
_ones = lru_cache(partial(np.ones, dtype=np.float32))


# By activation: input, which is overwritten, -> output; (gradient g of output, output) -> gradient of input.
ACTIVATIONS: dict[type | None, tuple[Any, Any]] = {
    nn.Tanh: (lambda x: np.tanh(x, out=x), lambda g, y: g - y * y * g),
    nn.ReLU: (lambda x: np.maximum(x, 0, out=x), lambda g, y: g * (y > 0)),
    nn.ELU: (
        lambda x: np.maximum(x, np.exp(np.minimum(x, 0)) - 1, out=x),
        lambda g, y: g * (np.minimum(y, 0) + 1),
    ),
    None: (lambda x: x, lambda g, _: g),
}


def has_one_thread() -> bool:
    """Returns whether NumPy's products and torch have one thread each, as in a pipeline."""
    return torch.get_num_threads() == 1 and all(library.num_threads == 1 for library in _blas())


@cache
def _blas() -> Any:
    return ThreadpoolController().select(user_api="blas").lib_controllers


def is_changed(model: nn.Module) -> bool:
    """Returns whether a module has a hook or a method of its own, which NumPy would not call."""
    return any(
        any(getattr(module, name) for name in HOOKS)
        or not METHODS.isdisjoint(vars(module))
        or any(p is not None and p._backward_hooks for p in module._parameters.values())
        for module in model.modules()
    )


def numpy_stacks(model: Any, names: Sequence[str], *, copy: bool = False) -> dict[str, NumpyStack] | None:
    """Returns the networks ``names`` of a model in NumPy; None if torch is as fast, or must run them.

    Networks that share features share an encoder. For ``copy`` see :class:`NumpyLayers`.
    """
    stacks: Mapping[str, Stack] | None = model.stacks() if names else None
    if not stacks or not stacks.keys() >= set(names) or is_changed(model):
        return None
    in_numpy, result = cache(partial(numpy_layers, copy=copy)), {}
    for name in names:
        encoder, head = (in_numpy(part) for part in stacks[name][:2])
        if encoder is None or head is None:
            return None
        result[name] = NumpyStack(encoder, head, stacks[name].detached)
    keys = [key for network in {x for stack in result.values() for x in stack[:2]} for key in network.keys]
    return result if len(keys) == len({*keys}) else None  # the gradients of tied layers would share memory


def numpy_layers(part: Any, copy: bool) -> NumpyLayers | None:
    """Returns an encoder, or layers in sequence, in NumPy; None if torch is as fast, or must run them.

    NumPy runs linear layers, with or without an activation after each, and embedding tables before them.
    """
    leaves, layers = PLAIN, part
    if type(part) is Encoder:
        leaves = list(zip(part.paths, part.leaves, strict=True))
        before = [layer for leaf in part.leaves for layer in getattr(leaf, "layers", ())]
        layers = [*before, *part.trunk]
        if part.dtype != torch.float32 or not all(map(_is_known, part.leaves)) or (before and leaves[1:]):
            return None
    elif type(part) is not nn.Sequential:
        return None
    linear: list[tuple[nn.Linear, type | None]] = []
    for layer in layers:
        if type(layer) is nn.Linear and _is_small(layer):
            linear.append((layer, None))
        elif linear and not linear[-1][1] and type(layer) in ACTIVATIONS and getattr(layer, "alpha", 1) == 1:
            linear[-1] = (linear[-1][0], type(layer))
        else:
            return None
    return NumpyLayers(leaves, linear, copy)


def _is_known(leaf: nn.Module) -> bool:
    return type(leaf) is VectorEncoder or (type(leaf) is IndexEncoder and leaf.offset.numel() <= MAX_INDICES)


def _is_small(layer: nn.Linear) -> bool:
    """Returns whether a layer is small, of float32 on the CPU."""
    size, tensors = layer.weight.numel(), (layer.weight, layer.bias)
    if size > MAX_WEIGHTS_OF_ONE_THREAD or (size > MAX_WEIGHTS and not has_one_thread()):
        return False
    # spectral_norm, for example, computes a weight at every call.
    return all(isinstance(x, nn.Parameter) and x.is_cpu and x.dtype == torch.float32 for x in tensors)


class NumpyLayers:
    """Linear layers and activations in sequence; in an encoder they follow the features of an observation.

    Args:
        leaves: path and encoder of each leaf of an observation.
        linear: the layers, and the class of the activation after each.
        copy: whether to copy weights of ``LARGE`` and more into column order, in which a product with about
            8 rows takes a quarter of the time. Later changes of the model are then only partly seen.

    Attributes:
        parameters: the embedding tables; weight and bias of each linear layer.
        keys: the id of each parameter; id() at each step would take a twentieth of the gradient's time.
        gradients: arrays into which :meth:`backward` writes each parameter's gradient; the caller sets them.
    """

    gradients: list[np.ndarray]

    def __init__(self, leaves: Leaves, linear: Sequence[tuple[nn.Linear, type | None]], copy: bool) -> None:
        self._leaves = leaves
        self._tables = [leaf.table.weight for _, leaf in leaves if type(leaf) is IndexEncoder]
        self.parameters = [*self._tables, *(p for layer, _ in linear for p in (layer.weight, layer.bias))]
        self.keys = [id(p) for p in self.parameters]
        arrays = [(view(layer.weight), view(layer.bias), activation) for layer, activation in linear]
        self._layers = [(np.asfortranarray(w) if copy and w.size >= LARGE else w, b, a) for w, b, a in arrays]
        self._block = max(1, BLOCK // max((len(bias) for _, bias, _ in self._layers), default=1))

    def of_obs(self, obs: Any) -> np.ndarray:
        """Returns the output (N, K) for observations (N, ...), arrays or tensors on the CPU."""
        self._obs, features = obs, []
        for path, leaf in self._leaves:
            x = view(value_at(obs, path))
            if type(leaf) is IndexEncoder:
                x = view(leaf.table.weight).take(_rows(leaf, x), 0)
            if x.ndim != 2 or x.dtype != np.float32:
                x = x.reshape(len(x), -1).astype(np.float32, copy=False)
            features.append(x)
        return self.forward(features[0] if len(features) == 1 else np.concatenate(features, 1))

    def forward(self, x: np.ndarray) -> np.ndarray:
        """Returns the output (N, K) for features (N, F)."""
        self._outputs = []  # features and the output of each layer, by block, for :meth:`backward`
        for k in range(0, len(x), self._block):
            outputs = [x[k : k + self._block]]
            for weight, bias, activation in self._layers:
                y = outputs[-1] @ weight.T
                y += bias
                outputs.append(ACTIVATIONS[activation][0](y))
            self._outputs.append(outputs)
        last = [outputs[-1] for outputs in self._outputs]
        return last[0] if len(last) == 1 else np.concatenate(last)

    def backward(self, slope: np.ndarray, *, to_input: bool = False) -> np.ndarray | None:
        """Writes the gradients of the parameters; returns the input's gradient, None without ``to_input``.

        Args:
            slope: (N, K), the gradient of the last output.
            to_input: whether to compute the gradient of the input.
        """
        of_input, of_layers = [], self.gradients[len(self._tables) :]
        for start, outputs in zip(range(0, len(slope), self._block), self._outputs, strict=True):
            y, ones = slope[start : start + self._block], _ones(len(outputs[0]))
            for k, (weight, _, activation) in reversed(list(enumerate(self._layers))):
                y = ACTIVATIONS[activation][1](y, outputs[k + 1])
                # A product with ones is the sum over samples, in a third of the time of sum().
                for gradient, a, b in zip(of_layers[2 * k :], (y.T, ones), (outputs[k], y), strict=False):
                    if start:
                        gradient += a @ b
                    else:
                        np.matmul(a, b, out=gradient)
                if k or to_input or self._tables:
                    # With one output it is an outer product, which takes a quarter of the time.
                    y = y * weight if y.shape[1] == 1 else y @ weight
            of_input.append(y)
        if self._tables:
            self._into_tables(np.concatenate(of_input))
        if not to_input:
            return None
        return of_input[0] if len(of_input) == 1 else np.concatenate(of_input)

    def _into_tables(self, slope: np.ndarray) -> None:
        """Writes the gradients of the embedding tables, from the gradient of all features (N, F)."""
        tables, end = iter(self.gradients), 0
        for path, leaf in self._leaves:
            is_index = type(leaf) is IndexEncoder
            start, end = end, end + (leaf.out_features if is_index else leaf.in_features)
            if is_index:
                x, table = value_at(self._obs, path), next(tables)
                table.fill(0)
                slopes = torch.from_numpy(slope[:, start:end].reshape(-1, table.shape[1]))
                rows = _rows(leaf, view(x)).ravel()
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
        return self.head.forward(self.encoder.of_obs(obs))


def _rows(leaf: IndexEncoder, x: np.ndarray) -> np.ndarray:
    return x.reshape(len(x), -1).astype(np.int64, copy=False) + view(leaf.offset)
