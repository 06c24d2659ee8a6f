"""The common interface of vector environments, on every backend.

    obs = envs.reset("collect")
    while True:
        transition = envs.step(action)      # a Transition, see envs.transition
        obs = transition.obs                # after an end: of the new episode (NEXT_STEP: one row later)

Environments reset by themselves after an episode's end. gymnasium's autoreset modes NEXT_STEP, SAME_STEP and
DISABLED give the same valid rows. Under NEXT_STEP the reset takes a row of its own, which is not valid. The
row of an environment that was replaced with its worker, or whose step gave a value that is not finite, is not
valid either: that step does not count, and the row before it is the last of its episode.

A vector may have several ``groups``. One group steps while the policy acts on another:

    envs.send(action, group)                # returns at once
    transition = envs.receive(group)        # of the rows envs.groups[group]
"""

from __future__ import annotations

import copy
import enum
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import gymnasium as gym
import numpy as np

from ding_lite.envs.bad_values import RAISE
from ding_lite.envs.transition import Transition
from ding_lite.errors import FOREIGN, EnvContractError, EnvError, error_text, is_of_signal
from ding_lite.trees import Tree

NO_ENVS = np.zeros(0, np.int64)
ALL = slice(None)
CLOSED = "these environments have been closed; make them anew"


class Status(enum.Enum):
    """Whether a vector environment can be stepped."""

    NOT_RESET = enum.auto()
    READY = enum.auto()
    INTERRUPTED = enum.auto()  # a call failed or was interrupted, and its result is lost
    CLOSED = enum.auto()


PROBLEMS = {
    Status.NOT_RESET: "these environments have not been reset yet",
    Status.INTERRUPTED: "the last call failed or was interrupted: its result is lost",
}


def warn(line: str) -> None:
    """Shows a line as a RuntimeWarning."""
    warnings.warn(line, RuntimeWarning, stacklevel=2)


def close_each(envs: Mapping[str, Any], say: Callable[[str], None]) -> None:
    """Closes environments by their names. One whose ``close`` raises is reported, and the others follow."""
    for name, env in envs.items():
        try:
            env.close()
        except FOREIGN as error:
            if is_of_signal(error):
                raise
            say(f"{name}: close raised {error_text(error)}")


def call_method(env: Any, name: str, args: Sequence[Any], where: str) -> Any:
    """Calls a method of an environment or of one of its wrappers, and returns its result.

    Args:
        env: the environment, or a vector of environments.
        name: of the method.
        args: of the call.
        where: the environment, for messages.

    Raises:
        EnvContractError: if there is no such method.
        EnvError: if it raises; an EnvError that it raises keeps its kind.
    """
    try:
        method = _attribute(env, name)
        if callable(method):
            return method(*args)
    except (*FOREIGN, KeyboardInterrupt) as error:
        if is_of_signal(error):
            raise
        kind = type(error) if isinstance(error, EnvError) else EnvError
        raise kind(f"{where}, method {name}: {error_text(error)}") from error
    raise EnvContractError(f"{where}: {type(env.unwrapped).__name__} has no method {name!r}")


def _attribute(env: Any, name: str) -> Any:
    """Returns an attribute of an environment or of one of its wrappers; None if there is none."""
    try:
        return env.get_wrapper_attr(name) if isinstance(env, gym.Env) else getattr(env, name)
    except AttributeError:
        return None


def _unsaveable(value: Any) -> str:
    """Returns the type of a part of ``value`` that a checkpoint cannot hold, or "" if there is none."""
    if isinstance(value, Mapping):
        return next((found for key in value for found in map(_unsaveable, (key, value[key])) if found), "")
    if isinstance(value, (list, tuple)):
        return next(filter(None, map(_unsaveable, value)), "")
    is_array = isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "fiub"
    if value is None or isinstance(value, (bool, int, float, str)) or is_array or hasattr(value, "detach"):
        return ""
    return type(value).__name__


def check_same_spaces(
    env: int, spaces: tuple[gym.Space, gym.Space], first: int, expected: tuple[gym.Space, gym.Space]
) -> None:
    """Refuses environment number ``env`` if it has other spaces than environment number ``first``.

    Args:
        env, first: numbers of two environments of a run.
        spaces, expected: their observation space and action space.

    Raises:
        EnvError: naming both environments and both spaces.
    """
    for name, space, other in zip(("observation_space", "action_space"), spaces, expected, strict=True):
        if space != other:
            raise EnvError(
                f"env {env} has the {name} {space}, env {first} {other}; all environments of a run must have "
                "the same"
            )


