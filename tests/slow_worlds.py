"""Slow environments that record when an episode begins."""

import os
import signal
import time
from pathlib import Path

from small_worlds import LengthEnv


class SlowEnv(LengthEnv):
    """Each step takes ``pause`` seconds; each reset appends its process id to the file ``marks``.

    It ignores signals from its start, and again after each reset.
    """

    def __init__(self, length=5, pause=0.0, marks=None, start=0.0, ignored=()):
        super().__init__(length)
        self.pause, self.marks, self.ignored = pause, marks, ignored
        self.ignore()
        if start:
            self.mark()
            time.sleep(start)

    def mark(self):
        if self.marks:
            with Path(self.marks).open("a") as stream:
                stream.write(f"{os.getpid()}\n")

    def ignore(self):
        for name in self.ignored:
            signal.signal(getattr(signal, name), signal.SIG_IGN)

    def reset(self, *, seed=None, options=None):
        self.ignore()
        self.mark()
        return super().reset(seed=seed)

    def step(self, action):
        time.sleep(self.pause)
        return super().step(action)
