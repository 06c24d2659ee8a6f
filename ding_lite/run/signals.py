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
from typing import NoReturn

ENDING = {signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}
EXIT_CODES = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 143}
STDERR = 2
IMPORT = "<frozen importlib._bootstrap>"  # the file of the frames of an import


@contextlib.contextmanager
def handlers_of_program() -> Iterator[None]:
    """Handles the signals that are not ignored, as SIGHUP is under nohup; after the block they just kill."""
    numbers = [n for n in ENDING if signal.getsignal(n) in (signal.SIG_DFL, signal.default_int_handler)]
    for number in numbers:
        signal.signal(number, exit_at_once)
    if hasattr(signal, "pthread_sigmask"):  # a pool starts programs with blocked signals
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    yield
    for number in numbers:
        signal.signal(number, signal.SIG_DFL)


def exit_at_once(number: int, frame: FrameType | None) -> NoReturn:
    """Raises KeyboardInterrupt with the name of the signal; during an import, ends the process instead.

    A module that is being imported, such as NumPy, may swallow the exception or raise another one.
    """
    name = signal.Signals(number).name
    while frame is not None:
        if frame.f_code.co_filename == IMPORT:
            os._exit(EXIT_CODES[name])
        frame = frame.f_back
    raise KeyboardInterrupt(name)


@contextlib.contextmanager
def stop_signals(request_stop: Callable[[str], None]) -> Iterator[Callable[[], None]]:
    """Calls ``request_stop(name)`` for a signal in the block; a SIGINT after that raises KeyboardInterrupt.

    In the main thread, it replaces handlers that are Python's defaults or :func:`exit_at_once`. A program
    keeps handlers of its own, and under nohup it goes on when the terminal is closed.

    Yields a function to call after the block: it sends the signal again, now to its previous handler.

    Args:
        request_stop: ends the training at the next moment at which it can be saved.
    """
    caught: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        if caught and number == signal.SIGINT:
            raise KeyboardInterrupt
        caught.append(number)
        name = signal.Signals(number).name
        request_stop(name)
        head = "\n" if os.isatty(STDERR) else ""
        answer = f"{head}{name}: ending after this iteration, then saving; Ctrl-C again stops at once\n"
        with contextlib.suppress(OSError):  # without an answer the user would press again
            os.write(STDERR, answer.encode())  # a signal may interrupt a print

    replaced = (signal.SIG_DFL, signal.default_int_handler, exit_at_once)
    is_main = threading.current_thread() is threading.main_thread()
    numbers = [number for number in ENDING if is_main and signal.getsignal(number) in replaced]
    previous = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield lambda: signal.raise_signal(caught[0]) if caught else None
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
