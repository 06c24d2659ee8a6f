"""The networks of the policy, the value and the auxiliary value.

    separate, dual    obs - actor encoder - policy, auxiliary value        obs - critic encoder - value
    shared            obs - actor encoder - policy, auxiliary value, value
    detach            as shared, and the value's gradient stops at its head

(arXiv:2009.04416, section 2 and figure 5.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor, nn

from reference.distributions import distribution
from reference.recording import SPACES, branches

SOFT_BOUND = 5.0
LEAST_SIGMA = 1e-4


@dataclass
class Layers:
    """The layers of a model, in float64.

    Attributes:
        actor_encoder, critic_encoder: the latter is None where the value has no separate encoder.
        actor_hidden: the layers between the encoder and the last layer of the policy.
        actor_out: the last layers of the policy, one for each leaf of the action space.
        log_sigma: the free parameters of the Boxes among them.
        critic_head, auxiliary_head: including their last layer.
        parameters: by their names in the model.
        modules: all modules of the model.
    """

    actor_encoder: nn.Module
    critic_encoder: nn.Module | None
    actor_hidden: nn.Module
    actor_out: Any
    log_sigma: Any
    critic_head: nn.Sequential
    auxiliary_head: nn.Sequential | None
    parameters: dict[str, Tensor]
    modules: list[nn.Module]


class Networks:
    """Policy and values of observations (N, ...).

    Args:
        layers: of all networks.
        space: the action space.
        arch: "separate", "shared", "dual" or "detach".
        options: ``policy.model`` of the config, for the Boxes.
    """

    def __init__(self, layers: Layers, space: gym.Space, arch: str, options: Any) -> None:
        self.layers, self.space, self.arch, self.options = layers, space, arch, options

    def parameters(self, obs: Tensor) -> Any:
        """Returns the parameters of the action distribution."""
        features = self.layers.actor_hidden(self.layers.actor_encoder(obs))
        return self._leaf(self.space, self.layers.actor_out, self.layers.log_sigma, features)

    def _leaf(self, space: gym.Space, out: Any, log_sigma: Any, features: Tensor) -> Any:
        parts = branches(space)
        if parts is not None:
            return {n: self._leaf(part, out[n], log_sigma[n], features) for n, part in parts.items()}
        raw = out(features)
        if not isinstance(space, SPACES.Box):
            return raw
        options = self.options
        if options.box_distribution == "beta":  # both above 1: the density has one maximum
            alpha, beta = (1 + torch.nn.functional.softplus(raw)).chunk(2, -1)
            return {"alpha": alpha, "beta": beta}
        if options.sigma_type == "conditioned":  # 1 where the layer puts out 0
            raw, before = raw.chunk(2, -1)
            sigma = torch.nn.functional.softplus(before + math.log(math.e - 1)).clamp_min(LEAST_SIGMA)
        elif options.sigma_type == "fixed":
            sigma = torch.full_like(raw, float(torch.tensor(options.fixed_sigma_value)))
        else:
            sigma = log_sigma.exp().expand_as(raw)
        if options.bound_type == "tanh":
            raw = torch.tanh(raw)
        elif options.bound_type == "soft":
            raw = SOFT_BOUND * torch.tanh(raw / SOFT_BOUND)
        return {"mu": raw, "sigma": sigma}

    def policy(self, parameters: Any, mask: Any) -> Any:
        """Returns the action distribution with these parameters."""
        return distribution(self.space, self.options.box_distribution, parameters, mask)

    def value(self, obs: Tensor) -> Tensor:
        """Returns the value (N,), in the units of the head."""
        if self.arch in ("separate", "dual"):
            features = self.layers.critic_encoder(obs)
        else:
            features = self.layers.actor_encoder(obs)
            if self.arch == "detach":
                features = features.detach()
        return self.layers.critic_head(features)[:, 0]

    def auxiliary(self, obs: Tensor) -> Tensor:
        """Returns the auxiliary value (N,), from the features of the policy."""
        return self.layers.auxiliary_head(self.layers.actor_encoder(obs))[:, 0]

    @property
    def value_heads(self) -> list[nn.Linear]:
        """The last layer of the value, and of the auxiliary value where there is one."""
        heads = (self.layers.critic_head, self.layers.auxiliary_head)
        return [head[-1] for head in heads if head is not None]
