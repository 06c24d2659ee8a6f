"""Records raw returns and lengths below every wrapper, and checks the results of ``reset`` and ``step``."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from traceback import walk_tb
from typing import Any

import gymnasium as gym
import numpy as np

from ding_lite.errors import LIBRARY_PREFIXES, EnvContractError, error_text

OLD_API = (
    "This is the old gym API. Let reset(self, *, seed=None, options=None) return (obs, info), and step "
    "(obs, reward, terminated, truncated, info); or wrap the environment with `shimmy` (pip install shimmy)"
)
Fault = tuple[str, str]  # what is wrong, and what to do


class EpisodeRecorder(gym.Wrapper):
    """The innermost wrapper: records the raw return and the length of each full game.

    Attributes:
        episode_return: undiscounted sum of the raw rewards of the current game.
        steps: steps of the environment in this game.
        decisions: steps of the outermost wrapper in this game, counted by the vector environment.
        ended: whether the current game has ended.
        games: number of resets that have reached the environment.
        finished: (return, length, info, cut) of the games that ended and were not read yet.

    Raises:
        EnvContractError: if the environment declares no spaces; from ``reset`` and ``step``, if it does not
            follow gymnasium's API.
    """

    def __init__(self, env: gym.Env, info_keys: tuple[str, ...] = ()) -> None:
        super().__init__(env)
        check_spaces(env)
        self.info_keys = info_keys
        self._clear()
        self.games = 0
        self.finished: list[tuple[float, int, dict[str, float], bool]] = []

    def _clear(self) -> None:
        self.episode_return = 0.0
        self.steps = 0
        self.decisions = 0
        self.ended = False
        self._last_info: Mapping[str, Any] = {}

    @property
    def is_open(self) -> bool:
        """Whether a game has begun and not ended."""
        return self.steps > 0 and not self.ended

    @property
    def length(self) -> int:
        """Number of decisions, which excludes skipped frames; steps if no decisions were counted."""
        return self.decisions or self.steps

    def reset(self, **kwargs: Any) -> Any:
        if self.is_open:  # a wrapper above cut the game short
            self.finished.append((self.episode_return, self.length, self._chosen_info(), True))
        self._clear()
        self.games += 1
        try:
            result = self.env.reset(**kwargs)
        except TypeError as error:
            if fault := signature_fault(error):
                raise EnvContractError(". ".join(fault)) from error
            raise
        refuse(reset_fault(result))
        return result

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        if type(result) is not tuple or len(result) != 5 or type(result[4]) is not dict:  # fast common case
            refuse(step_fault(result))
        obs, reward, terminated, truncated, info = result
        number = as_float(reward)
        if getattr(reward, "ndim", 0):  # wrappers get a number
            result = obs, number, terminated, truncated, info
        self._last_info = info
        self.episode_return += number
        self.steps += 1
        over = (
            terminated if type(terminated) is bool else as_bool(terminated, "terminated")
        )  # usually no call
        cut = truncated if type(truncated) is bool else as_bool(truncated, "truncated")
        if over or cut:
            self.ended = True
            self.finished.append((self.episode_return, self.length, self._chosen_info(), False))
        return result

    def _chosen_info(self) -> dict[str, float]:
        info = self._last_info
        return {key: info_number(key, info[key]) for key in self.info_keys if key in info}


def refuse(fault: Fault | None, where: str = "") -> None:
    """Raises an EnvContractError if there is a fault; ``where`` begins its message."""
    if fault:
        raise EnvContractError(where + ". ".join(fault))


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
            problem = "there is none" if space is None else f"it is {space!r:.60} ({type(space).__name__})"
            raise EnvContractError(
                f"{type(env.unwrapped).__name__}.{name}: {problem}. Define it in the class or in __init__, "
                "as one of gymnasium.spaces, such as Box(-1.0, 1.0, (2,)) or Discrete(3)"
            )


def signature_fault(error: TypeError) -> Fault | None:
    """Returns the fault if ``reset`` does not accept the arguments of gymnasium; None for any other error."""
    message = error_text(error)
    if "reset() got an unexpected keyword argument" not in message:
        return None
    return f"reset does not take the arguments that gymnasium passes: {message}", OLD_API


def unpacking_fault(error: BaseException) -> str:
    """Returns which wrapper gave a wrapper of a library another number of values than it unpacks, or ""."""
    if type(error) is not ValueError or "values to unpack" not in str(error):
        return ""
    *_, (frame, _) = walk_tb(error.__traceback__)
    outer, call = frame.f_locals.get("self"), frame.f_code.co_name
    is_library = frame.f_code.co_filename.startswith(LIBRARY_PREFIXES)  # else the message has the line
    if not (is_library and isinstance(outer, gym.Wrapper) and call in ("reset", "step")):
        return ""
    inner, around = type(outer.env).__name__, type(outer).__name__
    return f"{call} of {inner}, which {around} wraps, returned too many or too few values. {OLD_API}"


def reset_fault(result: Any) -> Fault | None:
    """Returns the fault of a result of ``reset``; None if it is (obs, info)."""
    if isinstance(result, tuple) and len(result) == 2:
        return _info_fault("reset", result[1])
    kind = f"a tuple of {len(result)}" if isinstance(result, tuple) else f"one {type(result).__name__}"
    return f"reset returned {kind}, not (obs, info)", "Let it return both" if result is None else OLD_API


def step_fault(result: Any) -> Fault | None:
    """Returns the fault of a result of ``step``; None if it is five values with an info."""
    if not isinstance(result, (tuple, list)):
        problem = f"step returned one {type(result).__name__}, not 5 values"
    elif len(result) != 5:
        problem = f"step returned {len(result)} values, not 5"
    else:
        return _info_fault("step", result[4])
    if isinstance(result, tuple) and len(result) == 4:
        return problem, OLD_API
    return problem, "Let it return (obs, reward, terminated, truncated, info)"


def _info_fault(call: str, info: Any) -> Fault | None:
    if isinstance(info, Mapping):
        return None
    return f"{call}'s info is a {type(info).__name__}", "Return a dict as info; it may be empty"


def as_float(reward: Any) -> float:
    """Returns a reward, a number or an array of one number, as a float.

    Raises:
        EnvContractError: for anything else.
    """
    try:
        if isinstance(reward, (float, int, np.floating, np.integer)):  # the common case, without an array
            return float(reward)
        array = np.asarray(reward)
    except (ValueError, RuntimeError, OverflowError):  # ragged, a tensor with a gradient, 10**400
        array = np.asarray(None)
    if array.size != 1 or array.dtype.kind not in "fiub":
        raise EnvContractError(f"reward must be a number, got {reward!r:.100} ({type(reward).__name__})")
    if array.ndim:
        warnings.warn(
            f"a reward has the shape {array.shape}; it is used as a number: return float(reward)",
            stacklevel=2,
        )
    return float(array.reshape(()))


def info_number(key: str, value: Any) -> float:
    """Returns the value of a key of ``env.info_keys``.

    Raises:
        EnvContractError: if it is not a number.
    """
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise EnvContractError(
            f"info[{key!r}] is {value!r:.60}, and env.info_keys takes numbers only: leave out this key"
        ) from error


def as_bool(flag: Any, name: str) -> bool:
    """Returns ``terminated`` or ``truncated``, a bool, a NumPy bool, 0 or 1, as a bool.

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
    """Returns the recorder of a wrapped environment.

    Raises:
        ValueError: if it has none.
    """
    while isinstance(env, gym.Wrapper):
        if isinstance(env, EpisodeRecorder):
            return env
        env = env.env
    raise ValueError("the environment has no EpisodeRecorder: wrap it in one before other wrappers")
