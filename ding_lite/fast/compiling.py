"""torch.compile for the gradient step on the CPU: when it pays, and the fallback if it fails.

The step of a small network is some hundred calls to torch: forward, backward and clipping. Compiled they are
one call, in less than half the time. The step of a network on images is mostly convolutions, which are not
compiled; the rest reads and writes memory less often, which saves a tenth. The first compilation on a
machine takes 10 to 20 seconds, and 2 to 3 from torch's cache on disk. So it is used in long runs, or if the
config asks for it.
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

from ding_lite.trees import map_tree, to_dict

# Number of planned gradient steps from which "auto" compiles: half a millisecond a step then saves twice the
# time of a cold compilation. Steps in closed form are nearly as fast and are not compiled.
COMPILE_FROM = 100_000
WITHOUT_CLOSED_FORM = "no_closed_form"  # the meaning of learn.compile="auto" in a long run


def has_compiler() -> bool:
    """Returns whether there is a C++ compiler, which torch.compile needs on a CPU."""
    return any(shutil.which(name) for name in (os.environ.get("CXX") or "g++", "clang++"))


def may_compile(option: str | bool, device: torch.device) -> bool:
    """Returns whether gradient steps may be compiled, by the config's ``learn.compile``.

    On a GPU their kernels are captured instead (``fast.cuda_graphs``), which needs no compiler.
    """
    if device.type != "cpu":
        return False
    return option is True or (option == WITHOUT_CLOSED_FORM and has_compiler())


class CompiledFunction:
    """A function that is compiled as one graph at its first call; if that fails, it runs uncompiled.

    The graph of a call depends on its own arguments only, not on earlier calls, so a resumed run gets the
    same bits.

    Args:
        function: pure, so that it can be called again if its compiled form raises an error.
        any_size: make one graph for all lengths of the leaves in lists of trees.
    """

    _numbers = itertools.count()

    def __init__(self, function: Callable[..., Any], *, any_size: bool) -> None:
        self.function = function
        self.any_size = any_size
        self._compiled: Callable[..., Any] | None = None
        self._failed = False

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_compiled": None}  # a compiled function cannot be pickled

    def __call__(self, *args: Any) -> Any:
        if self._failed:
            return self.function(*args)
        args = tuple(map(self._plain, args))
        try:
            return self._first_call(*args) if self._compiled is None else self._compiled(*args)
        except Exception as error:  # noqa: BLE001 - an error of the function itself is raised again below
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

    def _first_call(self, *args: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's advice about its own compilation
            try:
                compiled = self._compile()
                result = compiled(*args)
            except Exception as error:
                if "CppCompileError" not in f"{type(error).__name__}: {error}":
                    raise
                # A signal to all processes of a job ends the C++ compiler, too, before this one has saved
                # its run. Without a second try the run would go on with other bits than one that is resumed.
                compiled = self._compile()
                result = compiled(*args)
        self._compiled = compiled
        return result

    def _compile(self) -> Callable[..., Any]:
        import torch._dynamo  # it takes a second, and most runs do not need it

        # Allows a gradient inside of the graph; by default torch breaks the graph there.
        torch._dynamo.config.trace_autograd_ops = True
        # Torch stores the sizes and numbers that it has seen by the name of the code, and generalises later
        # graphs. A new name for each function avoids that.
        code = self.function.__code__
        code = code.replace(co_name=f"{code.co_name}_{next(self._numbers)}")
        own = types.FunctionType(code, self.function.__globals__)
        options: dict[str, Any] = {
            # One C++ function: torch's Python code around the kernels costs a tenth more.
            "cpp_wrapper": True,
            "cpp.use_decompose_tanh": True,  # by exp, in half the time and within 2e-7
        }
        compiled: Callable[..., Any] = torch.compile(own, fullgraph=True, options=options)
        return compiled

    def _plain(self, argument: Any) -> Any:
        """Returns lists of trees with plain dicts instead of treetensors, which torch cannot trace."""
        if not isinstance(argument, list) or not argument or not isinstance(argument[0], Mapping):
            return argument
        plain = [to_dict(tree) for tree in argument]
        if self.any_size:
            map_tree(_of_any_length, dict(enumerate(plain)))
        return plain


def _of_any_length(leaf: torch.Tensor) -> None:
    if leaf.dim():
        torch._dynamo.maybe_mark_dynamic(leaf, 0)
