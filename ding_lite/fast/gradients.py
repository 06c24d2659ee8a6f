"""The gradient of a loss, in the fastest of four ways, which ``Optimizer.gradient_of`` chooses.

A loss is written in torch; PPO's own is also in NumPy (``fast.clipped``). For small networks on the CPU
(``fast.stacks``) NumPy computes the last linear outputs, which become leaves of autograd. torch computes the
loss from these leaves, and NumPy backpropagates its gradient from them. Autograd differentiates as usual
whatever else a loss reads, such as log sigma or a further head.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ding_lite.data.rollout import as_field, view
from ding_lite.data.samples import Batch
from ding_lite.errors import ContractError
from ding_lite.fast.cuda_graphs import CapturedFunction, GraphPool
from ding_lite.fast.stacks import NumpyLayers, NumpyStack

Number = Tensor | float
Metrics = Mapping[str, Number]
# Minibatch and raw outputs (N, K) -> loss, metrics, slopes (N, K), and gradients of single parameters.
Slopes = Callable[
    [Batch, Mapping[str, np.ndarray]],
    tuple[Number, Metrics, dict[str, np.ndarray], list[tuple[Tensor, Any]]],
]


class Objective(NamedTuple):
    """A loss, and the outputs of the model that it reads.

    Attributes:
        loss: batch with these outputs -> (0-d loss, dict of 0-d metrics).
        reads: outputs of the model: "actor", "auxiliary", "critic". Empty: the loss calls its own networks.
        with_outputs: (batch, {output: its value}) -> the batch for the loss.
        slopes: computes this loss in NumPy, with its slopes: its gradient by the raw outputs; or None.
        name: of the loss, for messages.
    """

    loss: Callable[[Batch], tuple[Tensor, dict[str, Tensor]]]
    reads: tuple[str, ...] = ()
    with_outputs: Callable[[Batch, Mapping[str, Any]], Batch] = lambda batch, outputs: batch
    slopes: Slopes | None = None
    name: str = "the loss"


class Gradient(NamedTuple):
    """The loss, its metrics, and its gradient.

    Attributes:
        parts: by parameter (numel,), in its memory layout; None if the loss does not reach the parameter.
        flat: the same numbers in one tensor, with zeros for parameters that the loss does not reach.
    """

    loss: Number
    metrics: Metrics
    parts: Sequence[Tensor | None]
    flat: Tensor


def outputs_of(model: Any, reads: Sequence[str], obs: Any) -> dict[str, Any]:
    """Returns outputs of a model by name, in one pass through shared layers; with "auxiliary" all three."""
    if "auxiliary" in reads:
        return dict(zip(("actor", "auxiliary", "critic"), model.compute_auxiliary(obs), strict=True))
    if "actor" in reads and "critic" in reads:
        return dict(zip(("actor", "critic"), model.compute_actor_critic(obs), strict=True))
    return {name: getattr(model, f"compute_{name}")(obs) for name in reads}


def loss_of(
    objective: Objective, batch: Batch, outputs: Mapping[str, Any]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns the loss and metrics of a batch.

    Raises:
        ContractError: if the loss has no gradient.
    """
    total, metrics = objective.loss(objective.with_outputs(batch, outputs))
    if not total.requires_grad:
        raise ContractError(
            f"{objective.name} has no gradient, so a step would learn nothing: its result is detached or "
            "computed under torch.no_grad(), or it depends on no parameter of the model"
        )
    return total, metrics


