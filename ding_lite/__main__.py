"""The program ``ding-lite``, also ``python -m ding_lite``: what it sets in its process."""

import gc
import io
import os
import sys
from collections.abc import Sequence

from ding_lite.run.signals import handlers_of_program


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command as the program of this process; see :func:`ding_lite.cli.main`."""
    with handlers_of_program():
        _open_streams()
        # torch's import makes half a million objects; to search them for garbage takes a fifth of the time of
        # a short command.
        gc.set_threshold(50_000, 50, 100)
        from ding_lite.cli import main as run

        code = run(argv)
    # Nor are they searched at exit. nanobind, which ale_py uses, reports frozen objects as leaked.
    if "ale_py" not in sys.modules:
        gc.freeze()
    return code


def _open_streams() -> None:
    """Replaces standard streams that are closed, and lets the others write any text."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # else the next file that is opened would be this stream
            number = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, "r" if name == "stdin" else "w"))
    for output in (sys.stdout, sys.stderr):
        assert isinstance(output, io.TextIOWrapper)
        output.reconfigure(errors="replace")


if __name__ == "__main__":
    sys.exit(main())
