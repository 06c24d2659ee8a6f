"""The common interface of vector environments, on every backend.

    obs = envs.reset("collect")
    while True:
        transition = envs.step(action)
        obs = transition.obs                # after an episode's end: of the new episode

Environments reset by themselves after an episode's end. A vector may have several ``groups``; one group
steps while the policy acts on another:

    envs.send(action, group)                # returns at once
    transition = envs.receive()             # in the order of sending; of the rows envs.groups[group]

Shapes: B envs, K episodes with a final observation.
"""

from __future__ import annotations

import contextlib
import copy
import signal
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from ding_lite.errors import FOREIGN, EnvContractError, EnvError, error_text
from ding_lite.rl.seeding import integer_seed
from ding_lite.trees import Tree

RECENT_EPISODES = 100  # number of recent episodes that training metrics are averaged over
NO_ENVS = np.zeros(0, np.int64)
NOTES = ("notes",)  # the random stream of the resets of :meth:`VectorEnv.notes`
ALL = slice(None)


@contextlib.contextmanager
def signals_kept() -> Iterator[None]:
    """Restores the handlers of SIGINT and SIGTERM after the block; a run saves its state in them.

    Ray and some simulators replace them, possibly in C, where Python does not see it.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            # ValueError: not in the main thread. TypeError: the handler was set in C.
            with contextlib.suppress(ValueError, TypeError):
                signal.signal(number, handler)


class Episode(NamedTuple):
    """One finished episode of one environment."""

    env: int
    episode_return: float  # undiscounted sum of the rewards, below every wrapper
    length: int  # actions of the policy
    info: dict[str, float]
    cut: bool = False  # ended by a wrapper, such as a configured time limit; the game itself had not ended


class Transition(NamedTuple):
    """The result of one step of B environments.

    ``obs`` may be overwritten by the next step of any environment of the vector. Environments are numbered by
    their rows in this transition, also in ``episodes``; in the transition of a group they count from 0.

    Shapes:
        obs: (B, ...), what the policy acts on next; after an episode's end, the first observation of the new
            episode. In gymnasium's autoreset mode NEXT_STEP, which some native vectors have, it is the last
            observation of the old episode: the next action is discarded, and that row is not valid
        reward: (B,) float32
        terminated, truncated: (B,) bool, never both
        valid: (B,) bool, False where nothing was stepped: the row is a reset (NEXT_STEP), or its worker was
            replaced: its open episode is lost, and ended with the previous row
        final_obs: (K, ...), the true last observations of the truncated episodes of the environments
            ``final_env``; None if K is 0
        final_env: (K,), rows of these environments
    """

    obs: Tree
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    valid: np.ndarray
    final_obs: Tree | None
    final_env: np.ndarray
    episodes: list[Episode]


def warn(line: str) -> None:
    """Shows a line as a RuntimeWarning."""
    warnings.warn(line, RuntimeWarning, stacklevel=2)


def info_numbers(info: Mapping[str, Any], keys: Iterable[str]) -> dict[str, float]:
    """Returns the numbers of an info for these ``env.info_keys``; warns of values that are not numbers."""
    numbers = {}
    for key in keys:
        try:
            if key in info:
                numbers[key] = float(info[key])
        except (TypeError, ValueError):
            warn(f"info[{key!r}] is {info[key]!r:.60}, and env.info_keys takes numbers: it is left out")
    return numbers


class VectorEnv(ABC):
    """B environments of one kind.

    Attributes:
        num_envs: B.
        seed: of the run.
        obs_space, action_space: of one environment.
        action_maps: how its wrappers map actions, the outermost first; see ``wrappers.action_maps``.
        episode_returns, episode_lengths: (B,) of the open episodes, as in :class:`Episode`.
        backend: a one-line description of what steps the environments.
        index_offset: number of the first environment, if these are a part of a larger vector. Seeds and
            messages count from it; rows count from 0.
        groups: the rows of each group; the environments of a group step together.
        busy_cores: number of cores that they use while the policy acts.
        has_fillers: whether the row after an episode's end is a reset whose action is discarded.
        restorable: whether ``load_state_dict`` can restore open episodes.
        seed_every: whether each reset has a seed of its own, as ``env.seed_resets`` says.
        restarts: number of workers that were lost and replaced.
        say: called with one line of text after a restart; warns by default.
        explain: called with a traceback of an environment, to log it; ignored by default.
        calls: the last arguments of each method that :meth:`call` has called, by its name.
        advice: last part of the message of an environment's exception.
    """

    num_envs: int
    seed: int
    obs_space: gym.Space
    action_space: gym.Space
    action_maps: Sequence[Any] = ()
    episode_returns: np.ndarray
    episode_lengths: np.ndarray
    backend: str
    index_offset: int = 0
    groups: tuple[slice, ...] = (ALL,)
    busy_cores: int = 0
    has_fillers: bool = False
    restorable: bool = True
    seed_every: bool = True
    restarts: int = 0
    say: Callable[[str], None] = staticmethod(warn)
    explain: Callable[[str], None] = staticmethod(lambda traceback: None)
    calls: Mapping[str, Sequence[Any]] = MappingProxyType({})
    advice: str = ""
    _is_ready: bool = False  # False before the first reset, and after a call that failed
    _sent_action: Tree | None = None
    _stream: tuple[str | int, ...] = ()  # of the last reset

    @abstractmethod
    def notes(self) -> dict[str, str]:
        """Returns what may impair training, as sentences by short names; a run and check-env print them.

        Environment 0 is reset up to four times; :meth:`reset` must follow.
        """

    @abstractmethod
    def reset(self, *stream: str | int) -> Tree:
        """Begins a new episode in every environment and returns their observations (B, ...).

        Args:
            stream: names the random stream that seeds the episodes, such as ``"evaluate", 3``.
        """

    @abstractmethod
    def step(self, action: Tree) -> Transition:
        """Steps all environments.

        Args:
            action: tree of (B, ...), in the form that the environments take.

        Raises:
            EnvError: if an environment raised, or a reset must come first.
        """

    def send(self, action: Tree, group: int = 0) -> None:
        """Begins a step of the environments of one group; backends without workers run it in ``receive``."""
        self._sent_action = action

    def receive(self) -> Transition:
        """Returns the result of the step that was sent; groups are received in the order of sending."""
        action, self._sent_action = self._sent_action, None
        return self.step(action)

    def call(self, name: str, *args: Any) -> list[Any]:
        """Calls a method of every environment, such as one that sets its difficulty, and returns the results.

        No environment may be stepping. The last call of each method is repeated to workers that are replaced,
        and in a resumed run, which then begins new episodes.

        Args:
            name: of a method of the environment or of one of its wrappers.
            args: numbers, text, arrays, and lists and dicts of them: the collector saves them.

        Raises:
            EnvContractError: if there is no such method, or it raises. A reset must follow.
        """
        results = self._call(name, args)
        others = {other: arguments for other, arguments in self.calls.items() if other != name}
        self.calls = {**others, name: list(copy.deepcopy(args))}  # in the order of the last calls
        return results

    def repeat_calls(self, calls: Mapping[str, Sequence[Any]]) -> None:
        """Repeats the calls of a checkpoint, in their order."""
        for name, args in calls.items():
            self.call(name, *args)

    @abstractmethod
    def _call(self, name: str, args: Sequence[Any]) -> list[Any]:
        """Calls a method of every environment."""

    def describe(self, env: int) -> str:
        """Returns the number of an environment and its current episode and step, for messages."""
        return f"env {self.index_offset + env} (step {int(self.episode_lengths[env])})"

    def _seed_of(self, env: int, episode: int) -> int:
        """Returns the seed of an episode."""
        number = episode if self.seed_every else 0
        return integer_seed(self.seed, *self._stream, self.index_offset + env, number)

    def _description(self, env: int, episode: int, step: int) -> str:
        seed = self._seed_of(env, episode)
        return f"env {self.index_offset + env} (seed {seed}, episode {episode}, step {step})"

    def _located(self, where: str, error: BaseException) -> EnvError:
        """Returns an error that says in which environment and call ``error`` was raised."""
        if isinstance(error, EnvError):
            return type(error)(f"{where}: {error_text(error)}")
        return EnvError(f"{where}: {error_text(error)}{self.advice}")

    def _check_ready(self) -> None:
        if not self._is_ready:
            raise EnvError(
                "reset these environments first: they are new or closed, or their last call failed"
            )

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the open episodes, for ``load_state_dict``."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> Tree:
        """Restores the open episodes and returns their current observations (B, ...).

        Raises:
            CheckpointError: if they cannot be restored.
        """

    @abstractmethod
    def close(self) -> None:
        """Frees all resources; further calls do nothing."""


def close_each(envs: Iterable[tuple[str, Any]], say: Callable[[str], None]) -> None:
    """Closes ``(name, environment)`` pairs; reports a ``close`` that raises, and goes on."""
    for name, env in envs:
        try:
            env.close()
        except FOREIGN as error:
            say(f"{name}: close raised {error_text(error)}")


def call_method(env: Any, name: str, args: Sequence[Any], where: str) -> Any:
    """Calls a method of an environment or of one of its wrappers, and returns its result.

    Args:
        env: the environment, or a vector of environments.
        name: of the method.
        args: of the call.
        where: the environment, for messages.

    Raises:
        EnvContractError: if there is no such method, or it raises.
    """
    get = env.get_wrapper_attr if isinstance(env, gym.Env) else lambda name: getattr(env, name)
    try:
        return get(name)(*args)
    except FOREIGN as error:
        raise EnvContractError(f"{where}, method {name}: {error_text(error)}") from error


def common_spaces(
    spaces: Sequence[tuple[int, tuple[gym.Space, gym.Space]]],
) -> tuple[gym.Space, gym.Space]:
    """Returns the observation space and the action space that all environments have.

    Args:
        spaces: the numbers of environments, and their spaces.

    Raises:
        EnvError: if an environment has other spaces than the first; the message names both.
    """
    first, expected = spaces[0]
    for env, actual in spaces:
        if actual != expected:
            raise EnvError(f"env {env} has other spaces than env {first}: {actual} and {expected}")
    return expected
