"""Seconds of the phases of an iteration, measured where the phases are called."""

from __future__ import annotations

import time
from collections import defaultdict

# In the order of an iteration; metrics.csv has the seconds of each as ``time/<phase>_s``.
PHASES = ("env", "act", "store", "advantages", "updates", "auxiliary", "eval", "other")


class Timer:
    """Adds up seconds by phase like a chess clock: ``timer("env")`` ends one phase and begins another.

    A phase lasts until the next one begins, so the phases add up to the whole time. Work that a device has
    queued counts for the phase that waits for it, unless ``now`` waits for the device.

    Attributes:
        phase: the current phase; "" before the first.
        seconds: by phase, since the last :meth:`take`; time before the first call is left out.
        now: the clock, in seconds.
    """

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.now = time.perf_counter
        self.phase = ""
        self._since = 0.0

    def __call__(self, phase: str) -> None:
        now = self.now()
        if self.phase:
            self.seconds[self.phase] += now - self._since
        self.phase, self._since = phase, now

    def take(self) -> dict[str, float]:
        """Returns the seconds of each phase since the last call, and resets them to 0."""
        self(self.phase)
        seconds, self.seconds = dict(self.seconds), defaultdict(float)
        return seconds
