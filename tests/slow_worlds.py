"""Slow environments that record when an episode begins."""

import os
import time
from pathlib import Path

from small_worlds import LengthEnv


class SlowEnv(LengthEnv):
    """Each step takes ``pause`` seconds; each reset appends its process id to the file ``marks``.

    The step number ``hangs_at``, counted over all episodes, never ends.
    """

    def __init__(self, length=5, pause=0.0, marks=None, start=0.0, hangs_at=0):
        super().__init__(length)
        self.pause, self.marks = pause, marks
        self.steps, self.hangs_at = 0, hangs_at
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
        if self.steps == self.hangs_at:
            self.mark("hangs")
            time.sleep(3600)
        time.sleep(self.pause)
        return super().step(action)
