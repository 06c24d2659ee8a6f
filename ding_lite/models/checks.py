"""Checks the shapes of a model's outputs on a few observations, before training.

A wrong shape would otherwise be broadcast, or appear far from its cause. ``testing.check_policy`` compares
numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from ding_lite.errors import FOREIGN, ConfigError, ContractError, DingLiteError, error_text
from ding_lite.rl.distributions import BoxDistribution, Distribution, Joint
from ding_lite.rl.seeding import ONE_THREAD, torch_generator
from ding_lite.trees import children, map_space, map_tree, tree_leaves

SAMPLES = 5  # observations in a check: 1 would broadcast over a missing dimension, 2 may be the action size


def check_outputs(model: Any, inputs: Any, space: gym.Space, *, with_actions: bool = True) -> None:
    """Raises a ContractError unless values are (N,), and distributions and actions fit ``space``.

    Args:
        model: the model of a policy.
        inputs: what the model reads, for ``SAMPLES`` observations.
        space: the action space.
        with_actions: False checks values alone, for a policy that overrides ``distribution``.
    """
    where = f"policy.model ({type(model).__module__}:{type(model).__qualname__})"
    with undisturbed(model):
        with _named_errors(f"{where}: compute_actor"):
            logit = model.compute_actor(inputs)
        with _named_errors(f"{where}: compute_critic"):
            value = model.compute_critic(inputs)
        if not isinstance(value, Tensor) or value.shape != (SAMPLES,):
            raise ContractError(
                f"{where}: compute_critic returned {_shape_of(value)} for {SAMPLES} observations, expected "
                f"(N,) = ({SAMPLES},); a layer with one output needs .squeeze(-1)"
            )
        if not with_actions:
            return
        shapes = map_tree(_shape_of, logit)
        with _named_errors(f"{where}: actions of the logit {shapes} that compute_actor returned"):
            dist = model.distribution(logit)
            check_distribution(dist, space, value.device, SAMPLES)
            actions = model.actor_head.out.to_env(map_tree(lambda x: x.cpu().numpy(), dist.mode()))
    for got, shape in tree_leaves(map_space(lambda leaf, x: (np.shape(x), leaf.shape), space, actions)):
        if shape is not None and got != (SAMPLES, *shape):
            raise ContractError(
                f"{where}: actor_head.out.to_env must return (N, *shape), here {(SAMPLES, *shape)} for "
                f"{space}; got {got}"
            )


def check_value_heads(model: Any) -> None:
    """Raises a ConfigError unless PopArt can rescale the values of a model."""
    heads = model.value_heads
    if not heads or any(head.bias is None for head in heads):
        raise ConfigError(
            f"policy.learn.value_norm: PopArt corrects weight and bias of each value head; set "
            f"{type(model).__name__}.value_heads = (its last linear value layer, with bias,), or "
            "value_norm=False"
        )


def check_distribution(dist: Distribution, space: gym.Space, device: torch.device, n: int) -> None:
    """Raises a ContractError if a method of a distribution of ``n`` actions returns a wrong shape."""
    branches = children(space)
    if isinstance(dist, Joint) and branches is not None and dist.parts.keys() == branches.keys():
        for name, part in dist.parts.items():
            check_distribution(part, branches[name], device, n)
        return
    title = type(dist).__name__
    action = dist.sample(torch_generator(0, "shapes", device=device))
    width = [math.prod(space.shape)] if isinstance(space, gym.spaces.Box) else []
    for method, actions in {"sample": action, "mode": dist.mode()}.items():
        for shape in (tuple(leaf.shape) for leaf in tree_leaves(actions)):
            expected = (n, *width) if isinstance(dist, BoxDistribution) else (n, *shape[1:])
            if shape != expected:
                raise ContractError(
                    f"{title}.{method} must return actions (N, ...), here {expected} for {n} observations "
                    f"and {space}; got {shape}"
                )
    numbers = {"log_prob": dist.log_prob(action), "entropy": dist.entropy(), "kl": dist.kl(dist)}
    for method, result in numbers.items():
        if np.shape(result) != (n,):
            raise ContractError(
                f"{title}.{method} must return a tensor (N,), here ({n},); got {tuple(np.shape(result))}. "
                "Sum over the dimensions of an action: .sum(-1)"
            )


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Switches gradients off in the block, and restores torch's random generators after it."""
    device = next(model.parameters()).device
    with torch.no_grad(), ONE_THREAD, torch.random.fork_rng([device] if device.type == "cuda" else []):
        yield


def _shape_of(value: Any) -> Any:
    """Returns the shape of a tensor, or the type of anything else, for a message."""
    return tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__


@contextmanager
def _named_errors(what: str) -> Iterator[None]:
    """Turns an error of the user's code into a ContractError; out-of-memory errors pass unchanged."""
    try:
        yield
    except (DingLiteError, MemoryError, torch.OutOfMemoryError):
        raise
    except FOREIGN as error:
        raise ContractError(f"{what} raised {error_text(error)}") from error
