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
from torch import Tensor, nn

from ding_lite.data.rollout import view
from ding_lite.models.actor_critic import COMBINED, Stack
from ding_lite.models.encoders import Encoder, IndexEncoder, VectorEncoder
from ding_lite.trees import Tree, leading_size, map_tree, value_at

# Number of weights in a layer up to which NumPy is faster, with several threads and with one.
MAX_WEIGHTS, MAX_WEIGHTS_OF_ONE_THREAD = 2**14, 2**18
MANY_NUMBERS = 2**15  # samples x units of the widest layer from which torch is faster than NumPy
THIN = 2**4  # NumPy multiplies matrices with fewer rows or columns than this, whatever their size
BLOCK = 2**11  # samples whose outputs of all layers stay in the cache of a core
SCRATCH = -1  # number of the memory for temporary results; the outputs of layers have numbers from 0
MAX_INDICES = 8  # in a leaf of an observation; torch looks up more indices as fast
METHODS = frozenset(("forward", "logit", "stacks", *COMBINED["stacks"]))  # set on a module, torch must run it
PLAIN: list[tuple[tuple[str, ...], Any]] = [((), None)]  # leaves of observations that are vectors
_ones = lru_cache(partial(np.ones, dtype=np.float32))


def _elu(x: Tensor, scratch: Tensor) -> Tensor:
    below = torch.clamp(x, max=0, out=scratch).exp_().sub_(1)
    return torch.maximum(x, below, out=x)  # in half the time of torch's elu


# By activation: (input, scratch memory) -> output; (gradient g of output, output) -> gradient of input.
# Small batches run in NumPy, large ones in torch, which overwrites the first argument.
OF_FEW: dict[type | None, tuple[Any, Any]] = {
    nn.Tanh: (lambda x, _: np.tanh(x, out=x), lambda g, y: g - y * y * g),
    nn.ReLU: (lambda x, _: np.maximum(x, 0, out=x), lambda g, y: g * (y > 0)),
    nn.ELU: (
        lambda x, _: np.maximum(x, np.exp(np.minimum(x, 0)) - 1, out=x),
        lambda g, y: g * (np.minimum(y, 0) + 1),
    ),
    None: (lambda x, _: x, lambda g, _: g),
}
ATEN = torch.ops.aten
OF_MANY: dict[type | None, tuple[Any, Any]] = {
    nn.Tanh: (lambda x, _: x.tanh_(), lambda g, y: ATEN.tanh_backward.grad_input(g, y, grad_input=g)),
    nn.ReLU: (lambda x, _: x.relu_(), lambda g, y: ATEN.threshold_backward.grad_input(g, y, 0, grad_input=g)),
    nn.ELU: (_elu, lambda g, y: ATEN.elu_backward.grad_input(g, 1, 1, 1, True, y, grad_input=g)),
    None: OF_FEW[None],
}


def has_one_thread() -> bool:
    """Returns whether NumPy's products and torch have one thread each, as in a pipeline."""
    return torch.get_num_threads() == 1 and all(library.num_threads == 1 for library in _blas())


@cache
def _blas() -> Any:
    return ThreadpoolController().select(user_api="blas").lib_controllers


