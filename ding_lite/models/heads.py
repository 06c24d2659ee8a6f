"""From features to a distribution over actions, and from raw actions to what the environment takes.

Shapes: N samples, F features, A action size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ding_lite.errors import ConfigError, ContractError
from ding_lite.models.encoders import mlp
from ding_lite.rl import distributions as D

LOG_SIGMA_RANGE = (-20.0, 2.0)
SOFT_BOUND = 5.0


def parameter_ranges(model: nn.Module) -> list[tuple[nn.Parameter, float, float]]:
    """Returns ``(parameter, low, high)`` for each parameter of a model that has a range.

    A module names such parameters in an attribute ``parameter_ranges``: ``{"log_sigma": (-20.0, 2.0)}``. The
    range is applied after each gradient step, and when weights are loaded.

    Raises:
        ContractError: if a module names something that is not a parameter of it.
    """
    found = []
    for module in model.modules():
        for name, (low, high) in getattr(module, "parameter_ranges", {}).items():
            parameter = getattr(module, name, None)
            if not isinstance(parameter, nn.Parameter):
                raise ContractError(
                    f"{type(module).__name__}.parameter_ranges names {name!r}, which is no parameter of it; "
                    f"it has {', '.join(own for own, _ in module.named_parameters(recurse=False))}"
                )
            found.append((parameter, low, high))
    return found


@torch.no_grad()
def clamp_to_ranges(ranges: Sequence[tuple[Tensor, float, float]]) -> None:
    """Clamps each parameter to its range, in place."""
    for parameter, low, high in ranges:
        parameter.clamp_(low, high)


class DiscreteHead(nn.Module):
    """Discrete(n, start): logit (N, n), index (N,), environment action index + start."""

    def __init__(self, space: gym.spaces.Discrete, features: int) -> None:
        super().__init__()
        self.start = int(space.start)
        self.dtype = space.dtype
        self.layer = nn.Linear(features, int(space.n))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)

    def distribution(self, logit: Tensor, mask: Tensor | None = None) -> D.Distribution:
        return D.Categorical(logit, mask)

    def to_env(self, action: np.ndarray) -> np.ndarray:
        return action + self.start  # a copy: an environment may write into it


class MultiDiscreteHead(nn.Module):
    """MultiDiscrete(nvec, start): logit (N, sum nvec), indices (N, K)."""

    def __init__(self, space: gym.spaces.MultiDiscrete, features: int) -> None:
        super().__init__()
        self.shape, self.dtype = space.shape, space.dtype
        self.start = np.asarray(space.start)
        self.sizes = tuple(int(n) for n in space.nvec.flatten())
        self.layer = nn.Linear(features, sum(self.sizes))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)

    def distribution(self, logit: Tensor, mask: Any = None) -> D.Distribution:
        if mask is not None and not isinstance(mask, Tensor):  # a Tuple observation: one mask a part
            mask = torch.cat([mask[str(i)] for i in range(len(self.sizes))], -1)
        return D.MultiCategorical(logit, self.sizes, mask)

    def to_env(self, action: np.ndarray) -> np.ndarray:
        return (action.reshape(-1, *self.shape) + self.start).astype(self.dtype)


class MultiBinaryHead(nn.Module):
    """MultiBinary(shape): log-odds (N, K), bits (N, K)."""

    def __init__(self, space: gym.spaces.MultiBinary, features: int) -> None:
        super().__init__()
        self.shape, self.dtype = space.shape, space.dtype
        self.layer = nn.Linear(features, math.prod(space.shape))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)

    def distribution(self, logit: Tensor, mask: Tensor | None = None) -> D.Distribution:
        return D.Bernoulli(logit, mask)

    def to_env(self, action: np.ndarray) -> np.ndarray:
        return action.reshape(-1, *self.shape).astype(self.dtype)


class BoxHead(nn.Module):
    """Box: a Normal clipped at the environment, a Tanh-Normal or a Beta stretched to the bounds.

    ``sigma_type`` is ``"independent"`` (a free parameter, log sigma 0 at first), ``"conditioned"`` (a
    softplus of the features: 1 at 0, at least 1e-4) or ``"fixed"``. ``bound_type`` bounds the mean:
    ``"tanh"`` to -1 .. 1, ``"soft"`` to 5 tanh(m / 5).

    A free log sigma is clamped to ``LOG_SIGMA_RANGE`` after each gradient step. A clamp in ``forward`` would
    have no gradient outside of the range, so a log sigma that got there could not return.
    """

    def __init__(
        self,
        space: gym.spaces.Box,
        features: int,
        *,
        box_distribution: str = "normal",
        sigma_type: str = "independent",
        fixed_sigma_value: float = 0.3,
        bound_type: str | None = None,
    ) -> None:
        super().__init__()
        self.kind, self.sigma_type, self.bound_type = box_distribution, sigma_type, bound_type
        self.shape, self.dtype = space.shape, space.dtype
        self._check(space)
        size = math.prod(space.shape)
        self.low = space.low.astype(np.float64)
        self.high = space.high.astype(np.float64)
        half = torch.as_tensor((self.high - self.low) / 2, dtype=torch.float32).flatten()
        self.half_width: Tensor
        self.register_buffer("half_width", half, persistent=False)
        outputs = 2 * size if box_distribution == "beta" or sigma_type == "conditioned" else size
        self.layer = nn.Linear(features, outputs)
        if box_distribution == "beta":
            return
        if sigma_type == "independent":
            self.log_sigma = nn.Parameter(torch.zeros(size))
            self.parameter_ranges = {"log_sigma": LOG_SIGMA_RANGE}
        elif sigma_type == "fixed":
            self.sigma: Tensor
            self.register_buffer("sigma", torch.full((size,), fixed_sigma_value), persistent=False)

    def _check(self, space: gym.spaces.Box) -> None:
        if not np.issubdtype(space.dtype, np.floating):
            raise ConfigError(
                f"the action space {space} is a Box of whole numbers; use Discrete or MultiDiscrete"
            )
        if 0 in space.shape:
            raise ConfigError(f"the action space {space} has nothing in it to choose")
        if np.any(space.low >= space.high):
            raise ConfigError(f"the action space {space} has a dimension with low >= high")
        width = space.high.astype(np.float64) - space.low
        if self.kind != "normal" and not (width <= np.finfo(np.float32).max).all():
            raise ConfigError(
                f"policy.model.box_distribution={self.kind!r} needs finite bounds, and the action space "
                f"is {space}; use 'normal', which is clipped at the environment only"
            )

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        out = self.layer(x)
        if self.kind == "beta":
            alpha, beta = (1 + F.softplus(out)).chunk(2, -1)
            return {"alpha": alpha, "beta": beta}
        if self.sigma_type == "conditioned":
            mu, raw = out.chunk(2, -1)
            sigma = F.softplus(raw + math.log(math.e - 1)).clamp_min(1e-4)
        else:
            mu = out
            sigma = self.log_sigma.exp() if self.sigma_type == "independent" else self.sigma
            sigma = sigma.expand_as(mu)
        if self.bound_type == "tanh":
            mu = torch.tanh(mu)
        elif self.bound_type == "soft":
            mu = SOFT_BOUND * torch.tanh(mu / SOFT_BOUND)
        return {"mu": mu, "sigma": sigma}

    def distribution(self, logit: Mapping[str, Tensor], mask: None = None) -> D.Distribution:
        if self.kind == "beta":
            return D.Beta(logit, 2 * self.half_width)
        if self.kind == "tanh_normal":
            return D.TanhNormal(logit, self.half_width)
        return D.Normal(logit)

    def to_env(self, action: np.ndarray) -> np.ndarray:
        action = action.reshape(-1, *self.shape)
        if self.kind == "tanh_normal":
            action = self.low + (np.tanh(action.astype(np.float64)) + 1) * (self.high - self.low) / 2
        elif self.kind == "beta":
            action = self.low + action.astype(np.float64) * (self.high - self.low)
        return action.clip(self.low, self.high).astype(self.dtype)


class TreeHead(nn.Module):
    """Dict and Tuple: one head a branch; a Tuple's branches are called "0", "1", ..."""

    def __init__(self, space: gym.Space, features: int, **box_options: Any) -> None:
        super().__init__()
        if isinstance(space, gym.spaces.Dict):
            branches = dict(space.spaces)
        else:
            branches = {str(i): child for i, child in enumerate(cast(gym.spaces.Tuple, space).spaces)}
        self.heads = nn.ModuleList(_leaf_head(c, features, **box_options) for c in branches.values())
        self.by_name: dict[str, Any] = dict(zip(branches, self.heads, strict=True))

    def forward(self, x: Tensor) -> dict[str, Any]:
        return {name: head(x) for name, head in self.by_name.items()}

    def distribution(self, logit: Mapping[str, Any], mask: Any = None) -> D.Distribution:
        parts = {}
        for name, head in self.by_name.items():
            own = mask.get(name) if mask is not None else None
            parts[name] = head.distribution(logit[name], own)
        return D.Joint(parts)

    def to_env(self, action: Mapping[str, Any]) -> dict[str, Any]:
        return {name: head.to_env(action[name]) for name, head in self.by_name.items()}


