"""torch.compile for the gradient step: when it pays, and what happens where it fails.

A small network's step is mostly calls: forward, backward and clipping are some hundred of them. Compiled
they are one, in well under half the time. One on images is mostly convolutions, which stay torch's own; what
lies between them is memory that is read and written less often, a tenth of the time. It costs ten seconds or
twenty the first time on a machine and two or three from torch's cache on disk, so it must be asked for, or be
a long run.
"""

from __future__ import annotations

import itertools
import os
import shutil
import types
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ding_lite.rollout import map_tree, to_dict

# Gradient steps that a run must plan: at half a millisecond saved a step, a cold compilation twice over.
# Those with a closed form (policies.closed_form) are nearly as fast, and left as they are.
COMPILE_FROM = 100_000
WITHOUT_CLOSED_FORM = "no_closed_form"  # what learn.compile="auto" comes to in a long run


def has_compiler() -> bool:
    """Returns whether there is a C++ compiler, which torch.compile needs on a CPU."""
    return any(shutil.which(name) for name in (os.environ.get("CXX") or "g++", "clang++"))


def may_compile(wish: Any, device: torch.device) -> bool:
    """Returns whether gradient steps may be compiled, by ``learn.compile`` of a complete config."""
    # Unasked on the CPU alone: what a GPU would run has never been run on one.
    return bool(device.type == "cpu" and has_compiler() if wish == WITHOUT_CLOSED_FORM else wish is True)


class CompiledFunction:
    """``function``, compiled as one graph without a break at its first call; as it is where that fails.

    Which graph a call takes is a matter of its own arguments, not of earlier calls: a resumed run, which has
    made fewer, gets the same bits.

    Args:
        function: pure, so that it can be called again where its compiled form raised an error.
        any_size: make the graph for every length of the leaves in its arguments' lists of trees.
        cuda_graph: record what it launches on a GPU and launch it at once from then on. A call's results
            are good until the next one, which writes over them.
    """

    _numbers = itertools.count()

    def __init__(self, function: Callable[..., Any], *, any_size: bool, cuda_graph: bool = False) -> None:
        self.function, self.any_size, self.cuda_graph = function, any_size, cuda_graph
        self._compiled: Callable[..., Any] | None = None
        self._failed = False

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_compiled": None}  # which no process can hand to another

    def __call__(self, *args: Any) -> Any:
        if self._failed:
            return self.function(*args)
        args = tuple(map(self._plain, args))
        try:
            if self._compiled is not None:
                return self._compiled(*args)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch's advice about its own compilation
                self._compiled = self._compile()
                return self._compiled(*args)
        except Exception as error:  # noqa: BLE001 - whatever it is, the function itself will say so too
            result = self.function(*args)
            self._failed = True
            reason = str(error).strip().splitlines() or [""]
            warnings.warn(
                f"policy.learn.compile: torch.compile could not take the gradient step, which goes on "
                f"uncompiled: {type(error).__name__}: {reason[0]}",
                RuntimeWarning,
                stacklevel=2,
            )
            return result

    def _compile(self) -> Callable[..., Any]:
        import torch._dynamo  # it takes a second, and most runs do without

        # A gradient inside of the graph; torch's default is a break there.
        torch._dynamo.config.trace_autograd_ops = True
        # Torch remembers by a code's name which sizes and numbers it has seen, and later graphs are for more.
        code = self.function.__code__
        code = code.replace(co_name=f"{code.co_name}_{next(self._numbers)}")
        own = types.FunctionType(code, self.function.__globals__)
        options: dict[str, Any] = {
            # One C++ function: torch's Python around the kernels costs a tenth more, on the host.
            "cpp_wrapper": not self.cuda_graph,
            "cpp.use_decompose_tanh": True,  # by exp, in half the time and within 2e-7
            "triton.cudagraphs": self.cuda_graph,  # torch goes without where it cannot
        }
        compiled: Callable[..., Any] = torch.compile(own, fullgraph=True, options=options)
        return compiled

    def _plain(self, argument: Any) -> Any:
        """Returns lists of trees with plain dicts for treetensors, which torch cannot look into."""
        if not isinstance(argument, list) or not argument or not isinstance(argument[0], Mapping):
            return argument
        plain = [to_dict(tree) for tree in argument]
        if self.any_size:
            map_tree(_of_any_length, dict(enumerate(plain)))
        return plain


def _of_any_length(leaf: torch.Tensor) -> None:
    if leaf.dim():
        torch._dynamo.maybe_mark_dynamic(leaf, 0)
