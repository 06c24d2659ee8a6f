"""``faulty``: a wrapper that injects faults on purpose, to test a setup before a long run.

    wrappers=[dict(type="faulty", crash=1e-4, kill=1e-5, at=dict(hang=[100]))]

Use kills and hangs with worker processes and Ray actors only; otherwise they affect the training process.
Workers import this module: it must not import torch.
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
from ding_lite.rl.seeding import numpy_generator
from ding_lite.trees import Tree, from_tree, map_tree, to_tree

FAULTS = ("crash", "hang", "kill", "nan_obs", "nan_reward", "bad_shape")


class FaultyEnv(gym.Wrapper):
    """Injects faults into an environment, by a probability per step and at chosen steps.

    Step 0 is an episode's reset. ``seed`` and the seed of the episode decide when faults happen.

    Args:
        env: the environment.
        crash, hang, kill: probabilities of an exception, of never returning, and of a SIGKILL of the
            environment's process.
        nan_obs, nan_reward, bad_shape: probabilities of a nan in the observation, of a nan reward, and of an
            observation with an extra axis.
        at: faults at fixed steps: by name of the fault, steps of an episode.
        once: a folder in which the faults of ``at`` are recorded, so that each happens once over all
            processes; without it, they happen in every episode.
        envs: numbers of the environments that have faults; all by default.
        alias: return the same array object at every step.
        hang_s: seconds that a hang lasts.
        seed: of the probabilities.
        in_evaluation: whether evaluation environments have faults.
        evaluate, index: set by ``env.wrappers``.

    Raises:
        ConfigError: for an unknown fault, or probabilities whose sum exceeds 1.
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
        probabilities = (crash, hang, kill, nan_obs, nan_reward, bad_shape)
        self._at = {name: frozenset(steps) for name, steps in (at or {}).items()}
        _check(probabilities, self._at)
        self._thresholds = np.cumsum(probabilities).tolist()
        self._once = None if once is None else Path(once)
        self._fault_free = (envs is not None and index not in envs) or (evaluate and not in_evaluation)
        self._alias = alias
        self._returned: Tree | None = None  # with alias: the observation that every step overwrites
        self._hang_s = hang_s
        self._seed = seed
        self._index = index
        self._rng = numpy_generator(seed, "faults")
        self._step = 0

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
        """Returns the fault of this step; carries out a crash, a hang or a kill itself."""
        draw = self._rng.random()
        thresholds = zip(FAULTS, self._thresholds, strict=True)
        fault = next((name for name, threshold in thresholds if draw < threshold), None)
        for name, steps in self._at.items():
            if self._step in steps and self._is_due(name):
                fault = name
        if self._fault_free:
            return None
        if fault == "crash":
            raise RuntimeError(f"a crash on purpose, at step {self._step}")
        if fault == "hang":
            time.sleep(self._hang_s)
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        return fault

    def _is_due(self, name: str) -> bool:
        """Returns whether a fault of ``at`` happens now; records it if it is to happen once."""
        if self._once is None or self._fault_free:
            return True
        try:
            (self._once / f"{name}-env{self._index}-step{self._step}").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _spoiled(self, obs: Any, fault: str | None) -> Any:
        """Returns the observation with its fault, if any."""
        space = self.env.observation_space

        def on_leaves(function: Callable[[Any], Any]) -> Any:
            return from_tree(map_tree(function, to_tree(obs, space)), space)

        if fault == "nan_obs":
            return on_leaves(_with_nan)
        if fault == "bad_shape":
            return on_leaves(lambda leaf: np.asarray(leaf)[None])
        if self._alias:
            tree = to_tree(obs, space)
            previous = tree if self._returned is None else self._returned
            self._returned = map_tree(_overwritten, previous, tree)
            return from_tree(self._returned, space)
        return obs


def _check(probabilities: tuple[float, ...], at: Mapping[str, frozenset[int]]) -> None:
    where = "env.wrappers: faulty:"
    unknown = sorted(set(at) - set(FAULTS))
    if unknown:
        raise ConfigError(f"{where} at: there is no fault {unknown[0]!r}; there are {', '.join(FAULTS)}")
    if not all(0 <= probability <= 1 for probability in probabilities) or sum(probabilities) > 1:
        pairs = zip(FAULTS, probabilities, strict=True)
        got = ", ".join(f"{name}={probability:g}" for name, probability in pairs)
        raise ConfigError(f"{where} probabilities must be 0 .. 1 with a sum of at most 1; got {got}")


def _with_nan(leaf: Any) -> np.ndarray:
    """Returns a copy of a leaf whose first number is nan; a leaf of integers is not changed."""
    array = np.array(leaf)
    if array.dtype.kind == "f":
        array.flat[:1] = np.nan
    return array


def _overwritten(previous: Any, leaf: Any) -> Any:
    """Writes ``leaf`` into the array that was returned before; returns a copy at first."""
    if not isinstance(leaf, np.ndarray):
        return leaf
    if previous is leaf:
        return leaf.copy()
    previous[...] = leaf
    return previous
