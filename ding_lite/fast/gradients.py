"""The clipped gradient of a loss by torch: plain autograd, or the same function compiled or captured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ding_lite.data.minibatches import Batch
from ding_lite.data.rollout import as_field
from ding_lite.errors import ContractError
from ding_lite.fast.compiling import CompiledFunction
from ding_lite.fast.cuda_graphs import GraphPool
from ding_lite.rl.ranks import Ranks

# A minibatch, or a part of one -> (0-d loss, dict of 0-d metrics)
Loss = Callable[[Batch], tuple[Tensor, dict[str, Tensor]]]
Number = Tensor | float  # a float if the host knows it already
Metrics = Mapping[str, Number]


class Clip(NamedTuple):
    """How gradients are clipped: ``kind`` is "clip_norm" (over all parameters), "clip_value" or None."""

    kind: str | None
    value: float


class Gradient(NamedTuple):
    """The gradient of a loss over one minibatch."""

    values: list[Tensor | None]  # clipped, for each parameter; None if the loss does not reach it
    norm: Number  # before clipping
    bad: Number  # 1.0 if the loss or the norm is not finite, else 0.0
    metrics: Metrics


# (the parts of a minibatch, clip) -> gradient
GradientFunction = Callable[[Sequence[Batch], Clip], Gradient]


def autograd_gradient(
    loss: Loss, parameters: Sequence[Tensor], parts: Sequence[Batch], clip: Clip
) -> Gradient:
    """Returns the gradient of ``loss`` over a minibatch. No argument is changed.

    ``loss`` is a mean over samples. Each part of the minibatch is weighted by its share of the samples.
    """
    values: list[Tensor | None] = [None] * len(parameters)
    metrics: dict[str, Tensor] = {}
    total = torch.zeros((), device=parameters[0].device)
    sizes = [part.size for part in parts] if len(parts) > 1 else [1]
    for part, size in zip(parts, sizes, strict=True):
        part_loss, part_metrics = loss(part)
        share = size / sum(sizes)
        if not part_loss.requires_grad:
            raise ContractError(
                f"{name_of_loss(loss)} has no gradient, so a step would learn nothing: its result is "
                "detached or computed under torch.no_grad(), or no parameter of the model is in it"
            )
        trained = [p for p in parameters if p.requires_grad]
        of_trained = iter(torch.autograd.grad(share * part_loss, trained, allow_unused=True))
        gradients = [next(of_trained) if p.requires_grad else None for p in parameters]
        with torch.no_grad():
            values = [
                b if a is None else a if b is None else a + b for a, b in zip(values, gradients, strict=True)
            ]
            total = total + share * part_loss.detach()
            metrics = {k: share * v.detach() + metrics.get(k, 0.0) for k, v in part_metrics.items()}
    with torch.no_grad():
        values = [v if v is None else laid_out_as(p, v) for p, v in zip(parameters, values, strict=True)]
        values, norm = clipped(values, clip)
        bad = (~torch.isfinite(norm + total)).to(torch.float32)  # which Adam's kernel reads
    return Gradient(values, norm, bad, metrics)


def name_of_loss(loss: Loss) -> str:
    """Returns the name of a loss as its author knows it, such as "auxiliary_loss"."""
    return loss.__name__.removeprefix("checked_")


def gradient_of_fields(
    loss: Loss, parameters: Sequence[Tensor], parts: Sequence[Mapping[str, Any]], clip: Clip
) -> Gradient:
    """Returns :func:`autograd_gradient` of minibatches that are given by their fields.

    This is the function that is compiled. It is pure, so that it can be called again if that fails.
    """
    return autograd_gradient(loss, parameters, [Batch(**fields) for fields in parts], clip)


def laid_out_as(like: Tensor, x: Tensor) -> Tensor:
    """Returns ``x`` in the memory order of ``like``; ``x`` itself if it has that order already."""
    return x if x.stride() == like.stride() else torch.empty_like(like).copy_(x)


def clipped(values: Sequence[Tensor | None], clip: Clip) -> tuple[list[Tensor | None], Tensor]:
    """Returns a gradient clipped, and its norm before."""
    reached = [value for value in values if value is not None]
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(value) for value in reached]))
    if clip.kind == "clip_norm":
        scale = (clip.value / (norm + 1e-6)).clamp(max=1.0)  # as nn.utils.clip_grad_norm_
        reached = list(torch._foreach_mul(reached, scale))
    elif clip.kind == "clip_value":
        reached = [value.clamp(-clip.value, clip.value) for value in reached]
    in_order = iter(reached)
    return [None if value is None else next(in_order) for value in values], norm


@torch.no_grad()
def averaged(
    gradient: Gradient, parameters: Sequence[Tensor], samples: int, clip: Clip, ranks: Ranks
) -> Gradient:
    """Returns the mean of the ranks' gradients and metrics, in one message; it is clipped afterwards.

    A rank's weight is its share of the samples, so the result is the gradient of the minibatch that all
    ranks have together. A loss must reach the same parameters on every rank.

    Args:
        gradient: of this rank, not clipped.
        parameters: that it belongs to.
        samples: number of this rank's samples.
        clip: of the mean.
        ranks: that exchange their gradients.
    """
    metrics = gradient.metrics
    device, dtype = parameters[0].device, parameters[0].dtype
    reached = [value for value in gradient.values if value is not None]
    own = [*reached, stacked([*metrics.values()]), torch.ones(1)]
    flat = torch.cat([part.reshape(-1).to(device, dtype) for part in own]) * samples
    bad = torch.as_tensor(gradient.bad).to(device, dtype).view(1)
    sizes = [*(value.numel() for value in reached), len(metrics), 1, 1]
    *sums, totals, count, bads = ranks.sum(torch.cat([flat, bad])).split(sizes)
    means = iter([(part / count).view_as(value) for part, value in zip(sums, reached, strict=True)])
    values, norm = clipped([None if v is None else next(means) for v in gradient.values], clip)
    is_bad = ((bads[0] > 0) | ~torch.isfinite(norm)).to(torch.float32)
    result = Gradient(values, norm, is_bad, dict(zip(metrics, (totals / count).unbind(), strict=True)))
    return _on_host(result) if device.type == "cpu" else result


def _on_host(gradient: Gradient) -> Gradient:
    norm, bad, *metrics = stacked([gradient.norm, gradient.bad, *gradient.metrics.values()]).tolist()
    return Gradient(gradient.values, norm, bad, dict(zip(gradient.metrics, metrics, strict=True)))


class TorchGradients:
    """Gradients by autograd; compiled if ``compiled_size`` is given, or captured as CUDA graphs.

    Args:
        parameters: to differentiate by.
        compiled_size: number of samples of a full minibatch. One graph is compiled for full minibatches and
            one for all other sizes, such as that of a short last minibatch. None: nothing is compiled.
        captured_size: for parameters on a GPU, the number of samples of minibatches whose kernels are
            captured. None: none are.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        compiled_size: int | None = None,
        captured_size: int | None = None,
    ) -> None:
        self.parameters, self.compiled_size = list(parameters), compiled_size
        self.captured_size, self.graph_pool = captured_size, GraphPool()
        self._of_full = CompiledFunction(gradient_of_fields, any_size=False)
        self._of_others = CompiledFunction(gradient_of_fields, any_size=True)

    def of(self, loss: Loss) -> GradientFunction:
        """Returns the function that computes the gradient of ``loss``.

        It is valid until the policy or its model is changed from outside.
        """
        if self._captures():
            return self._captured(loss)
        if self.compiled_size is None:
            return partial(autograd_gradient, loss, self.parameters)
        return partial(self._compiled, loss)

    def _captures(self) -> bool:
        return self.captured_size is not None and not self.graph_pool.failed

    def _compiled(self, loss: Loss, parts: Sequence[Batch], clip: Clip) -> Gradient:
        size = sum(part.size for part in parts)
        compiled = self._of_full if size == self.compiled_size else self._of_others
        result: Gradient = compiled(loss, self.parameters, [part.fields() for part in parts], clip)
        return result

    def _captured(self, loss: Loss) -> GradientFunction:
        def of_arguments(arguments: Mapping[str, Any]) -> Gradient:
            parts = [
                {name: as_field(field) for name, field in fields.items()}
                for fields in arguments["parts"].values()
            ]
            return gradient_of_fields(loss, self.parameters, parts, arguments["clip"])

        captured = self.graph_pool.captured(of_arguments, getattr(loss, "__name__", ""))

        def of_parts(parts: Sequence[Batch], clip: Clip) -> Gradient:
            if sum(part.size for part in parts) != self.captured_size:
                return autograd_gradient(loss, self.parameters, parts, clip)
            fields = {str(number): part.fields() for number, part in enumerate(parts)}
            return _with_own_metrics(captured({"parts": fields, "clip": clip}))

        return of_parts

    def name_of(self, loss: Loss) -> str:
        """Returns "autograd (CUDA graph)", "compiled" or "autograd"."""
        if self._captures():
            return "autograd (CUDA graph)"
        return "autograd" if self.compiled_size is None else "compiled"


def _with_own_metrics(gradient: Gradient) -> Gradient:
    """Returns the gradient with copies of all numbers that are read after its step.

    A replay writes its results over those of the step before.
    """
    norm, *metrics = stacked([gradient.norm, *gradient.metrics.values()]).unbind()
    return gradient._replace(
        norm=norm,
        bad=torch.as_tensor(gradient.bad).clone(),
        metrics=dict(zip(gradient.metrics, metrics, strict=True)),
    )


def stacked(numbers: Sequence[Number]) -> Tensor:
    """Returns numbers as one tensor (N,), without waiting for a device."""
    if all(isinstance(number, float) for number in numbers):
        return torch.tensor(numbers)
    return torch.stack([torch.as_tensor(number) for number in numbers])
