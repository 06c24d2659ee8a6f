"""Action distributions: one class a kind of space, and a tree of them for a tree of actions.

Each is made from ``logit``, the parameters a policy head puts out (the name is DI-engine's), and
keeps it, so that the old distribution of a KL can be rebuilt from stored parameters. ``log_prob``,
``entropy`` and ``kl`` sum over the dimensions of the action: they have the batch shape.

Actions are raw samples: an index counts from 0, a Tanh-Normal action is the value before the squash,
a Beta action lies in (0, 1). What the environment gets is the business of ``models.heads``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.polynomial.hermite_e import hermegauss
from numpy.polynomial.laguerre import laggauss
from torch import Tensor

LOG_2PI = math.log(2 * math.pi)


class Distribution(ABC):
    """What a policy can ask of a distribution over one action.

    Shapes (N stands for any batch shape):
        sample, mode: (N,) or (N, A); log_prob, entropy, kl: (N,)
    """

    logit: Any

    @abstractmethod
    def sample(self, generator: torch.Generator | None = None) -> Any:
        """Draws one action a row, without gradient."""

    @abstractmethod
    def mode(self) -> Any:
        """Returns the greedy action."""

    @abstractmethod
    def log_prob(self, action: Any) -> Tensor:
        """Returns the log-density of a raw action."""

    @abstractmethod
    def entropy(self) -> Tensor:
        """Returns the entropy in nats."""

    @abstractmethod
    def kl(self, other: Any) -> Tensor:
        """Returns KL(self || other) in nats; both are of the same class."""


class Categorical(Distribution):
    """Over indices 0 .. n - 1, from unnormalised log-probabilities.

    Where ``mask`` is False the action is illegal: its logit becomes the lowest finite number of the
    dtype (-inf would make p log p and the KL nan), its probability exactly 0.

    Shapes:
        logit, mask: (N, n); action: (N,) int64
    """

    def __init__(self, logit: Tensor, mask: Tensor | None = None) -> None:
        self.logit = logit
        if mask is not None:
            logit = torch.where(mask, logit, torch.finfo(logit.dtype).min)
        self.log_probs = F.log_softmax(logit, -1)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        # argmax p / e with e ~ Exp(1) is a draw from p, without the checks of torch.multinomial.
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
    """Independent categoricals side by side, of ``sizes`` n_1 .. n_K.

    Shapes:
        logit, mask: (N, n_1 + .. + n_K); action: (N, K) int64
    """

    def __init__(self, logit: Tensor, sizes: tuple[int, ...], mask: Tensor | None = None) -> None:
        self.logit = logit
        masks = [None] * len(sizes) if mask is None else mask.split(sizes, -1)
        pairs = zip(logit.split(sizes, -1), masks, strict=True)
        self.parts = [Categorical(part, part_mask) for part, part_mask in pairs]

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        return torch.stack([part.sample(generator) for part in self.parts], -1)

    def mode(self) -> Tensor:
        return torch.stack([part.mode() for part in self.parts], -1)

    def log_prob(self, action: Tensor) -> Tensor:
        actions = zip(self.parts, action.unbind(-1), strict=True)
        return _total([part.log_prob(one) for part, one in actions])

    def entropy(self) -> Tensor:
        return _total([part.entropy() for part in self.parts])

    def kl(self, other: MultiCategorical) -> Tensor:
        return _total([p.kl(q) for p, q in zip(self.parts, other.parts, strict=True)])


class Bernoulli(Distribution):
    """Independent bits, from the log-odds of a 1. A masked bit stays 0.

    Shapes:
        logit, mask: (N, K); action: (N, K) int64
    """

    def __init__(self, logit: Tensor, mask: Tensor | None = None) -> None:
        self.logit = logit
        self.mask = mask
        if mask is not None:
            # Log-odds at which the probability of a 1 underflows to 0, and its products stay finite.
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


class Normal(Distribution):
    """A diagonal Gaussian, unbounded: the environment's bounds are applied at the environment only.

    Shapes:
        logit: {"mu": (N, A), "sigma": (N, A)}; action: (N, A) float32
    """

    def __init__(self, logit: Mapping[str, Tensor]) -> None:
        self.logit = {"mu": logit["mu"], "sigma": logit["sigma"]}
        self.mu, self.sigma = logit["mu"], logit["sigma"]

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        mu, sigma = self.mu.detach(), self.sigma.detach()
        return mu + sigma * torch.empty_like(mu).normal_(generator=generator)

    def mode(self) -> Tensor:
        return self.mu

    def log_prob(self, action: Tensor) -> Tensor:
        z = (action - self.mu) / self.sigma
        return (-0.5 * (z * z + LOG_2PI) - self.sigma.log()).sum(-1)

    def entropy(self) -> Tensor:
        return (0.5 * (1 + LOG_2PI) + self.sigma.log()).sum(-1)

    def kl(self, other: Normal) -> Tensor:
        ratio = (self.sigma / other.sigma).square()
        shift = ((self.mu - other.mu) / other.sigma).square()
        return 0.5 * (ratio + shift - 1 - ratio.log()).sum(-1)


def _quadrature(nodes: np.ndarray, weights: np.ndarray) -> tuple[Tensor, Tensor]:
    """Returns nodes, and weights that add up to 1."""
    return torch.from_numpy(nodes).float(), torch.from_numpy(weights / weights.sum()).float()


class TanhNormal(Normal):
    """A Normal squashed by tanh and stretched to the bounds; ``action`` is u, before the squash.

    The density is that of the environment's action a = low + (tanh u + 1)(high - low)/2:

        log pi(a) = log N(u) - sum 2 (log 2 - u - softplus(-2u)) - sum log((high - low)/2)

    The KL of two is that of their base Normals, exactly: one bijection maps both. The entropy is the
    Normal's plus the mean log-determinant, by quadrature: a function of the parameters alone, with a
    gradient, and without the noise of sampling. It is within 2e-4 nats a dimension.

    Shapes:
        logit: {"mu": (N, A), "sigma": (N, A)}; action: (N, A) float32; half_width: (A,)
    """

    _normal = _quadrature(*hermegauss(16))
    # Of the density sech(t)^2 / 2 = 2 exp(-2|t|) / (1 + exp(-2|t|))^2.
    _half, _weights = laggauss(8)
    _sech = _quadrature(np.concatenate([-_half, _half]) / 2, np.tile(_weights / (1 + np.exp(-_half)) ** 2, 2))

    def __init__(self, logit: Mapping[str, Tensor], half_width: Tensor) -> None:
        super().__init__(logit)
        self.half_width = half_width

    def _log_det(self, u: Tensor) -> Tensor:
        squash = 2 * (math.log(2) - u - F.softplus(-2 * u))
        return (squash + self.half_width.log()).sum(-1)

    def log_prob(self, action: Tensor) -> Tensor:
        return super().log_prob(action) - self._log_det(action)

    def entropy(self) -> Tensor:
        log_det = 2 * (math.log(2) - self._mean_log_cosh()) + self.half_width.log()
        return super().entropy() + log_det.sum(-1)

    def _mean_log_cosh(self) -> Tensor:
        """Returns the mean of log(2 cosh u) = u + softplus(-2u), (N, A).

        A narrow Normal sees a smooth function: Gauss-Hermite. For a wide one it has a sharp bend at 0, and
        is taken for what it also is, the mean of |u - t| over t of density sech(t)^2 / 2: that of a folded
        Normal, which is smooth in t.
        """
        narrow, wide = self.sigma.clamp(max=1), self.sigma.clamp(min=1)  # each finite where it is not used

        def log_cosh(z: Tensor) -> Tensor:
            u = self.mu + narrow * z
            return u + F.softplus(-2 * u)

        def folded(t: Tensor) -> Tensor:
            d = (self.mu - t) / wide
            return wide * (
                math.sqrt(2 / math.pi) * torch.exp(-0.5 * d * d) + d * torch.erf(math.sqrt(0.5) * d)
            )

        return torch.where(self.sigma < 1, self._mean(log_cosh, self._normal), self._mean(folded, self._sech))

    def _mean(self, function: Callable[[Tensor], Tensor], quadrature: tuple[Tensor, Tensor]) -> Tensor:
        nodes, weights = (x.to(self.mu) for x in quadrature)
        return torch.tensordot(weights, function(nodes.view(-1, *[1] * self.mu.dim())), 1)


class Beta(Distribution):
    """Independent Betas on (0, 1), stretched to the bounds (Chou, Maturana and Scherer, ICML 2017).

    The density is that of the environment's action a = low + x (high - low).

    Shapes:
        logit: {"alpha": (N, A), "beta": (N, A)}, both above 1; action: (N, A) float32; width: (A,)
    """

    # The density is 0 or infinite at the very ends, where float32 samples can land.
    _edge = 1e-6

    def __init__(self, logit: Mapping[str, Tensor], width: Tensor) -> None:
        self.logit = {"alpha": logit["alpha"], "beta": logit["beta"]}
        self.alpha, self.beta, self.width = logit["alpha"], logit["beta"], width

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        x = torch._standard_gamma(self.alpha.detach(), generator=generator)
        y = torch._standard_gamma(self.beta.detach(), generator=generator)
        return (x / (x + y)).clamp(self._edge, 1 - self._edge)

    def mode(self) -> Tensor:
        # The edge keeps alpha = beta = 1, a flat density, at its middle.
        return (self.alpha - 1 + self._edge) / (self.alpha + self.beta - 2 + 2 * self._edge)

    def _log_norm(self) -> Tensor:
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
    """A tree of independent distributions for a tree of actions: one joint log-prob, entropy, KL.

    Shapes:
        logit, action: dicts with the keys of ``parts``
    """

    def __init__(self, parts: Mapping[str, Distribution]) -> None:
        self.parts = dict(parts)
        self.logit = {name: part.logit for name, part in self.parts.items()}

    def sample(self, generator: torch.Generator | None = None) -> dict[str, Any]:
        return {name: part.sample(generator) for name, part in self.parts.items()}

    def mode(self) -> dict[str, Any]:
        return {name: part.mode() for name, part in self.parts.items()}

    def log_prob(self, action: Mapping[str, Any]) -> Tensor:
        return _total([part.log_prob(action[name]) for name, part in self.parts.items()])

    def entropy(self) -> Tensor:
        return _total([part.entropy() for part in self.parts.values()])

    def kl(self, other: Joint) -> Tensor:
        return _total([part.kl(other.parts[name]) for name, part in self.parts.items()])


def _total(terms: list[Tensor]) -> Tensor:
    return torch.stack(terms).sum(0)
