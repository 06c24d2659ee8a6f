"""One step of Adam, and gradient clipping."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from reference.losses import Watch

BETA_1, BETA_2 = 0.9, 0.999
LOG_SIGMA_RANGE = (-20.0, 2.0)


class Adam:
    """Adam (arXiv:1412.6980, algorithm 1), with moments and a count for each parameter.

        m <- b1 m + (1 - b1) g,    v <- b2 v + (1 - b2) g^2
        p <- p - lr (m / (1 - b1^k)) / (sqrt(v / (1 - b2^k)) + eps)

    A parameter that the loss does not reach has no gradient; the step changes neither its value, its moments
    nor its count. A free log sigma is clamped to its range after the step.
    """

    def __init__(
        self, parameters: dict[str, Tensor], eps: float, clip_type: str | None, clip: float, watch: Watch
    ) -> None:
        self.parameters, self.eps, self.watch = parameters, eps, watch
        self.clip_type, self.clip = clip_type, clip
        self.numbers = {name: p.detach().numpy() for name, p in parameters.items()}  # of the same memory
        self.mean = dict.fromkeys(parameters, 0.0)
        self.square = dict.fromkeys(parameters, 0.0)
        self.count = dict.fromkeys(parameters, 0)
        self.learning_rate = math.nan

    def step(self, loss: Tensor) -> float:
        """Takes one step on ``loss``; returns the norm of the gradient before clipping."""
        found = torch.autograd.grad(loss, list(self.parameters.values()), allow_unused=True)
        named = zip(self.parameters, found, strict=True)
        gradients = {name: gradient.numpy() for name, gradient in named if gradient is not None}
        norm = math.sqrt(sum(float((g**2).sum()) for g in gradients.values()))
        for name, gradient in gradients.items():
            self._move(name, self._clipped(gradient, norm))
        return norm

    def _clipped(self, gradient: np.ndarray, norm: float) -> np.ndarray:
        if self.clip_type is not None:
            largest = norm if self.clip_type == "clip_norm" else np.abs(gradient).max()
            self.watch.saw(f"grad_clip_type={self.clip_type}", largest > self.clip)
        if self.clip_type == "clip_norm":  # of all parameters together, as in torch
            return gradient * min(1.0, self.clip / (norm + 1e-6))
        return gradient.clip(-self.clip, self.clip) if self.clip_type == "clip_value" else gradient

    def _move(self, name: str, gradient: np.ndarray) -> None:
        self.count[name] += 1
        self.mean[name] = BETA_1 * self.mean[name] + (1 - BETA_1) * gradient
        self.square[name] = BETA_2 * self.square[name] + (1 - BETA_2) * gradient**2
        mean = self.mean[name] / (1 - BETA_1 ** self.count[name])
        square = self.square[name] / (1 - BETA_2 ** self.count[name])
        parameter = self.numbers[name]
        parameter -= self.learning_rate * mean / (np.sqrt(square) + self.eps)
        if name.endswith("log_sigma"):
            self.watch.saw("log sigma at its bound", (parameter > LOG_SIGMA_RANGE[1]).any())
            parameter.clip(*LOG_SIGMA_RANGE, out=parameter)
