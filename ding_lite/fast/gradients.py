"""The gradient of a loss: by autograd, compiled, captured as a CUDA graph, or through NumPy stacks.

A loss is written once, in torch. For small networks on the CPU (``fast.stacks``) NumPy computes the last
linear outputs, which become leaves of autograd. The loss runs on them, and its slopes by them go back through
NumPy. What a loss reads besides these leaves, such as log sigma or a further head, autograd differentiates as
usual.
"""

from __future__ import annotations

import itertools
import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ding_lite.data.rollout import as_field, view
from ding_lite.data.samples import Batch
from ding_lite.errors import ConfigError, ContractError, error_text
from ding_lite.fast.cuda_graphs import CapturedFunction, GraphPool
from ding_lite.fast.stacks import NumpyStack, numpy_stacks
from ding_lite.models.recurrent import Sequences
from ding_lite.trees import map_tree, to_dict

Number = Tensor | float
Metrics = Mapping[str, Number]


class Objective(NamedTuple):
    """A loss, and what it reads of the model.

    Attributes:
        loss: of a batch with these outputs -> (0-d loss, dict of 0-d metrics).
        reads: outputs of the model: "actor", "auxiliary", "critic".
        with_outputs: (batch, {output: its value}) -> the batch for the loss.
        slopes: NumPy code for this loss and its slopes (``fast.clipped``); None: there is none.
        name: of the loss, for messages.
    """

    loss: Callable[[Batch], tuple[Tensor, dict[str, Tensor]]]
    reads: tuple[str, ...] = ()
    with_outputs: Callable[[Batch, Mapping[str, Any]], Batch] = lambda batch, outputs: batch
    slopes: Any = None
    name: str = "loss"


class Gradient(NamedTuple):
    """The loss, its metrics, and its gradient by each parameter; None for one that it does not reach.

    ``flat`` is the memory of all values, if they are one array.
    """

    total: Number
    metrics: Metrics
    values: Sequence[Tensor | None]
    flat: np.ndarray | None = None


def outputs_of(model: Any, reads: Sequence[str], obs: Any) -> dict[str, Any]:
    """Returns outputs of a model by name, in one pass through what they share."""
    if "auxiliary" in reads:
        return dict(zip(("actor", "auxiliary", "critic"), model.compute_auxiliary(obs), strict=True))
    if "actor" in reads and "critic" in reads:
        return dict(zip(("actor", "critic"), model.compute_actor_critic(obs), strict=True))
    return {name: getattr(model, f"compute_{name}")(obs) for name in reads}


def evaluated(
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
            "computed under torch.no_grad(), or no parameter of the model is in it"
        )
    return total, metrics


def checked(returned: Any, policy: Any, method: str) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns what a loss of a policy has returned, if it is ``(0-d loss, dict of 0-d metrics)``.

    Raises:
        ContractError: naming the method, if it is something else.
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


def by_autograd(objective: Objective, model: Any, parameters: Sequence[Tensor], batch: Batch) -> Gradient:
    """Returns the gradient by torch's autograd."""
    total, metrics = evaluated(objective, batch, outputs_of(model, objective.reads, batch.obs))
    trained = [p for p in parameters if p.requires_grad]
    found = iter(torch.autograd.grad(total, trained, allow_unused=True))
    values = [next(found) if p.requires_grad else None for p in parameters]
    return Gradient(total.detach(), {name: value.detach() for name, value in metrics.items()}, values)


def _of_fields(
    objective: Objective, model: Any, parameters: Sequence[Tensor], fields: Mapping[str, Any]
) -> Gradient:
    """Returns :func:`by_autograd` of the fields of a batch: the function that is compiled or captured."""
    return by_autograd(objective, model, parameters, Batch(**fields))


