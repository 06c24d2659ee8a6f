"""What a command does to its own process, before torch and NumPy are loaded."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator


def limit_blas_threads() -> None:
    """One thread for NumPy's matrix products, which are small here; torch's count is set by the run."""
    for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"):
        os.environ.setdefault(name, "1")


@contextlib.contextmanager
def nothing_is_garbage() -> Iterator[None]:
    """Keeps the collector away from all that is made in here, for good: for imports of ours.

    torch alone makes half a million objects that stay. To look for garbage among them would take a fifth of a
    short command's time.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collects:
            gc.enable()