def _leaf_head(space: gym.Space, features: int, **box_options: Any) -> nn.Module:
    if isinstance(space, gym.spaces.Discrete):
        return DiscreteHead(space, features)
    if isinstance(space, gym.spaces.MultiDiscrete):
        return MultiDiscreteHead(space, features)
    if isinstance(space, gym.spaces.MultiBinary):
        return MultiBinaryHead(space, features)
    if isinstance(space, gym.spaces.Box):
        return BoxHead(space, features, **box_options)
    if isinstance(space, (gym.spaces.Dict, gym.spaces.Tuple)):
        return TreeHead(space, features, **box_options)
    raise ConfigError(
        f"actions of {type(space).__name__} are not supported; supported are Discrete, MultiDiscrete, "
        "MultiBinary, Box, and Dict and Tuple of them"
    )


class ActionHead(nn.Module):
    """The policy head for any supported action space: optional hidden layers, then one linear layer.

    Shapes:
        features (N, F) -> logit, a tensor or a dict of tensors (see ``rl.distributions``)
    """

    def __init__(
        self,
        space: gym.Space,
        features: int,
        *,
        hidden_size_list: Sequence[int] = (),
        activation: str = "tanh",
        **box_options: Any,
    ) -> None:
        super().__init__()
        sizes = [features, *hidden_size_list]
        self.hidden = mlp(sizes, activation)
        self.out: Any = _leaf_head(space, sizes[-1], **box_options)

    def forward(self, features: Tensor) -> Any:
        return self.out(self.hidden(features))

    def distribution(self, logit: Any, mask: Any = None) -> D.Distribution:
        """Returns the distribution with the parameters ``logit``; ``mask`` is True where legal."""
        return self.out.distribution(logit, mask)

    def to_env(self, action: Any) -> Any:
        """Turns raw actions (NumPy) into what the environment takes: start, squash, clip, scale."""
        return self.out.to_env(action)
