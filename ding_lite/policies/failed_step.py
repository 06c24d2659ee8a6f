"""The error for a gradient step that is not finite, with everything that is needed to take the step again."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ding_lite.data.minibatches import Batch
from ding_lite.errors import NumericsError
from ding_lite.fast.gradients import Loss, Metrics
from ding_lite.models.recurrent import Sequences
from ding_lite.trees import to_dict, tree_leaves

SHOWN = 4  # names of parameters in a message


def non_finite_step(
    model: nn.Module,
    state: Mapping[str, Any],
    where: str,
    loss: Loss,
    batch: Batch,
    metrics: Metrics,
) -> NumericsError:
    """Returns the error for a step that was not finite, whose ``dump`` holds the minibatch and the policy.

    Args:
        model: as it was before the step.
        state: of the policy, for the dump.
        where: which step it was, for the message.
        loss: of the step.
        batch: the minibatch of the step.
        metrics: of the step.
    """
    fields = {
        name: field.as_tree() if isinstance(field, Sequences) else to_dict(field)
        for name, field in batch.fields().items()
    }
    with torch.enable_grad():
        gradients = bad_gradients(model, loss(batch)[0])
    causes = {
        "of its inputs": [name for name, tree in fields.items() if not tensors_are_finite(tree)],
        "of its results": {n: float(value) for n, value in metrics.items() if not math.isfinite(value)},
        "of the weights": [name for name, p in model.named_parameters() if not torch.isfinite(p).all()],
        "of the gradients": gradients if len(gradients) <= SHOWN else [*gradients[:SHOWN], "..."],
    }
    listed = ", ".join(f"{what} {names}" for what, names in causes.items() if names)
    return NumericsError(
        f"{where} was not finite ({listed}). The parameters are as they were before it. Try a lower "
        "policy.learn.learning_rate or grad_clip_value, or look at the scale of the rewards; "
        "policy.learn.skip_bad_steps lets a run survive some",
        dump={"loss": loss.__name__, "batch": fields, "policy": dict(state)},
    )


def bad_gradients(model: nn.Module, total: Tensor) -> list[str]:
    """Returns the names of the parameters whose gradient of a loss () is not finite."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    gradients = torch.autograd.grad(total, list(named.values()), allow_unused=True)
    return [n for n, g in zip(named, gradients, strict=True) if g is not None and not torch.isfinite(g).all()]


def tensors_are_finite(tree: Any) -> bool:
    """Returns whether all numbers of a tree of tensors are finite."""
    return all(bool(torch.isfinite(leaf).all()) for leaf in tree_leaves(tree))
