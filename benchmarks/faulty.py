"""A wrapper that fails on purpose. Workers import this module: it must not import torch."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import gymnasium as gym
import numpy as np

from ding_lite.rl.seeding import seed_sequence


class FaultyEnv(gym.Wrapper):
    """Fails with a probability per call; the seed of the episode decides when.

    Args:
        env: whose observations are arrays; all of an environment are the same array object, overwritten.
        crash, hang, kill: probabilities of an exception, of never returning, and of a SIGKILL of the
            environment's process.
    """

    def __init__(self, env: gym.Env, crash: float, hang: float, kill: float) -> None:
        super().__init__(env)
        self._crash, self._hang, self._kill = np.cumsum([crash, hang, kill]).tolist()
        self._rng = np.random.default_rng(seed_sequence(0, "faults"))
        self._obs: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is not None:
            self._rng = np.random.default_rng(seed_sequence(0, "faults", seed))
        self._fail()
        obs, info = self.env.reset(seed=seed, options=options)
        return self._overwritten(obs), info

    def step(self, action: Any) -> Any:
        self._fail()
        obs, *rest = self.env.step(action)
        return (self._overwritten(obs), *rest)

    def _fail(self) -> None:
        draw = self._rng.random()
        if draw < self._crash:
            raise RuntimeError("a crash on purpose")
        if draw < self._hang:
            time.sleep(1e9)
        if draw < self._kill:
            os.kill(os.getpid(), signal.SIGKILL)

    def _overwritten(self, obs: np.ndarray) -> np.ndarray:
        if self._obs is None:
            self._obs = obs.copy()
        self._obs[...] = obs
        return self._obs