def is_changed(model: nn.Module) -> bool:
    """Returns whether a module has a hook or a method of its own, which NumPy would not call."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(
        any(getattr(module, name) for name in hooks) or not METHODS.isdisjoint(vars(module))
        for module in model.modules()
    ) or any(parameter._backward_hooks for parameter in model.parameters())


def numpy_stacks(model: Any, names: Sequence[str]) -> dict[str, NumpyStack] | None:
    """Returns the networks ``names`` of a model in NumPy; None if torch is as fast, or must run them.

    Networks that share features share an encoder.
    """
    stacks: Mapping[str, Stack] | None = model.stacks() if names else None
    if not stacks or not stacks.keys() >= set(names) or is_changed(model):
        return None
    in_numpy, result = cache(numpy_layers), {}
    for name in names:
        encoder, head = (in_numpy(part) for part in stacks[name][:2])
        if encoder is None or head is None:
            return None
        result[name] = NumpyStack(encoder, head, stacks[name].detached)
    networks = {network for stack in result.values() for network in (stack.encoder, stack.head)}
    keys = [key for network in networks for key in network.keys]
    return result if len(keys) == len({*keys}) else None  # the gradients of tied layers would share memory


def numpy_layers(part: Any) -> NumpyLayers | None:
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
        if _is_small(layer):
            linear.append((layer, None))
        elif type(layer) in OF_FEW and linear and not linear[-1][1] and getattr(layer, "alpha", 1.0) == 1.0:
            linear[-1] = (linear[-1][0], type(layer))
        else:
            return None
    return NumpyLayers(leaves, linear)


def _is_known(leaf: nn.Module) -> bool:
    if type(leaf) is IndexEncoder:
        return leaf.offset.numel() <= MAX_INDICES
    return type(leaf) is VectorEncoder


def _is_small(layer: nn.Module) -> bool:
    """Returns whether a layer is linear and small, of float32 on the CPU."""
    if type(layer) is not nn.Linear:
        return False
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

    Attributes:
        parameters: the embedding tables; weight and bias of each linear layer.
        keys: the id of each parameter; id() at each step would take a twentieth of the gradient's time.
        gradients: arrays into which :meth:`backward` writes each parameter's gradient; the caller sets them.
    """

    gradients: list[np.ndarray]

    def __init__(
        self, leaves: list[tuple[tuple[str, ...], Any]], linear: Sequence[tuple[nn.Linear, type | None]]
    ) -> None:
        self._leaves = leaves
        tables = [leaf.table.weight for _, leaf in leaves if type(leaf) is IndexEncoder]
        self.parameters = [*tables, *(p for layer, _ in linear for p in (layer.weight, layer.bias))]
        self.keys = [id(p) for p in self.parameters]
        tensors = [(layer.weight.detach(), layer.bias.detach(), activation) for layer, activation in linear]
        arrays: Any = [(view(weight), view(bias), activation) for weight, bias, activation in tensors]
        self._layers: tuple[Any, Any] = arrays, tensors
        self._widest = max((len(bias) for _, bias, _ in tensors), default=0)
        # The outputs and slopes of large batches are written into the same memory again: it is in the cache.
        self._memory = cache(_memory)

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
        is_many = self._is_many = len(x) * self._widest >= MANY_NUMBERS
        kernels, layers = OF_MANY if is_many else OF_FEW, self._layers[is_many]
        y: Any = torch.from_numpy(x) if is_many else x
        outputs = self._outputs = [y]  # of all layers, for :meth:`backward`
        for k, (weight, bias, activation) in enumerate(layers):
            out = scratch = None
            if is_many:
                scratch = self._memory(len(x), len(bias), SCRATCH)
                if k + 1 < len(layers):  # the last output is returned, so it needs new memory
                    out = self._memory(len(x), len(bias), k)
            y = _product(y, weight.T, out)
            y += bias
            y = kernels[activation][0](y, scratch)
            outputs.append(y)
        return view(y)

    def backward(self, slope: np.ndarray, *, to_input: bool = False) -> np.ndarray | None:
        """Writes the gradients of the parameters; returns the input's gradient, None without ``to_input``.

        Args:
            slope: (N, K), the gradient of the last output; it may be overwritten.
            to_input: whether to compute the gradient of the input.
        """
        ones, left, is_many = _ones(len(slope)), len(self.parameters), self._is_many
        kernels: Any = OF_MANY if is_many else OF_FEW
        y: Any = torch.from_numpy(slope) if is_many else slope
        for k, (weight, _, activation) in reversed(list(enumerate(self._layers[is_many]))):
            x = self._outputs[k]
            y = kernels[activation][1](y, self._outputs[k + 1])
            left -= 2
            gradient = self.gradients[left]
            _product(y.T, x, torch.from_numpy(gradient) if is_many else gradient)
            # The sum over samples, in a third of the time of sum().
            np.matmul(ones, view(y), out=self.gradients[left + 1])
            if not (left or to_input):
                return None
            out: Any = self._memory(*x.shape, SCRATCH - k % 2) if is_many and k else None
            # With one output it is an outer product, which takes a quarter of the time.
            if y.shape[1] == 1:
                y = (torch.mul if is_many else np.multiply)(y, weight, out=out)
            else:
                y = _product(y, weight, out)
        slope = view(y)
        if left:
            self._into_tables(slope)
        return slope

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
        if leading_size(obs) <= BLOCK:
            return self.head.forward(self.encoder.of_obs(obs))
        return np.concatenate([self.head.forward(self.encoder.of_obs(part)) for part in blocks(obs)])


def blocks(samples: Tree) -> list[Tree]:
    """Returns samples (N, ...) in parts that stay in the cache while a network runs on them."""
    count = leading_size(samples)
    return [map_tree(lambda x, k=k: x[k : k + BLOCK], samples) for k in range(0, count, BLOCK)]


@torch.inference_mode(False)
def _memory(rows: int, columns: int, which: int) -> Tensor:
    return torch.empty(rows, columns)


def _product(a: Any, b: Any, out: Any = None) -> Any:
    """Returns a @ b, of arrays or of tensors. torch.mm takes three quarters of the time of np.matmul."""
    if isinstance(a, np.ndarray):
        return np.matmul(a, b, out=out)
    if min(*a.shape, *b.shape) >= THIN:
        return torch.mm(a, b, out=out)
    return torch.from_numpy(np.matmul(view(a), view(b), out=None if out is None else view(out)))


def _rows(leaf: IndexEncoder, x: np.ndarray) -> np.ndarray:
    return x.reshape(len(x), -1).astype(np.int64, copy=False) + view(leaf.offset)
