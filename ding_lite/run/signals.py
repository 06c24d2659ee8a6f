"""SIGINT, SIGTERM and SIGHUP: a run that trains ends its iteration first, so that it can be saved.

The program ``ding-lite`` sets its handlers before it imports anything else, so this module imports little.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn

ENDING = (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM))
EXIT_CODES = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 143}
STDERR = 2
IMPORT = "<frozen importlib._bootstrap>"  # the file of the frames of an import


@contextlib.contextmanager
def handlers_of_program() -> Iterator[None]:
    """Handles the signals that are not ignored, as SIGHUP is under nohup; at the end they just kill."""
    numbers = [n for n in ENDING if signal.getsignal(n) in (signal.SIG_DFL, signal.default_int_handler)]
    for number in numbers:
        signal.signal(number, exit_at_once)
    if hasattr(signal, "pthread_sigmask"):  # a pool blocks them until now
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    yield
    for number in numbers:
        signal.signal(number, signal.SIG_DFL)


def exit_at_once(number: int, frame: FrameType | None) -> NoReturn:
    """Interrupts the program as Ctrl-C does, with the name of the signal; in an import, ends the process.

    Code that is imported, such as NumPy's, swallows an exception or replaces it by another one.
    """
    name = signal.Signals(number).name
    while frame is not None:
        if frame.f_code.co_filename == IMPORT:
            os._exit(EXIT_CODES[name])
        frame = frame.f_back
    raise KeyboardInterrupt(name)


class StopSignals:
    """Calls ``request_stop(name)`` for a signal that comes in a ``with`` block; a second SIGINT raises.

    It takes over the signals whose handlers are Python's own or :func:`exit_at_once`, in the main thread. A
    program that has a handler of its own keeps it, and one under nohup goes on when the terminal is closed.

    Args:
        request_stop: ends the training at the next moment at which it can be saved.

    Attributes:
        caught: number of the first signal; None before it.
    """

    def __init__(self, request_stop: Callable[[str], None]) -> None:
        self.caught: int | None = None
        self._request_stop = request_stop
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in ENDING:
                if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler, exit_at_once):
                    self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def deliver(self) -> None:
        """Delivers the signal that was caught again, now to the handler that it had before."""
        if self.caught is not None:
            signal.raise_signal(self.caught)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.caught is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.caught = self.caught or number
        name = signal.Signals(number).name
        self._request_stop(name)
        head = "\n" if os.isatty(STDERR) else ""
        answer = f"{head}{name}: ending after this iteration, then saving; Ctrl-C again stops at once\n"
        with contextlib.suppress(OSError):  # without an answer the user would press again
            os.write(STDERR, answer.encode())  # a signal may interrupt a print
