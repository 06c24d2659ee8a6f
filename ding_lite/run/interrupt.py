"""Ctrl-C while a run trains: the iteration ends first, so that the run can be saved."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

STDERR = 2


class HeldInterrupt:
    """Holds a first Ctrl-C back while a ``with`` block runs; a second one raises KeyboardInterrupt at once.

    It does so in the main thread only, and only if SIGINT has Python's own handler. The command line has a
    handler of its own.

    Args:
        request_stop: called when a Ctrl-C is held back.

    Attributes:
        received: whether a Ctrl-C was held back.
    """

    def __init__(self, request_stop: Callable[[], None]) -> None:
        self.received = False
        self._request_stop = request_stop
        self._is_installed = False

    def __enter__(self) -> None:
        in_main = threading.current_thread() is threading.main_thread()
        self._is_installed = in_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if self._is_installed:
            signal.signal(signal.SIGINT, self._hold)

    def __exit__(self, *error: object) -> None:
        if self._is_installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _hold(self, number: int, frame: FrameType | None) -> None:
        if self.received:
            signal.default_int_handler(number, frame)
        self.received = True
        self._request_stop()
        answer_user("this iteration")


def answer_user(wait: str) -> None:
    """Tells a user at a terminal what a run waits for: without an answer the user would press again.

    Args:
        wait: such as "this iteration".
    """
    with contextlib.suppress(OSError):
        if os.isatty(STDERR):
            # os.write, because a signal may interrupt a print, whose buffer is not reentrant.
            os.write(STDERR, f"\nending after {wait}, then saving; Ctrl-C again stops at once\n".encode())
