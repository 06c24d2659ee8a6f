"""The networks of the policy, the value and the auxiliary value.

    separate, dual    obs - actor encoder - policy, auxiliary value        obs - critic encoder - value
    shared            obs - actor encoder - policy, auxiliary value, value
    detach            as shared, and the value's gradient stops at its head

(arXiv:2009.04416, section 2 and figure 5.) An encoder may end in an LSTM or a GRU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor

from reference.distributions import distribution
from reference.losses import Watch
from reference.recording import SPACES, branches

SOFT_BOUND = 5.0
LEAST_SIGMA = 1e-4


@dataclass
class Stack:
    """Linear layers (weight, bias), and recurrent ones (W_ih, W_hh, b_ih, b_hh) behind them."""

    linear: list[tuple[Tensor, Tensor]]
    recurrent: list[tuple[Tensor, ...]]


@dataclass
class Layers:
    """The layers of a model, in float64.

    Attributes:
        critic_encoder: None where the value has no encoder of its own.
        actor_hidden: between the encoder and the last layers of the policy.
        actor_out: the last layer of the policy, for all leaves of the actions side by side.
        log_sigma: the free parameters of the leaves that have one.
        critic_head, auxiliary_head: including their last layer.
        parameters: by their names in the model.
    """

    actor_encoder: Stack
    critic_encoder: Stack | None
    actor_hidden: Stack
    actor_out: tuple[Tensor, Tensor]
    log_sigma: list[Tensor]
    critic_head: Stack
    auxiliary_head: Stack | None
    parameters: dict[str, Tensor]


def lstm(x: Tensor, state: tuple[Tensor, ...], weights: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Returns h' = o tanh(c') and c' = f c + i g (Hochreiter and Schmidhuber, 1997, with a forget gate)."""
    (h, c), (w_x, w_h, b_x, b_h) = state, weights
    i, f, g, o = (w_x @ x + b_x + w_h @ h + b_h).chunk(4)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def gru(x: Tensor, state: tuple[Tensor, ...], weights: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Returns h' = (1 - z) n + z h with n = tanh(W x + b + r (U h + b')) (arXiv:1406.1078, as in cuDNN)."""
    (h,), (w_x, w_h, b_x, b_h) = state, weights
    (r_x, z_x, n_x), (r_h, z_h, n_h) = (w_x @ x + b_x).chunk(3), (w_h @ h + b_h).chunk(3)
    r, z = torch.sigmoid(r_x + r_h), torch.sigmoid(z_x + z_h)
    return ((1 - z) * torch.tanh(n_x + r * n_h) + z * h,)


State = dict[str, list[tuple[Tensor, ...]]]  # by encoder, of each recurrent layer: h, or h and c


class Networks:
    """Policy and values.

    Args:
        layers: of all networks.
        space: the action space.
        options: ``policy.model`` of the config.
        watch: of the corners of a relu.
    """

    def __init__(self, layers: Layers, space: gym.Space, options: Any, watch: Watch) -> None:
        self.layers, self.space, self.options, self.watch = layers, space, options, watch
        encoders = {"actor": layers.actor_encoder, "critic": layers.critic_encoder}
        self.encoders = {name: stack for name, stack in encoders.items() if stack is not None}
        self.is_recurrent = bool(layers.actor_encoder.recurrent)

    def _activation(self, x: Tensor) -> Tensor:
        if self.options.activation != "relu":
            return torch.tanh(x)
        near = x[x != 0]  # 0 are biases behind units that are 0, here and in the library
        if x.requires_grad and len(near):
            self.watch.near("the corner of a relu", near)
        return torch.relu(x)

    def _through(self, stack: Stack, x: Tensor, *, is_last_linear: bool = False) -> Tensor:
        for k, (weight, bias) in enumerate(stack.linear):
            x = x @ weight.T + bias
            if not is_last_linear or k < len(stack.linear) - 1:
                x = self._activation(x)
        return x

    def initial_state(self) -> State:
        """Returns zeros, the state before the first step of an episode."""
        count = 2 if self.options.rnn == "lstm" else 1
        return {
            name: [(torch.zeros(cell[1].shape[1], dtype=torch.float64),) * count for cell in stack.recurrent]
            for name, stack in self.encoders.items()
        }

    def features(self, name: str, obs: Tensor) -> Tensor:
        """Returns what an encoder makes of observations (N, D), before its recurrent layers."""
        return self._through(self.encoders[name], obs)

    def step(self, name: str, x: Tensor, state: list[tuple[Tensor, ...]]) -> tuple[Tensor, list[Any]]:
        """Returns the features (F,) behind the recurrent layers, and their state after this step."""
        cell, after = lstm if self.options.rnn == "lstm" else gru, []
        for weights, own in zip(self.encoders[name].recurrent, state, strict=True):
            after.append(cell(x, own, weights))
            x = after[-1][0]
        return x, after

    def parameters(self, features: Tensor) -> Any:
        """Returns the parameters of the action distribution, from features of the actor encoder (N, F)."""
        weight, bias = self.layers.actor_out
        raw = self._through(self.layers.actor_hidden, features) @ weight.T + bias
        columns = iter(raw.unbind(-1))
        found = self._leaf(self.space, columns, iter(self.layers.log_sigma))
        assert next(columns, None) is None
        return found

    def _leaf(self, space: gym.Space, columns: Any, log_sigmas: Any) -> Any:
        parts = branches(space)
        if parts is not None:
            return {name: self._leaf(part, columns, log_sigmas) for name, part in parts.items()}
        options, is_box = self.options, isinstance(space, SPACES.Box)
        size = sum(space.nvec) if isinstance(space, SPACES.MultiDiscrete) else SPACES.flatdim(space)
        if is_box and (options.box_distribution == "beta" or options.sigma_type == "conditioned"):
            size *= 2
        raw = torch.stack([next(columns) for _ in range(size)], -1)
        if not is_box:
            return raw
        if options.box_distribution == "beta":  # both above 1: the density has one maximum
            alpha, beta = (1 + torch.nn.functional.softplus(raw)).chunk(2, -1)
            return {"alpha": alpha, "beta": beta}
        if options.sigma_type == "conditioned":  # 1 where the layer puts out 0
            raw, before = raw.chunk(2, -1)
            sigma = torch.nn.functional.softplus(before + math.log(math.e - 1)).clamp_min(LEAST_SIGMA)
        elif options.sigma_type == "fixed":
            sigma = torch.full_like(raw, float(torch.tensor(options.fixed_sigma_value)))
        else:
            sigma = next(log_sigmas).exp().expand_as(raw)
        if options.bound_type == "tanh":
            raw = torch.tanh(raw)
        elif options.bound_type == "soft":
            raw = SOFT_BOUND * torch.tanh(raw / SOFT_BOUND)
        return {"mu": raw, "sigma": sigma}

    def policy(self, parameters: Any, mask: Any) -> Any:
        """Returns the action distribution with these parameters."""
        return distribution(self.space, self.options.box_distribution, parameters, mask)

    @property
    def value_encoder(self) -> str:
        """The name of the encoder that the value reads."""
        return "actor" if self.layers.critic_encoder is None else "critic"

    def value(self, features: Tensor) -> Tensor:
        """Returns the value (N,), in the units of the head, from features of ``value_encoder``."""
        if self.options.get("arch") == "detach":
            features = features.detach()
        return self._through(self.layers.critic_head, features, is_last_linear=True)[:, 0]

    def auxiliary(self, features: Tensor) -> Tensor:
        """Returns the auxiliary value (N,), from the features of the policy."""
        return self._through(self.layers.auxiliary_head, features, is_last_linear=True)[:, 0]

    @property
    def value_heads(self) -> list[tuple[Tensor, Tensor]]:
        """The last layer of the value, and of the auxiliary value where there is one."""
        heads = (self.layers.critic_head, self.layers.auxiliary_head)
        return [head.linear[-1] for head in heads if head is not None]
