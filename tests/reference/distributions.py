"""Action distributions as their formulas, in float64: log-prob, entropy and KL(self || other), each (N,).

``parameters`` are the output of the policy head, a dict of them for a tree of actions. Actions are raw
samples: indices from 0, bits, the value before the tanh of a Tanh-Normal, the share of the width of a Beta.
"""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from reference.recording import SPACES, Mismatch, branches

HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
BETA_EDGE = 1e-6  # Beta samples are clamped to [edge, 1 - edge], where the density is finite


class Categorical:
    """p_a = exp z_a / sum over legal b of exp z_b; 0 for an action that is not legal."""

    def __init__(self, logit: Tensor, mask: Tensor | None = None) -> None:
        self.legal = torch.ones_like(logit, dtype=torch.bool) if mask is None else mask
        total = torch.logsumexp(logit.masked_fill(~self.legal, -math.inf), -1, keepdim=True)
        self.log_p = (logit - total).masked_fill(~self.legal, 0.0)  # 0 for illegal actions
        self.p = self.log_p.exp().masked_fill(~self.legal, 0.0)

    def log_prob(self, action: Tensor) -> Tensor:
        if not bool(self.legal.gather(-1, action[:, None]).all()):
            raise Mismatch("the library sampled an illegal action")
        return self.log_p.gather(-1, action[:, None])[:, 0]

    def entropy(self) -> Tensor:
        """H = - sum p log p."""
        return -(self.p * self.log_p).sum(-1)

    def kl(self, other: Categorical) -> Tensor:
        """KL = sum p (log p - log q)."""
        return (self.p * (self.log_p - other.log_p)).sum(-1)


class Bits:
    """Independent bits with log-odds x: p = 1 / (1 + exp(-x)). A masked bit is always 0."""

    def __init__(self, logit: Tensor, mask: Tensor | None = None) -> None:
        self.free = torch.ones_like(logit) if mask is None else mask.to(logit.dtype)
        self.p = torch.sigmoid(logit)
        self.log_one = torch.nn.functional.logsigmoid(logit)
        self.log_zero = torch.nn.functional.logsigmoid(-logit)

    def log_prob(self, action: Tensor) -> Tensor:
        return (self.free * torch.where(action > 0, self.log_one, self.log_zero)).sum(-1)

    def entropy(self) -> Tensor:
        return -(self.free * (self.p * self.log_one + (1 - self.p) * self.log_zero)).sum(-1)

    def kl(self, other: Bits) -> Tensor:
        one, zero = self.log_one - other.log_one, self.log_zero - other.log_zero
        return (self.free * (self.p * one + (1 - self.p) * zero)).sum(-1)


class Normal:
    """log N(a) = -((a - mu) / sigma)^2 / 2 - log sigma - log(2 pi) / 2, summed over the dimensions."""

    def __init__(self, parameters: dict[str, Tensor]) -> None:
        self.mu, self.sigma = parameters["mu"], parameters["sigma"]

    def log_prob(self, action: Tensor) -> Tensor:
        z = (action - self.mu) / self.sigma
        return (-0.5 * z**2 - self.sigma.log() - HALF_LOG_2PI).sum(-1)

    def entropy(self) -> Tensor:
        """H = 1/2 + log(2 pi) / 2 + log sigma."""
        return (0.5 + HALF_LOG_2PI + self.sigma.log()).sum(-1)

    def kl(self, other: Normal) -> Tensor:
        """KL = log(s'/s) + (s^2 + (m - m')^2) / (2 s'^2) - 1/2."""
        squares = self.sigma**2 + (self.mu - other.mu) ** 2
        return ((other.sigma / self.sigma).log() + squares / (2 * other.sigma**2) - 0.5).sum(-1)


class TanhNormal(Normal):
    """a = low + (tanh u + 1) (high - low) / 2 with u ~ N(mu, sigma).

    log pi(a) = log N(u) - log |da/du|, and da/du = (1 - tanh(u)^2) (high - low) / 2, where
    log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u)). The KL is that of the Normals: one bijection maps
    both. The entropy is the Normal's plus E[log |da/du|], here by the trapezoid rule.
    """

    def __init__(self, parameters: dict[str, Tensor], space: gym.spaces.Box) -> None:
        super().__init__(parameters)
        self.half_width = torch.as_tensor((space.high.astype(float) - space.low.astype(float)) / 2)

    def _log_slope(self, u: Tensor) -> Tensor:
        return 2 * (math.log(2) - u - torch.nn.functional.softplus(-2 * u)) + self.half_width.log()

    def log_prob(self, action: Tensor) -> Tensor:
        return super().log_prob(action) - self._log_slope(action).sum(-1)

    def entropy(self) -> Tensor:
        z = torch.linspace(-9, 9, 721, dtype=self.mu.dtype)[:, None, None]
        density = torch.exp(-0.5 * z**2 - HALF_LOG_2PI)
        mean = torch.trapezoid(density * self._log_slope(self.mu + self.sigma * z), z[:, 0, 0], dim=0)
        return super().entropy() + mean.sum(-1)


