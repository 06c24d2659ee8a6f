"""Adam with clipped gradients, and the one loop of gradient steps.

The parameters stay torch's own tensors. One flat tensor for all of them would save a few calls in Adam, but a
step must leave alone the parameters that its loss does not reach: after target_kl the value is trained with
the same Adam, and layers may be frozen at any time. The optimiser allocates the moments itself, and calls the
kernel of ``torch.optim.Adam(fused=True)``: a torch.optim.Adam imports torch's compiler, which takes a second.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import compress
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ding_lite.data.samples import Batch
from ding_lite.errors import ContractError, NumericsError
from ding_lite.fast.cuda_graphs import GraphPool
from ding_lite.fast.gradients import (
    ByAutograd,
    ByGraph,
    Gradient,
    Metrics,
    Objective,
    ThroughStacks,
    as_tensor,
)
from ding_lite.fast.stacks import is_changed, numpy_stacks
from ding_lite.models.heads import clamp_to_ranges, parameter_ranges
from ding_lite.models.recurrent import Sequences
from ding_lite.ranks import ALONE, Ranks
from ding_lite.trees import named_leaves, tree_leaves

# One step of arXiv:1412.6980.
ADAM = partial(torch._fused_adam_, beta1=0.9, beta2=0.999, weight_decay=0.0, amsgrad=False, maximize=False)


class Optimizer:
    """Adam (arXiv:1412.6980) for the trained parameters of a model.

    Args:
        model: the model that losses read.
        learn: the section ``policy.learn``, with ``adam_eps`` and the bound of gradients: ``grad_clip_type``
            (``"clip_norm"`` over all parameters together, ``"clip_value"``, or None), ``grad_clip_value``.
        size: samples of a full minibatch.
        captured: whether the gradients of these minibatches are captured as CUDA graphs, on a GPU.
        ranks: take each step together, along the mean of their gradients.
    """

    def __init__(
        self,
        model: nn.Module,
        learn: Any,
        *,
        size: int = 0,
        captured: bool = False,
        ranks: Ranks = ALONE,
    ) -> None:
        self.model, self.size, self.ranks = model, size, ranks
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        if not self.parameters:
            raise ContractError("the optimiser has no parameter: all layers of the model are frozen")
        self.eps = learn.adam_eps
        self.clip_type, self.clip_value = learn.grad_clip_type, learn.grad_clip_value
        self.pool = GraphPool() if captured and self.parameters[0].is_cuda else None
        self.ranges = parameter_ranges(model)
        # Each moment of all parameters is one flat tensor, like a gradient.
        self.sizes = [p.numel() for p in self.parameters]
        self._means, self._squares = (self.parameters[0].new_zeros(sum(self.sizes)) for _ in range(2))
        self._counts = torch.zeros(len(self.parameters), device=self.parameters[0].device)  # steps of each
        # Whether Python reads the norm before a step. On a GPU it would wait; Adam on mps ignores found_inf.
        self.on_host = self._counts.device.type in ("cpu", "mps")

    def gradient_of(self, objective: Objective) -> ByAutograd:
        """Returns the fastest function batch -> Gradient. Only gradient steps may change the model meanwhile.

        where                         the networks             the loss
        ``captured``, without hooks   a CUDA graph of both, for full minibatches
        networks that NumPy runs      NumPy                    NumPy, if the objective has slopes
        networks that NumPy runs      NumPy                    torch's autograd
        anywhere                      torch's autograd         torch's autograd
        """
        if {p for p in self.model.parameters() if p.requires_grad}.difference(self.parameters):
            raise ContractError(
                "a parameter of the model was replaced or unfrozen after the policy was built: the optimiser "
                "does not have it. Change the model before, in its class or as model=..."
            )
        if self.pool is not None and not self.pool.failed and not is_changed(self.model):
            return ByGraph(self.size, self.pool, objective, self.model, self.parameters)
        stacks = numpy_stacks(self.model, objective.reads)
        if stacks is None or torch.is_autocast_enabled("cpu"):
            return ByAutograd(objective, self.model, self.parameters)
        return ThroughStacks(stacks, objective, self.model, self.parameters)

    def steps(self, gradient_of: ByAutograd, minibatches: Iterable[Batch], rate: float) -> list[Metrics]:
        """Takes one gradient step for each minibatch, with the learning rate ``rate``.

        A step whose loss or gradient is not finite changes nothing.

        Returns:
            the metrics of each step, with ``grad_norm``, the norm before clipping.

        Raises:
            NumericsError: after a step that was not finite; on a GPU at the end, so that no step waits.
        """
        history: list[Metrics] = []
        if gradient_of.runs_modules:
            self.model.train()
        try:
            for batch in minibatches:
                gradient = gradient_of(batch)
                if self.ranks.size > 1:
                    gradient = self._averaged(gradient, len(batch))
                norm = self._step(gradient, rate, gradient_of.changes)
                history.append({**gradient.metrics, "grad_norm": norm})
                if self.on_host and not math.isfinite(norm):
                    raise _not_finite(gradient_of.objective, len(history), history[-1], batch)
        finally:
            if gradient_of.runs_modules:
                self.model.eval()  # as outside of gradient steps
        if not self.on_host and history:
            norms = as_tensor([step["grad_norm"] for step in history]).tolist()
            for number, norm in enumerate(norms, 1):
                if not math.isfinite(norm):
                    raise _not_finite(gradient_of.objective, number, history[number - 1], None)
        return history

    @np.errstate(all="ignore")
    def _step(self, gradient: Gradient, rate: float, changes: dict[Any, Any]) -> Any:
        """Takes Adam's step, and returns the gradient's norm; not finite if the loss is not finite."""
        # On the CPU NumPy runs short operations in a quarter of the time, on the memory of the tensors.
        array: Any = Tensor.numpy if self.on_host and gradient.flat.is_cpu else Tensor.detach
        reached = tuple([part is not None for part in gradient.parts])
        if reached not in changes:
            # Views in the order of memory, because Adam's kernel copies what is not contiguous.
            views: Any = [p.detach().as_strided((p.numel(),), (1,)) for p in self.parameters]
            moments = self._means.split(self.sizes), self._squares.split(self.sizes)
            columns = [list(compress(x, reached)) for x in (views, *moments, self._counts.unbind())]
            changes[reached] = (*columns, array(self._counts), array(self._counts.new_tensor(reached)))
        parameters, means, squares, counts, all_counts, one_each = changes[reached]
        numbers, parts = array(gradient.flat), [part for part in gradient.parts if part is not None]
        is_bad: Any = None  # as GradScaler's found_inf: if it is 1, nothing changes
        if self.on_host:
            norm: Any = math.sqrt(numbers.dot(numbers)) + 0.0 * float(gradient.loss)
            if not math.isfinite(norm):
                return norm
        else:
            norm = torch.linalg.vector_norm(numbers) + 0.0 * gradient.loss
            is_bad = (~torch.isfinite(norm)).to(torch.float32)
        if self.clip_type == "clip_norm":
            scale = self.clip_value / (norm + 1e-6)  # as nn.utils.clip_grad_norm_
            numbers *= min(scale, 1.0) if self.on_host else scale.clamp(max=1.0)
        elif self.clip_type == "clip_value":
            gradient.flat.clamp_(-self.clip_value, self.clip_value)
        all_counts += one_each if self.on_host else one_each * (1 - is_bad)
        ADAM(parameters, parts, means, squares, [], counts, found_inf=is_bad, lr=rate, eps=self.eps)
        clamp_to_ranges(self.ranges)
        return norm

    @torch.no_grad()
    def _averaged(self, gradient: Gradient, samples: int) -> Gradient:
        """Returns the mean of the ranks' gradients and metrics, weighted by samples, in one message.

        It is the gradient of the ranks' minibatches, joined into one. A loss must reach the same
        parameters on every rank.
        """
        names, flat = list(gradient.metrics), gradient.flat
        numbers = as_tensor([*gradient.metrics.values(), gradient.loss, 1.0]).to(flat)
        sums = self.ranks.sum(torch.cat([flat, numbers]) * samples)
        means, results = (sums / sums[-1])[:-1].split([len(flat), len(names) + 1])
        flat.copy_(means)
        *metrics, total = results.tolist() if self.on_host else results.unbind()
        return gradient._replace(loss=total, metrics=dict(zip(names, metrics, strict=True)))

    def state_dict(self) -> dict[str, Any]:
        """Returns moments and counts. ``eps`` is not saved: the config sets it."""

        def by_parameter(whole: Tensor) -> dict[str, Tensor]:
            pairs = zip(self.parameters, whole.split(self.sizes), strict=True)
            return {str(k): part.as_strided(p.shape, p.stride()) for k, (p, part) in enumerate(pairs)}

        moments = {"means": by_parameter(self._means), "squares": by_parameter(self._squares)}
        return {"counts": self._counts, **moments}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        saved = dict(named_leaves(state))
        for path, tensor in named_leaves(self.state_dict()):
            if saved[path].shape != tensor.shape:
                got, expected = tuple(saved[path].shape), tuple(tensor.shape)
                raise ValueError(f"{' '.join(path)}: expected {expected}, got {got}")
            tensor.copy_(saved[path])


def mean_metrics(history: Sequence[Metrics]) -> dict[str, float]:
    """Returns the mean of every metric over the steps that have it, waiting for a device once."""
    names = sorted({name for step in history for name in step})
    means = [as_tensor([step[name] for step in history if name in step]).mean() for name in names]
    return dict(zip(names, torch.stack(means).tolist(), strict=True)) if names else {}


def mean_of(history: Sequence[Metrics], name: str) -> float:
    """Returns the mean of one metric over steps."""
    means = mean_metrics([{name: step[name]} for step in history if name in step])
    if not means:
        raise ContractError(
            f"policy.learn.target_kl and lr_schedule='adaptive' need the metric {name!r} of policy_loss: an "
            "estimate of KL(pi_old || pi), such as rl.losses.approx_kl(log_ratio)"
        )
    return means[name]


def _not_finite(objective: Objective, step: int, metrics: Metrics, batch: Batch | None) -> NumericsError:
    fields = {} if batch is None else vars(batch)
    trees = {name: x._asdict() if isinstance(x, Sequences) else x for name, x in fields.items()}
    inputs = [
        name
        for name, tree in trees.items()
        if not all(bool(torch.isfinite(leaf).all()) for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))
    ]
    results = {name: value for name, x in metrics.items() if not math.isfinite(value := float(x))}
    return NumericsError(
        f"gradient step {step} of {objective.name} was not finite (inputs that are not: "
        f"{', '.join(inputs) or 'none found'}; results: {results}). The parameters are as they were before "
        "it. Try a lower policy.learn.learning_rate or grad_clip_value, or look at the scale of the rewards"
    )
