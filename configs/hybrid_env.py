"""A small world with a hybrid action: a Dict of which tool (Discrete) and how much (Box)."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np


class Docking(gym.Env):
    """Stop a craft at the origin: each step choose to thrust, to brake or to coast, and how hard.

    The observation is (position, velocity). Thrust pushes by ``power``; the brake takes a share of
    ``abs(power)`` of the velocity; coasting does nothing. Each step costs the distance, the speed and
    a twentieth of the power; after 40 steps the episode is cut. Doing nothing gives about -48.
    """

    observation_space = gym.spaces.Box(-4.0, 4.0, (2,), np.float32)
    action_space = gym.spaces.Dict(
        {"tool": gym.spaces.Discrete(3), "power": gym.spaces.Box(-1.0, 1.0, (1,), np.float32)}
    )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.position, self.velocity = self.np_random.uniform(-1.0, 1.0), self.np_random.uniform(-0.1, 0.1)
        self.time = 0
        return self._seen(), {}

    def step(self, action: dict[str, Any]) -> Any:
        tool, power = int(action["tool"]), float(action["power"][0])
        if tool == 0:
            self.velocity += 0.1 * power
        elif tool == 1:
            self.velocity *= 1.0 - abs(power)
        spent = 0.0 if tool == 2 else abs(power)
        self.velocity = float(np.clip(self.velocity, -1.0, 1.0))
        self.position = float(np.clip(self.position + self.velocity, -4.0, 4.0))
        self.time += 1
        cost = abs(self.position) + abs(self.velocity) + 0.05 * spent
        return self._seen(), -cost, False, self.time >= 40, {}

    def _seen(self) -> np.ndarray:
        return np.array([self.position, self.velocity], np.float32)
