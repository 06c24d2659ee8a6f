"""Multilayer perceptrons in NumPy, on the memory of torch's parameters: forward pass and gradient.

On small batches, calls to torch cost more than their arithmetic. :func:`find_layers` decides which layers can
run in NumPy; ``numpy_network`` puts encoders and heads together.

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

from ding_lite.data.rollout import view

# Number of weights in a layer up to which NumPy is faster. Above it arithmetic dominates, and torch can use
# threads.
MAX_WEIGHTS, MAX_WEIGHTS_OF_ONE_THREAD = 2**14, 2**18
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def find_layers(model: nn.Module, module: nn.Module, parts: Sequence[Any]) -> NumpyMLP | None:
    """Returns the NumPy form of an encoder or a head, or None if it has none.

    It has one if the layers are Linear, Tanh and ReLU with float32 parameters on the CPU.

    Args:
        model: the module that holds ``module``.
        module: the encoder or the head.
        parts: of ``module``, in the order of the computation.
    """
    layers: list[nn.Module] = []
    for part in parts:
        if type(part) not in (nn.Sequential, nn.Linear):
            return None
        layers += list(part) if isinstance(part, nn.Sequential) else [part]
    kinds = [type(layer) for layer in layers]
    if any(kind not in (nn.Linear, nn.Tanh, nn.ReLU) for kind in kinds):
        return None
    # An activation overwrites the output of the layer before it, which must be linear.
    if any(kind is not nn.Linear and before is not nn.Linear for before, kind in pairwise([None, *kinds])):
        return None
    if any(x.dtype != torch.float32 for x in module.parameters()):
        return None
    if any(x.device.type != "cpu" for x in (*module.parameters(), *module.buffers())):
        return None
    if any(isinstance(layer, nn.Linear) and layer.bias is None for layer in layers):
        return None
    mlp = NumpyMLP(model, module, layers)
    return mlp if mlp.is_current() else None


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
    """Linear layers and activations in sequence; made by :func:`find_layers`.

    Its arrays share the memory of the parameters, so a gradient step needs no copy. :meth:`is_current` tells
    whether parameters, layers or methods have been replaced since.

    Args:
        model: the module that holds ``module``.
        module: the encoder or the head that holds the layers.
        layers: in the order of the computation; an encoder of vectors may have none.

    Attributes:
        parameters: weight and bias of each linear layer, in order.
        largest: number of weights in the largest layer.
    """

    def __init__(self, model: nn.Module, module: nn.Module, layers: Sequence[nn.Module]) -> None:
        linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
        self.parameters: list[Tensor] = [p for layer in linear for p in (layer.weight, layer.bias)]
        self.largest = max((layer.weight.numel() for layer in linear), default=0)
        # A linear layer is its weight and bias, an activation its class.
        self._steps: list[Any] = [
            (view(layer.weight), view(layer.bias)) if isinstance(layer, nn.Linear) else type(layer)
            for layer in layers
        ]
        # What is_current() compares: submodules, parameters with their addresses, and methods.
        self._parts = list(module.modules())
        self._modules = [part._modules for part in (model, *self._parts)]
        self._modules_then = [dict(modules) for modules in self._modules]
        self._owners = [owner for part in self._parts for owner in (part._parameters, part._buffers) if owner]
        self._numbers = [x for owner in self._owners for x in owner.values() if x is not None]
        self._addresses = [*map(Tensor.data_ptr, self._numbers)]
        self._hooks = hooks_of((model, *self._parts))

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

    def forward(self, x: np.ndarray) -> np.ndarray:
        """Returns the output of the last layer.

        Shapes:
            (N, F) float32 -> (N, A)
        """
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

    def backward(
        self,
        outputs: list[np.ndarray],
        slope: np.ndarray,
        into: list[np.ndarray],
        *,
        to_input: bool = False,
    ) -> np.ndarray | None:
        """Writes the gradient of the parameters ``into`` arrays of their shapes.

        Args:
            outputs: from :meth:`trace`.
            slope: (N, A), the gradient of the last output.
            into: one array for each of ``parameters``.
            to_input: whether to compute the gradient of the input, too.

        Returns:
            the gradient of the input (N, F), or None without ``to_input``.
        """
        ones, left = np.ones(len(slope), np.float32), len(into)
        for k in reversed(range(len(self._steps))):
            step, output = self._steps[k], outputs[k + 1]
            if isinstance(step, tuple):
                left -= 2
                np.matmul(slope.T, outputs[k], out=into[left])
                np.matmul(ones, slope, out=into[left + 1])  # the sum over samples, in a third of the time
                if not (left or to_input):
                    return None
                # With one output it is a product of vectors, in a quarter of the time.
                slope = slope * step[0] if slope.shape[1] == 1 else slope @ step[0]
            elif step is nn.Tanh:
                held = output * output  # slope (1 - output^2)
                held *= slope
                slope = np.subtract(slope, held, out=held)
            else:
                slope = slope * (output > 0)
        return slope if to_input else None


def _apply(step: Any, x: np.ndarray) -> np.ndarray:
    if isinstance(step, tuple):
        x = x @ step[0].T
        x += step[1]
    elif step is nn.Tanh:
        np.tanh(x, out=x)
    else:
        np.maximum(x, 0, out=x)
    return x
