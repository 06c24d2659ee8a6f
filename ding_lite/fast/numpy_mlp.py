"""Multilayer perceptrons in NumPy, on the memory of torch's parameters: forward pass and gradient.

On small batches, calls to torch cost more than their arithmetic. :func:`find_mlp` decides which networks can
run in NumPy.

Shapes: N samples, F features, A outputs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from itertools import pairwise
from operator import is_
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_modules

from ding_lite.data.minibatches import Batch
from ding_lite.data.rollout import view
from ding_lite.models.actor_critic import VAC, ActorCritic
from ding_lite.models.encoders import Encoder, VectorEncoder

# Number of weights in a layer up to which NumPy is faster. Above it arithmetic dominates, and torch can use
# threads.
MAX_WEIGHTS, MAX_WEIGHTS_OF_ONE_THREAD = 2**14, 2**18
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
BLOCK = 2**10  # rows in one pass, so that activations stay in the processor's cache


def find_mlp(model: nn.Module, encoder: Any, head: nn.Module, after: Sequence[nn.Module]) -> NumpyMLP | None:
    """Returns the NumPy form of an encoder and the layers of a head, or None if it has none.

    It has one if the observation is one vector (and perhaps a mask), and the layers are Linear, Tanh and ReLU
    with float32 parameters on the CPU.

    Args:
        model: the module that holds both.
        encoder: of the observation.
        head: the module after the encoder.
        after: the parts of the head, in the order of the computation.
    """
    if type(encoder) is not Encoder or encoder.dtype != torch.float32:
        return None
    if [type(leaf) for leaf in encoder.leaves] != [VectorEncoder]:
        return None
    leaf: Any = encoder.leaves[0]
    layers: list[nn.Module] = []
    for part in (leaf.layers, encoder.trunk, *after):
        if type(part) not in (nn.Sequential, nn.Linear):
            return None
        layers += list(part) if isinstance(part, nn.Sequential) else [part]
    kinds = [type(layer) for layer in layers]
    if any(kind not in (nn.Linear, nn.Tanh, nn.ReLU) for kind in kinds):
        return None
    # An activation overwrites the output of the layer before it, which must be linear.
    if any(kind is not nn.Linear and before is not nn.Linear for before, kind in pairwise([None, *kinds])):
        return None
    parts = [*encoder.modules(), *head.modules()]
    numbers = [x for part in parts for x in (*part.parameters(), *part.buffers())]
    if any(x.dtype != torch.float32 or x.device.type != "cpu" for x in numbers):
        return None
    if any(isinstance(layer, nn.Linear) and layer.bias is None for layer in layers):
        return None
    mlp = NumpyMLP(model, encoder.paths[0], layers, parts)
    return mlp if mlp.is_current() else None


def find_critic(model: ActorCritic) -> NumpyMLP | None:
    """Returns the NumPy form of a value network that has its own encoder, or None if it has none."""
    if not isinstance(model, VAC) or model.critic_encoder is None:
        return None
    mlp = find_mlp(model, model.critic_encoder, model.critic_head, [model.critic_head])
    return None if mlp is None or mlp.largest > max_weights() else mlp


def max_weights() -> int:
    """Returns the number of weights in a layer up to which NumPy learns faster than torch.

    Outside of the command line NumPy may use many threads, which wait for each other on a busy machine.
    """
    one_thread = torch.get_num_threads() == 1 and products_have_one_thread()
    return MAX_WEIGHTS_OF_ONE_THREAD if one_thread else MAX_WEIGHTS


def products_have_one_thread() -> bool:
    """Returns whether NumPy's matrix products are limited to one thread, as the command line does.

    OpenBLAS reads its own variable, and OpenMP's if that is not set.
    """
    return (os.environ.get("OPENBLAS_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS")) == "1"


def hooks_of(modules: Iterable[nn.Module]) -> list[Any]:
    """Returns the collections of all hooks that torch calls for these modules; most are empty."""
    own = [getattr(module, kind) for module in modules for kind in HOOKS]
    return [*own, *(getattr(torch_modules, f"_global{kind}") for kind in HOOKS)]


class NumpyMLP:
    """Linear layers and activations in sequence; made by :func:`find_mlp`.

    Its arrays share the memory of the parameters, so a gradient step needs no copy. :meth:`is_current` tells
    whether parameters, layers or methods have been replaced since.

    Args:
        model: the module that holds the layers.
        path: of the leaf of the observation that is read.
        layers: in the order of the computation.
        parts: all modules that contain the layers.

    Attributes:
        parameters: weight and bias of each linear layer, in order.
        largest: number of weights in the largest layer.
    """

    def __init__(
        self,
        model: nn.Module,
        path: tuple[str, ...],
        layers: Sequence[nn.Module],
        parts: Sequence[nn.Module],
    ) -> None:
        self.path = path
        linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
        self.parameters: list[Tensor] = [p for layer in linear for p in (layer.weight, layer.bias)]
        self.in_features = linear[0].in_features
        self.largest = max(layer.weight.numel() for layer in linear)
        # A linear layer is its weight and bias, an activation its class.
        self._steps: list[Any] = [
            (view(layer.weight), view(layer.bias)) if isinstance(layer, nn.Linear) else type(layer)
            for layer in layers
        ]
        # What is_current() compares: submodules, parameters with their addresses, and methods.
        self._modules = [part._modules for part in (model, *parts)]
        self._modules_then = [dict(modules) for modules in self._modules]
        self._owners = [owner for part in parts for owner in (part._parameters, part._buffers) if owner]
        self._numbers = [x for owner in self._owners for x in owner.values() if x is not None]
        self._addresses = [*map(Tensor.data_ptr, self._numbers)]
        self._parts = list(parts)
        self._hooks = hooks_of((model, *parts))

    def is_current(self) -> bool:
        """Returns whether the model still has the same modules, parameters and methods."""
        numbers = [x for owner in self._owners for x in owner.values() if x is not None]
        return (
            self._modules == self._modules_then
            and all(map(is_, numbers, self._numbers))
            and [*map(Tensor.data_ptr, numbers)] == self._addresses
            and all(vars(part).keys().isdisjoint(("forward", "distribution")) for part in self._parts)
        )

    def has_hooks(self) -> bool:
        """Returns whether a layer has a hook, which NumPy would not call."""
        return any(self._hooks)

    def rows(self, batch: Batch) -> np.ndarray:
        """Returns the input (N, F) float32 from the observations of a minibatch."""
        return _flat(batch.array("obs", *self.path))

    def forward(self, x: np.ndarray, block: int = BLOCK) -> np.ndarray:
        """Returns the output of the last layer. More than ``block`` rows are computed ``BLOCK`` at a time.

        Shapes:
            (N, ...) -> (N, A)
        """
        x = _flat(x)
        if len(x) > block:
            return np.concatenate([self.forward(x[i : i + block]) for i in range(0, len(x), block)])
        for step in self._steps:
            x = _apply(step, x)
        return x

    def trace(self, x: np.ndarray) -> list[np.ndarray]:
        """Returns ``x`` and the outputs of all layers; an activation overwrites the output of its layer.

        Shapes:
            (N, F) -> (N, F), ..., (N, A)
        """
        outputs = [x]
        for step in self._steps:
            outputs.append(_apply(step, outputs[-1]))
        return outputs

    def backward(self, outputs: list[np.ndarray], slope: np.ndarray, into: list[np.ndarray]) -> None:
        """Writes the gradient of the parameters ``into`` arrays of their shapes.

        Args:
            outputs: from :meth:`trace`.
            slope: (N, A), the gradient of the last output.
            into: one array for each of ``parameters``.
        """
        ones, place = np.ones(len(slope), np.float32), len(into)
        for k in reversed(range(len(self._steps))):
            step, output = self._steps[k], outputs[k + 1]
            if isinstance(step, tuple):
                place -= 2
                np.matmul(slope.T, outputs[k], out=into[place])
                np.matmul(ones, slope, out=into[place + 1])  # the sum over samples, in a third of the time
                if place and slope.shape[1] == 1:  # a product of vectors, in a quarter of the time
                    slope = slope * step[0]
                elif place:
                    slope = slope @ step[0]
            elif step is nn.Tanh:
                held = output * output  # slope (1 - output^2)
                held *= slope
                slope = np.subtract(slope, held, out=held)
            else:
                slope = slope * (output > 0)


def _flat(x: np.ndarray) -> np.ndarray:
    if x.ndim == 2 and x.dtype == np.float32:
        return x
    return x.reshape(len(x), -1).astype(np.float32, copy=False)


def _apply(step: Any, x: np.ndarray) -> np.ndarray:
    if isinstance(step, tuple):
        x = x @ step[0].T
        x += step[1]
    elif step is nn.Tanh:
        np.tanh(x, out=x)
    else:
        np.maximum(x, 0, out=x)
    return x
