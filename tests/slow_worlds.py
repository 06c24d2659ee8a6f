"""Slow environments that record when an episode begins."""

import contextlib
import os
import signal
import time
from pathlib import Path

from small_worlds import LengthEnv


class SlowEnv(LengthEnv):
    """Each step takes ``pause`` seconds; each reset appends its process id to the file ``marks``.

    The step number ``hangs_at``, counted over all episodes, never ends; it is ``stubborn`` if it catches what
    interrupts it at first. With ``alarm`` each step sets an alarm, and takes it back.
    """

    def __init__(self, length=5, pause=0.0, marks=None, start=0.0, hangs_at=0, stubborn=False, alarm=False):
        super().__init__(length)
        self.pause, self.marks = pause, marks
        self.steps, self.hangs_at, self.stubborn, self.alarm = 0, hangs_at, stubborn, alarm
        if start:
            self.mark()
            time.sleep(start)

    def mark(self, text=""):
        if self.marks:
            with Path(self.marks).open("a") as stream:
                stream.write(f"{text or os.getpid()}\n")

    def reset(self, *, seed=None, options=None):
        self.mark()
        return super().reset(seed=seed)

    def step(self, action):
        self.steps += 1
        if self.alarm:
            before = signal.signal(signal.SIGALRM, lambda number, frame: None)
            signal.alarm(5)
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)
        if self.steps == self.hangs_at:
            self.mark("hangs")
            with contextlib.suppress(BaseException if self.stubborn else ()):
                time.sleep(3600)
            time.sleep(3600)
        time.sleep(self.pause)
        return super().step(action)
