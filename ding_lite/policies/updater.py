"""One gradient step: the only place with backward, clipping and the optimiser.

The learner's loop lives in the policy, so that ``learn_mode`` works alone; what must be done in one
place, so that it can be guarded, compiled and measured, lives here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import compress
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from ding_lite.models.heads import clamp_to_ranges
from ding_lite.models.layout import laid_out_as
from ding_lite.policies.compiling import CompiledFunction
from ding_lite.rollout import Batch, leading_size

BETAS = 0.9, 0.999  # Adam's, arXiv:1412.6980

# A minibatch, or a part of one -> (0-d loss, dict of 0-d metrics)
Loss = Callable[[Batch], tuple[Tensor, dict[str, Tensor]]]
Number = Tensor | float  # a float where the host has it anyway
Metrics = Mapping[str, Number]


class BadSteps:
    """How many steps of a run were not finite, over all its optimisers, and how many it survives."""

    def __init__(self, budget: int = 0) -> None:
        self.budget, self.count = budget, 0

    @property
    def left(self) -> int:
        """How many more the run survives."""
        return max(0, self.budget - self.count)

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.count = int(state["count"])


class Gradient(NamedTuple):
    """What a step needs of its minibatch."""

    values: list[Tensor | None]  # clipped, one a parameter; None where the loss does not reach it
    norm: Number  # before clipping
    bad: Number  # 1.0 where the loss or the norm is not finite, else 0.0
    metrics: Metrics
    new_value: Tensor | None  # that the loss looked at


def clipped_gradient(
    loss: Loss,
    parameters: Sequence[Tensor],
    parts: Iterable[Mapping[str, Any]],
    clip_type: str | None,
    clip_value: float,
) -> Gradient:
    """Returns the gradient of the sum of ``loss`` over ``parts``: the fields of a minibatch, or of its parts.

    Pure: nothing that is given changes, so that it can be compiled, and called again where that fails.
    """
    values: list[Tensor | None] = [None] * len(parameters)
    metrics: dict[str, Tensor] = {}
    total, new_value = torch.zeros((), device=parameters[0].device), None
    for fields in parts:
        batch = Batch(**fields)
        part, told = loss(batch)
        gradients = torch.autograd.grad(part, parameters, allow_unused=True)
        with torch.no_grad():
            values = [
                b if a is None else a if b is None else a + b for a, b in zip(values, gradients, strict=True)
            ]
            total = total + part.detach()
            metrics = {k: v.detach() + metrics[k] if k in metrics else v.detach() for k, v in told.items()}
            new_value = batch.new_value.detach() if batch.new_value is not None else None
    with torch.no_grad():
        values = [v if v is None else laid_out_as(p, v) for p, v in zip(parameters, values, strict=True)]
        found = [value for value in values if value is not None]
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(value) for value in found]))
        if clip_type == "clip_norm":
            scale = (clip_value / (norm + 1e-6)).clamp(max=1.0)  # as nn.utils.clip_grad_norm_
            found = list(torch._foreach_mul(found, scale))
        elif clip_type == "clip_value":
            found = [value.clamp(-clip_value, clip_value) for value in found]
        rest = iter(found)
        values = [None if value is None else next(rest) for value in values]
        bad = (~torch.isfinite(norm + total)).to(norm.dtype)
    return Gradient(values, norm, bad, metrics, new_value)


def _flat(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Returns views (numel,) in the order of memory: Adam's kernel copies what is not contiguous."""
    return [tensor.detach().as_strided((tensor.numel(),), (1,)) for tensor in tensors]


def _lasting(gradient: Gradient) -> Gradient:
    """Returns it with copies of all that is looked at after its step.

    A CUDA graph writes its results where it wrote those of the step before.
    """
    norm, *metrics = stacked([gradient.norm, *gradient.metrics.values()]).unbind()
    return gradient._replace(
        norm=norm,
        bad=torch.as_tensor(gradient.bad).clone(),
        metrics=dict(zip(gradient.metrics, metrics, strict=True)),
        new_value=None if gradient.new_value is None else gradient.new_value.clone(),
    )


# (minibatch, clip_type, clip_value) -> what clipped_gradient does
KnownGradient = Callable[[Batch, str | None, float], Gradient]


class KnownGradients(Protocol):
    """Who has the gradient of some losses in closed form; see ``policies.closed_form``."""

    def of(self, loss: Loss) -> KnownGradient | None:
        """Returns that of this loss for the policy as it is now, None where it is not known."""


