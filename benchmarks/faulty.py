"""A wrapper that fails on purpose, for soak.py. Workers import this module: it must not import torch."""

from __future__ import annotations

import os
import random
import signal
import time
from typing import Any

import gymnasium as gym


class FaultyEnv(gym.Wrapper):
    """Fails in a step with a probability: by an exception, by never returning, or by killing its process."""

    def __init__(self, env: gym.Env, crash: float, hang: float, kill: float) -> None:
        super().__init__(env)
        self.crash, self.hang, self.kill = crash, hang, kill

    def step(self, action: Any) -> Any:
        draw = random.random()
        if draw < self.crash:
            raise RuntimeError("a crash on purpose")
        if draw < self.crash + self.hang:
            time.sleep(1e9)
        if draw < self.crash + self.hang + self.kill:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.env.step(action)
