"""Plays one environment by gymnasium's API, and records what it returns."""

from __future__ import annotations

import copy
import math
import signal
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from ding_lite.envs.make import make_env
from ding_lite.envs.recorder import OLD_API, EpisodeRecorder, check_reset, check_step
from ding_lite.errors import FOREIGN, EnvContractError, EnvError, error_text
from ding_lite.rl.seeding import integer_seed, numpy_generator
from ding_lite.tools.env_check.finding import FAIL, Fault, Finding
from ding_lite.tools.env_check.trees import draw_legal, value_leaves
from ding_lite.trees import MASK_KEY

MORE_TIME = "Look for what it waits for; if it is only slow, give more time: --seconds N"
KEPT = 3  # number of recent observations that are checked for being overwritten by later calls


class Innermost(gym.Wrapper):
    """Counts the resets that reach the environment.

    A wrapper may answer a reset by continuing the same game, as ``episodic_life`` does.
    """

    games = 0

    def reset(self, **kwargs: Any) -> Any:
        self.games += 1
        return self.env.reset(**kwargs)


def make_bare(env_cfg: Mapping[str, Any]) -> gym.Env:
    """Makes the environment of a config without the EpisodeRecorder, which has checks of its own."""
    outermost = wrapper = gym.Wrapper(make_env(env_cfg))
    while not isinstance(wrapper.env, EpisodeRecorder):
        assert isinstance(wrapper.env, gym.Wrapper)
        wrapper = wrapper.env
    wrapper.env = Innermost(wrapper.env.env)
    return outermost.env


def games_of(env: gym.Env) -> int:
    """Returns the number of resets that have reached the environment."""
    while not isinstance(env, Innermost):
        assert isinstance(env, gym.Wrapper), "made by make_bare"
        env = env.env
    return env.games


def begin_game(env: gym.Env, seed: int) -> Any:
    """Begins a new game, with a second reset if the first continues a game; returns the observation."""
    before = games_of(env)
    obs, _ = reset_env(env, seed)
    if games_of(env) == before:
        obs, _ = reset_env(env, seed)
    return obs


def reset_env(env: gym.Env, seed: int, where: str = "") -> tuple[Any, Mapping[str, Any]]:
    """Returns what ``env.reset(seed=seed)`` returns.

    Raises:
        Fault: if it raises, or does not return (obs, info).
    """
    try:
        result = env.reset(seed=seed)
    except HangingCall as error:
        raise _fault("reset", (f"reset(seed={seed}) {error}", MORE_TIME), where) from error
    except FOREIGN as error:
        text = f"reset(seed={seed}) raised {error_text(error)}"
        is_old = isinstance(error, TypeError) and "unexpected keyword argument" in str(error)
        raise _fault("reset", (text, OLD_API if is_old else _correct(env)), where) from error
    try:
        check_reset(result)
    except EnvContractError as error:
        raise _fault("reset", (str(error), _correct(env)), where) from error
    return result


def step_env(env: gym.Env, action: Any, where: str = "") -> tuple[Any, Any, Any, Any, Any]:
    """Returns what ``env.step(action)`` returns.

    Raises:
        Fault: if it raises, or does not return five values of which the last is a dict.
    """
    try:
        result = env.step(action)
    except HangingCall as error:
        raise _fault("step", (f"step({action!r:.80}) {error}", MORE_TIME), where) from error
    except FOREIGN as error:
        text = f"step({action!r:.80}) raised {error_text(error)}"
        raise _fault("step", (text, _correct(env)), where) from error
    try:
        check_step(result)
    except EnvContractError as error:
        is_info = isinstance(result, (tuple, list)) and len(result) == 5
        raise _fault("step", (str(error), _correct(env)), where, result if is_info else ()) from error
    return result


def _fault(check: str, fault: tuple[str, str], where: str, result: Sequence[Any] = ()) -> Fault:
    """Returns the error for a fault ``(seen, advice)``."""
    seen, advice = fault
    return Fault(Finding(check, FAIL, f"{seen}{where}", f"{advice}."), result)


def _correct(env: gym.Env) -> str:
    kind = type(env.unwrapped)
    return f"Correct {kind.__module__}.{kind.__qualname__}; this call follows gymnasium's API"


def is_set(flag: Any) -> bool:
    """Returns whether a flag of any type ends an episode."""
    try:
        return bool(flag)
    except (TypeError, ValueError):
        return False


class Call(NamedTuple):
    """The result of one ``reset`` (step 0) or ``step``.

    Attributes:
        where: "episode 0 (seed 17), step 3".
        episode, step: numbers, from 0.
        obs: a copy.
        reward, terminated, truncated: as returned.
        seconds: duration of the call.
    """

    where: str
    episode: int
    step: int
    obs: Any
    reward: Any = 0.0
    terminated: Any = False
    truncated: Any = False
    seconds: float = 0.0

    @property
    def ended(self) -> bool:
        return is_set(self.terminated) or is_set(self.truncated)


class HangingCall(EnvError):
    """A call did not return in time; see :func:`interrupted_after`."""


@contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    """Interrupts what the block does after ``seconds``, such as a call of the environment that hangs.

    Only where a signal handler can be set: in the main thread, if SIGALRM has no other handler.

    Raises:
        HangingCall: in the code that runs then.
    """
    is_free = signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
    if not (is_free and threading.current_thread() is threading.main_thread()):
        yield
        return

    def interrupt(number: int, frame: Any) -> None:
        raise HangingCall(f"did not return before {seconds:g} s of checks were over")

    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


