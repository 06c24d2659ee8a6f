"""The actor of a small network in NumPy, on the parameters' own memory.

Acting on some observations costs far more in torch's calls than in arithmetic. This does the same
arithmetic in a third of the time: the same float32 operations, on noise that the same torch generator
draws, so that the same actions come out and a saved generator goes on as it would have.

:func:`fast_actor` is the one place that says for which models; all others act by themselves.

Shapes: N samples, F features, A action size.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ding_lite.models.actor_critic import VAC, ActorCritic
from ding_lite.models.encoders import Encoder, VectorEncoder
from ding_lite.models.heads import LOG_SIGMA_RANGE, SOFT_BOUND, ActionHead, BoxHead, DiscreteHead
from ding_lite.rl.distributions import LOG_2PI
from ding_lite.types import MASK_KEY

MAX_WEIGHTS = 2**14  # in a layer; beyond, arithmetic outweighs calls, and torch may use threads
# Up to here OpenBLAS multiplies on one thread, however many it has: waking the others would cost more.
MAX_PRODUCTS = 2**18
LOWEST = float(np.finfo(np.float32).min)


def fast_actor(model: ActorCritic) -> FastActor | None:
    """Returns the NumPy twin of a model's actor, None where there is none.

    There is one for ``compute_actor`` and ``distribution`` as ``vac`` and ``ppg`` have them, one vector as
    observation (a mask beside it is fine), linear layers with tanh or relu, Discrete actions or a Normal
    whose sigma does not depend on the observation, and float32 parameters on the CPU.
    """
    if not isinstance(model, VAC) or not _acts_as_written(model):
        return None
    encoder, head = model.actor_encoder, model.actor_head
    if type(encoder) is not Encoder or [type(leaf) for leaf in encoder.leaves] != [VectorEncoder]:
        return None
    if type(head) is not ActionHead or not _is_plain_head(head.out):
        return None
    leaf: Any = encoder.leaves[0]
    layers: list[nn.Module] = [*leaf.layers, *encoder.trunk, *head.hidden, head.out.layer]
    if any(type(layer) not in (nn.Linear, nn.Tanh, nn.ReLU) for layer in layers):
        return None
    parts = _parts(model)
    as_written = all(owns(part, type(part), "forward") for part in parts)
    if not (as_written and owns(head, ActionHead, "distribution")):
        return None
    if not owns(head.out, type(head.out), "distribution"):
        return None
    numbers = [x for part in parts for x in (*part.parameters(), *part.buffers())]
    if any(x.dtype != torch.float32 or x.device.type != "cpu" or x.numel() > MAX_WEIGHTS for x in numbers):
        return None
    if any(isinstance(layer, nn.Linear) and layer.bias is None for layer in layers):
        return None
    return FastActor(model, layers)


def _parts(model: VAC) -> list[nn.Module]:
    """Returns all modules between an observation and the parameters of its distribution."""
    return [*model.actor_encoder.modules(), *model.actor_head.modules()]


def _acts_as_written(model: ActorCritic) -> bool:
    return owns(model, VAC, "compute_actor") and owns(model, ActorCritic, "distribution")


def owns(thing: Any, kind: type, *names: str) -> bool:
    """Returns whether these methods are those of ``kind``: replaced by no subclass, and on no instance."""
    return all(getattr(getattr(thing, n), "__func__", None) is getattr(kind, n) for n in names)


def _is_plain_head(out: nn.Module) -> bool:
    if type(out) is BoxHead:
        return out.kind == "normal" and out.sigma_type in ("independent", "fixed")
    return type(out) is DiscreteHead


class FastActor:
    """Draws actions for one model; made by :func:`fast_actor`.

    The arrays below share the parameters' memory, so a gradient step needs no copy. Parameters that were
    replaced by others, such as by ``model.to``, and layers that were, are noticed by :meth:`holds`.
    """

    def __init__(self, model: VAC, layers: list[nn.Module]) -> None:
        self.model, self.path = model, model.actor_encoder.paths[0]
        # Of a linear layer W^T and b; of an activation its kind.
        self._steps: list[Any] = [
            (_view(layer.weight).T, _view(layer.bias)) if isinstance(layer, nn.Linear) else type(layer)
            for layer in layers
        ]
        linear = [layer.weight for layer in layers if isinstance(layer, nn.Linear)]
        self.in_features = linear[0].shape[1]
        self.block = MAX_PRODUCTS // max(weight.numel() for weight in linear)  # rows at a time
        out = model.actor_head.out
        self.head: _Normal | _Categorical = _Normal(out) if isinstance(out, BoxHead) else _Categorical()
        parts = _parts(model)
        # What was read, to be compared with what is there: modules, and the address of every number.
        self._modules = [(part._modules, dict(part._modules)) for part in (model, *parts)]
        self._numbers: list[tuple[Any, str, int]] = [
            (owner, name, number.data_ptr())
            for part in parts
            for owner in (part._parameters, part._buffers)
            for name, number in owner.items()
            if number is not None
        ]
        self._hooks = [
            hooks for part in (model, *parts) for hooks in (part._forward_hooks, part._forward_pre_hooks)
        ]

    def holds(self) -> bool:
        """Returns whether the model still has the methods, modules and numbers that this was made from."""
        if not _acts_as_written(self.model) or any(now != then for now, then in self._modules):
            return False
        return all(
            name in owner and owner[name].data_ptr() == address for owner, name, address in self._numbers
        )

    def leaf(self, obs: Any) -> np.ndarray | None:
        """Returns what the encoder reads of observations, None where it must be asked itself.

        That is where somebody listens to its layers, or where these are not arrays of the right shape.
        """
        for name in self.path:
            if not isinstance(obs, Mapping):
                return None
            obs = obs.get(name)
        if not isinstance(obs, np.ndarray) or not obs.size or any(self._hooks):
            return None
        return obs if obs.size == len(obs) * self.in_features else None

    def draw(self, leaf: np.ndarray, obs: Any, generator: torch.Generator) -> dict[str, Tensor]:
        """Returns actions and their log-probs, as the model's distribution would draw them.

        Shapes:
            leaf: what :meth:`leaf` gave, perhaps scaled -> action: (N,) or (N, A); log_prob: (N,)
        """
        with np.errstate(all="ignore"):  # torch says nothing either: the learner looks for what is not finite
            action, log_prob = self.head.draw(self.output(leaf), _mask(obs), generator)
        return {"action": torch.from_numpy(action), "log_prob": torch.from_numpy(log_prob)}

    def greedy(self, leaf: np.ndarray, obs: Any) -> dict[str, Tensor]:
        """Returns the greedy actions."""
        with np.errstate(all="ignore"):
            return {"action": torch.from_numpy(self.head.mode(self.output(leaf), _mask(obs)))}

    def output(self, leaf: np.ndarray) -> np.ndarray:
        """Returns the output of the last layer: a logit, or the mean before its bound.

        Shapes:
            leaf: (N, ...) -> (N, A)
        """
        x = leaf.reshape(len(leaf), -1).astype(np.float32, copy=False)
        if len(x) <= self.block:
            return self._forward(x)
        blocks = [self._forward(x[i : i + self.block]) for i in range(0, len(x), self.block)]
        return np.concatenate(blocks)

    def _forward(self, x: np.ndarray) -> np.ndarray:
        for step in self._steps:
            if isinstance(step, tuple):
                x = x @ step[0]
                x += step[1]
            elif step is nn.Tanh:
                np.tanh(x, out=x)
            else:
                np.maximum(x, 0, out=x)
        return x


class _Noise:
    """Random numbers of torch in an array: the ones that ``rl.distributions`` draws for this shape."""

    def __init__(self) -> None:
        self.tensor = torch.empty(0)
        self.array = self.tensor.numpy()

    def of_shape(self, shape: tuple[int, ...]) -> Tensor:
        if self.array.shape != shape:
            with torch.inference_mode(False):  # one of inference mode could only be filled there
                self.tensor = torch.empty(shape)
            self.array = self.tensor.numpy()
        return self.tensor


class _Categorical:
    """``rl.distributions.Categorical``. Shapes: logit, mask: (N, n); action: (N,) int64."""

    def __init__(self) -> None:
        self.noise = _Noise()

    def draw(
        self, logit: np.ndarray, mask: np.ndarray | None, generator: torch.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        logit = self._legal(logit, mask)
        # The reductions' own names skip a layer of calls that costs more than they do.
        log_probs = logit - np.maximum.reduce(logit, axis=-1, keepdims=True)
        probs = np.exp(log_probs)
        total = np.add.reduce(probs, axis=-1, keepdims=True)
        log_probs -= np.log(total)
        probs /= total
        self.noise.of_shape(logit.shape).exponential_(generator=generator)
        action = (probs / self.noise.array).argmax(-1)
        return action, log_probs[np.arange(len(action)), action]

    def mode(self, logit: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
        return self._legal(logit, mask).argmax(-1)

    def _legal(self, logit: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
        return logit if mask is None else np.where(mask, logit, np.float32(LOWEST))


class _Normal:
    """``rl.distributions.Normal`` as ``BoxHead`` makes it. Shapes: output, action: (N, A)."""

    def __init__(self, head: BoxHead) -> None:
        self.noise, self.bound_type = _Noise(), head.bound_type
        self.free = head.sigma_type == "independent"
        self._number = _view(head.log_sigma if self.free else head.sigma)

    def draw(
        self, output: np.ndarray, mask: Any, generator: torch.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        mu, sigma = self.mode(output, mask), self.sigma()
        self.noise.of_shape(mu.shape).normal_(generator=generator)
        action = mu + sigma * self.noise.array
        z = (action - mu) / sigma
        return action, np.add.reduce(-0.5 * (z * z + LOG_2PI) - np.log(sigma), axis=-1)

    def sigma(self) -> np.ndarray:
        """Returns sigma (A,)."""
        if not self.free:
            return self._number
        low, high = LOG_SIGMA_RANGE
        return np.exp(np.minimum(np.maximum(self._number, low), high))

    def mode(self, output: np.ndarray, mask: Any) -> np.ndarray:
        if self.bound_type == "tanh":
            return np.tanh(output)
        if self.bound_type == "soft":
            return SOFT_BOUND * np.tanh(output / SOFT_BOUND)
        return output


def _view(number: Tensor) -> np.ndarray:
    array: np.ndarray = number.detach().numpy()
    return array


def _mask(obs: Any) -> np.ndarray | None:
    """Returns the mask of observations as bools (N, n), None where there is none."""
    if not isinstance(obs, Mapping) or MASK_KEY not in obs:
        return None
    return np.asarray(obs[MASK_KEY], np.bool_)
