"""Signals that end a command: SIGINT (Ctrl-C), SIGTERM, and SIGHUP when the terminal is closed.

A command that has nothing to save ends at once: the handler raises KeyboardInterrupt, so that ``with`` and
``finally`` blocks clean up. A training takes over with :meth:`Signals.hand_over`: the first signal asks it to
end after its current iteration, environments that take too long are given up, and a second Ctrl-C raises
KeyboardInterrupt.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

from ding_lite.run.interrupt import answer_user

EXIT_CODES = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 143}
SECONDS_BETWEEN_LOOKS = 0.2  # of the thread that waits for the first signal


class Signals:
    """Handles the signals inside a ``with`` block; outside of the main thread it does nothing.

    Attributes:
        caught: name of the first signal, such as "SIGINT"; "" before one.
    """

    def __init__(self) -> None:
        self.caught = ""
        self._request_stop: Callable[[str], None] | None = None
        self._give_up: Callable[[], None] | None = None
        self._is_late = False  # whether the time after the first signal is over
        self._ended = threading.Event()
        self._watcher: threading.Thread | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            for name in EXIT_CODES:
                number = getattr(signal, name, None)
                # Under nohup SIGHUP is ignored, so that the run continues when the terminal is closed.
                if number and not (name == "SIGHUP" and signal.getsignal(number) == signal.SIG_IGN):
                    self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._watcher is not None:
            self._watcher.join()  # it sends no signal after this
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def hand_over(
        self,
        request_stop: Callable[[str], None],
        wait: str,
        give_up: Callable[[], None] | None = None,
        timeout: float = 0.0,
    ) -> None:
        """Calls ``request_stop(name)`` for each signal from now on, in place of raising KeyboardInterrupt.

        It is called at once if a signal came before: an import in progress may have swallowed the exception.

        Args:
            request_stop: ends the training at the next moment at which it can be saved.
            wait: what the training waits for, such as "this iteration"; the user is told.
            give_up: called ``timeout`` seconds after the first signal, and each second from then on. It may
                raise, in whatever the main thread does.
        """

        def end(name: str) -> None:
            request_stop(name)
            answer_user(wait)

        self._request_stop = end
        self._give_up = give_up
        if give_up is not None and self._previous:
            self._watcher = threading.Thread(target=self._watch, args=(timeout,), daemon=True)
            self._watcher.start()
        if self.caught:
            end(self.caught)

    @property
    def exit_code(self) -> int:
        """Returns the exit code for the first signal, or 0 if there was none."""
        return EXIT_CODES.get(self.caught, 0)

    @property
    def was_swallowed(self) -> bool:
        """Whether a signal came that ends the command at once: what is raised afterwards follows from it."""
        return bool(self.caught) and self._request_stop is None

    def _watch(self, timeout: float) -> None:
        """Waits for the first signal, and then interrupts the main thread once the time is over.

        It does so by SIGTERM, whose handler is here: an environment may use SIGALRM for itself.
        """
        while not self.caught:
            if self._ended.wait(SECONDS_BETWEEN_LOOKS):
                return
        while not self._ended.wait(timeout):
            self._is_late, timeout = True, 1.0
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if self._is_late and name == "SIGTERM" and self._give_up is not None:
            self._give_up()
            return
        is_first = not self.caught
        if is_first:
            self.caught = name
        if self._request_stop is None or (name == "SIGINT" and not is_first):
            raise KeyboardInterrupt(name)
        self._request_stop(name)
