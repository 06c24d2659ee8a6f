"""An environment that waits, as one does that asks another machine. Workers import this module."""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym


class Sleeping(gym.Wrapper):
    """Waits 5 ms in each step, and needs no processor meanwhile."""

    def step(self, action: Any) -> Any:
        time.sleep(5e-3)
        return self.env.step(action)