class ThroughStacks:
    """The gradient of an objective through NumPy stacks. The next call overwrites its numbers.

    Args:
        objective: whose reads the stacks compute.
        model, parameters: of the optimiser.
        stacks: in NumPy, of the outputs that the objective reads.
    """

    def __init__(
        self, objective: Objective, model: Any, parameters: Sequence[Tensor], stacks: dict[str, NumpyStack]
    ) -> None:
        self.objective, self.model, self.stacks = objective, model, stacks
        self.trained = [p for p in parameters if p.requires_grad]
        self._place = {id(p): k for k, p in enumerate(parameters)}
        self._in_trained = [self._place[id(p)] for p in self.trained]
        flat = torch.zeros(sum(p.numel() for p in parameters))
        pieces = flat.split([p.numel() for p in parameters])
        # In the layout of the parameters: that of large layers is not the usual one (``fast.stacks``).
        self._memory = [
            piece.as_strided(p.shape, p.stride()) for piece, p in zip(pieces, parameters, strict=True)
        ]
        self._flat = view(flat)
        self._count = len(parameters)
        parts = {part for stack in stacks.values() for part in (stack.encoder, stack.head)}
        self._places = {part: [self._place[id(p)] for p in part.parameters] for part in parts}
        self._arrays = {part: [view(self._memory[k]) for k in at] for part, at in self._places.items()}

    def __call__(self, batch: Batch) -> Gradient:
        encoders = {stack.encoder: stack.leaves_of(batch.obs) for stack in self.stacks.values()}
        with np.errstate(all="ignore"):  # the optimiser looks for numbers that are not finite
            traces = {encoder: encoder.trace(leaves) for encoder, leaves in encoders.items()}
            heads = {name: stack.head.trace(traces[stack.encoder][-1]) for name, stack in self.stacks.items()}
            total, metrics, slopes, direct = self._slopes(batch, {name: h[-1] for name, h in heads.items()})
            values: list[Tensor | None] = [None] * self._count
            of_features: dict[Any, np.ndarray] = {}
            for name, slope in slopes.items():
                stack = self.stacks[name]
                into = self._arrays[stack.head]
                back = stack.head.backward(heads[name], slope, into, to_input=not stack.detached)
                self._reach(values, stack.head)
                if back is not None:
                    sum_so_far = of_features.get(stack.encoder)
                    of_features[stack.encoder] = back if sum_so_far is None else sum_so_far + back
            for encoder, slope in of_features.items():
                encoder.backward(encoders[encoder], traces[encoder], slope, self._arrays[encoder])
                self._reach(values, encoder)
        for place, value in direct.items():
            memory = self._memory[place]
            values[place] = memory.copy_(value) if values[place] is None else memory.add_(value)
        if unreached := [memory for memory, x in zip(self._memory, values, strict=True) if x is None]:
            torch._foreach_zero_(unreached)  # not the numbers of the step before: the norm reads all
        return Gradient(total, metrics, values, self._flat)

    def _reach(self, values: list[Tensor | None], part: Any) -> None:
        for place in self._places[part]:
            values[place] = self._memory[place]

    def _slopes(
        self, batch: Batch, raw: Mapping[str, np.ndarray]
    ) -> tuple[Number, Metrics, dict[str, np.ndarray], dict[int, Tensor]]:
        """Returns loss, metrics, the slopes by raw outputs (N, K), and the gradient by single parameters."""
        if self.objective.slopes is not None:
            total, metrics, slopes, direct = self.objective.slopes(batch, raw)
            return total, metrics, slopes, {self._place[id(p)]: x for p, x in direct if p.requires_grad}
        leaves = {name: torch.from_numpy(x).requires_grad_() for name, x in raw.items()}
        outputs = {name: self.model.from_raw(name, leaf) for name, leaf in leaves.items()}
        loss, of_loss = evaluated(self.objective, batch, outputs)
        found = torch.autograd.grad(loss, [*leaves.values(), *self.trained], allow_unused=True)
        slopes = {name: view(g) for name, g in zip(leaves, found, strict=False) if g is not None}
        direct = {k: g for k, g in zip(self._in_trained, found[len(leaves) :], strict=True) if g is not None}
        return loss.detach(), {name: value.detach() for name, value in of_loss.items()}, slopes, direct