class VectorEnv(ABC):
    """B environments of one kind.

    Attributes:
        num_envs: B.
        obs_space, action_space: of one environment.
        episode_returns, episode_lengths: (B,) of the open episodes, recorded below every wrapper.
        backend: a one-line description of what steps the environments.
        index_offset: number of the first environment, if these are a part of a larger vector.
        groups: the rows of each group; the environments of a group step together.
        busy_cores: number of cores that the environments use while the policy acts.
        has_fillers: whether the row after an episode's end is a reset whose action is discarded.
        restorable: whether ``load_state_dict`` can restore open episodes.
        restarts: number of workers that were lost and replaced.
        cut_steps: number of steps of the episodes that were lost with them.
        on_bad_value: what happens at a value that is not finite: "raise" or "reset_env".
        bad_values: number of values that ended an episode, or were in the first observation of an episode,
            because they were not finite.
        say: called with one line of text after a restart and after the first bad value; warns by default.
        calls: the last arguments of each method that :meth:`call` has called, by its name.
        explain: called with the traceback of a worker that is replaced, if there is one; ignored by default.
    """

    num_envs: int
    obs_space: gym.Space
    action_space: gym.Space
    episode_returns: np.ndarray
    episode_lengths: np.ndarray
    backend: str
    index_offset: int = 0
    groups: tuple[slice, ...] = (ALL,)
    busy_cores: int = 0
    has_fillers: bool = False
    restorable: bool = True
    restarts: int = 0
    cut_steps: int = 0
    on_bad_value: str = RAISE
    bad_values: int = 0
    say: Callable[[str], None] = staticmethod(warn)
    explain: Callable[[str], None] = staticmethod(lambda traceback: None)
    calls: Mapping[str, Sequence[Any]] = MappingProxyType({})
    _status: Status = Status.NOT_RESET
    _sent_action: Tree | None = None  # the action of a step that was sent and not received

    @abstractmethod
    def reset(self, *stream: str | int) -> Tree:
        """Begins a new episode in every environment and returns their observations (B, ...).

        Discards steps that were sent and not received.

        Args:
            stream: names the random stream that seeds the episodes, such as ``"evaluate", 3``.
        """

    @abstractmethod
    def step(self, action: Tree) -> Transition:
        """Steps all environments.

        Args:
            action: tree of (B, ...), in the form that the environments take.

        Raises:
            EnvError: if the environments are closed or have not been reset, if a step was sent and not
                received, or if an environment raised.
        """

    def send(self, action: Tree, group: int = 0) -> None:
        """Begins a step of the environments of one group.

        Groups are received in the order in which they were sent. A group can be sent again once it was
        received. Backends without workers run the step in ``receive``.
        """
        self._check_ready()
        if self._sent_action is not None:
            raise self._already_sent(group)
        self._sent_action = action

    def receive(self, group: int = 0) -> Transition:
        """Waits for the end of the step that was sent to this group and returns its result."""
        self._check_ready()
        if self._sent_action is None:
            raise self._not_sent(group)
        action, self._sent_action = self._sent_action, None
        return self.step(action)

    def call(self, name: str, *args: Any) -> list[Any]:
        """Calls a method of every environment, such as one that sets its difficulty, and returns the results.

        No environment may be stepping. Workers that are replaced and open episodes that are restored get the
        calls again, at the same steps.

        Args:
            name: of a method of the environment or of one of its wrappers; of a gymnasium vector environment
                its own, which is called once.
            args: numbers, text, arrays, and lists and dicts of them; the collector saves them.

        Raises:
            EnvContractError: if there is no such method, an argument cannot be saved, or the result cannot be
                sent from a worker.
            EnvError: if it raises. The environments can be used further after both.
        """
        self._check_open()
        if self._sent_action is not None:
            raise self._cannot_step()
        if found := _unsaveable(args):
            raise EnvContractError(
                f"call({name!r}, ...): an argument is or has a {found}, which cannot be saved with the run; "
                "pass numbers, text, arrays, and lists and dicts of them"
            )
        results = self._call(name, args)
        others = {other: of_other for other, of_other in self.calls.items() if other != name}
        self.calls = {**others, name: copy.deepcopy(args)}  # in the order of the last calls
        return results

    def open_info(self, env: int) -> dict[str, float]:
        """Returns the numbers that ``env.info_keys`` takes from the last info of an open episode."""
        return {}

    def saved_calls(self) -> dict[str, list[Any]]:
        """Returns the calls for a checkpoint."""
        return {name: list(args) for name, args in self.calls.items()}

    def repeat_calls(self, calls: Mapping[str, Sequence[Any]]) -> None:
        """Makes the calls of a checkpoint, in their order."""
        for name, args in calls.items():
            self.call(name, *args)

    @abstractmethod
    def _call(self, name: str, args: Sequence[Any]) -> list[Any]:
        """Calls a method of every environment."""

    def _check_open(self) -> None:
        """Raises an EnvError if the environments are closed."""
        if self._status is Status.CLOSED:
            raise self._cannot_step()

    def _check_ready(self) -> None:
        """Raises an EnvError if the environments cannot be stepped."""
        if self._status is not Status.READY:
            raise self._cannot_step()

    def _check_idle(self) -> None:
        """Raises an EnvError if the environments cannot be stepped, or a step was sent and not received."""
        if self._status is not Status.READY or self._sent_action is not None:
            raise self._cannot_step()

    def _cannot_step(self) -> EnvError:
        if self._status is Status.CLOSED:
            return EnvError(CLOSED)
        problem = PROBLEMS.get(self._status, "a step that was sent has not been received")
        return EnvError(f"{problem}: reset() or load_state_dict() must be called first")

    @staticmethod
    def _already_sent(group: int) -> EnvError:
        return EnvError(f"group {group} has been sent a step already: receive({group}) must be called first")

    @staticmethod
    def _not_sent(group: int) -> EnvError:
        return EnvError(f"group {group} has been sent no step, or another group was sent one before it")

    def describe(self, env: int) -> str:
        """Returns the number of an environment and its current episode and step, for messages."""
        return f"env {self.index_offset + env} (step {int(self.episode_lengths[env])})"

    def _count_bad_values(self, messages: Sequence[str]) -> None:
        """Counts values that are not finite, and reports the first one of the run."""
        if messages and not self.bad_values:
            self.say(
                f"{messages[0]}. Its episode ends before this step, and so does every later episode with "
                f"such a value (env.on_bad_value={self.on_bad_value!r}); in training, the metric "
                "collect/bad_values counts them"
            )
        self.bad_values += len(messages)

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