class Updater:
    """Adam over ``parameters``, clipped, and guarded: a step that is not finite changes nothing.

    Args:
        parameters: those that the loss reaches.
        learning_rate: of the first step; assign ``updater.learning_rate`` to change it.
        eps: Adam's.
        grad_clip_type: ``"clip_norm"`` over all parameters together, ``"clip_value"``, or ``None``.
        grad_clip_value: the bound.
        bad_steps: of the run. The first one beyond their budget stops all that follow until it is looked
            at, so that the parameters are still those it failed with.
        closed_form: is asked first for a gradient.
        compiled_size: of full minibatches, where the gradient is compiled: once for those and once for all
            other sizes, such as that of a short last one. None: it is not.
        ranges: ``(parameter, low, high)`` of parameters that are clamped after each step
            (``models.heads.parameter_ranges``).
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        learning_rate: float,
        eps: float,
        grad_clip_type: str | None,
        grad_clip_value: float,
        bad_steps: BadSteps | None = None,
        closed_form: KnownGradients | None = None,
        compiled_size: int | None = None,
        ranges: Sequence[tuple[Tensor, float, float]] = (),
    ) -> None:
        self.parameters = [p for p in parameters if p.requires_grad]
        own = {id(p) for p in self.parameters}
        self.ranges = [each for each in ranges if id(each[0]) in own]
        self.clip_type, self.clip_value = grad_clip_type, grad_clip_value
        self.learning_rate, self.eps = learning_rate, eps
        # Not held by a torch.optim.Adam: making one imports torch's compiler, a second of every start.
        self._means, self._squares = ([torch.zeros_like(p) for p in self.parameters] for _ in range(2))
        self._counts = torch.zeros(len(self.parameters), device=self.parameters[0].device)  # steps of each
        self.bad_steps = bad_steps or BadSteps()
        self.closed_form, self.compiled_size = closed_form, compiled_size
        device = self._counts.device.type
        self.on_host = device == "cpu"  # where a number costs nothing to look at; a device is not waited for
        # A CUDA graph is one of one size: the short last minibatches, of any, do without.
        self._of_full = CompiledFunction(clipped_gradient, any_size=False, cuda_graph=device == "cuda")
        self._of_others = CompiledFunction(clipped_gradient, any_size=True)
        self._reached: dict[tuple[bool, ...], tuple[Any, ...]] = {}  # see _part
        self._known: dict[Loss, KnownGradient | None] | None = None  # within a phase
        # Of the steps since first_bad_step(): 1 for each that was not taken, and how many those are.
        self._flags: list[Number] = []
        self._not_taken: Number = 0.0

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_reached": {}}  # of a copy its counts would be views no more

    @contextlib.contextmanager
    def phase(self) -> Iterator[None]:
        """Some steps between which nobody changes the policy: its closed forms are looked up only once."""
        self._known = {}
        self._lay_out()
        try:
            yield
        finally:
            self._known = None

    def step(self, loss: Loss, *parts: Batch) -> Metrics:
        """Takes one step down ``loss`` and returns its metrics, and ``grad_norm``, the norm before clipping.

        Where the loss or the norm is not finite, neither parameters nor Adam's moments move; no device
        is waited for, :meth:`first_bad_step` tells later. The loss's ``new_value`` is left on the batch.

        Args:
            loss: of a minibatch, pure.
            parts: the minibatch, or parts of one too large for one backward pass, whose losses and
                metrics add up.
        """
        gradient = self.gradient(loss, parts)
        self.apply(gradient)
        parts[0].new_value = gradient.new_value
        return {**gradient.metrics, "grad_norm": gradient.norm}

    def gradient(self, loss: Loss, parts: Sequence[Batch]) -> Gradient:
        """Returns the clipped gradient: in closed form, compiled, or by torch as it is."""
        if self._known is None:
            self._lay_out()
        if self.closed_form is not None and len(parts) == 1:
            known = self._look_up(loss, self.closed_form)
            if known is not None:
                return known(parts[0], self.clip_type, self.clip_value)
        given = [part.fields() for part in parts]
        if self.compiled_size is None:
            return clipped_gradient(loss, self.parameters, given, self.clip_type, self.clip_value)
        size = sum(leading_size(part.obs) for part in parts)
        compiled = self._of_full if size == self.compiled_size else self._of_others
        gradient = compiled(loss, self.parameters, given, self.clip_type, self.clip_value)
        return gradient if self.on_host else _lasting(gradient)

    def _look_up(self, loss: Loss, closed_form: KnownGradients) -> KnownGradient | None:
        if self._known is None:
            return closed_form.of(loss)
        if loss not in self._known:
            self._known[loss] = closed_form.of(loss)
        return self._known[loss]

    @torch.no_grad()
    def apply(self, gradient: Gradient) -> None:
        """Takes Adam's step along a gradient, if it is finite."""
        bad = self._flag(gradient.bad)
        self._flags.append(bad)
        self._not_taken = self._not_taken + bad
        reached = tuple(value is not None for value in gradient.values)
        if reached not in self._reached:
            self._reached[reached] = self._part(reached)
        parameters, means, squares, counts, own = self._reached[reached]
        gradients = [value for value in gradient.values if value is not None]
        # Gradients come laid out as their parameters are, those in closed form contiguous.
        if not all([parameter.is_contiguous() for parameter in parameters]):  # noqa: C419 - half the time
            gradients = [laid_out_as(p, value) for p, value in zip(parameters, gradients, strict=True)]
            parameters, gradients, means, squares = map(_flat, (parameters, gradients, means, squares))
        if isinstance(bad, Tensor):
            self._counts.addcmul_(own, 1 - bad)
        elif bad:
            return
        else:
            self._counts.add_(own)
        torch._fused_adam_(
            parameters,
            gradients,
            means,
            squares,
            [],
            counts,
            # What GradScaler uses: everything stays as it is where it is 1.
            found_inf=bad if isinstance(bad, Tensor) else None,
            lr=self.learning_rate,
            beta1=BETAS[0],
            beta2=BETAS[1],
            weight_decay=0.0,
            eps=self.eps,
            amsgrad=False,
            maximize=False,
        )
        clamp_to_ranges(self.ranges)

    def _flag(self, bad: Number) -> Number:
        """Returns 1 where a step is not to be taken: a float on the host, else a tensor.

        That is where it is not finite, or the run does not survive those before it.
        """
        over = self._not_taken > self.bad_steps.left
        if self.on_host:
            return max(float(bad), float(over))
        bad = torch.as_tensor(bad)
        return bad.maximum(over) if isinstance(over, Tensor) else bad

    @torch.no_grad()
    def _lay_out(self) -> None:
        """Lays the moments out as their parameters are now, which somebody may have given other memory.

        Adam's kernel goes through the memory of all of them side by side, and asks for no strides. Where a
        parameter has gaps in its memory, as a slice has, it is given memory of its own.
        """
        for parameter, *moments in zip(self.parameters, self._means, self._squares, strict=True):
            if torch.empty_like(parameter).stride() != parameter.stride():  # with gaps, as a slice has
                parameter.data = parameter.clone(memory_format=torch.contiguous_format)
            for moment in moments:
                moment.data = laid_out_as(parameter, moment)

    def _part(self, reached: tuple[bool, ...]) -> tuple[Any, ...]:
        """Returns the parameters that are ``reached``, their moments and counts, and 1.0 for each of them."""
        # The counts are views, so that all are raised in one call.
        of_all = (self.parameters, self._means, self._squares, self._counts.unbind())
        own = torch.tensor(reached, dtype=self._counts.dtype, device=self._counts.device)
        return *(list(compress(tensors, reached)) for tensors in of_all), own

    def first_bad_step(self) -> int | None:
        """Returns which step since the last call was the first beyond the budget; waits for a device once.

        None if there is none: all were finite, or the run survives those that were not.
        """
        flags, self._flags, self._not_taken = self._flags, [], 0.0
        bad = [step for step, flag in enumerate(flags if self.on_host else stacked(flags).tolist()) if flag]
        left = self.bad_steps.left
        self.bad_steps.count += len(bad)
        return bad[left] if len(bad) > left else None

    def state_dict(self) -> dict[str, Any]:
        """Returns moments and counts; ``eps`` is the config's, which may be another when it is loaded."""
        moments = zip(self._means, self._squares, strict=True)
        return {
            "learning_rate": self.learning_rate,
            "counts": self._counts,
            "moments": {k: {"mean": mean, "square": square} for k, (mean, square) in enumerate(moments)},
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.learning_rate = float(state["learning_rate"])
        mine = self.state_dict()
        pairs = [("counts", mine["counts"], state["counts"])]
        for number, moments in mine["moments"].items():
            pairs += [(f"{k} {number}", moments[k], state["moments"][number][k]) for k in moments]
        for name, tensor, value in pairs:
            if value.shape != tensor.shape:
                raise ValueError(f"{name}: expected {tuple(tensor.shape)}, got {tuple(value.shape)}")
            tensor.copy_(value)


def mean_metrics(history: Sequence[Metrics]) -> dict[str, float]:
    """Returns the mean of every metric over the steps that have it, waiting for the device once."""
    names = sorted({name for step in history for name in step})
    if not names:
        return {}
    means = [stacked([step[name] for step in history if name in step]).mean() for name in names]
    return dict(zip(names, torch.stack(means).tolist(), strict=True))


def stacked(numbers: Sequence[Number]) -> Tensor:
    """Returns some numbers as one tensor (N,), without waiting for a device."""
    if all(isinstance(number, float) for number in numbers):
        return torch.tensor(numbers)
    return torch.stack([torch.as_tensor(number) for number in numbers])
