"""Networks of vectors in NumPy, on the parameters' own memory: forward, and the gradient backward.

On few observations torch's calls cost far more than their arithmetic, and torch's float32 tanh on a CPU takes
six times as long as NumPy's. :func:`find_tower` is the one place that says which networks have such a twin.

Shapes: N samples, F features, A outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ding_lite.models.actor_critic import VAC, ActorCritic
from ding_lite.models.encoders import Encoder, VectorEncoder
from ding_lite.models.phasic import PPG
from ding_lite.rollout import to_dict

# Weights in a layer; beyond, arithmetic outweighs calls: where torch may use many threads, or only one.
MAX_WEIGHTS, MAX_WEIGHTS_OF_ONE_THREAD = 2**14, 2**18
BLOCK = 2**12  # rows at a time: what comes of them stays in the processor's cache


def find_tower(model: nn.Module, encoder: Any, head: nn.Module, layers: Sequence[nn.Module]) -> Tower | None:
    """Returns the twin of an encoder and the ``layers`` of a head after it, None where there is none.

    There is one for one vector as observation (a mask beside it is fine), and linear layers with tanh or
    relu of float32 parameters on the CPU.

    Args:
        model: whose attributes both are.
        head: of which ``layers`` are parts.
    """
    if type(encoder) is not Encoder or [type(leaf) for leaf in encoder.leaves] != [VectorEncoder]:
        return None
    leaf: Any = encoder.leaves[0]
    chain = [*leaf.layers, *encoder.trunk, *layers]
    if any(type(layer) not in (nn.Linear, nn.Tanh, nn.ReLU) for layer in chain):
        return None
    parts = [*encoder.modules(), *head.modules()]
    if not all(owns(part, type(part), "forward") for part in parts):
        return None
    numbers = [x for part in parts for x in (*part.parameters(), *part.buffers())]
    if any(x.dtype != torch.float32 or x.device.type != "cpu" for x in numbers):
        return None
    if any(isinstance(layer, nn.Linear) and layer.bias is None for layer in chain):
        return None
    return Tower(encoder.paths[0], chain, [model, *parts])


def find_critic(model: ActorCritic) -> Tower | None:
    """Returns the twin of a value network with an encoder of its own, None where there is none.

    Nor is there where torch is as fast: that depends on the threads that it has by now.
    """
    if not isinstance(model, VAC) or model.critic_encoder is None:
        return None
    for name in ("compute_critic", "compute_actor_critic"):
        written = getattr(getattr(model, name), "__func__", None)
        if written not in (getattr(VAC, name), getattr(PPG, name)):
            return None
    tower = find_tower(model, model.critic_encoder, model.critic_head, list(model.critic_head))
    return None if tower is None or tower.largest > max_weights() else tower


def max_weights() -> int:
    """Returns up to how many weights in a layer NumPy learns faster than torch."""
    return MAX_WEIGHTS_OF_ONE_THREAD if torch.get_num_threads() == 1 else MAX_WEIGHTS


def owns(thing: Any, kind: type, *names: str) -> bool:
    """Returns whether these methods are those of ``kind``: replaced by no subclass, and on no instance."""
    return all(getattr(getattr(thing, n), "__func__", None) is getattr(kind, n) for n in names)


def view(number: Tensor) -> np.ndarray:
    """Returns an array on a tensor's own memory."""
    array: np.ndarray = number.detach().numpy()
    return array


class Tower:
    """Linear layers and activations, one after the other; made by :func:`find_tower`.

    Its arrays share the parameters' memory, so a gradient step needs no copy. Parameters that were replaced
    by others, such as by ``model.to``, and layers that were, are noticed by :meth:`holds`.

    Attributes:
        path: of the observation that it reads.
        parameters: W and b of each linear layer, in their order.
        largest: number of weights in a layer.
    """

    def __init__(
        self, path: tuple[str, ...], layers: Sequence[nn.Module], parts: Sequence[nn.Module]
    ) -> None:
        self.path = path
        linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
        self.parameters: list[Tensor] = [p for layer in linear for p in (layer.weight, layer.bias)]
        self.in_features = linear[0].in_features
        self.largest = max(layer.weight.numel() for layer in linear)
        # Of a linear layer W and b; of an activation its kind.
        self._steps: list[Any] = [
            (view(layer.weight), view(layer.bias)) if isinstance(layer, nn.Linear) else type(layer)
            for layer in layers
        ]
        # What was read, to be compared with what is there: modules, and the address of every number.
        self._modules = [(part._modules, dict(part._modules)) for part in parts]
        self._numbers: list[tuple[Any, str, int]] = [
            (owner, name, number.data_ptr())
            for part in parts[1:]
            for owner in (part._parameters, part._buffers)
            for name, number in owner.items()
            if number is not None
        ]
        self._hooks = [hooks for part in parts for hooks in (part._forward_hooks, part._forward_pre_hooks)]

    def holds(self) -> bool:
        """Returns whether the model still has the modules and numbers that this was made from."""
        return not any(now != then for now, then in self._modules) and all(
            name in owner and owner[name].data_ptr() == address for owner, name, address in self._numbers
        )

    def is_listened_to(self) -> bool:
        """Returns whether somebody has a hook on a layer, who would hear nothing of this."""
        return any(self._hooks)

    def rows(self, obs: Any) -> np.ndarray:
        """Returns what this reads of a batch of tensors: (N, F) float32."""
        leaf = leaf_at(to_dict(obs), self.path).numpy()
        return leaf.reshape(len(leaf), -1).astype(np.float32, copy=False)

    def forward(self, x: np.ndarray, block: int = BLOCK) -> np.ndarray:
        """Returns the output of the last layer, from so many rows at a time.

        Shapes:
            (N, F) -> (N, A)
        """
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
                if place:
                    slope = slope @ step[0]
            elif step is nn.Tanh:
                rise = output * output
                np.subtract(1, rise, out=rise)
                slope = np.multiply(slope, rise, out=rise)
            else:
                slope = slope * (output > 0)


def _apply(step: Any, x: np.ndarray) -> np.ndarray:
    if isinstance(step, tuple):
        x = x @ step[0].T
        x += step[1]
    elif step is nn.Tanh:
        np.tanh(x, out=x)
    else:
        np.maximum(x, 0, out=x)
    return x


def leaf_at(obs: Any, path: Sequence[str]) -> Any:
    """Returns the leaf of a tree at a path, None where there is none."""
    for name in path:
        if not isinstance(obs, Mapping):
            return None
        obs = obs.get(name)
    return obs
