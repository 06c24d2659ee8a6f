"""How a run ends before its limits: between two iterations, or where it waits for environments."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ding_lite.data.collector import Collector
from ding_lite.data.episodes import Evaluator
from ding_lite.errors import StopTimedOut
from ding_lite.ranks import Ranks


class Stopping:
    """Ends a run on request.

    Args:
        timeout: seconds after a signal in which environments may still end what they do (``stop_timeout``).
        collector, evaluator, ranks: of the run.

    Attributes:
        reason: why the run ends; "" before a request.
        phase: see :meth:`during`.
    """

    def __init__(self, timeout: float, collector: Collector, evaluator: Evaluator, ranks: Ranks) -> None:
        self.timeout = timeout
        self.reason = ""
        self.phase = ""
        self._may_give_up = True
        self._is_closing = False
        self._has_left = False
        self._collector = collector
        self._evaluator = evaluator
        self._ranks = ranks

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Sets the phase of a block: "collecting", "learning" or "evaluating"; it is "" between them.

        After an error it stays the phase in which the error was raised.
        """
        self.phase = phase
        yield
        self.phase = ""

    @contextmanager
    def closing(self) -> Iterator[None]:
        """Lets :meth:`give_up` end a block that closes environments, and have no effect after it."""
        self._is_closing = True
        try:
            yield
        finally:
            self._is_closing = self._may_give_up = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lets :meth:`give_up` have no effect in a block."""
        self._may_give_up = False
        yield
        self._may_give_up = True

    @property
    def is_between_steps(self) -> bool:
        """Whether the weights belong to the counted env steps: an incomplete rollout changes none."""
        return self.phase not in ("collecting", "learning") or self._is_in_rollout

    @property
    def _is_in_rollout(self) -> bool:
        """Whether the run collects, and the rollout is not complete yet."""
        return self.phase == "collecting" and self._collector.is_incomplete

    @property
    def is_by_signal(self) -> bool:
        """Whether the reason is the name of a signal."""
        return self.reason in signal.Signals.__members__

    def request(self, reason: str) -> None:
        """Requests the run to end at the next iteration boundary; safe to call from a signal handler."""
        self.reason = reason
        if self.is_by_signal and self._evaluator.stop_at is None:  # a batch system soon kills the process
            self._evaluator.stop_at = time.monotonic() + self.timeout / 2

    def agree(self) -> bool:
        """Returns whether any rank was requested to stop: a signal does not reach all at the same moment.

        The reason becomes that of every rank.
        """
        agreed = next(filter(None, self._ranks.from_all(self.reason)), "")
        if agreed:  # else a signal may have set it by now; the next iteration is the last
            self.reason = agreed
        return bool(agreed)

    def leave_loop(self) -> None:
        """Requests the loops of all ranks to end, since this rank has left its own."""
        self._has_left = not self.reason
        self.reason = self.reason or f"rank {self._ranks.rank} left the loop"
        self.agree()

    def begin_loop(self) -> None:
        """Takes back the request of :meth:`leave_loop`: another loop goes on."""
        if self._has_left:
            self.reason, self._has_left = "", False

    def give_up(self) -> None:
        """Ends what waits for environments; called from a signal handler when the time is over.

        Raises:
            StopTimedOut: while environments collect, evaluate or close. Nothing else is disturbed.
        """
        waits = self._is_closing or self.phase == "evaluating" or self._is_in_rollout
        if waits and self._may_give_up:
            phase = "closing" if self._is_closing else self.phase
            place = f" on rank {self._ranks.rank}" if self._ranks.size > 1 else ""
            raise StopTimedOut(f"{self.reason}; {phase} did not end within {self.timeout:g} s{place}")
