"""What the program changes in its own process: BLAS threads, garbage collection, standard output."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO


def limit_blas_threads() -> None:
    """Limits NumPy's matrix products to one thread; must be called before NumPy is imported.

    The matrices are small here. The run sets the number of torch's threads (key ``num_threads``).
    """
    for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"):
        os.environ.setdefault(name, "1")


def shorten_openmp_waiting() -> None:
    """Makes idle threads of GNU's OpenMP free their core after a third of a millisecond instead of 6 ms.

    Worker processes of the environments wait for these cores. OpenMP reads the variable when torch is
    loaded. OMP_WAIT_POLICY and GOMP_SPINCOUNT take precedence if the user has set them.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Disables garbage collection inside, and excludes the objects made inside from it for good.

    torch alone creates half a million objects at import, which live as long as the process. Searching them
    for garbage would take a fifth of the time of a short command.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        # nanobind reports its objects as leaked if they are still frozen at the end.
        atexit.register(lambda: gc.unfreeze() if "ale_py" in sys.modules else None)
        if enabled:
            gc.enable()


@contextlib.contextmanager
def warnings_as_lines(log: Callable[[str], Any]) -> Iterator[None]:
    """Shows each of Python's warnings on standard error in one line, and gives the line to ``log``."""
    as_before = warnings.showwarning

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if file is not None:
            as_before(message, category, filename, lineno, file, line)
            return
        is_ours = Path(filename).is_relative_to(Path(__file__).parents[1])  # the place is no help to a user
        text = f"WARNING: {message}" + ("" if is_ours else f" ({filename}:{lineno})")
        log(text)
        print(text, file=sys.stderr)

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = as_before


def flush_output() -> OSError | None:
    """Flushes standard output. Returns the error if it cannot be written, or None.

    After an error, standard output is redirected to the null device; otherwise the interpreter would report
    the same error when it exits.
    """
    try:
        sys.stdout.flush()
    except OSError as error:
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return error
    return None


@contextlib.contextmanager
def stdout_to_stderr(active: bool = True) -> Iterator[None]:
    """Redirects standard output to standard error, in this process and in the worker processes it starts.

    Commands with ``--json`` use it, so that an environment that prints something does not spoil the JSON.

    Args:
        active: without it, nothing is redirected.
    """
    if not active:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