class Gradients:
    """Chooses how gradients by the parameters of one optimiser are computed.

    Args:
        model: that losses read.
        parameters: of the optimiser.
        size: samples of a full minibatch.
        compiled: whether torch compiles them; on the CPU.
        captured: whether they are captured as CUDA graphs; on a GPU.
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: Sequence[Tensor],
        size: int = 0,
        *,
        compiled: bool = False,
        captured: bool = False,
    ) -> None:
        self.model, self.parameters, self.size = model, list(parameters), size
        self.compiled, self.captured = compiled, captured
        self.pool = GraphPool()
        self._compiled: dict[bool, Callable[..., Gradient]] = {}
        self._last: Any = (None, None)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_compiled": {}, "_last": (None, None)}  # functions that cannot be copied

    def of(self, objective: Objective) -> tuple[str, Callable[[Batch], Gradient]]:
        """Returns how, and the function of minibatches; valid while only gradient steps change the model.

        It is made once for each object ``objective``, so a new one for each iteration.
        """
        if self._last[0] is not objective:
            self._last = objective, self._made(objective)
        found: tuple[str, Callable[[Batch], Gradient]] = self._last[1]
        return found

    def _made(self, objective: Objective) -> tuple[str, Callable[[Batch], Gradient]]:
        arguments = (objective, self.model, self.parameters)
        if self.compiled:
            return "compiled", partial(self._by_compiled, arguments)
        if self.captured and not self.pool.failed:
            return "CUDA graph", self._captured(objective)
        if not self.captured and (stacks := self._stacks(objective)) is not None:
            how = "NumPy" if objective.slopes is not None else "NumPy, the loss by autograd"
            return how, ThroughStacks(*arguments, stacks)
        return "autograd", partial(by_autograd, *arguments)

    def _stacks(self, objective: Objective) -> dict[str, NumpyStack] | None:
        stacks = numpy_stacks(self.model, objective.reads)
        if stacks is None or torch.is_autocast_enabled("cpu"):
            return None
        own = {id(p) for p in self.parameters if p.requires_grad}
        parts = [part for stack in stacks.values() for part in (stack.encoder, stack.head)]
        return stacks if all(id(p) in own for part in parts for p in part.parameters) else None

    def _by_compiled(self, arguments: tuple[Any, ...], batch: Batch) -> Gradient:
        # One graph for full minibatches and one for all other sizes, whatever came before: a resumed run then
        # has the same bits.
        is_full = len(batch) == self.size
        fields = {
            name: field if isinstance(field, Sequences) else to_dict(field)
            for name, field in vars(batch).items()
        }
        if not is_full:
            map_tree(lambda leaf: leaf.dim() and torch._dynamo.maybe_mark_dynamic(leaf, 0), fields)
        if is_full not in self._compiled:
            self._compiled[is_full] = compiled(_of_fields)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch's advice about its own compilation
                return self._compiled[is_full](*arguments, fields)
        except Exception as error:
            if not type(error).__module__.startswith("torch."):
                raise
            raise ConfigError(
                f"policy.learn.compile: torch.compile could not take the gradient step; set it to False: "
                f"{error_text(error)}"
            ) from error

    def _captured(self, objective: Objective) -> Callable[[Batch], Gradient]:
        def of_fields(fields: Mapping[str, Any]) -> Gradient:
            tree = {name: as_field(field) for name, field in fields.items()}
            return _of_fields(objective, self.model, self.parameters, tree)

        captured = CapturedFunction(self.pool, of_fields, objective.name)

        def of_batch(batch: Batch) -> Gradient:
            if len(batch) != self.size:
                return by_autograd(objective, self.model, self.parameters, batch)
            found: Gradient = captured(vars(batch))
            # A replay writes its results over those of the step before; gradients are read at once.
            total, *numbers = torch.stack(
                [torch.as_tensor(x) for x in (found.total, *found.metrics.values())]
            )
            return Gradient(total, dict(zip(found.metrics, numbers, strict=True)), found.values)

        return of_batch


NUMBERS = itertools.count()  # of compiled functions


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function as one graph of torch.compile."""
    import torch._dynamo  # it takes a second, and most runs do not need it

    # Allows a gradient inside of the graph; by default torch breaks the graph there.
    torch._dynamo.config.trace_autograd_ops = True
    # Torch remembers sizes and numbers by the name of the code, and generalises later graphs: a new name.
    code = function.__code__.replace(co_name=f"{function.__name__}_{next(NUMBERS)}")
    own = types.FunctionType(code, function.__globals__)
    # cpp_wrapper: torch's Python code around the kernels costs a tenth; tanh by exp takes half the time.
    options: dict[str, Any] = {"cpp_wrapper": True, "cpp.use_decompose_tanh": True}
    made: Callable[..., Any] = torch.compile(own, fullgraph=True, options=options)
    return made


def stacked(numbers: Sequence[Number]) -> Tensor:
    """Returns numbers as one tensor (N,), without waiting for a device."""
    if all(isinstance(number, float) for number in numbers):
        return torch.tensor(numbers)
    return torch.stack([torch.as_tensor(number) for number in numbers])
