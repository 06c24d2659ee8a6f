"""A hybrid action: a Dict of a tool (Discrete) and its power (Box), learned by one joint ratio.

ding-lite train -c examples/hybrid_actions.py
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np


class Docking(gym.Env):
    """Stops a craft at the origin. Each action is thrust (0), brake (1) or coast (2), and its power.

    The observation is (position, velocity). Thrust changes the velocity by 0.1 * ``power``. The brake
    reduces it by the fraction ``abs(power)``. Coasting has no effect. The reward is minus the sum of the
    distance, the speed and 0.05 * ``abs(power)``; coasting costs no power. Episodes are truncated
    after 40 steps. The return of coasting alone is about -48.
    """

    observation_space = gym.spaces.Box(-4.0, 4.0, (2,), np.float32)
    action_space = gym.spaces.Dict(
        {"tool": gym.spaces.Discrete(3), "power": gym.spaces.Box(-1.0, 1.0, (1,), np.float32)}
    )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.position = self.np_random.uniform(-1.0, 1.0)
        self.velocity = self.np_random.uniform(-0.1, 0.1)
        self.time = 0
        return self._observation(), {}

    def step(self, action: dict[str, Any]) -> Any:
        tool = int(action["tool"])
        power = float(action["power"][0])
        if tool == 0:
            self.velocity += 0.1 * power
        elif tool == 1:
            self.velocity *= 1.0 - abs(power)
        spent = 0.0 if tool == 2 else abs(power)
        self.velocity = float(np.clip(self.velocity, -1.0, 1.0))
        self.position = float(np.clip(self.position + self.velocity, -4.0, 4.0))
        self.time += 1
        cost = abs(self.position) + abs(self.velocity) + 0.05 * spent
        return self._observation(), -cost, False, self.time >= 40, {}

    def _observation(self) -> np.ndarray:
        return np.array([self.position, self.velocity], np.float32)


config = dict(
    max_env_step=100_000,
    env=dict(
        type=Docking, collector_env_num=16, evaluator_env_num=8, n_evaluator_episode=32, stop_value=-7.0
    ),
    policy=dict(
        learn=dict(batch_size=256, learning_rate=1e-3, lr_schedule="linear"),
        collect=dict(n_sample=4096, discount_factor=0.97),
    ),
)
