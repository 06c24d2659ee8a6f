"""Records raw returns below every wrapper, and lengths, and checks the results of ``reset`` and ``step``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import gymnasium as gym
import numpy as np

from ding_lite.envs.vector import Episode, info_numbers
from ding_lite.errors import EnvContractError, error_text
from ding_lite.trees import children

OLD_API = (
    "This is the old gym API. Let reset(self, *, seed=None, options=None) return (obs, info), and step "
    "(obs, reward, terminated, truncated, info); or wrap the environment with `shimmy` (pip install shimmy)"
)
# How the numbers of an episode's steps become one number.
TOTALS: dict[str, Callable[[Sequence[float]], float]] = {"sum": sum, "mean": fmean, "max": max}


@dataclass
class Game:
    """The open episode of one raw environment, from one of its resets to the next.

    Wrappers may end the agent's episode earlier, such as at a lost life; the game goes on.

    Attributes:
        number: number of the episode; with the environment's number it decides the seed.
        actions: what the outermost wrapper received so far. With the seed they restore the game.
        episode_return: undiscounted sum of the raw rewards.
        steps: steps of the raw environment, including steps that wrappers add, such as skipped frames.
        ended: whether the environment has ended the game.
        cut: whether a wrapper has ended the game.
        info: the info of the last reset or step.
        terms: numbers of each step's info, by their keys.
    """

    number: int = 0
    actions: list[Any] = field(default_factory=list)
    episode_return: float = 0.0
    steps: int = 0
    ended: bool = False
    cut: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)
    terms: dict[str, list[float]] = field(default_factory=dict)

    @property
    def is_open(self) -> bool:
        """Whether the game has been stepped and has not ended."""
        return self.steps > 0 and not self.ended

    @property
    def length(self) -> int:
        """Number of the agent's actions, which excludes skipped frames."""
        return len(self.actions)


class EpisodeRecorder(gym.Wrapper):
    """The innermost wrapper: records the raw return and the length of each full game.

    Args:
        env: to wrap.
        info_keys: keys of the last info, or for each key what is recorded: "last" or one of ``TOTALS``.

    Attributes:
        game: the open game; its ``actions`` are appended by the vector environment.
        next_number: number of the game that the next reset begins.
        finished: the games that ended since the last call of :meth:`episodes`.

    Raises:
        EnvContractError: if the environment declares no spaces; from ``reset`` and ``step``, if it does not
            follow gymnasium's API.
    """

    def __init__(self, env: gym.Env, info_keys: Sequence[str] | Mapping[str, str] = ()) -> None:
        super().__init__(env)
        check_spaces(env)
        rules = info_keys if isinstance(info_keys, Mapping) else dict.fromkeys(info_keys, "last")
        self._last = [key for key, rule in rules.items() if rule == "last"]
        self._totals = {key: TOTALS[rule] for key, rule in rules.items() if rule != "last"}
        self.game = Game()
        self.next_number = 0
        self.finished: list[Game] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if self.game.is_open:  # a wrapper above cut the game short
            self.game.cut = True
            self.finished.append(self.game)
        self.game = Game(self.next_number)
        try:
            result = self.env.reset(seed=seed, **({} if options is None else {"options": options}))
        except TypeError as error:
            if "unexpected keyword argument" in str(error):
                raise EnvContractError(f"{error_text(error)}. {OLD_API}") from error
            raise
        check_result("reset", result, 2)
        self.game.info = result[1]
        return result

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        check_result("step", result, 5)
        obs, reward, terminated, truncated, info = result
        game, number = self.game, as_float(reward)
        if getattr(reward, "ndim", 0):  # wrappers receive a number
            result = obs, number, terminated, truncated, info
        game.episode_return += number
        game.info = info
        if self._totals:
            for key, number in info_numbers(info, self._totals).items():
                game.terms.setdefault(key, []).append(number)
        game.steps += 1
        if as_bool(terminated, "terminated") | as_bool(truncated, "truncated"):
            game.ended = True
            self.finished.append(game)
        return result

    def episodes(self, env: int) -> list[Episode]:
        """Returns the games that ended since the last call as episodes of environment number ``env``."""
        games, self.finished, episodes = self.finished, [], []
        for game in games:
            totals = {key: total(game.terms[key]) for key, total in self._totals.items() if key in game.terms}
            info = info_numbers(game.info, self._last) | totals
            episodes.append(Episode(env, game.episode_return, game.length, info, game.cut))
        return episodes


def check_spaces(env: Any, prefix: str = "") -> None:
    """Refuses an environment that does not declare its spaces.

    Args:
        env: the environment.
        prefix: of the names of the spaces: "single_" for a vector environment.

    Raises:
        EnvContractError: if a space is missing.
    """
    for name in (f"{prefix}observation_space", f"{prefix}action_space"):
        space = getattr(env, name, None)
        if not isinstance(space, gym.Space):
            raise EnvContractError(
                f"{type(getattr(env, 'unwrapped', env)).__name__}.{name} is {space!r:.60}; define it in the "
                "class or in __init__ as one of gymnasium.spaces, such as Box(-1.0, 1.0, (2,)) or Discrete(3)"
            )
        _check_branches(space, name)


def _check_branches(space: gym.Space, where: str) -> None:
    branches = children(space)
    if branches is not None and not (branches and all(isinstance(name, str) for name in branches)):
        raise EnvContractError(f"{where} is {space}: a Dict needs parts, and strings as their names")
    for name, part in (branches or {}).items():
        _check_branches(part, f"{where}[{name!r}]")


def check_result(call: str, result: Any, count: int) -> None:
    """Raises an EnvContractError if a call did not return ``count`` values, the last one an info."""
    is_sequence = isinstance(result, (tuple, list))
    if not is_sequence or len(result) != count:
        kind = f"{len(result)} values" if is_sequence else f"one {type(result).__name__}"
        raise EnvContractError(f"{call} returned {kind}, not {count}. {OLD_API}")
    if not isinstance(result[-1], Mapping):
        kind = type(result[-1]).__name__
        raise EnvContractError(f"{call}'s info is a {kind}. Return a dict; it may be empty")


def as_float(reward: Any) -> float:
    """Returns a reward, a number or an array of one number, as a float.

    Raises:
        EnvContractError: for anything else.
    """
    if isinstance(reward, (float, int, np.floating, np.integer)):  # the common case, without an array
        return float(reward)
    try:
        return float(np.asarray(reward).item())
    except (TypeError, ValueError, RuntimeError) as error:
        raise EnvContractError(f"reward must be a number, got {reward!r:.100}: {error}") from error


def as_bool(flag: Any, name: str) -> bool:
    """Returns ``terminated`` or ``truncated``, a bool, a NumPy bool, 0 or 1, as a bool.

    Raises:
        EnvContractError: for anything else.
    """
    if type(flag) is bool:  # the common case, without an array
        return flag
    array = np.asarray(flag)
    if array.size == 1 and array.dtype.kind in "biu" and array.item() in (0, 1):
        return bool(array.item())
    raise EnvContractError(f"{name} must be a bool, got {flag!r:.100} ({type(flag).__name__})")
