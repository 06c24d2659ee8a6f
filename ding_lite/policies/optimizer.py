"""One gradient step: the guard against non-finite steps, and Adam.

The loop over minibatches is the policy's, so that ``learn_mode`` works without a pipeline. ``fast.gradients``
and ``fast.closed_form`` compute the gradient and clip it; ``fast.gradients`` takes its mean over ranks.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import compress
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ding_lite.data.minibatches import Batch
from ding_lite.errors import ContractError, NumericsError
from ding_lite.fast.gradients import (
    Clip,
    Gradient,
    GradientFunction,
    Loss,
    Metrics,
    Number,
    TorchGradients,
    averaged,
    laid_out_as,
    stacked,
)
from ding_lite.models.heads import clamp_to_ranges
from ding_lite.rl.ranks import ALONE, Ranks

NO_CLIP = Clip(None, 0.0)
BETAS = 0.9, 0.999  # Adam's, arXiv:1412.6980

# (loss, minibatch, metrics and number of a step that was not finite) -> the error. The policy is as it was
# before that step.
Failure = Callable[[Loss, Batch, Metrics, int], NumericsError]


class BadSteps:
    """The number of steps that were not finite, over all optimisers of a run, and how many are tolerated."""

    def __init__(self, budget: int = 0) -> None:
        self.budget, self.count = budget, 0

    @property
    def left(self) -> int:
        """The number of further bad steps that are tolerated."""
        return max(0, self.budget - self.count)

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.count = int(state["count"])


def _flat(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Returns views (numel,) in the order of memory: Adam's kernel copies tensors that are not contiguous."""
    return [tensor.detach().as_strided((tensor.numel(),), (1,)) for tensor in tensors]


# Of torch's layers, those whose outputs depend on the mode, or whose gradients do on a GPU.
WITH_MODES = (
    nn.modules.dropout._DropoutNd,
    nn.modules.batchnorm._NormBase,
    nn.MultiheadAttention,
    nn.RNNBase,
    nn.RReLU,
)


def has_modes(model: nn.Module) -> bool:
    """Returns whether a model may compute something else in training mode; code of the user may."""
    return any(
        isinstance(layer, WITH_MODES)
        or not type(layer).__module__.startswith(("torch.", "ding_lite."))
        or bool(layer._forward_pre_hooks or layer._forward_hooks)  # such as of spectral_norm
        or parametrize.is_parametrized(layer)
        for layer in model.modules()
    )


@contextlib.contextmanager
def in_mode(model: nn.Module, *, training: bool) -> Iterator[None]:
    """Puts a model into training or eval mode within the block; outside of gradient steps it is in eval mode.

    Args:
        model: that learns.
        training: for gradient steps :func:`has_modes` of the model, since the change of a small network
            takes as long as a gradient step.
    """
    if model.training == training:
        yield
        return
    model.train(training)
    try:
        yield
    finally:
        model.train(not training)


