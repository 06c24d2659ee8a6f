"""The action distributions of small networks in NumPy: those of ``rl.distributions``, with their gradients.

    Categorical of logit z    d log pi(a|s) / d z = onehot(a) - p,   d H / d z = -p (log p + H)
                              d KL(q || p) / d z = p - q
    MultiCategorical          the same for each component, since log pi(a|s), H and KL are sums over them
    Normal                    d log pi(a|s) / d mu = (a - mu) / sigma^2,
                              d log pi(a|s) / d log sigma = ((a - mu) / sigma)^2 - 1,   d H / d log sigma = 1
                              d KL(q || p) / d mu = (mu - mu_q) / sigma^2,
                              d KL(q || p) / d log sigma = 1 - (sigma_q^2 + (mu - mu_q)^2) / sigma^2

Shapes: N samples, A action size or number of actions, K components of a MultiDiscrete action.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ding_lite.data.rollout import view
from ding_lite.models.heads import SOFT_BOUND, BoxHead
from ding_lite.rl.distributions import ILLEGAL, LOG_2PI
from ding_lite.trees import MASK_KEY

MANY = 32  # samples


class Evaluated(NamedTuple):
    """The log-probs of actions, the mean entropy, and their gradient by the network's output.

    Shapes:
        log_prob: (N,); entropy: ()
    """

    log_prob: np.ndarray
    entropy: float
    # Takes the gradient by each log-prob (N,), the gradient by the mean entropy, and an array for the
    # gradient by log sigma; returns the gradient by the network's output (N, A).
    backward: Callable[[np.ndarray, float, np.ndarray | None], np.ndarray]


class Divergence(NamedTuple):
    """KL(q || p) from distributions q that are given, in nats, and its gradient by the output for p.

    Shapes:
        kl: (N,)
    """

    kl: np.ndarray
    # Takes the gradient by each KL, the same for all, and an array for the gradient by log sigma; returns the
    # gradient by the network's output (N, A).
    backward: Callable[[float, np.ndarray | None], np.ndarray]


class _Noise:
    """An array that torch fills with the random numbers that ``rl.distributions`` draws for its shape."""

    def __init__(self) -> None:
        self.tensor = torch.empty(0)
        self.array = self.tensor.numpy()

    def of_shape(self, shape: tuple[int, ...]) -> Tensor:
        if self.array.shape != shape:
            with torch.inference_mode(False):  # a tensor of inference mode could only be filled in that mode
                self.tensor = torch.empty(shape)
            self.array = self.tensor.numpy()
        return self.tensor


class NumpyCategorical:
    """``rl.distributions.Categorical``. Shapes: logit, mask: (N, A); action: (N,) int64."""

    log_sigma: Tensor | None = None
    leaves: tuple[tuple[str, ...], ...] = ((),)  # paths of the parameters that ``kl`` takes

    def __init__(self) -> None:
        self.noise = _Noise()

    def sample(self, logit: np.ndarray, mask: np.ndarray | None, generator: torch.Generator) -> np.ndarray:
        logit = _legal(logit, mask)
        self.noise.of_shape(logit.shape).exponential_(generator=generator)
        noise, axis = self.noise.array, 1
        if len(logit) > MANY:  # reduce along the samples, as in _softmax; for few samples that is slower
            logit, noise, axis = np.ascontiguousarray(logit.T), noise.T, 0
        weights = np.exp(logit - np.maximum.reduce(logit, axis=axis, keepdims=True))
        weights /= noise  # the constant factor to probabilities does not change the argmax
        action: np.ndarray = weights.argmax(axis)
        return action

    def log_prob(self, logit: np.ndarray, mask: np.ndarray | None, action: np.ndarray) -> np.ndarray:
        logit, _, total = _softmax(logit, mask)
        log_prob: np.ndarray = logit.take(_places(action)) - np.log(total)
        return log_prob

    def mode(self, logit: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
        return _legal(logit, mask).argmax(-1)

    def evaluate(self, logit: np.ndarray, mask: np.ndarray | None, action: np.ndarray) -> Evaluated:
        log_probs, probs = _log_softmax(logit, mask)
        chosen = _places(action)
        entropy = -np.add.reduce(probs * log_probs, axis=0)

        def backward(of_log_prob: np.ndarray, of_entropy: float, of_log_sigma: Any) -> np.ndarray:
            each = of_entropy / len(action)  # of the mean
            slope = -probs * (of_log_prob + each * (log_probs + entropy))
            slope.reshape(-1)[chosen] += of_log_prob  # a view of it: _softmax's arrays are contiguous
            return _of_legal(slope, mask)

        return Evaluated(log_probs.take(chosen), float(np.add.reduce(entropy)) / len(entropy), backward)

    def kl(self, old: Sequence[np.ndarray], logit: np.ndarray, mask: np.ndarray | None) -> Divergence:
        """Returns the KL from the distributions with the parameters ``old``."""
        (old_logit,) = old
        old_log_probs, old_probs = _log_softmax(old_logit, mask)
        log_probs, probs = _log_softmax(logit, mask)

        def backward(of_kl: float, of_log_sigma: Any) -> np.ndarray:
            return _of_legal((probs - old_probs) * np.float32(of_kl), mask)

        return Divergence(np.add.reduce(old_probs * (old_log_probs - log_probs), axis=0), backward)


class NumpyMultiCategorical:
    """``rl.distributions.MultiCategorical``. Shapes: logit, mask: (N, sum of sizes); action: (N, K) int64.

    Args:
        sizes: number of actions of each component.
    """

    log_sigma: Tensor | None = None
    leaves: tuple[tuple[str, ...], ...] = ((),)

    def __init__(self, sizes: Sequence[int]) -> None:
        self.parts = [NumpyCategorical() for _ in sizes]
        self.columns = [slice(*ends) for ends in pairwise(accumulate(sizes, initial=0))]

    def sample(self, logit: np.ndarray, mask: np.ndarray | None, generator: torch.Generator) -> np.ndarray:
        return np.stack([part.sample(*given, generator) for part, *given in self._split(logit, mask)], 1)

    def log_prob(self, logit: np.ndarray, mask: np.ndarray | None, action: np.ndarray) -> np.ndarray:
        parts = self._split(logit, mask, action)
        log_prob: np.ndarray = np.add.reduce([part.log_prob(*given) for part, *given in parts])
        return log_prob

    def mode(self, logit: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
        return np.stack([part.mode(*given) for part, *given in self._split(logit, mask)], 1)

    def evaluate(self, logit: np.ndarray, mask: np.ndarray | None, action: np.ndarray) -> Evaluated:
        results = [part.evaluate(*given) for part, *given in self._split(logit, mask, action)]

        def backward(of_log_prob: np.ndarray, of_entropy: float, of_log_sigma: Any) -> np.ndarray:
            slopes = [result.backward(of_log_prob, of_entropy, of_log_sigma) for result in results]
            return np.concatenate(slopes, 1)

        log_prob = np.add.reduce([result.log_prob for result in results])
        return Evaluated(log_prob, sum(result.entropy for result in results), backward)

    def kl(self, old: Sequence[np.ndarray], logit: np.ndarray, mask: np.ndarray | None) -> Divergence:
        """Returns the KL from the distributions with the parameters ``old``."""
        (old_logit,) = old
        results = [
            part.kl([old_logit[:, columns]], *given)
            for (part, *given), columns in zip(self._split(logit, mask), self.columns, strict=True)
        ]

        def backward(of_kl: float, of_log_sigma: Any) -> np.ndarray:
            return np.concatenate([result.backward(of_kl, of_log_sigma) for result in results], 1)

        return Divergence(np.add.reduce([result.kl for result in results]), backward)

    def _split(self, logit: np.ndarray, mask: np.ndarray | None, action: np.ndarray | None = None) -> Any:
        """Returns for each component its distribution, logit and mask, and its actions if they are given."""
        masks = [None if mask is None else mask[:, columns] for columns in self.columns]
        given = [self.parts, [logit[:, columns] for columns in self.columns], masks]
        return zip(*given, *([] if action is None else [action.T]), strict=True)


class NumpyNormal:
    """``rl.distributions.Normal`` of a ``BoxHead``. Shapes: output, action: (N, A)."""

    leaves: tuple[tuple[str, ...], ...] = (("mu",), ("sigma",))

    def __init__(self, head: BoxHead) -> None:
        self.noise, self.out = _Noise(), head
        self.log_sigma = head.log_sigma if head.sigma_type == "independent" else None
        self._number = view(head.sigma if self.log_sigma is None else self.log_sigma)

    def sample(self, output: np.ndarray, mask: Any, generator: torch.Generator) -> np.ndarray:
        self.noise.of_shape(output.shape).normal_(generator=generator)
        action = self.sigma()[0] * self.noise.array
        action += self.mode(output, mask)
        return action

    def log_prob(self, output: np.ndarray, mask: Any, action: np.ndarray) -> np.ndarray:
        mu, (sigma, log_sigma) = self.mode(output, mask), self.sigma()
        return self._log_prob((action - mu) / sigma, log_sigma)

    def sigma(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns sigma and its logarithm, both (A,)."""
        if self.log_sigma is None:
            return self._number, np.log(self._number)
        return np.exp(self._number), self._number

    def mode(self, output: np.ndarray, mask: Any) -> np.ndarray:
        if self.out.bound_type == "tanh":
            return np.tanh(output)
        if self.out.bound_type == "soft":
            return SOFT_BOUND * np.tanh(output / SOFT_BOUND)
        return output

    def evaluate(self, output: np.ndarray, mask: Any, action: np.ndarray) -> Evaluated:
        mu, (sigma, log_sigma) = self.mode(output, mask), self.sigma()
        z = (action - mu) / sigma

        def backward(of_log_prob: np.ndarray, of_entropy: float, of_log_sigma: Any) -> np.ndarray:
            if of_log_sigma is not None:
                of_log_sigma[:] = of_log_prob @ (z * z - 1) + of_entropy
            return self._through_bound(of_log_prob[:, None] * z / sigma, mu)

        entropy = len(sigma) * 0.5 * (1 + LOG_2PI) + float(np.add.reduce(log_sigma))
        return Evaluated(self._log_prob(z, log_sigma), entropy, backward)

    def kl(self, old: Sequence[np.ndarray], output: np.ndarray, mask: Any) -> Divergence:
        """Returns the KL from the distributions with the parameters ``old``, mu and sigma (N, A)."""
        old_mu, old_sigma = old
        mu, (sigma, _) = self.mode(output, mask), self.sigma()
        ratio, z = (old_sigma / sigma) ** 2, (mu - old_mu) / sigma
        spread = ratio + z * z

        def backward(of_kl: float, of_log_sigma: np.ndarray | None) -> np.ndarray:
            if of_log_sigma is not None:
                of_log_sigma[:] = of_kl * np.add.reduce(1 - spread, axis=0)
            return self._through_bound(np.float32(of_kl) * z / sigma, mu)

        return Divergence(0.5 * np.add.reduce(spread - 1 - np.log(ratio), axis=1), backward)

    def _through_bound(self, slope: np.ndarray, mu: np.ndarray) -> np.ndarray:
        """Returns the gradient by the output of the network, from ``slope``, that by the mean."""
        if self.out.bound_type == "tanh":
            slope *= 1 - mu * mu
        elif self.out.bound_type == "soft":
            slope *= 1 - (mu / SOFT_BOUND) ** 2
        return slope

    @staticmethod
    def _log_prob(z: np.ndarray, log_sigma: np.ndarray) -> np.ndarray:
        of_sigma = len(log_sigma) * 0.5 * LOG_2PI + float(np.add.reduce(log_sigma))
        log_prob: np.ndarray = -0.5 * np.vecdot(z, z) - of_sigma
        return log_prob


