"""What the signals that end a process do: Ctrl-C, SIGTERM, and SIGHUP when a terminal goes away.

Where there is nothing to save they end the command at once, cleaning up on the way out. A run that
trains takes over: the first signal is a request to end at the next boundary, a second Ctrl-C ends at once.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

EXIT_CODES = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 143}


class Signals:
    """Handles signals inside a ``with``; outside of the main thread it does nothing.

    Attributes:
        caught: the name of the first one; empty before.
    """

    def __init__(self) -> None:
        self.caught = ""
        self._ask: Callable[[str], None] | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            for name in EXIT_CODES:
                number = getattr(signal, name, None)
                # nohup ignores SIGHUP so that the run outlives the terminal.
                if number and not (name == "SIGHUP" and signal.getsignal(number) == signal.SIG_IGN):
                    self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def hand_over(self, ask: Callable[[str], None]) -> None:
        """Lets ``ask`` be called with a signal's name, from now on, where one would have ended us."""
        self._ask = ask
        if self.caught:  # a library that was being imported has swallowed the exception
            ask(self.caught)

    @property
    def exit_code(self) -> int:
        """Returns that of the first signal, or 0."""
        return EXIT_CODES.get(self.caught, 0)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        name, again = signal.Signals(number).name, bool(self.caught)
        self.caught = self.caught or name
        if self._ask is None or (again and name == "SIGINT"):
            raise KeyboardInterrupt(name)
        self._ask(name)