class Optimizer:
    """Adam with clipped gradients, whose steps :class:`GradientSteps` takes.

    Args:
        parameters: to be optimised; a step leaves alone those that its loss does not reach.
        learning_rate: of the first step; assign ``optimizer.learning_rate`` to change it.
        eps: Adam's.
        grad_clip_type: ``"clip_norm"`` over all parameters together, ``"clip_value"``, or ``None``.
        grad_clip_value: the bound.
        bad_steps: of the run.
        gradients: computes gradients; autograd if None.
        ranges: ``(parameter, low, high)`` of parameters that are clamped after each step
            (``models.heads.parameter_ranges``).
        ranks: that take each step together; its gradient is the mean of theirs.
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
        gradients: TorchGradients | None = None,
        ranges: Sequence[tuple[Tensor, float, float]] = (),
        ranks: Ranks = ALONE,
    ) -> None:
        self.parameters = [p for p in parameters if p.requires_grad]
        if not self.parameters:
            raise ContractError("the optimiser has no parameter: all layers that its loss reaches are frozen")
        own = {id(p) for p in self.parameters}
        self.ranges = [each for each in ranges if id(each[0]) in own]
        self.clip = Clip(grad_clip_type, grad_clip_value)
        self.ranks = ranks
        self.learning_rate, self.eps = learning_rate, eps
        # Not a torch.optim.Adam: creating one imports torch's compiler, which takes a second.
        self._means, self._squares = ([torch.zeros_like(p) for p in self.parameters] for _ in range(2))
        self._counts = torch.zeros(len(self.parameters), device=self.parameters[0].device)  # steps of each
        self.bad_steps = bad_steps or BadSteps()
        self.gradients = gradients or TorchGradients(self.parameters)
        # Whether flags are read before Adam's step. On a GPU that would wait; Adam on mps ignores found_inf.
        self.on_host = self._counts.device.type in ("cpu", "mps")
        self._reached: dict[tuple[bool, ...], tuple[Any, ...]] = {}  # see _part

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_reached": {}}  # its counts are views, which a copy cannot keep

    @contextlib.contextmanager
    def phase(self, failure: Failure) -> Iterator[GradientSteps]:
        """Gives a series of steps, between which nothing else changes the policy.

        The gradient function of each loss is chosen once. At the end the steps are checked.

        Args:
            failure: makes the error for a step that is not finite.
        """
        steps = GradientSteps(self, failure)
        self._lay_out()
        yield steps
        steps.check()

    def gradient_function(self, loss: Loss) -> GradientFunction:
        """Returns the function that computes the gradient of ``loss``, the mean over ranks, clipped.

        It is valid until the policy or its model is changed from outside.
        """
        of_own_samples = self.gradients.of(loss)
        if self.ranks.size == 1:
            return of_own_samples

        def of_all_samples(parts: Sequence[Batch], clip: Clip) -> Gradient:
            own, samples = of_own_samples(parts, NO_CLIP), sum(part.size for part in parts)
            return averaged(own, self.parameters, samples, clip, self.ranks)

        return of_all_samples

    @torch.no_grad()
    def apply(self, gradient: Gradient, bad: Number) -> None:
        """Takes Adam's step along a gradient, without waiting for a device.

        Args:
            gradient: clipped.
            bad: 1 if neither parameters nor Adam's moments may change, else 0.
        """
        reached = tuple(value is not None for value in gradient.values)
        if reached not in self._reached:
            self._reached[reached] = self._part(reached)
        parameters, means, squares, counts, own = self._reached[reached]
        gradients = [value for value in gradient.values if value is not None]
        # Gradients have the memory layout of their parameters; those in closed form are contiguous.
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
            # As GradScaler does: if it is 1, nothing changes.
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

    @torch.no_grad()
    def _lay_out(self) -> None:
        """Gives the moments the memory layout that their parameters have now.

        Adam's kernel walks through the memory of all of them in parallel and ignores strides. A parameter
        with gaps in its memory, such as a slice, gets new memory.
        """
        for parameter, *moments in zip(self.parameters, self._means, self._squares, strict=True):
            if torch.empty_like(parameter).stride() != parameter.stride():  # it has gaps
                parameter.data = parameter.clone(memory_format=torch.contiguous_format)
            for moment in moments:
                moment.data = laid_out_as(parameter, moment)

    def _part(self, reached: tuple[bool, ...]) -> tuple[Any, ...]:
        """Returns the reached parameters, their moments and counts, and 1.0 for each reached parameter."""
        # The counts are views, so that one call increments all.
        of_all = (self.parameters, self._means, self._squares, self._counts.unbind())
        own = torch.tensor(reached, dtype=self._counts.dtype, device=self._counts.device)
        return *(list(compress(tensors, reached)) for tensors in of_all), own

    def state_dict(self) -> dict[str, Any]:
        """Returns learning rate, moments and counts. ``eps`` is always that of the config."""
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


class GradientSteps:
    """The gradient steps of one phase: takes them, keeps their metrics, and reports one that is not finite.

    A step whose loss or gradient is not finite changes nothing. Once the budget of bad steps is exceeded, no
    step changes anything until :meth:`check`: the parameters stay those that the failed step started from.

    Args:
        optimizer: takes the steps.
        failure: makes the error for a step that is not finite.
    """

    def __init__(self, optimizer: Optimizer, failure: Failure) -> None:
        self.optimizer, self.failure = optimizer, failure
        self.history: list[Metrics] = []
        self._gradient_of: dict[Loss, GradientFunction] = {}
        self.skipped: list[Number] = []  # for each step of the history, 1 if it was not taken, else 0
        # Steps since the last check: loss, and what makes the minibatch again.
        self._unseen: list[tuple[Loss, Callable[[], Batch]]] = []
        self._not_taken: Number = 0.0  # number of skipped steps among them

    def take(self, loss: Loss, *parts: Batch, remake: Callable[[], Batch]) -> Metrics:
        """Takes a step and returns its metrics and ``grad_norm``, the norm before clipping.

        Args:
            loss: of a minibatch, pure.
            parts: the minibatch, or parts of a minibatch that is too large for one backward pass.
            remake: makes the minibatch again.
        """
        if loss not in self._gradient_of:
            self._gradient_of[loss] = self.optimizer.gradient_function(loss)
        gradient = self._gradient_of[loss](parts, self.optimizer.clip)
        bad = self._flag(gradient.bad)
        self.optimizer.apply(gradient, bad)
        metrics = {**gradient.metrics, "grad_norm": gradient.norm}
        self.history.append(metrics)
        self.skipped.append(bad)
        self._unseen.append((loss, remake))
        self._not_taken = self._not_taken + bad
        return metrics

    def _flag(self, bad: Number) -> Number:
        """Returns 1 if a step must not be taken, else 0: a float on the host, else a tensor.

        A step is not taken if it is not finite, or if earlier steps exceeded the budget.
        """
        over = self._not_taken > self.optimizer.bad_steps.left
        if self.optimizer.on_host:
            return max(float(bad), float(over))
        bad = torch.as_tensor(bad)
        return bad.maximum(over) if isinstance(over, Tensor) else bad

    def check(self) -> None:
        """Checks the steps since the last check, waiting for a device once.

        Raises:
            NumericsError: if one of them was not finite, beyond the budget.
        """
        unseen = self._unseen
        bad = self.settle()
        if bad is not None:
            loss, remake = unseen[bad]
            step = len(self.history) - len(unseen) + bad
            raise self.failure(loss, remake(), self.history[step], step)

    def settle(self) -> int | None:
        """Counts the bad steps since the last check, and forgets them. Waits for a device once.

        Returns:
            the number of the step, since then, that exceeded the budget, or None.
        """
        first = len(self.history) - len(self._unseen)
        self._unseen, self._not_taken = [], 0.0
        if not self.optimizer.on_host:
            self.skipped[first:] = stacked(self.skipped[first:]).tolist()
        flags = self.skipped[first:]
        bad = [step for step, flag in enumerate(flags) if flag]
        bad_steps = self.optimizer.bad_steps
        left = bad_steps.left
        bad_steps.count += len(bad)
        return bad[left] if len(bad) > left else None

    def mean_metrics(self) -> dict[str, float]:
        """Returns the mean of every metric over the steps that have it, waiting for a device once.

        Steps that were not taken are left out; a metric that only they have is nan. Call it after
        :meth:`check`.
        """
        taken, of_skipped = self.history, {}
        if any(self.skipped):
            of_skipped = dict.fromkeys((name for step in self.history for name in step), math.nan)
            taken = [step for step, bad in zip(self.history, self.skipped, strict=True) if not bad]
        names = sorted({name for step in taken for name in step})
        if not names:
            return of_skipped
        means = [stacked([step[name] for step in taken if name in step]).mean() for name in names]
        return of_skipped | dict(zip(names, torch.stack(means).tolist(), strict=True))

    def mean_since(self, first: int, name: str) -> float:
        """Returns the mean of a metric over the steps that were taken, from ``first`` on; waits for a device.

        It is nan if no such step has the metric.
        """
        steps = zip(self.history[first:], self.skipped[first:], strict=True)
        found = [(step[name], bad) for step, bad in steps if name in step]
        if self.optimizer.on_host:
            found = [(value, bad) for value, bad in found if not bad]
        if not found:
            return math.nan
        values, bad = (stacked(numbers) for numbers in zip(*found, strict=True))
        return float(values.mean() if self.optimizer.on_host else values.where(bad == 0, math.nan).nanmean())
