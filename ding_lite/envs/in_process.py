"""``base``: environments stepped one after the other in this process.

Every episode has a seed of its own, from (run seed, stream, env, episode). An open episode is thus
saved as its number and its actions, and brought back by playing them again. A reset that a wrapper keeps
from the environment (see ``atari.EpisodicLife``) begins no new one: it is noted among the actions.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from ding_lite.envs.finite import ON_BAD_VALUE, RAISE, bad_reward, bad_row, is_finite
from ding_lite.envs.recorder import as_bool, as_float, find_recorder, refuse, reset_fault
from ding_lite.envs.spaces import ObservationBuffer, action_splitter, stacked_actions, tree_leaves, tree_map
from ding_lite.envs.vector import ALL, CLOSED, NO_ENVS, VectorEnv
from ding_lite.errors import (
    FOREIGN,
    CheckpointError,
    DingLiteError,
    EnvError,
    NotFiniteError,
    NumericsError,
    told,
)
from ding_lite.seeding import integer_seed
from ding_lite.types import Episode, Transition, Tree

AUTORESET = ("same_step", "next_step", "disabled")
RESETS = 10  # that may show a value that is not finite, one after the other


class InProcessVectorEnv(VectorEnv):
    """Steps B environments in a loop.

    Args:
        make: builds environment number i, an :class:`EpisodeRecorder` somewhere inside it.
        num_envs: B.
        seed: the run's.
        autoreset: ``"next_step"`` spends a row on each reset, as gymnasium's default does; the
            other two reset at once.
        final_of_terminated: give the last observation of terminated episodes too, for ``ignore_done``.
        index_offset: number of the first environment where these are a part of a larger vector:
            ``make``, seeds and messages count from it, rows do not.
        on_bad_value: "raise" leaves observations for the caller to check. Under the other two, none that is
            not finite is ever shown: its environment begins a new episode, and the step is not valid.
    """

    def __init__(
        self,
        make: Callable[[int], gym.Env],
        num_envs: int,
        seed: int = 0,
        autoreset: str = "same_step",
        final_of_terminated: bool = False,
        index_offset: int = 0,
        on_bad_value: str = RAISE,
    ) -> None:
        if on_bad_value not in ON_BAD_VALUE:
            raise ValueError(f"on_bad_value is one of {', '.join(ON_BAD_VALUE)}, got {on_bad_value!r}")
        if autoreset not in AUTORESET:
            raise ValueError(f"autoreset is one of {', '.join(AUTORESET)}, got {autoreset!r}")
        self.num_envs, self.seed, self.autoreset = num_envs, seed, autoreset
        self.final_of_terminated, self.index_offset = final_of_terminated, index_offset
        self.on_bad_value, self.has_fillers = on_bad_value, autoreset == "next_step"
        self.backend = f"{num_envs} environments in this process"
        self.envs: list[gym.Env] = []
        try:
            for i in range(num_envs):
                self.envs.append(_made(make, index_offset + i))
            self._check_same_spaces()
        except BaseException:
            self.close()
            raise
        self.obs_space = self.envs[0].observation_space
        self.action_space = self.envs[0].action_space
        self._recorders = [find_recorder(env) for env in self.envs]
        self._buffer = ObservationBuffer(self.obs_space, num_envs)
        self._split = action_splitter(self.action_space)
        self._stream: tuple[str | int, ...] = ()
        self._episode = [0] * num_envs  # number of the open episode
        self._actions: list[list[Any]] = [[] for _ in range(num_envs)]
        # How many actions there were at each reset that began no new game.
        self._kept_on: list[list[int]] = [[] for _ in range(num_envs)]
        self._pending_reset = np.zeros(num_envs, bool)  # NEXT_STEP: ended in the last row

    def _check_same_spaces(self) -> None:
        first, start = self.envs[0], self.index_offset
        for i, env in enumerate(self.envs, start):
            for name in ("observation_space", "action_space"):
                if getattr(env, name) != getattr(first, name):
                    raise EnvError(
                        f"env {i} has the {name} {getattr(env, name)}, env {start} {getattr(first, name)}; "
                        "all environments of a run must have the same"
                    )

    @property
    def episode_returns(self) -> np.ndarray:  # type: ignore[override]
        return np.array([recorder.episode_return for recorder in self._recorders])

    @property
    def episode_lengths(self) -> np.ndarray:  # type: ignore[override]
        return np.array([recorder.length for recorder in self._recorders])

    def reset(self, *stream: str | int) -> Tree:
        return self.begin(stream, [0] * self.num_envs)

    def begin(self, stream: tuple[str | int, ...], episodes: Sequence[int]) -> Tree:
        """Begins in each environment the episode of this number, and returns obs (B, ...)."""
        self._check_open()
        self._stream, self._sent = stream, None
        self._pending_reset[:] = False
        for i, episode in enumerate(episodes):
            self._begin_finite(i, episode, self._begin_anew)
            self._recorders[i].finished.clear()
        self._lacking = ""
        return self._buffer.tree

    def _begin_finite(self, i: int, episode: int, begin: Callable[[int, int], None]) -> None:
        """Begins an episode, or where its first observation is not finite, one of those after it."""
        for left in reversed(range(RESETS)):
            try:
                begin(i, episode)
                return
            except NotFiniteError as error:
                if not left:
                    raise NotFiniteError(
                        f"{error}; nor was it after the {RESETS - 1} resets before"
                    ) from error
                self._leave_out(i, error)
                episode, begin = self._episode[i] + 1, self._begin_anew

    def _begin_anew(self, i: int, episode: int) -> None:
        """Begins a game for certain: a wrapper that goes on with the old one does so only once."""
        games = self._recorders[i].games
        self._begin(i, episode)
        if self._recorders[i].games == games:
            self._begin(i, episode)

    def _begin(self, i: int, episode: int) -> None:
        """Resets environment ``i``: begins its game number ``episode``, or goes on with the open one."""
        before = self._episode[i], self._actions[i]
        games = self._recorders[i].games
        self._episode[i], self._actions[i] = episode, []
        try:
            result = self.envs[i].reset(seed=self._episode_seed(i))
            refuse(reset_fault(result))  # a wrapper's own, too
            self._buffer.write(i, result[0])
            self._check_row(i)
        except FOREIGN as error:
            raise self._blamed(i, error) from error
        if self._recorders[i].games > games:
            self._kept_on[i] = []
        else:
            self._episode[i], self._actions[i] = before
            self._kept_on[i].append(len(self._actions[i]))

    def _episode_seed(self, i: int) -> int:
        return integer_seed(self.seed, *self._stream, self.index_offset + i, self._episode[i])

    def step(self, action: Tree, group: slice = ALL) -> Transition:
        """Steps the environments of ``group``, of which there is one action each."""
        if self._lacking or self._sent is not None:
            raise self._cannot_step()
        envs = range(self.num_envs)[group]
        actions = self._actions_of(action, len(envs))
        reward = np.zeros(len(envs), np.float32)
        terminated, truncated = np.zeros(len(envs), bool), np.zeros(len(envs), bool)
        valid = ~self._pending_reset[group]
        cut: list[int] = []
        spoiled: list[int] = []
        final_rows: list[Tree] = []
        episodes: list[Episode] = []
        for row, (i, one) in enumerate(zip(envs, actions, strict=True)):
            if valid[row]:
                try:
                    reward[row], over, cut_here = self._step_one(i, one)
                except NotFiniteError as error:
                    if self.on_bad_value == RAISE:
                        raise
                    self._leave_out(i, error)
                    self._recorders[i].finished.clear()
                    self._begin_finite(i, self._episode[i] + 1, self._begin_anew)
                    spoiled.append(row)
                    valid[row] = False
                    continue
                if over or cut_here:
                    terminated[row], truncated[row] = over, not over
                    if not over or self.final_of_terminated:
                        cut.append(row)
                        final_rows.append(self._buffer.rows(slice(i, i + 1)))
                    if self.autoreset == "next_step":
                        self._pending_reset[i] = True
                    else:
                        self._begin_finite(i, self._episode[i] + 1, self._begin)
            else:
                self._pending_reset[i] = False
                self._begin_finite(i, self._episode[i] + 1, self._begin)
            if self._recorders[i].finished:
                episodes += [Episode(row, *one) for one in self._recorders[i].finished]
                self._recorders[i].finished.clear()
        final_obs = tree_map(lambda *rows: np.concatenate(rows), *final_rows) if cut else None
        return Transition(
            obs=tree_map(lambda leaf: leaf[group], self._buffer.tree),
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            valid=valid,
            final_obs=final_obs,
            final_env=np.array(cut) if cut else NO_ENVS,
            episodes=episodes,
            spoiled=spoiled,
        )

    def _actions_of(self, batch: Tree, count: int) -> list[Any]:
        """Returns the single actions of a batch; what is none is refused before anything is stepped."""
        try:
            actions = self._split(batch)
            if len(actions) == count:
                return actions
            found = f"{len(actions)} actions"
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):
            found = " ".join(f"{batch!r:.100}".split())
        raise EnvError(f"step got {found} for {count} environments, of the action space {self.action_space}")

    def _leave_out(self, i: int, error: NotFiniteError) -> None:
        """Counts a value that is not finite; the episode that it was in is not reported."""
        self._count_bad([str(error)])
        self._recorders[i].ended = True  # a reset reports only what is open

    def _step_one(self, i: int, action: Any) -> tuple[float, bool, bool]:
        self._actions[i].append(_kept(action))
        self._recorders[i].decisions += 1
        try:
            obs, reward, terminated, truncated, _ = self.envs[i].step(action)
            self._buffer.write(i, obs)
            number = as_float(reward)
            if fault := bad_reward(number):
                raise NotFiniteError(fault)
            self._check_row(i)
            return number, as_bool(terminated, "terminated"), as_bool(truncated, "truncated")
        except FOREIGN as error:
            raise self._blamed(i, error) from error

    def _check_row(self, i: int) -> None:
        """Refuses an observation that is not finite, where that is not left to the caller."""
        if self.on_bad_value != RAISE and (fault := bad_row(self._buffer.tree, i)):
            raise NotFiniteError(fault)

    def _blamed(self, i: int, error: BaseException) -> DingLiteError:
        """Returns the error that says in which environment, and when, ``error`` was raised."""
        said = told(error)
        if not self._actions[i]:
            where = f"{self.describe(i)}, action 'none, at reset'"
        else:
            action = self._actions[i][-1]
            where = f"{self.describe(i)}, action {action!r:.100}"
            if not is_finite(action):  # whatever came of it is not the environment's fault
                return NumericsError(
                    f"{where}: the policy's action is not finite; {said}. Try a lower "
                    "policy.learn.learning_rate"
                )
        kind = type(error) if isinstance(error, EnvError) else EnvError
        return kind(f"{where}: {said}")

    def describe(self, env: int) -> str:
        return (
            f"env {self.index_offset + env} (seed {self._episode_seed(env)}, episode {self._episode[env]}, "
            f"step {len(self._actions[env])})"
        )

    def state_dict(self) -> dict[str, Any]:
        return {
            "stream": list(self._stream),
            "pending_reset": self._pending_reset.copy(),
            "obs": tree_map(np.copy, self._buffer.tree),
            "envs": [
                {"episode": episode, "actions": stacked_actions(actions), "kept_on": list(kept_on)}
                for episode, actions, kept_on in zip(self._episode, self._actions, self._kept_on, strict=True)
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> Tree:
        self._check_open()
        if len(state["envs"]) != self.num_envs:
            raise CheckpointError(
                f"the checkpoint has {len(state['envs'])} environments, this run {self.num_envs}"
            )
        self._stream, self._sent = tuple(state["stream"]), None
        self._pending_reset = np.array(state["pending_reset"], bool)
        for i, saved in enumerate(state["envs"]):
            self._play_again(i, saved)
            self._recorders[i].finished.clear()
        same = tree_map(np.array_equal, state["obs"], self._buffer.tree)
        if not all(tree_leaves(same)):
            raise CheckpointError(
                "the open episodes could not be brought back: played again from the same seeds and "
                "actions, the environments gave other observations. They are not deterministic, or not what "
                "they were. With --override (override=True) the run goes on with new episodes"
            )
        self._lacking = ""
        return self._buffer.tree

    def _play_again(self, i: int, saved: Mapping[str, Any]) -> None:
        """Brings the open episode of environment ``i`` back, by the same calls as the first time."""
        episode = int(saved["episode"])
        self._begin_anew(i, episode)
        kept_on = [int(step) for step in saved.get("kept_on", ())]
        actions = [] if saved["actions"] is None else self._split(saved["actions"])
        for step in range(len(actions) + 1):
            for _ in range(kept_on.count(step)):
                self._begin(i, episode + 1)
            if step < len(actions):
                self._step_one(i, actions[step])

    def close(self) -> None:
        self._closed = self._lacking = CLOSED
        for env in self.envs:
            env.close()
        self.envs = []


def _made(make: Callable[[int], gym.Env], index: int) -> gym.Env:
    """Returns environment number ``index``; what its making raises says which one it was."""
    try:
        return make(index)
    except DingLiteError:
        raise
    except FOREIGN as error:
        raise EnvError(f"env {index} cannot be made: {told(error)}") from error


def _kept(action: Any) -> Any:
    """Returns a copy of an action: the environment may write into what it is given."""
    if type(action) is int:
        return action
    return action.copy() if type(action) is np.ndarray else copy.deepcopy(action)
