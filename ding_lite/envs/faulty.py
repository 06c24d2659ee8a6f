"""``faulty``: a wrapper that goes wrong on purpose, to try a set-up before a long run does.

    wrappers=[dict(type="faulty", crash=1e-4, kill=1e-5, at=dict(hang=[100]))]

A kill or a hang is meant for ``env.manager.type="subprocess"``: in this process it is this process's.
This module is imported by workers: it must not import torch.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from ding_lite.errors import ConfigError
from ding_lite.seeding import numpy_generator

FAULTS = ("crash", "hang", "kill", "nan_obs", "nan_reward", "bad_shape")


class FaultyEnv(gym.Wrapper):
    """An environment with faults, each by its probability in every step and at chosen steps.

    Step 0 is an episode's reset. What happens is decided by ``seed`` and the seed of the episode alone.

    Args:
        env: the one that goes wrong.
        crash, hang, kill: probabilities of an exception, of never returning, and of a SIGKILL of the
            process that the environment is in.
        nan_obs, nan_reward, bad_shape: of an observation or a reward of nan, and of an observation with
            an axis too many.
        at: certain faults: for the name of each, steps of an episode.
        once: a folder in which the faults of ``at`` are noted, so that each happens once, whatever
            processes there are; otherwise every episode has them.
        envs: numbers of the environments that have faults; all of them by default.
        alias: return one and the same array object at every step.
        hang_s: seconds that a hang lasts.
        seed: of the probabilities.
        in_evaluation: have faults in environments to evaluate in, too.
        evaluate, index: told by the vector environment.

    Raises:
        ConfigError: for a fault that does not exist, or probabilities of more than 1 together.
    """

    def __init__(
        self,
        env: gym.Env,
        crash: float = 0.0,
        hang: float = 0.0,
        kill: float = 0.0,
        nan_obs: float = 0.0,
        nan_reward: float = 0.0,
        bad_shape: float = 0.0,
        at: Mapping[str, Iterable[int]] | None = None,
        once: str | None = None,
        envs: Iterable[int] | None = None,
        alias: bool = False,
        hang_s: float = 1e9,
        seed: int = 0,
        in_evaluation: bool = False,
        *,
        evaluate: bool = False,
        index: int = 0,
    ) -> None:
        super().__init__(env)
        chances = (crash, hang, kill, nan_obs, nan_reward, bad_shape)
        self._at = {name: frozenset(steps) for name, steps in (at or {}).items()}
        _check(chances, self._at)
        self._edges = np.cumsum(chances).tolist()
        self._once = None if once is None else Path(once)
        self._sound = (envs is not None and index not in envs) or (evaluate and not in_evaluation)
        self._alias, self._shown = alias, None
        self._hang_s, self._seed, self._index = hang_s, seed, index
        self._rng, self._step = numpy_generator(seed, "faults"), 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is not None:
            self._rng = numpy_generator(self._seed, "faults", seed)
        self._step = 0
        fault = self._fault()
        obs, info = self.env.reset(seed=seed, options=options)
        return self._spoiled(obs, fault), info

    def step(self, action: Any) -> Any:
        self._step += 1
        fault = self._fault()
        obs, reward, terminated, truncated, info = self.env.step(action)
        if fault == "nan_reward":
            reward = np.nan
        return self._spoiled(obs, fault), reward, terminated, truncated, info

    def _fault(self) -> str | None:
        """Chooses the fault of this step; does not return from those that end or stop the process."""
        drawn = self._rng.random()
        fault = next((name for name, edge in zip(FAULTS, self._edges, strict=True) if drawn < edge), None)
        for name, steps in self._at.items():
            if self._step in steps and self._is_due(name):
                fault = name
        if self._sound:
            return None
        if fault == "crash":
            raise RuntimeError(f"a crash on purpose, at step {self._step}")
        if fault == "hang":
            time.sleep(self._hang_s)
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        return fault

    def _is_due(self, name: str) -> bool:
        if self._once is None or self._sound:
            return True
        try:
            (self._once / f"{name}-env{self._index}-step{self._step}").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _spoiled(self, obs: Any, fault: str | None) -> Any:
        if fault == "nan_obs":
            obs = _each(_with_nan, obs)
        elif fault == "bad_shape":
            obs = _each(lambda leaf: np.asarray(leaf)[None], obs)
        elif self._alias:
            obs = self._shown = _overwritten(self._shown, obs)
        return obs


def _check(chances: tuple[float, ...], at: Mapping[str, frozenset[int]]) -> None:
    where = "env.wrappers: faulty:"
    unknown = sorted(set(at) - set(FAULTS))
    if unknown:
        raise ConfigError(f"{where} at: there is no fault {unknown[0]!r}; there are {', '.join(FAULTS)}")
    if not all(0 <= chance <= 1 for chance in chances) or sum(chances) > 1:
        shown = ", ".join(f"{name}={chance:g}" for name, chance in zip(FAULTS, chances, strict=True))
        raise ConfigError(f"{where} probabilities must be 0 .. 1, and not more than 1 together; got {shown}")


def _each(function: Callable[[Any], Any], obs: Any) -> Any:
    """Applies ``function`` to every leaf of a Dict's or a Tuple's observation."""
    if isinstance(obs, dict):
        return {name: _each(function, value) for name, value in obs.items()}
    if isinstance(obs, tuple):
        return tuple(_each(function, value) for value in obs)
    return function(obs)


def _with_nan(leaf: Any) -> Any:
    """Returns a leaf whose first number is nan; one of whole numbers cannot have any, and stays."""
    array = np.array(leaf)
    if array.dtype.kind == "f":
        array.reshape(-1)[:1] = np.nan
    return array


def _overwritten(shown: Any, obs: Any) -> Any:
    """Writes ``obs`` into the arrays that were shown before, and returns them."""
    if isinstance(obs, dict):
        return {name: _overwritten(shown and shown[name], value) for name, value in obs.items()}
    if isinstance(obs, tuple):
        return tuple(_overwritten(shown and shown[i], value) for i, value in enumerate(obs))
    if not isinstance(obs, np.ndarray):
        return obs
    if shown is None:
        return obs.copy()
    shown[...] = obs
    return shown