class Beta:
    """x ~ Beta(alpha, beta), a = low + x (high - low) (Chou, Maturana and Scherer, ICML 2017).

    log pi(a) = (alpha - 1) log x + (beta - 1) log(1 - x) - log B(alpha, beta) - log(high - low)
    """

    def __init__(self, parameters: dict[str, Tensor], space: gym.spaces.Box) -> None:
        self.alpha, self.beta = parameters["alpha"], parameters["beta"]
        self.width = torch.as_tensor(space.high.astype(float) - space.low.astype(float))

    @property
    def log_norm(self) -> Tensor:
        a, b = self.alpha, self.beta
        return torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)

    def _expected(self, other: Beta) -> Tensor:
        """Returns E[log of the density of ``other``] under this one: E[log x] = psi(a) - psi(a + b)."""
        log_x = torch.digamma(self.alpha) - torch.digamma(self.alpha + self.beta)
        log_rest = torch.digamma(self.beta) - torch.digamma(self.alpha + self.beta)
        inside = (other.alpha - 1) * log_x + (other.beta - 1) * log_rest
        return (inside - other.log_norm - self.width.log()).sum(-1)

    def log_prob(self, action: Tensor) -> Tensor:
        x = action.clamp(BETA_EDGE, 1 - BETA_EDGE)
        inside = (self.alpha - 1) * x.log() + (self.beta - 1) * (1 - x).log()
        return (inside - self.log_norm - self.width.log()).sum(-1)

    def entropy(self) -> Tensor:
        return -self._expected(self)

    def kl(self, other: Beta) -> Tensor:
        return self._expected(self) - self._expected(other)


class Independent:
    """Independent distributions: log-probs, entropies and KLs add up."""

    def __init__(self, parts: list[tuple[Any, Any]]) -> None:
        """Takes pairs of a distribution and a function that finds its part of an action."""
        self.parts = parts

    def log_prob(self, action: Any) -> Tensor:
        return sum(part.log_prob(own(action)) for part, own in self.parts)

    def entropy(self) -> Tensor:
        return sum(part.entropy() for part, _ in self.parts)

    def kl(self, other: Independent) -> Tensor:
        return sum(p.kl(q) for (p, _), (q, _) in zip(self.parts, other.parts, strict=True))


def distribution(space: gym.Space, box: str, parameters: Any, mask: Any) -> Any:
    """Returns the distribution over the actions of ``space``.

    Args:
        space: of the actions.
        box: "normal", "tanh_normal" or "beta", for its Boxes.
        parameters: as ``networks.Networks.parameters`` gives them.
        mask: bools, True where legal; None for no mask.
    """
    parts = branches(space)
    if parts is not None:
        return Independent(
            [
                (
                    distribution(part, box, parameters[name], None if mask is None else mask.get(name)),
                    lambda action, name=name: action[name],
                )
                for name, part in parts.items()
            ]
        )
    if isinstance(space, SPACES.Discrete):
        return Categorical(parameters, mask)
    if isinstance(space, SPACES.MultiBinary):
        return Bits(parameters, mask)
    if isinstance(space, SPACES.MultiDiscrete):
        sizes = [int(n) for n in space.nvec]
        masks = [None] * len(sizes) if mask is None else mask.split(sizes, -1)
        return Independent(
            [
                (Categorical(logit, own), lambda action, k=k: action[:, k])
                for k, (logit, own) in enumerate(zip(parameters.split(sizes, -1), masks, strict=True))
            ]
        )
    if box == "beta":
        return Beta(parameters, space)
    return TanhNormal(parameters, space) if box == "tanh_normal" else Normal(parameters)


def handed_to_env(space: gym.Space, box: str, action: Any) -> Any:
    """Returns the environment action of one raw action."""
    parts = branches(space)
    if parts is not None:
        return {name: handed_to_env(part, box, action[name]) for name, part in parts.items()}
    if isinstance(space, SPACES.MultiBinary):
        return np.asarray(action)
    if not isinstance(space, SPACES.Box):
        return np.asarray(action) + space.start
    low, high = space.low.astype(float), space.high.astype(float)
    share = {"tanh_normal": lambda u: (np.tanh(u) + 1) / 2, "beta": lambda x: x}.get(box)
    action = np.asarray(action, float)
    return np.clip(action, low, high) if share is None else low + share(action) * (high - low)
