"""What an environment itself did, below every wrapper: raw returns, lengths, and checked results."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium as gym
import numpy as np

from ding_lite.errors import EnvContractError


class EpisodeRecorder(gym.Wrapper):
    """The innermost wrapper: raw return and length of each full game, whatever wrappers make of it.

    Attributes:
        decisions: steps of the outermost wrapper in this game, counted by who steps it.
        games: how often a reset has reached the environment.
    """

    def __init__(self, env: gym.Env, info_keys: tuple[str, ...] = ()) -> None:
        super().__init__(env)
        self.info_keys = info_keys
        self.episode_return, self.steps, self.decisions, self.ended = 0.0, 0, 0, False
        self.games = 0
        self.finished: list[tuple[float, int, dict[str, float], bool]] = []

    @property
    def length(self) -> int:
        """Decisions, which skipped frames are not; steps of the environment if none were counted."""
        return self.decisions or self.steps

    def reset(self, **kwargs: Any) -> Any:
        if self.steps and not self.ended:  # a wrapper above cut the game short
            self.finished.append((self.episode_return, self.length, {}, True))
        self.episode_return, self.steps, self.decisions, self.ended = 0.0, 0, 0, False
        self.games += 1
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        if len(result) != 5:
            raise EnvContractError(
                f"step returned {len(result)} values: this is the old gym API; gymnasium's returns "
                "(obs, reward, terminated, truncated, info). Wrap it with `shimmy` (pip install shimmy)"
            )
        _, reward, terminated, truncated, info = result
        self.episode_return += as_float(reward)
        self.steps += 1
        if as_bool(terminated, "terminated") or as_bool(truncated, "truncated"):
            self.ended = True
            chosen = {k: float(info[k]) for k in self.info_keys if k in info}
            self.finished.append((self.episode_return, self.length, chosen, False))
        return result


def as_float(reward: Any) -> float:
    """Returns a reward as a float: numbers, and arrays of one number.

    Raises:
        EnvContractError: for anything else.
    """
    if isinstance(reward, (float, int, np.floating, np.integer)):  # nearly always, and much faster
        return float(reward)
    try:
        array = np.asarray(reward)
    except ValueError:  # ragged
        array = np.asarray(None)
    if array.size != 1 or array.dtype.kind not in "fiub":
        raise EnvContractError(f"reward must be a number, got {reward!r:.100} ({type(reward).__name__})")
    if array.ndim:
        warnings.warn(f"reward has the shape {array.shape}; it is taken as a number", stacklevel=2)
    return float(array.reshape(()))


def as_bool(flag: Any, name: str) -> bool:
    """Returns ``terminated`` or ``truncated`` as a bool: bools, NumPy bools, 0 and 1.

    Raises:
        EnvContractError: for anything else.
    """
    if isinstance(flag, (bool, np.bool_)):
        return bool(flag)
    array = np.asarray(flag)
    if array.size == 1 and array.dtype.kind in "biu" and array.item() in (0, 1):
        return bool(array.item())
    raise EnvContractError(f"{name} must be a bool, got {flag!r:.100} ({type(flag).__name__})")


def find_recorder(env: gym.Env) -> EpisodeRecorder:
    """Returns the recorder inside a wrapped environment."""
    while isinstance(env, gym.Wrapper):
        if isinstance(env, EpisodeRecorder):
            return env
        env = env.env
    raise ValueError("an environment of a vector needs an EpisodeRecorder inside")
