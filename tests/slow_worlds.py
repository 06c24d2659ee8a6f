"""Slow environments that record when an episode begins."""

import os
import time
from pathlib import Path

from small_worlds import LengthEnv


class SlowEnv(LengthEnv):
    """Each step takes ``pause`` seconds; each reset appends its process id to the file ``marks``."""

    def __init__(self, length=5, pause=0.0, marks=None, start=0.0):
        super().__init__(length)
        self.pause, self.marks = pause, marks
        if start:
            self.mark()
            time.sleep(start)

    def mark(self):
        if self.marks:
            with Path(self.marks).open("a") as stream:
                stream.write(f"{os.getpid()}\n")

    def reset(self, *, seed=None, options=None):
        self.mark()
        return super().reset(seed=seed)

    def step(self, action):
        time.sleep(self.pause)
        return super().step(action)
