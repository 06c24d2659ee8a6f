"""Action distributions: one class for each kind of action space, and a tree of them for a tree of actions.

A distribution is made from ``logit``, the parameters that a policy head computes. ``log_prob``, ``entropy``
and ``kl`` are in nats, summed over the dimensions of an action.

Actions are raw samples: an index counts from 0, a Tanh-Normal action is the value before the tanh, and
a Beta action lies in (0, 1). The heads in ``models.heads`` convert raw samples to environment actions.

Shapes: logit (N, ...), a tensor or a dict; actions (N,) or (N, A), or a dict of those; log_prob, entropy, kl
(N,). N may be any batch shape.

**To add a distribution of Box actions**, see docs/own_parts.md#a-distribution.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

LOG_2PI = math.log(2 * math.pi)
# Logit of an illegal action: far below all legal logits, and finite when a loss multiplies it by a weight.
ILLEGAL = -1e30


class Distribution(ABC):
    """The distribution of one action: the methods that a policy calls."""

    @abstractmethod
    def sample(self, generator: torch.Generator | None = None) -> Any:
        """Draws one action per row, without gradient."""

    @abstractmethod
    def mode(self) -> Any:
        """Returns the greedy action."""

    @abstractmethod
    def log_prob(self, action: Any) -> Tensor:
        """Returns the log-probability or log-density of a raw action."""

    @abstractmethod
    def entropy(self) -> Tensor:
        """Returns the entropy."""

    @abstractmethod
    def kl(self, other: Any) -> Tensor:
        """Returns KL(self || other); ``other`` is of the same class."""


class Categorical(Distribution):
    """A distribution over the indices 0 .. n - 1, from unnormalised log-probabilities.

    An action is illegal where ``mask`` is False. Its logit becomes :data:`ILLEGAL`, because -inf would make
    p log p and the KL nan. Its probability is exactly 0.

    Shapes:
        logit: (N, n); mask: (N, n) bool; action: (N,) int64
    """

    def __init__(self, logit: Tensor, mask: Tensor | None = None) -> None:
        if mask is not None:
            logit = torch.where(mask, logit, max(ILLEGAL, torch.finfo(logit.dtype).min))
        self.log_probs = F.log_softmax(logit, -1)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        # argmax p / e with e ~ Exp(1) has the distribution p, and skips the checks of torch.multinomial.
        probs = self.log_probs.detach().exp()
        return (probs / torch.empty_like(probs).exponential_(generator=generator)).argmax(-1)

    def mode(self) -> Tensor:
        return self.log_probs.argmax(-1)

    def log_prob(self, action: Tensor) -> Tensor:
        return self.log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        return -(self.log_probs.exp() * self.log_probs).sum(-1)

    def kl(self, other: Categorical) -> Tensor:
        return (self.log_probs.exp() * (self.log_probs - other.log_probs)).sum(-1)


class MultiCategorical(Distribution):
    """K independent categorical distributions with ``sizes`` n_1 .. n_K.

    Shapes:
        logit: (N, n_1 + .. + n_K); mask: (N, n_1 + .. + n_K) bool; action: (N, K) int64
    """

    def __init__(self, logit: Tensor, sizes: tuple[int, ...], mask: Tensor | None = None) -> None:
        masks = [None] * len(sizes) if mask is None else mask.split(sizes, -1)
        self.parts = [
            Categorical(part, part_mask)
            for part, part_mask in zip(logit.split(sizes, -1), masks, strict=True)
        ]

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        return torch.stack([part.sample(generator) for part in self.parts], -1)

    def mode(self) -> Tensor:
        return torch.stack([part.mode() for part in self.parts], -1)

    def log_prob(self, action: Tensor) -> Tensor:
        columns = action.unbind(-1)
        return _sum([part.log_prob(column) for part, column in zip(self.parts, columns, strict=True)])

    def entropy(self) -> Tensor:
        return _sum([part.entropy() for part in self.parts])

    def kl(self, other: MultiCategorical) -> Tensor:
        return _sum([p.kl(q) for p, q in zip(self.parts, other.parts, strict=True)])


class Bernoulli(Distribution):
    """K independent bits, from the log-odds of a 1. A bit is always 0 where ``mask`` is False.

    Shapes:
        logit: (N, K); mask: (N, K) bool; action: (N, K) int64
    """

    def __init__(self, logit: Tensor, mask: Tensor | None = None) -> None:
        if mask is not None:
            # At these log-odds the probability of a 1 underflows to 0 and all products stay finite.
            logit = torch.where(mask, logit, -1e4)
        self.log_odds = logit

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        probs = torch.sigmoid(self.log_odds.detach())
        return torch.bernoulli(probs, generator=generator).to(torch.int64)

    def mode(self) -> Tensor:
        return (self.log_odds > 0).to(torch.int64)

    def log_prob(self, action: Tensor) -> Tensor:
        bits = action.to(self.log_odds.dtype)
        return -F.binary_cross_entropy_with_logits(self.log_odds, bits, reduction="none").sum(-1)

    def entropy(self) -> Tensor:
        x = self.log_odds
        return (F.softplus(x) - x * torch.sigmoid(x)).sum(-1)

    def kl(self, other: Bernoulli) -> Tensor:
        p, x, y = torch.sigmoid(self.log_odds), self.log_odds, other.log_odds
        return (p * (x - y) - F.softplus(x) + F.softplus(y)).sum(-1)


class BoxDistribution(Distribution):
    """A distribution of Box actions, with the methods and attributes that ``models.heads.BoxHead`` needs.

    It is made as ``cls(logit, half_width)``; ``half_width`` (A,) is (high - low) / 2, inf without bounds.

    Attributes:
        has_sigma: whether ``logit`` is {"mu": (N, A), "sigma": (N, A)}, which the head computes according to
            ``sigma_type`` and ``bound_type``. If it is False, the head calls ``parameters`` instead.
        needs_finite_bounds: whether the bounds of the space must be finite.
    """

    has_sigma: ClassVar[bool] = True
    needs_finite_bounds: ClassVar[bool] = False

    @staticmethod
    def parameters(output: Tensor) -> dict[str, Tensor]:
        """Returns ``logit`` from the output (N, 2 A) of the head's layer, where ``has_sigma`` is False."""
        raise NotImplementedError("a BoxDistribution with has_sigma = False must define parameters(output)")

    @staticmethod
    def to_bounds(action: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Maps raw actions (N, *shape) to the bounds; the head clips the result."""
        return action


class LocationScale(BoxDistribution):
    """A Box distribution with a location ``mu``, which is also its mode, and a scale ``sigma``, (N, A)."""

    def __init__(self, logit: Mapping[str, Tensor], half_width: Tensor | None = None) -> None:
        self.mu, self.sigma, self.half_width = logit["mu"], logit["sigma"], half_width

    def mode(self) -> Tensor:
        return self.mu


class Normal(LocationScale):
    """A diagonal Gaussian without bounds; actions are clipped only when they go to the environment."""

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        mu, sigma = self.mu.detach(), self.sigma.detach()
        return mu + sigma * torch.empty_like(mu).normal_(generator=generator)

    def log_prob(self, action: Tensor) -> Tensor:
        z = (action - self.mu) / self.sigma
        return (-0.5 * (z * z + LOG_2PI) - self.sigma.log()).sum(-1)

    def entropy(self) -> Tensor:
        return (0.5 * (1 + LOG_2PI) + self.sigma.log()).sum(-1)

    def kl(self, other: Normal) -> Tensor:
        ratio = (self.sigma / other.sigma).square()
        shift = ((self.mu - other.mu) / other.sigma).square()
        return 0.5 * (ratio + shift - 1 - ratio.log()).sum(-1)


class TanhNormal(Normal):
    """A Normal squashed by tanh and scaled to the bounds (arXiv:1801.01290, appendix C).

    A raw action is u, the value before the tanh. ``log_prob`` is the log-density of the environment's action
    a = low + (tanh u + 1)(high - low)/2:

        log pi(a) = log N(u) - sum 2 (log 2 - u - softplus(-2u)) - sum log((high - low)/2)

    The KL of two Tanh-Normals is the KL of their Normals, since the same bijection maps both. The entropy is
    the Normal's plus the mean log-determinant, computed by the trapezoidal rule on 41 points u = mu +
    sigma z, z from -5 to 5. Its error is at most 1e-4 nats per dimension for sigma up to 4, and 2e-3 at e^2.
    """

    needs_finite_bounds = True

    half_width: Tensor

    @staticmethod
    def to_bounds(action: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        return low + (np.tanh(action.astype(np.float64)) + 1) * (high - low) / 2

    def _log_det(self, u: Tensor) -> Tensor:
        """Returns the log-determinant of the map from u (..., A) to the environment's action, (...)."""
        squash = 2 * (math.log(2) - u - F.softplus(-2 * u))
        return (squash + self.half_width.log()).sum(-1)

    def log_prob(self, action: Tensor) -> Tensor:
        return super().log_prob(action) - self._log_det(action)

    def entropy(self) -> Tensor:
        z = torch.linspace(-5, 5, 41, dtype=self.mu.dtype, device=self.mu.device)
        weight = torch.softmax(-0.5 * z * z, 0)  # in proportion to the density of z
        z = z.view(-1, *[1] * self.mu.dim())
        return super().entropy() + torch.tensordot(weight, self._log_det(self.mu + self.sigma * z), 1)


class Beta(BoxDistribution):
    """Independent Betas on (0, 1), scaled to the bounds (Chou, Maturana and Scherer, ICML 2017).

    A raw action is x in (0, 1). ``log_prob`` is the log-density of the action a = low + x (high - low):

        log pi(a) = sum (alpha - 1) log x + (beta - 1) log(1 - x) - log B(alpha, beta) - log(high - low)

    ``alpha`` and ``beta`` (N, A) are above 1, so that the density has one maximum.
    """

    has_sigma = False
    needs_finite_bounds = True

    # The density is 0 or infinite at 0 and 1, and float32 samples can be exactly 0 or 1.
    _edge = 1e-6

    def __init__(self, logit: Mapping[str, Tensor], half_width: Tensor) -> None:
        self.alpha, self.beta, self.width = logit["alpha"], logit["beta"], 2 * half_width

    @staticmethod
    def parameters(output: Tensor) -> dict[str, Tensor]:
        alpha, beta = (1 + F.softplus(output)).chunk(2, -1)
        return {"alpha": alpha, "beta": beta}

    @staticmethod
    def to_bounds(action: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        return low + action.astype(np.float64) * (high - low)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        x = torch._standard_gamma(self.alpha.detach(), generator=generator)
        y = torch._standard_gamma(self.beta.detach(), generator=generator)
        return (x / (x + y)).clamp(self._edge, 1 - self._edge)

    def mode(self) -> Tensor:
        # The edge makes the mode 0.5, not 0 / 0, for the flat density alpha = beta = 1.
        return (self.alpha - 1 + self._edge) / (self.alpha + self.beta - 2 + 2 * self._edge)

    def _log_norm(self) -> Tensor:
        """Returns log B(alpha, beta), (N, A)."""
        return torch.lgamma(self.alpha) + torch.lgamma(self.beta) - torch.lgamma(self.alpha + self.beta)

    def log_prob(self, action: Tensor) -> Tensor:
        x = action.clamp(self._edge, 1 - self._edge)
        log_density = (self.alpha - 1) * x.log() + (self.beta - 1) * torch.log1p(-x)
        return (log_density - self._log_norm() - self.width.log()).sum(-1)

    def entropy(self) -> Tensor:
        a, b = self.alpha, self.beta
        nats = (
            self._log_norm()
            - (a - 1) * torch.digamma(a)
            - (b - 1) * torch.digamma(b)
            + (a + b - 2) * torch.digamma(a + b)
        )
        return (nats + self.width.log()).sum(-1)

    def kl(self, other: Beta) -> Tensor:
        a, b, c, d = self.alpha, self.beta, other.alpha, other.beta
        nats = (
            other._log_norm()
            - self._log_norm()
            + (a - c) * torch.digamma(a)
            + (b - d) * torch.digamma(b)
            + (c - a + d - b) * torch.digamma(a + b)
        )
        return nats.sum(-1)


class Joint(Distribution):
    """A tree of independent distributions for a tree of actions; log-probs, entropies and KLs add up."""

    def __init__(self, parts: Mapping[str, Distribution]) -> None:
        self.parts = dict(parts)

    def sample(self, generator: torch.Generator | None = None) -> dict[str, Any]:
        return {name: part.sample(generator) for name, part in self.parts.items()}

    def mode(self) -> dict[str, Any]:
        return {name: part.mode() for name, part in self.parts.items()}

    def log_prob(self, action: Mapping[str, Any]) -> Tensor:
        return _sum([part.log_prob(action[name]) for name, part in self.parts.items()])

    def entropy(self) -> Tensor:
        return _sum([part.entropy() for part in self.parts.values()])

    def kl(self, other: Joint) -> Tensor:
        return _sum([part.kl(other.parts[name]) for name, part in self.parts.items()])


def _sum(terms: list[Tensor]) -> Tensor:
    """Returns the sum of tensors of one shape."""
    return torch.stack(terms).sum(0)