def _places(action: np.ndarray) -> np.ndarray:
    """Returns the places of actions (N,) in a flattened (A, N): one index is faster than two."""
    return action.astype(np.intp, copy=False) * len(action) + np.arange(len(action))


def mask_of(obs: Any) -> np.ndarray | None:
    """Returns the mask of observations as bools (N, A), or None if they have none."""
    if not isinstance(obs, dict) or MASK_KEY not in obs:
        return None
    return np.asarray(obs[MASK_KEY], np.bool_)


def _legal(logit: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    return logit if mask is None else np.where(mask, logit, np.float32(ILLEGAL))


def _of_legal(slope: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    """Returns the gradient by the logit (N, A), 0 for illegal actions: slope (A, N); mask (N, A)."""
    return slope.T if mask is None else np.where(mask, slope.T, np.float32(0))


def _log_softmax(logit: np.ndarray, mask: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Returns log p and p. Shapes: logit, mask: (N, A) -> (A, N), (A, N)."""
    log_probs, probs, total = _softmax(logit, mask)
    log_probs -= np.log(total)
    probs /= total
    return log_probs, probs


def _softmax(logit: np.ndarray, mask: np.ndarray | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns z - max z, exp(z - max z), and the sum of the latter over the actions.

    Shapes:
        logit, mask: (N, A) -> (A, N), (A, N), (N,): NumPy goes along the samples, of which there are more
    """
    logit = np.ascontiguousarray(_legal(logit, mask).T)
    # The reductions' own names skip a layer of calls that costs more than they do.
    logit = logit - np.maximum.reduce(logit, axis=0)
    weights = np.exp(logit)
    return logit, weights, np.add.reduce(weights, axis=0)
