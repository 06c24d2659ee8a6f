"""The program ``ding-lite``, also ``python -m ding_lite``: signal handlers, streams, garbage collection."""

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
        # The import of torch creates half a million objects; searching them for garbage takes a fifth of the
        # time of a short command.
        gc.set_threshold(50_000, 50, 100)
        from ding_lite.cli import main as run

        code = run(argv)
    # The search at exit is skipped, except with ale_py: its nanobind reports frozen objects as leaked.
    if "ale_py" not in sys.modules:
        gc.freeze()
    return code


def _open_streams() -> None:
    """Replaces closed standard streams, and lets the output streams write text that they cannot encode."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # else the next opened file would get its number
            number = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, "r" if name == "stdin" else "w"))
    for output in (sys.stdout, sys.stderr):
        assert isinstance(output, io.TextIOWrapper)
        output.reconfigure(errors="replace")


if __name__ == "__main__":
    sys.exit(main())