class Budget:
    """The time that the checks of one environment may take.

    Args:
        seconds: from now on; infinity: no limit.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds that are left; not below 0."""
        return max(0.0, self._end - time.monotonic())

    def share(self, part: float) -> float:
        """Returns the time (of time.monotonic) at which a part of what is left will have passed."""
        return time.monotonic() + part * self.left

    def affordable(self, wanted: int, seconds: float, part: float) -> int:
        """Returns how many of ``wanted`` things, of ``seconds`` each, a part of the time allows."""
        return wanted if self.left == math.inf else min(wanted, int(part * self.left / seconds))


class Player:
    """Plays random actions, records the calls, and watches for shared memory and side effects.

    Attributes:
        calls: the calls so far.
        seconds: that they took.
        shared: the first place where an observation shares memory with an earlier one; "" if none does.
        overwritten: the first place where a call changed an earlier observation.
        changed_action: the first place where ``step`` changed its argument.
        has_mask_in_info: whether the info of a reset has an action mask.
    """

    def __init__(self, env: gym.Env, seed: int, name: str = "play") -> None:
        self.env = env
        self.seed = seed
        self.name = name
        self.rng = numpy_generator(seed, "check", name, "action")
        self.calls: list[Call] = []
        self.seconds = 0.0
        self.shared = ""
        self.overwritten = ""
        self.changed_action = ""
        self.has_mask_in_info = False
        self._recent: deque[list[tuple[str, np.ndarray, bytes]]] = deque(maxlen=KEPT)

    def play(self, steps: int, actions: Iterable[Any] = (), until: float = math.inf) -> list[Call]:
        """Takes ``steps`` steps, the first of them with ``actions``, and returns all calls.

        Args:
            steps: to take; fewer, but at least one, if the time ends before.
            actions: the first actions; random ones follow.
            until: the time (of time.monotonic) from which on no more step is begun.

        Raises:
            Fault: if the environment breaks gymnasium's API.
        """
        first_actions = iter(actions)
        taken = 0
        episode = -1
        last: Call | None = None
        began = time.monotonic()
        while taken < steps and (not taken or time.monotonic() < until):
            if last is None or last.ended:
                episode += 1
                last = self._reset(episode)
            else:
                random_action = draw_legal(self.env.action_space, last.obs, self.rng)
                last = self._step(last, next(first_actions, random_action))
                taken += 1
            self.calls.append(last)
        self.seconds += time.monotonic() - began
        return self.calls

    def _reset(self, episode: int) -> Call:
        seed = integer_seed(self.seed, "check", self.name, episode)
        where = f"episode {episode} (seed {seed}), step 0"
        obs, info = reset_env(self.env, seed, f" ({where})")
        self.has_mask_in_info |= MASK_KEY in info
        self._watch(obs, where)
        return Call(where, episode, 0, copy.deepcopy(obs))

    def _step(self, last: Call, action: Any) -> Call:
        where = f"{last.where.rpartition(' ')[0]} {last.step + 1}"
        original = copy.deepcopy(action)
        began = time.perf_counter()
        obs, reward, terminated, truncated, _ = step_env(self.env, action, f" ({where})")
        seconds = time.perf_counter() - began
        self._watch(obs, where)
        if not self.changed_action and repr(action) != repr(original):
            self.changed_action = f"{where}: the action {original!r:.60} became {action!r:.60}"
        return Call(
            where,
            episode=last.episode,
            step=last.step + 1,
            obs=copy.deepcopy(obs),
            reward=copy.deepcopy(reward),
            terminated=terminated,
            truncated=truncated,
            seconds=seconds,
        )

    def _watch(self, obs: Any, where: str) -> None:
        """Compares the arrays of an observation with those of recent ones, and keeps references to them."""
        leaves = value_leaves(self.env.observation_space, obs)
        arrays = [(path, leaf) for path, _, leaf in leaves if isinstance(leaf, np.ndarray) and leaf.size]
        for path, old, before in (kept for arrays_before in self._recent for kept in arrays_before):
            if not self.overwritten and old.tobytes() != before:
                self.overwritten = f"the observation{path} returned before was overwritten ({where})"
            if not self.shared and any(p == path and np.shares_memory(a, old) for p, a in arrays):
                self.shared = f"the observation{path} shares its memory with an earlier one ({where})"
        self._recent.append([(path, array, array.tobytes()) for path, array in arrays])


def lengths_and_ends(calls: Iterable[Call]) -> list[tuple[int, bool, bool]]:
    """Returns ``(length, terminated, truncated)`` of each episode that has ended."""
    return [(c.step, is_set(c.terminated), is_set(c.truncated)) for c in calls if c.step and c.ended]


def declared_limit(env: gym.Env) -> int | None:
    """Returns the time limit of a TimeLimit wrapper or of the registration, or None."""
    inner = env
    while isinstance(inner, gym.Wrapper):
        if isinstance(inner, gym.wrappers.TimeLimit):
            return int(inner._max_episode_steps)
        inner = inner.env
    return env.spec.max_episode_steps if env.spec is not None else None
