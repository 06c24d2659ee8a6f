"""Checks that an encoder and a model give what their contracts say, on a few observations, before training.

A wrong shape would otherwise appear far from its cause, such as in an action that the environment refuses.
The checks change nothing: neither the module, nor a random generator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from ding_lite.errors import FOREIGN, ContractError, DingLiteError, error_text
from ding_lite.models.memory import Sequences, single_steps
from ding_lite.rl.distributions import BoxDistribution, Distribution, Joint
from ding_lite.rl.seeding import torch_generator
from ding_lite.trees import Tree, children, example_observations, map_space, map_tree, tree_leaves

SAMPLES = 5  # observations in a check: with 1 a missing dimension is broadcast, 2 may be the size of actions
# Accepted relative difference of steps from sequences: bfloat16 and TF32 round them in other ways.
STEP_ROUNDING = 1e-2


def check_encoder(encoder: Any, space: gym.Space, where: str, dtype: torch.dtype) -> None:
    """Checks a new leaf encoder: its class, ``out_features``, and what ``forward`` returns.

    Args:
        encoder: made for ``space``.
        space: of the leaf.
        where: the key and the encoder, for the message: "policy.model.encoder (mine:Fourier)".
        dtype: that encoders compute in.

    Raises:
        ContractError: if it breaks the contract of leaf encoders (``models.encoders``).
    """
    if not isinstance(encoder, nn.Module):
        raise ContractError(f"{where} made {kind_of(encoder)}, expected a torch.nn.Module")
    width = getattr(encoder, "out_features", None)
    if not isinstance(width, (int, np.integer)) or isinstance(width, bool) or width < 1:
        raise ContractError(
            f"{where}: out_features is {width!r}, expected the number F of the features (N, F) that forward "
            "returns; set self.out_features in __init__"
        )
    device = _device_of(encoder)
    if device.type == "meta":  # a model without numbers
        return
    x = torch.as_tensor(example_observations(space, SAMPLES), device=device)
    with (
        undisturbed(encoder),
        torch.autocast(device.type, dtype, enabled=dtype != torch.float32),
        _named_errors(f"{where}: forward of a leaf {tuple(x.shape)}, {x.dtype},"),
    ):
        features = encoder(x)
    expected = (SAMPLES, int(width))
    if not isinstance(features, Tensor) or features.shape != expected:
        raise ContractError(
            f"{where}: forward returned {kind_of(features)}, expected ({SAMPLES}, out_features) = {expected}"
        )
    if features.dtype not in (torch.float32, dtype):
        raise ContractError(
            f"{where}: forward returned {features.dtype}, expected torch.float32; convert with .float()"
        )
    if not features.isfinite().all():
        raise ContractError(
            f"{where}: forward returned numbers that are not finite (nan or infinity) for observations that "
            "the space contains; look for a division by 0, or a log of 0"
        )


def check_outputs(
    model: Any,
    inputs: Any,
    space: gym.Space,
    distribution: Callable[[Any, Any], Any] | None = None,
) -> Any:
    """Checks what ``compute_actor`` and ``compute_critic`` of a model return.

    Args:
        model: of a policy.
        inputs: of the model, for ``SAMPLES`` observations.
        space: of actions.
        distribution: returns the action distribution of ``(inputs, logit)``; None: logits are not checked.

    Returns:
        the distribution, or None.

    Raises:
        ContractError: if values are not (N,), or a method of the distribution returns another shape.
    """
    where = f"policy.model ({type(model).__module__}:{type(model).__qualname__})"
    with undisturbed(model):
        with _named_errors(f"{where}: compute_actor"):
            logit = model.compute_actor(inputs)
        with _named_errors(f"{where}: compute_critic"):
            value = model.compute_critic(inputs)
        if not isinstance(value, Tensor) or value.shape != (SAMPLES,):
            raise ContractError(
                f"{where}: compute_critic returned {kind_of(value)} for {SAMPLES} observations, expected "
                f"(N,) = ({SAMPLES},); a layer with one output needs .squeeze(-1)"
            )
        if distribution is None:
            return None
        if (
            not hasattr(model, "actor_head")
            and type(model).distribution.__qualname__ == "ActorCritic.distribution"
        ):
            raise ContractError(
                f"{where} has no actor_head, which makes distributions of logits; set self.actor_head = "
                "ActionHead(action_space, features) in __init__, and use it in compute_actor"
            )
        shapes = map_tree(kind_of, logit)
        with _named_errors(f"{where}: the distribution of the logit {shapes} that compute_actor returned"):
            dist = distribution(inputs, logit)
            # A head of the user's may have logits of another shape, if its log-probs are (N,).
            is_usual = all(leaf.dim() == 2 and len(leaf) == SAMPLES for leaf in tree_leaves(logit))
            log_prob = None if is_usual else dist.log_prob(dist.mode())
        if log_prob is not None and log_prob.shape != (SAMPLES,):
            raise ContractError(
                f"{where}: compute_actor returned the logit {shapes} for {SAMPLES} observations, so that "
                f"log-probabilities of actions are {kind_of(log_prob)}, expected (N,) = ({SAMPLES},); the "
                "logit is what actor_head makes of features (N, F)"
            )
        check_distribution(dist, space, _device_of(model), SAMPLES)
        return dist


def check_joint_methods(model: Any, inputs: Any) -> None:
    """Checks that methods of several outputs return those of ``compute_actor`` and ``compute_critic``.

    Numbers are compared, since ``actor_critic.computes_jointly`` knows only which class wrote a method. One
    that was written for other single methods may still compute the same as these.

    Raises:
        ContractError: naming the method whose output is another one.
    """
    with undisturbed(model):
        logit, value = model.compute_actor(inputs), model.compute_critic(inputs)
        if not (_alike(logit, model.compute_actor(inputs)) and _alike(value, model.compute_critic(inputs))):
            return  # they draw random numbers
        for method in ("compute_actor_critic", "compute_auxiliary"):
            if not hasattr(model, method):
                continue
            first, *_, last = getattr(model, method)(inputs)
            for name, found, expected in (("compute_actor", first, logit), ("compute_critic", last, value)):
                if not _alike(found, expected):
                    raise ContractError(
                        f"policy.model: {type(model).__name__}.{method} returns another output than {name} "
                        "for the same observations; the first trains, the second acts or values"
                    )


def check_step(model: Any, inputs: Sequences) -> None:
    """Checks that ``step`` of a model with memory returns what the other methods compute along sequences.

    Args:
        model: of a policy.
        inputs: ``SAMPLES`` sequences of one step.

    Raises:
        ContractError: if ``step`` returns anything but ``(logit, value, state)``, or another output than
            ``compute_actor`` or ``compute_critic`` in one of two steps.
    """
    later = map_tree(lambda leaf: leaf.flip(0), inputs.obs)
    two_steps = Sequences(
        map_tree(lambda *leaves: torch.cat(leaves), inputs.obs, later), inputs.state, inputs.sizes.repeat(2)
    )

    def outputs() -> dict[str, Any]:
        first, state = _step(model, inputs)
        second, _ = _step(model, single_steps(later, state))
        along = {"of one": _computed(model, inputs), "of two": _computed(model, two_steps)}
        return {"first": first, "second": second, **along}

    with undisturbed(model):
        found = outputs()
        if not _alike(found, outputs()):
            return  # they draw random numbers
    first_rows, last_rows = slice(None, SAMPLES), slice(-SAMPLES, None)
    for step, along, rows in (
        ("first", "of one", first_rows),
        ("first", "of two", first_rows),
        ("second", "of two", last_rows),
    ):
        for method, stepped in found[step].items():
            if not _near(_rows_of(stepped, rows), _rows_of(found[along][method], rows)):
                raise ContractError(
                    f"policy.model: {type(model).__name__}.step returns another output than {method} in the "
                    f"{step} step of sequences {along}; the first acts, the second trains"
                )


def _step(model: Any, inputs: Sequences) -> tuple[dict[str, Any], Tree]:
    """Returns the outputs of ``step``, by the method that computes them too, and the memory after it."""
    where = f"policy.model: {type(model).__name__}.step"
    with _named_errors(where):
        result = model.step(inputs)
    is_triple = isinstance(result, (tuple, list)) and len(result) == 3
    if not is_triple or not all(isinstance(leaf, Tensor) for part in result for leaf in tree_leaves(part)):
        got = ", ".join(str(map_tree(kind_of, part)) for part in result) if is_triple else kind_of(result)
        raise ContractError(f"{where} must return (logit, value, state); got {got}")
    logit, value, state = result
    got, expected = map_tree(kind_of, state), map_tree(kind_of, inputs.state)
    if got != expected:
        raise ContractError(
            f"{where} must return (logit, value, state) with a state as initial_state(n) returns it, here "
            f"{expected} for {SAMPLES} sequences; got {got}"
        )
    return {"compute_actor": logit, "compute_critic": value}, state


def _computed(model: Any, inputs: Sequences) -> dict[str, Any]:
    """Returns the outputs along sequences, by the method that computes them."""
    found = {}
    for method in ("compute_actor", "compute_critic"):
        with _named_errors(f"policy.model: {type(model).__name__}.{method} of sequences"):
            found[method] = getattr(model, method)(inputs)
    return found


def _rows_of(tree: Tree, rows: slice) -> Tree:
    """Returns rows of a tree, whose leaves may also be one number for all samples, such as a std."""
    return map_tree(lambda leaf: torch.atleast_1d(leaf)[rows], tree)


def _near(a: Tree, b: Tree) -> bool:
    """Returns whether two trees have the same branches and shapes, and a small relative difference."""
    if map_tree(kind_of, a) != map_tree(kind_of, b):
        return False
    pairs = zip(tree_leaves(a), tree_leaves(b), strict=True)
    return all(bool((x - y).norm() <= STEP_ROUNDING * y.norm() + 1e-6) for x, y in pairs)


def check_value_heads(model: Any, inputs: Any) -> None:
    """Checks that ``value_heads`` are the layers that the values come from, which PopArt rescales.

    Raises:
        ContractError: if rescaled heads do not rescale the values in the same way.
    """
    scale, shift = 2.0, 1.0
    heads = model.value_heads
    before = [(head.weight.detach().clone(), head.bias.detach().clone()) for head in heads]
    with undisturbed(model), torch.no_grad():
        values = _values_of(model, inputs)
        if not _alike(values, _values_of(model, inputs)):
            return  # they draw random numbers
        try:
            for head in heads:
                head.weight.mul_(scale)
                head.bias.mul_(scale).add_(shift)
            rescaled = _values_of(model, inputs)
        finally:
            for head, (weight, bias) in zip(heads, before, strict=True):
                head.weight.copy_(weight)
                head.bias.copy_(bias)
    for method, value in values.items():
        if not _alike(rescaled[method], scale * value + shift):
            raise ContractError(
                f"policy.learn.value_norm: the values of {type(model).__name__}.{method} do not come from "
                "its value_heads, which PopArt rescales; set self.value_heads to the last linear layer of "
                "every value, after the layers are made, or value_norm=False"
            )


def _values_of(model: Any, inputs: Any) -> dict[str, Tensor]:
    """Returns the values of a model, by the method that computes them."""
    values = {"compute_critic": model.compute_critic(inputs)}
    if hasattr(model, "compute_auxiliary"):
        values["compute_auxiliary"] = model.compute_auxiliary(inputs)[1]
    return values


def _alike(a: Any, b: Any) -> bool:
    """Returns whether two trees of tensors are equal within rounding."""
    pairs = zip(tree_leaves(a), tree_leaves(b), strict=True)
    return all(x.shape == y.shape and torch.allclose(x, y, rtol=1e-3, atol=1e-4) for x, y in pairs)


def check_distribution(dist: Distribution, space: gym.Space, device: torch.device, n: int) -> None:
    """Checks the shapes of what a distribution returns; a wrong one would broadcast in the losses.

    Args:
        dist: of N actions.
        space: of one action.
        device: of the distribution.
        n: N.

    Raises:
        ContractError: naming the class, the method and both shapes.
    """
    branches = children(space)
    if isinstance(dist, Joint) and branches is not None and dist.parts.keys() == branches.keys():
        for name, part in dist.parts.items():
            check_distribution(part, branches[name], device, n)
        return
    title = type(dist).__name__
    action = dist.sample(torch_generator(0, "shapes", device=device))
    width = [math.prod(space.shape)] if isinstance(space, gym.spaces.Box) else []
    for method, drawn in {"sample": action, "mode": dist.mode()}.items():
        for shape in (tuple(leaf.shape) for leaf in tree_leaves(drawn)):
            expected = (n, *width) if isinstance(dist, BoxDistribution) else (n, *shape[1:])
            if shape != expected:
                raise ContractError(
                    f"{title}.{method} must return actions (N, ...), here {expected} for {n} observations "
                    f"and {space}; got {shape}"
                )
    for method, result in {
        "log_prob": dist.log_prob(action),
        "entropy": dist.entropy(),
        "kl": dist.kl(dist),
    }.items():
        if np.shape(result) != (n,):
            raise ContractError(
                f"{title}.{method} must return a tensor (N,), here ({n},); got {tuple(np.shape(result))}. "
                "Sum over the dimensions of an action: .sum(-1)"
            )


def check_actions(actions: Tree, space: gym.Space, model: Any) -> None:
    """Checks the shapes of actions (N, ...) that ``actor_head.to_env`` of a model has made.

    Raises:
        ContractError: if they are not those of ``space``.
    """
    shapes = map_space(lambda leaf, some: (np.shape(some), leaf.shape), space, actions)
    for found, of_one in tree_leaves(shapes):
        if of_one is not None and found != (SAMPLES, *of_one):
            raise ContractError(
                f"{type(model).__name__}.actor_head.to_env must return actions (N, *shape), here "
                f"{(SAMPLES, *of_one)} for {space}; got {found}"
            )


@contextmanager
def undisturbed(module: nn.Module) -> Iterator[None]:
    """Lets a module compute in eval mode without gradients, and leaves no trace of it.

    Modes, buffers and torch's generators are afterwards what they were.
    """
    modes = [(part, part.training) for part in module.modules()]
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    device = _device_of(module)
    try:
        for part, _ in modes:  # not .eval(), which a module may override
            part.training = False
        with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        for part, training in modes:
            part.training = training
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)


def kind_of(value: Any) -> str:
    """Returns what a function has returned, for a message: a tensor's shape, or the type of anything else."""
    if isinstance(value, Tensor):
        return str(tuple(value.shape))
    return f"a tuple of {len(value)}" if isinstance(value, tuple) else f"a {type(value).__name__}"


def _device_of(module: nn.Module) -> torch.device:
    own = next(module.parameters(), next(module.buffers(), None))
    return torch.empty(0).device if own is None else own.device


@contextmanager
def _named_errors(what: str) -> Iterator[None]:
    """Turns an error of the user's code into a ContractError; missing memory is explained elsewhere."""
    try:
        yield
    except (DingLiteError, MemoryError, torch.OutOfMemoryError):
        raise
    except FOREIGN as error:
        raise ContractError(f"{what} raised {error_text(error)}") from error