def checked(returned: Any, policy: Any, method: str) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns the result of a policy's loss, after checking that it is ``(0-d loss, dict of 0-d metrics)``.

    Raises:
        ContractError: if it is something else; the message names the method.
    """
    where = f"{type(policy).__name__}.{method}"
    if not (isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], dict)):
        raise ContractError(f"{where} must return (loss, dict of metrics), got a {type(returned).__name__}")
    for name, value in {"loss": returned[0], **returned[1]}.items():
        if not isinstance(value, Tensor) or value.dim():
            got, advice = f"{value!r:.60}", "use torch.tensor"
            if isinstance(value, Tensor):
                got, advice = f"the shape {tuple(value.shape)}", "take the mean over the minibatch"
            raise ContractError(f"{where} must return 0-d tensors, got {got} as {name!r}: {advice}")
    return returned


class ByAutograd:
    """The gradient of an objective by torch's autograd; the base class of the faster ways.

    Only gradient steps may change the model meanwhile. The next call overwrites the numbers of a result.

    Args:
        objective: the loss.
        model: the model whose outputs the loss reads.
        parameters: of the model; all have one dtype and device.

    Attributes:
        name: what computes the gradient, for the first lines of a run.
        runs_modules: whether torch runs modules, which must then be in training mode (dropout). NumPy runs
            only layers without such a mode.
        changes: views of what a step changes, by the parameters that its gradient reaches; the optimiser's.
    """

    name, runs_modules = "autograd", True

    def __init__(self, objective: Objective, model: Any, parameters: Sequence[Tensor]) -> None:
        self.objective, self.model, self.parameters = objective, model, parameters
        self.changes: dict[Any, Any] = {}
        sizes = [p.numel() for p in parameters]
        self.flat = parameters[0].new_zeros(sum(sizes))
        self.parts = self.flat.split(sizes)
        # Views in the memory order of the parameters, which differs for large layers.
        self.shaped = [x.as_strided(p.shape, p.stride()) for x, p in zip(self.parts, parameters, strict=True)]

    def __call__(self, batch: Batch) -> Gradient:
        objective = self.objective
        total, metrics = loss_of(objective, batch, outputs_of(self.model, objective.reads, batch.obs))
        trained = [k for k, p in enumerate(self.parameters) if p.requires_grad]
        gradients = torch.autograd.grad(total, [self.parameters[k] for k in trained], allow_unused=True)
        reached = {k: g for k, g in zip(trained, gradients, strict=True) if g is not None}
        self.flat.zero_()
        torch._foreach_copy_([self.shaped[k] for k in reached], list(reached.values()))
        parts = [part if k in reached else None for k, part in enumerate(self.parts)]
        return Gradient(total.detach(), {n: x.detach() for n, x in metrics.items()}, parts, self.flat)


class ByGraph(ByAutograd):
    """The same as a CUDA graph, for minibatches of ``size`` samples."""

    name = "CUDA graph"

    def __init__(self, size: int, pool: GraphPool, *arguments: Any) -> None:
        super().__init__(*arguments)
        name = f"{self.objective.name} of {self.objective.reads}"
        self.size, self._captured = size, CapturedFunction(pool, self._of_fields, name)

    def _of_fields(self, fields: Mapping[str, Any]) -> Gradient:
        return super().__call__(Batch(**{name: as_field(field) for name, field in fields.items()}))

    def __call__(self, batch: Batch) -> Gradient:
        if len(batch) != self.size:
            return super().__call__(batch)
        total, metrics, parts, flat = self._captured(vars(batch))
        # Copies of loss and metrics, which are read after the next replay has overwritten its results.
        total, *numbers = torch.stack([torch.as_tensor(x) for x in (total, *metrics.values())])
        return Gradient(total, dict(zip(metrics, numbers, strict=True)), parts, flat)


class ThroughStacks(ByAutograd):
    """The gradient of an objective through networks in NumPy.

    Args:
        stacks: the networks in NumPy of the outputs that the objective reads.
        arguments: of :class:`ByAutograd`.
    """

    def __init__(self, stacks: Mapping[str, NumpyStack], *arguments: Any) -> None:
        super().__init__(*arguments)
        self.stacks, self.runs_modules = stacks, self.objective.slopes is None
        self.name = "NumPy, the loss by autograd" if self.runs_modules else "NumPy"
        self._slopes = self.objective.slopes or self._slopes_by_autograd
        self._encoders = {stack.encoder for stack in stacks.values()}
        self._places = {id(p): k for k, p in enumerate(self.parameters) if p.requires_grad}
        self._numbers, self._arrays = view(self.flat), [view(part) for part in self.shaped]
        memory = {key: self._arrays[k] for key, k in self._places.items()}
        for part in self._encoders.union(stack.head for stack in stacks.values()):
            part.gradients = [memory.get(id(p), view(torch.empty_like(p))) for p in part.parameters]

    @np.errstate(all="ignore")  # the optimiser looks for numbers that are not finite
    def __call__(self, batch: Batch) -> Gradient:
        self._numbers.fill(0)
        features = {encoder: encoder.of_obs(batch.obs) for encoder in self._encoders}
        raw = {name: head.forward(features[encoder]) for name, (encoder, head, _) in self.stacks.items()}
        total, metrics, slopes, direct = self._slopes(batch, raw)
        of_features: dict[NumpyLayers, np.ndarray] = {}  # slopes by the features of an encoder
        for name, slope in slopes.items():
            encoder, head, detached = self.stacks[name]
            back = head.backward(slope, to_input=not detached)
            if back is not None:
                of_features[encoder] = of_features[encoder] + back if encoder in of_features else back
        for encoder, slope in of_features.items():
            encoder.backward(slope)
        layers = [*of_features, *(self.stacks[name].head for name in slopes)]
        reached = {self._places.get(key) for layer in layers for key in layer.keys}
        for p, value in direct:
            reached.add(k := self._places[id(p)])
            self._arrays[k] += view(value)
        parts = [part if k in reached else None for k, part in enumerate(self.parts)]
        return Gradient(total, metrics, parts, self.flat)

    def _slopes_by_autograd(self, batch: Batch, raw: Mapping[str, np.ndarray]) -> Any:
        leaves = {name: torch.from_numpy(x).requires_grad_() for name, x in raw.items()}
        outputs = {name: self.model.from_raw(name, leaf) for name, leaf in leaves.items()}
        loss, metrics = loss_of(self.objective, batch, outputs)
        trained = [p for p in self.parameters if p.requires_grad]
        slopes_of = torch.autograd.grad(loss, [*leaves.values(), *trained], allow_unused=True)
        slopes = {name: view(g) for name, g in zip(leaves, slopes_of, strict=False) if g is not None}
        direct = [(p, g) for p, g in zip(trained, slopes_of[len(leaves) :], strict=True) if g is not None]
        return loss.detach(), {name: value.detach() for name, value in metrics.items()}, slopes, direct


def as_tensor(numbers: Sequence[Number]) -> Tensor:
    """Returns numbers as one tensor (N,), without waiting for a device."""
    if all(isinstance(number, float) for number in numbers):
        return torch.tensor(numbers)
    return torch.stack([torch.as_tensor(number) for number in numbers])
