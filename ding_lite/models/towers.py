"""Networks of vectors in NumPy, on the parameters' own memory: forward, and the gradient backward.

On few observations torch's calls cost far more than their arithmetic. :func:`find_tower` is the one place
that says which networks have such a twin.

Shapes: N samples, F features, A outputs.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from operator import is_
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_modules

from ding_lite.models.actor_critic import VAC, ActorCritic
from ding_lite.models.encoders import Encoder, VectorEncoder
from ding_lite.models.phasic import PPG
from ding_lite.rollout import Batch, view

# Weights in a layer: beyond, arithmetic outweighs calls, and torch is as fast where it may use more threads.
MAX_WEIGHTS, MAX_WEIGHTS_OF_ONE_THREAD = 2**14, 2**18
BLOCK = 2**10  # rows at a time: what comes of them stays in the processor's cache


def find_tower(
    model: nn.Module, methods: Sequence[str], encoder: Any, head: nn.Module, after: Sequence[nn.Module]
) -> Tower | None:
    """Returns the twin of an encoder and the layers of a head after it, None where there is none.

    There is one for one vector as observation (a mask beside it is fine), and linear layers with tanh or
    relu of float32 parameters on the CPU.

    Args:
        model: whose attributes both are.
        methods: of the model that put them together.
        after: the head's parts, in the order of the computation.
    """
    if type(encoder) is not Encoder or encoder.dtype != torch.float32:
        return None
    if [type(leaf) for leaf in encoder.leaves] != [VectorEncoder]:
        return None
    leaf: Any = encoder.leaves[0]
    chain: list[nn.Module] = []
    for part in (leaf.layers, encoder.trunk, *after):
        if type(part) not in (nn.Sequential, nn.Linear):
            return None
        chain += list(part) if isinstance(part, nn.Sequential) else [part]
    kinds = [type(layer) for layer in chain]
    if any(kind not in (nn.Linear, nn.Tanh, nn.ReLU) for kind in kinds):
        return None
    # An activation is written over what a linear layer has just made, and over nothing else.
    if any(kind is not nn.Linear and before is not nn.Linear for before, kind in pairwise([None, *kinds])):
        return None
    parts = [*encoder.modules(), *head.modules()]
    numbers = [x for part in parts for x in (*part.parameters(), *part.buffers())]
    if any(x.dtype != torch.float32 or x.device.type != "cpu" for x in numbers):
        return None
    if any(isinstance(layer, nn.Linear) and layer.bias is None for layer in chain):
        return None
    tower = Tower(model, methods, encoder.paths[0], chain, parts)
    return tower if tower.holds() else None


def find_critic(model: ActorCritic) -> Tower | None:
    """Returns the twin of a value network with an encoder of its own, None where there is none."""
    if not isinstance(model, VAC) or model.critic_encoder is None:
        return None
    kind = PPG if isinstance(model, PPG) else VAC
    methods = ["compute_critic", "compute_actor_critic", *(["_critic_features"] if kind is PPG else [])]
    if not owns(model, kind, *methods):
        return None
    head = model.critic_head
    tower = find_tower(model, methods, model.critic_encoder, head, [head])
    return None if tower is None or tower.largest > max_weights() else tower


def max_weights() -> int:
    """Returns up to how many weights in a layer NumPy learns faster than torch.

    Outside of the command line NumPy may use many threads, which on a busy machine wait for one another.
    """
    one = torch.get_num_threads() == 1 and products_have_one_thread()
    return MAX_WEIGHTS_OF_ONE_THREAD if one else MAX_WEIGHTS


def products_have_one_thread() -> bool:
    """Returns whether NumPy's matrix products were told to be of one thread, as the command line does.

    OpenBLAS reads its own variable, and OpenMP's where that is not set.
    """
    return (os.environ.get("OPENBLAS_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS")) == "1"


def owns(thing: Any, kind: type, *names: str) -> bool:
    """Returns whether the methods of a thing are those of ``kind``: neither its class nor it has others."""
    return all(getattr(getattr(thing, n), "__func__", None) is getattr(kind, n) for n in names)


class Tower:
    """Linear layers and activations, one after the other; made by :func:`find_tower`.

    Its arrays share the parameters' memory, so a gradient step needs no copy. Parameters, layers and methods
    that were replaced by others are noticed by :meth:`holds`.

    Args:
        model: that the layers are of.
        methods: of the model that put them together.
        path: of the observation that is read.
        layers: in the order of the computation.
        parts: all modules that these are in.

    Attributes:
        parameters: W and b of each linear layer, in their order.
        largest: number of weights in a layer.
    """

    def __init__(
        self,
        model: nn.Module,
        methods: Sequence[str],
        path: tuple[str, ...],
        layers: Sequence[nn.Module],
        parts: Sequence[nn.Module],
    ) -> None:
        self.model, self.path = model, path
        linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
        self.parameters: list[Tensor] = [p for layer in linear for p in (layer.weight, layer.bias)]
        self.in_features = linear[0].in_features
        self.largest = max(layer.weight.numel() for layer in linear)
        # Of a linear layer W and b; of an activation its kind.
        self._steps: list[Any] = [
            (view(layer.weight), view(layer.bias)) if isinstance(layer, nn.Linear) else type(layer)
            for layer in layers
        ]
        # What was read, to be compared with what is there: modules, numbers and where they are, and methods.
        self._modules = [part._modules for part in (model, *parts)]
        self._modules_then = [dict(modules) for modules in self._modules]
        self._owners = [owner for part in parts for owner in (part._parameters, part._buffers) if owner]
        self._numbers = [x for owner in self._owners for x in owner.values() if x is not None]
        self._places = [*map(Tensor.data_ptr, self._numbers)]
        of_parts = ("forward", "distribution")
        self._methods = [(model, methods), *((part, of_parts) for part in parts)]
        kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
        self._hooks = [getattr(part, kind) for part in (model, *parts) for kind in kinds]
        self._hooks += [getattr(torch_modules, f"_global{kind}") for kind in kinds]

    def holds(self) -> bool:
        """Returns whether the model still has the modules, numbers and methods that this was made from.

        Methods are looked for on the instances; those of the classes are the finder's to know.
        """
        numbers = [x for owner in self._owners for x in owner.values() if x is not None]
        return (
            self._modules == self._modules_then
            and all(map(is_, numbers, self._numbers))
            and [*map(Tensor.data_ptr, numbers)] == self._places
            and all(vars(part).keys().isdisjoint(names) for part, names in self._methods)
        )

    def is_listened_to(self) -> bool:
        """Returns whether somebody has a hook on a layer, who would hear nothing of this."""
        return any(self._hooks)

    def rows(self, batch: Batch) -> np.ndarray:
        """Returns what this reads of a minibatch: (N, F) float32."""
        return _flat(batch.array("obs", *self.path))

    def forward(self, x: np.ndarray, block: int = BLOCK) -> np.ndarray:
        """Returns the output of the last layer, from so many rows at a time.

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
        """Returns ``x`` and the outputs of all layers; an activation's is in the place of its layer's.

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
            outputs: as :meth:`trace` gave them.
            slope: (N, A), the gradient of the last one.
        """
        ones, place = np.ones(len(slope), np.float32), len(into)
        for k in reversed(range(len(self._steps))):
            step, output = self._steps[k], outputs[k + 1]
            if isinstance(step, tuple):
                place -= 2
                np.matmul(slope.T, outputs[k], out=into[place])
                np.matmul(ones, slope, out=into[place + 1])  # their sum, in a third of the time
                if place and slope.shape[1] == 1:  # a product of vectors: in a quarter of the time
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
