"""CUDA graphs: the kernels of a function are captured at its second call, then replayed in one launch.

A GPU computes a small network in less time than Python needs to launch its kernels one by one. A graph
launches all of them in one call. The results are equal within rounding: a library may choose another kernel
in a capture.

Python does not run in a replay: whatever the function read besides its arguments is as it was at the
capture. So a captured function lives for one rollout, one evaluation or one phase of gradient steps, in which
nothing else changes the policy.
"""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections.abc import Callable, Hashable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ding_lite.trees import Tree, from_named_leaves, map_tree, named_leaves, tree_leaves

Function = Callable[[Tree], Tree]  # of one tree, whose tensors are on the GPU


class Graph(NamedTuple):
    """A captured call: its graph, the tensors that it reads its arguments from, and its results."""

    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    outputs: Tree


class GraphPool:
    """The stream and the memory of captured functions, which are never replayed at the same time.

    A replay may overwrite the results of any earlier one: use them before.

    Attributes:
        failed: whether a capture failed; from then on functions run without graphs.
    """

    def __init__(self) -> None:
        self.failed = False
        self._stream: torch.cuda.Stream | None = None
        self._last: torch.cuda.CUDAGraph | None = None  # the next graph shares its memory
        self._warm: set[Hashable] = set()

    def __reduce__(self) -> Any:
        return GraphPool, ()  # a graph cannot be copied

    def capture(
        self, function: Function, arguments: Tree, call: Hashable, generator: torch.Generator | None
    ) -> Graph | None:
        """Returns a graph of ``function(arguments)``, or None with a warning if the capture fails.

        Args:
            function, arguments: the call to capture.
            generator: the generator on the GPU that the function draws from.
            call: a key, from the name of the function and the shapes of its arguments.
        """
        device = _tensors(arguments)[0].device
        try:
            with torch.cuda.device(device), _kept_states(device, generator):
                return self._graph_of(function, arguments, call, generator)
        except Exception as error:  # noqa: BLE001 - an error of the function itself recurs in the plain call
            self.failed = True
            warnings.warn(
                "policy.cuda_graph: there is no CUDA graph of these kernels; they are launched one by one. "
                f"Set it to False to silence this: {_reason(error)}",
                RuntimeWarning,
                stacklevel=2,
            )
            return None

    def _graph_of(
        self, function: Function, arguments: Tree, call: Hashable, generator: torch.Generator | None
    ) -> Graph:
        inputs = map_tree(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, arguments)
        current = torch.cuda.current_stream()
        self._stream = self._stream or torch.cuda.Stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            if call not in self._warm:
                state = None if generator is None else generator.get_state()
                with _waits_are_errors():  # in a capture, torch's memory would not recover from one
                    function(inputs)  # libraries load and choose their kernels
                self._stream.synchronize()
                torch.cuda.empty_cache()  # the graph has memory of its own
                self._warm.add(call)
                if generator is not None and state is not None:
                    generator.set_state(state)
            graph = torch.cuda.CUDAGraph()
            if generator is not None:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # newer versions of torch need no call
                    graph.register_generator_state(generator)
            with _without_garbage_collection():  # it may free another graph
                graph.capture_begin(
                    pool=None if self._last is None else self._last.pool(), capture_error_mode="thread_local"
                )
                try:
                    outputs = function(inputs)
                finally:
                    graph.capture_end()
        current.wait_stream(self._stream)
        self._last = graph
        return Graph(graph, _tensors(inputs), outputs)


class CapturedFunction:
    """A function whose kernels are captured at its second call with arguments of the same shapes.

    Args:
        pool: the pool whose stream and memory it uses.
        function: takes a tree; it changes nothing, and does not wait for the GPU.
        name: equal for functions with the same kernels.
        generator: the generator on the GPU that the function draws from.
    """

    def __init__(
        self, pool: GraphPool, function: Function, name: str, generator: torch.Generator | None = None
    ) -> None:
        self.pool, self.function, self.name, self.generator = pool, function, name, generator
        self._graphs: dict[Hashable, Graph | None] = {}  # None after the first call

    def __call__(self, arguments: Tree) -> Tree:
        call = None if self.pool.failed else self._call_of(arguments)
        if call is None:
            return self.function(arguments)
        if call not in self._graphs:
            self._graphs[call] = None
            return self.function(arguments)
        graph = self._graphs[call] or self.pool.capture(self.function, arguments, call, self.generator)
        if graph is None:
            return self.function(arguments)
        self._graphs[call] = graph
        torch._foreach_copy_(graph.inputs, _tensors(arguments))
        with torch.cuda.device(graph.inputs[0].device):
            graph.graph.replay()
        return graph.outputs

    def _call_of(self, arguments: Tree) -> Hashable:
        """Returns a key that determines the kernels of a call; None if a tensor is not on a GPU."""
        parts: list[Hashable] = [self.name]
        for path, leaf in named_leaves(arguments):
            if isinstance(leaf, Tensor):
                if not leaf.is_cuda:
                    return None
                leaf = (leaf.shape, leaf.dtype)
            parts.append((path, leaf))
        return tuple(parts)


class PinnedMemory:
    """Pinned memory of the host, which a GPU reads by itself: copies from it do not wait.

    The copies of a call must be complete before the next call.
    """

    def __init__(self) -> None:
        self._of_leaf: dict[Hashable, Tensor] = {}

    def to_device(self, tree: Tree, device: torch.device) -> Tree:
        """Returns a tree of arrays or tensors as tensors on a GPU."""
        leaves = {}
        for path, leaf in named_leaves(tree):
            x = torch.as_tensor(leaf)
            leaves[path] = x if x.is_cuda else self._pinned(path, x).to(device, non_blocking=True)
        return from_named_leaves(leaves)

    def _pinned(self, path: tuple[str, ...], leaf: Tensor) -> Tensor:
        key = (path, leaf.shape, leaf.dtype)
        if key not in self._of_leaf:
            self._of_leaf[key] = torch.empty_like(leaf, pin_memory=True)
        pinned = self._of_leaf[key]
        # In NumPy: torch copies with all its threads, which then wait for work on the environments' cores.
        np.copyto(pinned.numpy(), leaf.numpy())
        return pinned


def _reason(error: Exception) -> str:
    # With ``cause`` as a variable of the caller, its frame, the error and the tensors of the failed call stay
    # alive, and autograd warns about the rest of a backward pass on another stream.
    cause = error.__context__ or error
    lines = str(cause).strip().splitlines()
    return f"{type(cause).__name__}: {lines[0] if lines else ''}"


def _tensors(tree: Tree) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


@contextlib.contextmanager
def _waits_are_errors() -> Iterator[None]:
    """Raises a RuntimeError where the host waits for the GPU, such as to read a number."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that it may miss some waits
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


@contextlib.contextmanager
def _kept_states(device: torch.device, generator: torch.Generator | None) -> Iterator[None]:
    """Restores the states of generators after an error; torch leaves them bound to the failed graph."""
    of_torch = torch.cuda.default_generators[device.index or 0]
    states = [(each, each.get_state()) for each in (generator, of_torch) if each is not None]
    try:
        yield
    except BaseException:
        for each, state in states:
            fresh = torch.Generator(device)
            fresh.set_state(state)
            each.graphsafe_set_state(fresh.graphsafe_get_state())
        raise


@contextlib.contextmanager
def _without_garbage_collection() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
