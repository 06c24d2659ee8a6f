"""CUDA graphs: the kernels of a function are recorded at one call and launched together at later ones.

A GPU computes a small network in less time than Python needs to launch its kernels one by one. A graph
launches all of them in one call. The results are equal within rounding: a library may choose another
kernel when one is recorded.

Python does not run again in a recorded call: whatever the function read besides its arguments is as it was
when it was recorded. So a recording is used within one rollout, one evaluation or one phase of gradient
steps, in which nothing else changes the policy; the next one records anew.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ding_lite.trees import Tree, from_named_leaves, map_tree, named_leaves, tree_leaves

Function = Callable[[Tree], Tree]  # of one tree, whose tensors are on the GPU
WARM_UPS = 2  # calls before the first recording of a shape, in which libraries load and choose kernels


class Recorder:
    """Records functions on a stream of its own. All recordings share their memory, so only the last is valid.

    Attributes:
        failed: whether a recording failed; from then on functions run as they are.
    """

    def __init__(self) -> None:
        self.failed = False
        self._stream: torch.cuda.Stream | None = None
        self._last: torch.cuda.CUDAGraph | None = None  # its memory is that of the next recording
        self._warm: set[Hashable] = set()

    def __reduce__(self) -> Any:
        return Recorder, ()  # a graph cannot be copied

    def recorded(self, function: Function, generator: torch.Generator | None = None) -> Recorded:
        """Returns a function with the results of ``function``.

        Args:
            function: of a tree; it must change nothing, and must not wait for the GPU.
            generator: on the GPU, that it draws from.
        """
        return Recorded(self, function, generator)

    def record(
        self, function: Function, arguments: Tree, generator: torch.Generator | None, signature: Hashable
    ) -> tuple[torch.cuda.CUDAGraph, Tree, Tree] | None:
        """Returns a graph, the memory that it reads its arguments from, and its results; None if it fails."""
        inputs = map_tree(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, arguments)
        present = torch.cuda.current_stream()
        self._stream = self._stream or torch.cuda.Stream()
        self._stream.wait_stream(present)
        state = None if generator is None else generator.get_state()
        try:
            with torch.cuda.stream(self._stream):
                if signature not in self._warm:
                    for _ in range(WARM_UPS):
                        function(inputs)
                    self._stream.synchronize()
                    self._warm.add(signature)
                    if generator is not None and state is not None:
                        generator.set_state(state)
                graph = torch.cuda.CUDAGraph()
                if generator is not None:
                    graph.register_generator_state(generator)
                graph.capture_begin(pool=None if self._last is None else self._last.pool())
                try:
                    outputs = function(inputs)
                finally:
                    graph.capture_end()
        except Exception as error:  # noqa: BLE001 - the plain call raises an error of the function itself
            self.failed = True
            if generator is not None and state is not None:  # it still belongs to the graph
                fresh = torch.Generator(generator.device)
                fresh.set_state(state)
                generator.graphsafe_set_state(fresh.graphsafe_get_state())
            reason = str(error).strip().splitlines() or [""]
            warnings.warn(
                "policy.cuda_graph: no CUDA graph could be recorded, and kernels are launched one by one; "
                f"set it to False to silence this: {type(error).__name__}: {reason[0]}",
                RuntimeWarning,
                stacklevel=2,
            )
            return None
        present.wait_stream(self._stream)
        self._last = graph
        return graph, inputs, outputs


class PinnedMemory:
    """Memory of the host that a GPU reads by itself: copies from it do not wait, and take half the time.

    The copies of a call must be complete before the next call.
    """

    def __init__(self) -> None:
        self._of_leaf: dict[Hashable, Tensor] = {}

    def __reduce__(self) -> Any:
        return PinnedMemory, ()

    def to_device(self, tree: Tree, device: torch.device) -> Tree:
        """Returns a tree of arrays or tensors as tensors on a GPU."""
        leaves = {path: torch.as_tensor(leaf) for path, leaf in named_leaves(tree)}
        return from_named_leaves(
            {
                path: leaf if leaf.is_cuda else self._pinned(path, leaf).to(device, non_blocking=True)
                for path, leaf in leaves.items()
            }
        )

    def _pinned(self, path: tuple[str, ...], leaf: Tensor) -> Tensor:
        key = (path, leaf.shape, leaf.dtype)
        if key not in self._of_leaf:
            self._of_leaf[key] = torch.empty_like(leaf, pin_memory=True)
        pinned = self._of_leaf[key]
        # By NumPy: torch copies with all its threads, which then wait for work on cores of the environments.
        np.copyto(pinned.numpy(), leaf.numpy())
        return pinned


class Recorded:
    """A function whose kernels are recorded at its second call with arguments of the same shapes.

    A call overwrites the results of the call before.
    """

    def __init__(self, recorder: Recorder, function: Function, generator: torch.Generator | None) -> None:
        self.recorder, self.function, self.generator = recorder, function, generator
        self._recordings: dict[Hashable, tuple[torch.cuda.CUDAGraph, Tree, Tree] | None] = {}

    def __call__(self, arguments: Tree) -> Tree:
        signature = None if self.recorder.failed else _signature(arguments)
        if signature is None or signature not in self._recordings:
            self._recordings[signature] = None
            return self.function(arguments)
        if self._recordings[signature] is None:
            self._recordings[signature] = self.recorder.record(
                self.function, arguments, self.generator, signature
            )
        recording = self._recordings[signature]
        if recording is None:
            return self.function(arguments)
        graph, inputs, outputs = recording
        torch._foreach_copy_(_tensors(inputs), _tensors(arguments))
        graph.replay()
        return outputs


def _tensors(tree: Tree) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _signature(arguments: Tree) -> Hashable:
    """Returns what decides on the kernels of a call; None if one of its tensors is not on a GPU."""
    parts = []
    for path, leaf in named_leaves(arguments):
        if isinstance(leaf, Tensor):
            if leaf.device.type != "cuda":
                return None
            leaf = (leaf.shape, leaf.dtype)
        parts.append((path, leaf))
    return tuple(parts)
