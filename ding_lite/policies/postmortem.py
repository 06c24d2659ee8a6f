"""What is kept of a gradient step that was not finite: enough to take it again."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ding_lite.errors import NumericsError
from ding_lite.policies.base import Policy
from ding_lite.policies.updater import Loss, Metrics, Updater
from ding_lite.rollout import Batch, map_tree

# A step's loss, and what makes its minibatch again.
Taken = tuple[Loss, Callable[[], Batch]]
SHOWN = 4  # names of parameters in a message


def raise_non_finite(
    policy: Policy, updater: Updater, taken: list[Taken], history: Sequence[Metrics]
) -> None:
    """Looks at the last steps, those ``taken``, and forgets them if the run survives them.

    Args:
        policy: as it was before the first that it does not survive: none was taken after that.
        updater: that took them.
        history: the metrics of all steps of this phase of the iteration.

    Raises:
        NumericsError: with the minibatch and the parameters that this one was to be taken with.
    """
    bad = updater.first_bad_step()
    if bad is not None:
        loss, again = taken[bad]
        step = len(history) - len(taken) + bad
        raise _non_finite_step(policy, loss, again(), history[step], step)
    taken.clear()


def bad_gradients(model: nn.Module, total: Tensor) -> list[str]:
    """Returns the names of the parameters whose gradient of a loss () is not finite."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    gradients = torch.autograd.grad(total, list(named.values()), allow_unused=True)
    return [n for n, g in zip(named, gradients, strict=True) if g is not None and not torch.isfinite(g).all()]


def _non_finite_step(policy: Any, loss: Loss, batch: Batch, metrics: Metrics, step: int) -> NumericsError:
    given = batch.fields()
    with torch.enable_grad():
        gradients = bad_gradients(policy.model, loss(batch)[0])
    state = {
        name: part.state_dict()
        for name, part in policy._state().items()
        if part is not None and not name.endswith("_buffer") and name != "auxiliary"
    }
    spoilt = [name for name, value in given.items() if not _is_finite(value)]
    parts = {name: float(value) for name, value in metrics.items() if not math.isfinite(value)}
    weights = [name for name, p in policy.model.named_parameters() if not torch.isfinite(p).all()]
    told = [
        f"{what} {found}"
        for what, found in (
            ("of its inputs", spoilt),
            ("of its results", parts),
            ("of the weights", weights),
            ("of the gradients", gradients if len(gradients) <= SHOWN else [*gradients[:SHOWN], "..."]),
        )
        if found
    ]
    iteration = 1 + policy.buffers["policy"].iteration
    return NumericsError(
        f"gradient step {step} of {loss.__name__} in iteration {iteration} was not finite "
        f"({', '.join(told)}). The parameters are as they were before it. Try a lower "
        "policy.learn.learning_rate or grad_clip_value, or look at the scale of the rewards; "
        "policy.learn.skip_bad_steps lets a run survive some",
        dump={"loss": loss.__name__, "batch": given, "policy": state},
    )


def _is_finite(tree: Any) -> bool:
    found: list[bool] = []
    map_tree(lambda leaf: found.append(bool(torch.isfinite(leaf).all())), tree)
    return all(found)
