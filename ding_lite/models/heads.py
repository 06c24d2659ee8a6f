"""Heads: from features to action distributions, and from raw actions to environment actions.

:class:`ActionHead` has linear layers, and one :class:`Head` that turns their raw outputs into a
distribution. ``HEADS`` maps each kind of action space to its head.

**To add a head** for another kind of space, subclass :class:`Head` and add it to ``HEADS``, in any module
that is imported before the model is built (``--import MODULE``). Heads are looked up along the base classes
of a space, so a subclass of a supported space may have its own head.

A distribution of Box actions needs no head: docs/own_parts.md#a-distribution.

Shapes: N samples, F features, K raw outputs, A action size.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, cast

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ding_lite.config.registry import BOX_DISTRIBUTION_REGISTRY, name_of
from ding_lite.errors import ConfigError
from ding_lite.models.encoders import mlp
from ding_lite.rl import distributions as D
from ding_lite.trees import children, map_tree, tree_leaves

LOG_SIGMA_RANGE = (-20.0, 2.0)
MIN_SIGMA = 1e-4  # of sigma_type="conditioned"
SOFT_BOUND = 5.0

for name, kind in {"normal": D.Normal, "tanh_normal": D.TanhNormal, "beta": D.Beta}.items():
    BOX_DISTRIBUTION_REGISTRY.register(name)(kind)


def parameter_ranges(model: nn.Module) -> list[tuple[nn.Parameter, float, float]]:
    """Returns ``(parameter, low, high)`` for each parameter of a model that has a range.

    A module declares ranges in an attribute ``parameter_ranges``, such as ``{"log_sigma": (-20.0, 2.0)}``.
    They are applied after each gradient step and after weights are loaded. A clamp in the forward pass would
    have no gradient outside of the range, so a parameter that a step took out of it could not return.
    """
    return [
        (getattr(module, name), low, high)
        for module in model.modules()
        for name, (low, high) in getattr(module, "parameter_ranges", {}).items()
    ]


@torch.no_grad()
def clamp_to_ranges(ranges: Sequence[tuple[Tensor, float, float]]) -> None:
    """Clamps each parameter to its range, in place; ``ranges``: from :func:`parameter_ranges`."""
    for parameter, low, high in ranges:
        parameter.clamp_(low, high)


class Head(nn.Module, ABC):
    """Turns raw network outputs into a distribution, and raw actions into actions of one space.

    A subclass is constructed as ``cls(space, **box_options)`` and sets ``size``, K. Only :class:`BoxHead`
    reads the options.
    """

    size: int

    def logit(self, raw: Tensor) -> Any:
        """Returns the parameters of the distribution: raw (N, K) -> (N, ...), or a dict of those."""
        return raw

    @abstractmethod
    def distribution(self, logit: Any, mask: Any = None) -> D.Distribution:
        """Returns the distribution with the parameters ``logit``.

        ``mask``, with the structure of the action space, is True where an action is legal.
        """

    @abstractmethod
    def to_env(self, action: Any) -> Any:
        """Converts raw actions (NumPy) to environment actions: adds starts, maps to bounds, clips.

        The result must not share memory with the raw actions.

        Shapes:
            (N,) or (N, A), or a dict of those -> (N, *space.shape), or a dict of those
        """

    def to_env_on_device(self, action: Any) -> Any:
        """Does what :meth:`to_env` does for raw actions that are tensors; the result is on their device.

        A Box gives the dtype of the raw actions. This default copies the actions to the host, and so
        waits for the device.
        """
        device = tree_leaves(action)[0].device
        on_host = self.to_env(map_tree(lambda leaf: leaf.cpu().numpy(), action))
        return map_tree(lambda leaf: torch.as_tensor(leaf, device=device), on_host)


class DiscreteHead(Head):
    """A categorical distribution over Discrete(n, start).

    Shapes:
        logit (N, n); action: (N,) int64, an index from 0; environment action: index + start
    """

    def __init__(self, space: gym.spaces.Discrete, **box_options: Any) -> None:
        super().__init__()
        self.size, self.start = int(space.n), int(space.start)

    def distribution(self, logit: Tensor, mask: Tensor | None = None) -> D.Distribution:
        return D.Categorical(logit, mask)

    def to_env(self, action: np.ndarray) -> np.ndarray:
        return action + self.start  # a copy, because an environment may write into its actions

    def to_env_on_device(self, action: Tensor) -> Tensor:
        return action + self.start


class MultiDiscreteHead(Head):
    """Independent categorical distributions over MultiDiscrete(nvec, start).

    Shapes:
        logit (N, sum nvec); action: (N, K) int64, indices from 0; environment action: (N, *shape)
    """

    def __init__(self, space: gym.spaces.MultiDiscrete, **box_options: Any) -> None:
        super().__init__()
        self.shape, self.dtype = space.shape, space.dtype
        self._start = torch.from_numpy(np.array(space.start))
        self.sizes = tuple(int(n) for n in space.nvec.flatten())
        self.size = sum(self.sizes)

    def distribution(self, logit: Tensor, mask: Any = None) -> D.Distribution:
        return D.MultiCategorical(logit, self.sizes, mask)

    def to_env(self, action: np.ndarray) -> np.ndarray:
        return (action.reshape(-1, *self.shape) + self._start.numpy()).astype(self.dtype)


class MultiBinaryHead(Head):
    """Independent bits for MultiBinary(shape).

    Shapes:
        logit: log-odds of a 1 (N, K); action: (N, K) int64; environment action: (N, *shape)
    """

    def __init__(self, space: gym.spaces.MultiBinary, **box_options: Any) -> None:
        super().__init__()
        self.shape, self.dtype = space.shape, space.dtype
        self.size = math.prod(space.shape)

    def distribution(self, logit: Tensor, mask: Tensor | None = None) -> D.Distribution:
        return D.Bernoulli(logit, None if mask is None else mask.flatten(1))

    def to_env(self, action: np.ndarray) -> np.ndarray:
        return action.reshape(-1, *self.shape).astype(self.dtype)


class BoxHead(Head):
    """Any distribution over a Box (``rl.distributions``).

    A free log sigma is clamped to ``LOG_SIGMA_RANGE`` after each gradient step. A clamp in :meth:`logit`
    would have no gradient outside of the range, so a log sigma outside of it could not return.

    Args:
        space: a Box of floats.
        box_distribution: a registered name, "package.module:Name", or a class.
        sigma_type: for distributions with a sigma. "independent" is a free parameter; "conditioned" is a
            softplus of a raw output, 1 at output 0 and at least 1e-4; "fixed" is a constant.
        initial_sigma_value: sigma at the start with ``sigma_type="independent"``, in the units of the raw
            action.
        fixed_sigma_value: sigma with ``sigma_type="fixed"``, in the units of the raw action.
        bound_type: for distributions with a mu. "tanh" bounds it to -1 .. 1, "soft" to 5 tanh(mu / 5).

    Raises:
        ConfigError: if the Box has integers, or infinite bounds that the distribution does not support.

    Shapes:
        logit {name: (N, A)}; action: (N, A) float32; environment action: (N, *shape)
    """

    def __init__(
        self,
        space: gym.spaces.Box,
        *,
        box_distribution: str | type = "normal",
        sigma_type: str = "independent",
        initial_sigma_value: float = 1.0,
        fixed_sigma_value: float = 0.3,
        bound_type: str | None = None,
    ) -> None:
        super().__init__()
        self.kind = name_of(box_distribution)
        self.sigma_type, self.bound_type = sigma_type, bound_type
        self.shape, self.dtype = space.shape, space.dtype
        self._distribution = BOX_DISTRIBUTION_REGISTRY.get_class(box_distribution)
        if not np.issubdtype(space.dtype, np.floating):
            raise ConfigError(
                f"the action space {space} is a Box of integers, got dtype {space.dtype}, expected floats; "
                "use Discrete or MultiDiscrete"
            )
        size = math.prod(space.shape)
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        if self._distribution.needs_finite_bounds and not (high - low <= np.finfo(np.float32).max).all():
            raise ConfigError(
                f"policy.model.box_distribution={self.kind!r} needs finite bounds, but the action space is "
                f"{space}; use 'normal', whose actions are only clipped to the bounds"
            )
        self._low, self._high = torch.from_numpy(low), torch.from_numpy(high)
        # _low and _high are float64 for actions on the host; low and high are float32, on the model's device.
        self.low: Tensor
        self.high: Tensor
        for name, bound in (("low", space.low), ("high", space.high)):
            self.register_buffer(name, torch.as_tensor(bound, dtype=torch.float32), persistent=False)
        half = torch.as_tensor((high - low) / 2, dtype=torch.float32).flatten()
        self.half_width: Tensor
        self.register_buffer("half_width", half, persistent=False)
        self.has_sigma = has_sigma = self._distribution.has_sigma
        self.size = 2 * size if not has_sigma or sigma_type == "conditioned" else size
        if has_sigma and sigma_type == "independent":
            self.log_sigma = nn.Parameter(torch.full((size,), math.log(initial_sigma_value)))
            self.parameter_ranges = {"log_sigma": LOG_SIGMA_RANGE}
        elif has_sigma and sigma_type == "fixed":
            self.sigma: Tensor
            self.register_buffer("sigma", torch.full((size,), fixed_sigma_value), persistent=False)

    @property
    def is_simple_normal(self) -> bool:
        """Whether actions are Normals whose sigma is the same for all observations."""
        return self.kind == "normal" and self.sigma_type != "conditioned"

    def logit(self, raw: Tensor) -> dict[str, Tensor]:
        if not self.has_sigma:
            return self._distribution.parameters(raw)
        if self.sigma_type == "conditioned":
            mu, free = raw.chunk(2, -1)
            sigma = F.softplus(free + math.log(math.e - 1))
            # The value is clamped, the gradient is not: a sigma at the bound can grow again.
            sigma = sigma + (sigma.clamp_min(MIN_SIGMA) - sigma).detach()
        else:
            mu = raw
            sigma = self.log_sigma.exp() if self.sigma_type == "independent" else self.sigma
            sigma = sigma.expand_as(mu)
        if self.bound_type == "tanh":
            mu = torch.tanh(mu)
        elif self.bound_type == "soft":
            mu = SOFT_BOUND * torch.tanh(mu / SOFT_BOUND)
        return {"mu": mu, "sigma": sigma}

    def distribution(self, logit: Mapping[str, Tensor], mask: None = None) -> D.Distribution:
        return self._distribution(logit, self.half_width)

    def to_env(self, action: np.ndarray) -> np.ndarray:
        low, high = self._low.numpy(), self._high.numpy()
        action = self._distribution.to_bounds(action.reshape(-1, *self.shape), low, high)
        return action.clip(low, high).astype(self.dtype)

    def to_env_on_device(self, action: Tensor) -> Any:
        if self._distribution.to_bounds is not D.BoxDistribution.to_bounds:
            return super().to_env_on_device(action)
        return action.reshape(-1, *self.shape).clamp(self.low, self.high)


class TreeHead(Head):
    """One head for each branch of a Dict or a Tuple; the branches of a Tuple are named "0", "1", ...

    Shapes:
        logit, action and environment action: dicts with one entry per branch
    """

    def __init__(self, space: gym.Space, **box_options: Any) -> None:
        super().__init__()
        branches = cast(dict[str, gym.Space], children(space))
        self.heads = nn.ModuleList(make_head(child, **box_options) for child in branches.values())
        self.by_name: dict[str, Any] = dict(zip(branches, self.heads, strict=True))
        self.size = sum(head.size for head in self.by_name.values())

    def logit(self, raw: Tensor) -> dict[str, Any]:
        parts = raw.split([head.size for head in self.by_name.values()], -1)
        return {
            name: head.logit(part) for (name, head), part in zip(self.by_name.items(), parts, strict=True)
        }

    def distribution(self, logit: Mapping[str, Any], mask: Any = None) -> D.Distribution:
        return D.Joint(
            {
                name: head.distribution(logit[name], None if mask is None else mask.get(name))
                for name, head in self.by_name.items()
            }
        )

    def to_env(self, action: Mapping[str, Any]) -> dict[str, Any]:
        return {name: head.to_env(action[name]) for name, head in self.by_name.items()}

    def to_env_on_device(self, action: Mapping[str, Any]) -> dict[str, Any]:
        return {name: head.to_env_on_device(action[name]) for name, head in self.by_name.items()}


HEADS: dict[type[gym.Space], type[Head]] = {
    gym.spaces.Discrete: DiscreteHead,
    gym.spaces.MultiDiscrete: MultiDiscreteHead,
    gym.spaces.MultiBinary: MultiBinaryHead,
    gym.spaces.Box: BoxHead,
    gym.spaces.Dict: TreeHead,
    gym.spaces.Tuple: TreeHead,
}


def make_head(space: gym.Space, **box_options: Any) -> Head:
    """Returns the head of an action space: the entry of ``HEADS`` for its class or nearest base class."""
    for space_class in type(space).__mro__:
        if space_class in HEADS:
            return HEADS[space_class](space, **box_options)
    names = ", ".join(space_class.__name__ for space_class in HEADS)
    raise ConfigError(
        f"actions of {type(space).__name__} are not supported; supported are {names}. Use one of these "
        "spaces, or add a head to ding_lite.models.heads.HEADS"
    )


class ActionHead(nn.Module):
    """The policy head for any supported action space: linear layers, and the head of the space.

    Args:
        space: the action space.
        features: F.
        hidden_size_list: widths of the layers before the last one.
        activation: after each of these layers, a key of ``models.encoders.ACTIVATIONS``.
        box_options: the options of :class:`BoxHead`.

    Attributes:
        layers: (N, F) -> raw outputs (N, K); the last layer is linear.
        out: the :class:`Head` of the space.

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
        self.out: Any = make_head(space, **box_options)
        self.layers = nn.Sequential(*mlp(sizes, activation), nn.Linear(sizes[-1], self.out.size))

    def forward(self, features: Tensor) -> Any:
        return self.out.logit(self.layers(features))
