"""``base``: steps environments one after the other in this process.

Every episode has its own seed, derived from (run seed, stream, env, episode). An open episode is therefore
saved as its number and its actions, and restored by playing the actions again. A reset that a wrapper does
not pass on to the environment (see ``atari.EpisodicLife``) begins no new game; its position among the actions
is saved.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np

from ding_lite.envs.bad_values import ON_BAD_VALUE, RAISE, action_is_finite, bad_reward, bad_row
from ding_lite.envs.recorder import (
    Fault,
    as_bool,
    as_float,
    find_recorder,
    refuse,
    reset_fault,
    step_fault,
    unpacking_fault,
)
from ding_lite.envs.spaces import ObservationBuffer, split_actions, stack_actions
from ding_lite.envs.transition import Episode, Transition
from ding_lite.envs.vector import (
    ALL,
    NO_ENVS,
    Status,
    VectorEnv,
    call_method,
    check_same_spaces,
    close_each,
)
from ding_lite.errors import (
    FOREIGN,
    CheckpointError,
    DingLiteError,
    EnvError,
    NotFiniteError,
    NumericsError,
    error_text,
    is_of_signal,
)
from ding_lite.rl.seeding import integer_seed
from ding_lite.trees import Tree, map_tree, to_tree, tree_leaves

AUTORESET = ("same_step", "next_step", "disabled")
MAX_RESETS = 10  # resets in a row whose first observation may be not finite


@dataclass
class _Game:
    """The open game of one environment: what it is restored from."""

    episode: int = 0  # its number, which names its seed
    actions: list[Any] = field(default_factory=list)
    kept_on: list[int] = field(default_factory=list)  # the number of actions before each reset that kept it
    reward: float = 0.0  # the sum so far, above all wrappers
    # What call() had called before it, and then: (number of actions before, method, arguments).
    calls_before: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    calls: list[tuple[int, str, Sequence[Any]]] = field(default_factory=list)


class InProcessVectorEnv(VectorEnv):
    """Steps B environments in a loop.

    Args:
        make: makes environment number i, with an :class:`EpisodeRecorder` among its wrappers.
        num_envs: B.
        seed: of the run.
        autoreset: ``"next_step"`` uses one row for each reset, as gymnasium does by default; ``"same_step"``
            and ``"disabled"`` reset in the row of the last step.
        index_offset: number of the first environment if these are a part of a larger vector. ``make``, seeds
            and messages count from it; rows count from 0.
        on_bad_value: with ``"raise"`` the caller checks observations. With ``"reset_env"`` every returned
            observation is finite: in place of one that is not, the environment begins a new episode, and the
            row is not valid.

    Raises:
        EnvError: if an environment cannot be made, or the environments differ in their spaces.
    """

    def __init__(
        self,
        make: Callable[[int], gym.Env],
        num_envs: int,
        seed: int = 0,
        autoreset: str = "same_step",
        index_offset: int = 0,
        on_bad_value: str = RAISE,
    ) -> None:
        if on_bad_value not in ON_BAD_VALUE:
            raise ValueError(f"on_bad_value is one of {', '.join(ON_BAD_VALUE)}, got {on_bad_value!r}")
        if autoreset not in AUTORESET:
            raise ValueError(f"autoreset is one of {', '.join(AUTORESET)}, got {autoreset!r}")
        self.num_envs = num_envs
        self.seed = seed
        self.has_fillers = autoreset == "next_step"
        self.index_offset = index_offset
        self.on_bad_value = on_bad_value
        self.backend = f"{num_envs} environments in this process"
        self.envs: list[gym.Env] = []
        try:
            for i in range(num_envs):
                self.envs.append(_make_env(make, index_offset + i))
            first = _spaces_of(self.envs[0])
            for i, env in enumerate(self.envs, index_offset):
                check_same_spaces(i, _spaces_of(env), index_offset, first)
            self.obs_space, self.action_space = first
            self._recorders = [find_recorder(env) for env in self.envs]
            self._buffer = ObservationBuffer(self.obs_space, num_envs)
        except BaseException:
            self.close()
            raise
        self._stream: tuple[str | int, ...] = ()
        self._games = [_Game() for _ in range(num_envs)]
        self._pending_reset = np.zeros(num_envs, bool)  # NEXT_STEP: the episode ended in the last row

    @property
    def episode_returns(self) -> np.ndarray:  # type: ignore[override]
        return np.array([recorder.episode_return for recorder in self._recorders])

    @property
    def episode_lengths(self) -> np.ndarray:  # type: ignore[override]
        return np.array([recorder.length for recorder in self._recorders])

    def reset(self, *stream: str | int) -> Tree:
        return self.begin(stream, [0] * self.num_envs)

    def begin(self, stream: tuple[str | int, ...], episodes: Sequence[int]) -> Tree:
        """Begins a new game in each environment and returns the observations (B, ...).

        Args:
            stream: names the random stream that seeds the episodes.
            episodes: the number of the episode to begin, for each environment.
        """
        self._check_open()
        self._status, self._sent_action = Status.INTERRUPTED, None
        self._stream = stream
        self._pending_reset[:] = False
        for i, episode in enumerate(episodes):
            self._reset_until_finite(i, episode, self._reset_to_new_game)
            self._recorders[i].finished.clear()
        self._status = Status.READY
        return self._buffer.tree

    def _reset_until_finite(self, i: int, episode: int, begin: Callable[[int, int], None]) -> None:
        """Begins an episode by ``begin(i, episode)``; if its first observation is not finite, the next one.

        Raises:
            NotFiniteError: if MAX_RESETS episodes in a row begin with such an observation.
        """
        for resets_left in reversed(range(MAX_RESETS)):
            try:
                begin(i, episode)
                return
            except NotFiniteError as error:
                if not resets_left:
                    raise NotFiniteError(
                        f"{error}; the {MAX_RESETS - 1} resets before gave such an observation too"
                    ) from error
                self._discard_episode(i, error)
                episode, begin = self._games[i].episode + 1, self._reset_to_new_game

    def _reset_to_new_game(self, i: int, episode: int) -> None:
        """Resets environment ``i`` until a new game begins: a wrapper may keep the first reset from it."""
        games = self._recorders[i].games
        self._reset_one(i, episode)
        if self._recorders[i].games == games:
            self._reset_one(i, episode)

    def _reset_one(self, i: int, episode: int) -> None:
        """Resets environment ``i``, which begins game number ``episode`` or goes on with the open game."""
        open_game = self._games[i]
        games, finished = self._recorders[i].games, self._recorders[i].finished
        # The reset reports the open game, if it cuts that short; games that end within the reset, such as
        # under no-ops, are none of the policy.
        kept = len(finished) + self._recorders[i].is_open
        self._games[i] = _Game(episode, calls_before=self.calls)
        try:
            result = self.envs[i].reset(seed=self._episode_seed(i))
            self._refuse(i, reset_fault(result))
            self._buffer.write(i, result[0])
            self._check_row(i)
        except (*FOREIGN, KeyboardInterrupt) as error:
            raise self._located(i, error) from error
        if self._recorders[i].games == games:
            self._games[i] = open_game
            open_game.kept_on.append(len(open_game.actions))
        else:
            del finished[kept:]

    def _episode_seed(self, i: int) -> int:
        return integer_seed(self.seed, *self._stream, self.index_offset + i, self._games[i].episode)

    def step(self, action: Tree, rows: slice = ALL) -> Transition:
        """Steps the environments ``rows`` with one action each."""
        self._check_idle()
        envs = range(self.num_envs)[rows]
        actions = self._single_actions(action, len(envs))
        self._status = Status.INTERRUPTED  # until every environment has been stepped
        reward = np.zeros(len(envs), np.float32)
        terminated = np.zeros(len(envs), bool)
        truncated = np.zeros(len(envs), bool)
        valid = ~self._pending_reset[rows]
        final_rows: list[int] = []
        final_obs: list[Tree] = []
        episodes: list[Episode] = []
        for row, (i, one) in enumerate(zip(envs, actions, strict=True)):
            if valid[row]:
                try:
                    reward[row], over, cut = self._step_one(i, one)
                except NotFiniteError as error:
                    if self.on_bad_value == RAISE:
                        raise
                    self._restart_after(i, error)
                    valid[row] = False
                    continue
                if over or cut:
                    terminated[row], truncated[row] = over, not over
                    if not over:
                        final_rows.append(row)
                        final_obs.append(self._buffer.rows(slice(i, i + 1)))
                    if self.has_fillers:
                        self._pending_reset[i] = True
                    else:
                        self._reset_until_finite(i, self._games[i].episode + 1, self._reset_one)
            else:
                self._pending_reset[i] = False
                self._reset_until_finite(i, self._games[i].episode + 1, self._reset_one)
            if self._recorders[i].finished:
                episodes += [Episode(row, *fields) for fields in self._recorders[i].finished]
                self._recorders[i].finished.clear()
        self._status = Status.READY
        return Transition(
            obs=map_tree(lambda leaf: leaf[rows], self._buffer.tree),
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            valid=valid,
            final_obs=map_tree(lambda *leaves: np.concatenate(leaves), *final_obs) if final_obs else None,
            final_env=np.array(final_rows) if final_rows else NO_ENVS,
            episodes=episodes,
        )

    def _single_actions(self, batch: Tree, count: int) -> list[Any]:
        """Returns the actions of a batch; refuses a malformed batch before any environment is stepped."""
        try:
            actions = split_actions(batch, self.action_space)
            if len(actions) == count:
                return actions
            got = f"{len(actions)} actions"
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):
            got = " ".join(f"{batch!r:.100}".split())
        raise EnvError(f"step got {got} for {count} environments, of the action space {self.action_space}")

    def _call(self, name: str, args: Sequence[Any]) -> list[Any]:
        return [self._call_one(i, name, args) for i in range(self.num_envs)]

    def _call_one(self, i: int, name: str, args: Sequence[Any]) -> Any:
        result = call_method(self.envs[i], name, args, self.describe(i))
        game = self._games[i]
        game.calls.append((len(game.actions), name, args))
        return result

    def _restart_after(self, i: int, error: NotFiniteError) -> None:
        """Begins a new game after a step that gave a value that is not finite."""
        self._discard_episode(i, error)
        self._recorders[i].finished.clear()
        self._reset_until_finite(i, self._games[i].episode + 1, self._reset_to_new_game)

    def _discard_episode(self, i: int, error: NotFiniteError) -> None:
        """Counts a value that is not finite, and keeps its episode from being reported."""
        self._count_bad_values([str(error)])
        self._recorders[i].ended = True  # the recorder reports an episode at a reset only if it is open

    def _step_one(self, i: int, action: Any) -> tuple[float, bool, bool]:
        """Steps environment ``i`` and returns (reward, terminated, truncated)."""
        self._games[i].actions.append(_copied(action))
        self._recorders[i].decisions += 1
        try:
            result = self.envs[i].step(action)
            if type(result) is not tuple or len(result) != 5:  # fast common case
                self._refuse(i, step_fault(result))
            obs, reward, terminated, truncated, _ = result
            self._buffer.write(i, obs)
            number = as_float(reward)
            if fault := bad_reward(number):
                raise NotFiniteError(fault)
            self._check_row(i)
            self._games[i].reward += number
            over = terminated if type(terminated) is bool else as_bool(terminated, "terminated")
            cut = truncated if type(truncated) is bool else as_bool(truncated, "truncated")
            return number, over, cut
        except (*FOREIGN, KeyboardInterrupt) as error:
            raise self._located(i, error) from error

    def _refuse(self, i: int, fault: Fault | None) -> None:
        """Refuses a fault of the outermost wrapper: the recorder has checked the environment itself."""
        refuse(fault, f"wrapper {type(self.envs[i]).__name__}: ")

    def _check_row(self, i: int) -> None:
        """Refuses an observation that is not finite, unless the caller checks observations."""
        if self.on_bad_value != RAISE and (fault := bad_row(self._buffer.tree, i)):
            raise NotFiniteError(fault)

    def _located(self, i: int, error: BaseException) -> DingLiteError:
        """Returns an error that says in which environment, episode and step ``error`` was raised.

        Raises ``error`` itself if it is that of a signal.
        """
        if is_of_signal(error):
            raise error
        message = unpacking_fault(error) or error_text(error)
        actions = self._games[i].actions
        if not actions:
            where = f"{self.describe(i)}, at reset"
        else:
            action = actions[-1]
            where = f"{self.describe(i)}, action {action!r:.100}"
            # Then it is the policy's fault, whatever followed.
            if not action_is_finite(to_tree(action, self.action_space)):
                return NumericsError(
                    f"{where}: the policy's action is not finite; {message}. Try a lower "
                    "policy.learn.learning_rate"
                )
        kind = type(error) if isinstance(error, EnvError) else EnvError
        return kind(f"{where}: {message}")

    def describe(self, env: int) -> str:
        game = self._games[env]
        return (
            f"env {self.index_offset + env} (seed {self._episode_seed(env)}, episode {game.episode}, "
            f"step {len(game.actions)})"
        )

    def state_dict(self) -> dict[str, Any]:
        return {
            "stream": list(self._stream),
            "pending_reset": self._pending_reset.copy(),
            "obs": map_tree(np.copy, self._buffer.tree),
            "rewards": self._rewards(),
            "envs": [
                {
                    "episode": game.episode,
                    "actions": stack_actions(game.actions, self.action_space),
                    "kept_on": list(game.kept_on),
                    **_calls_of(game),
                }
                for game in self._games
            ],
        }

    def _rewards(self) -> np.ndarray:
        """Returns the sum of the rewards (B,) of each open game."""
        return np.array([game.reward for game in self._games])

    def load_state_dict(self, state: Mapping[str, Any]) -> Tree:
        self._check_open()
        if len(state["envs"]) != self.num_envs:
            raise CheckpointError(
                f"the checkpoint has {len(state['envs'])} environments, this run {self.num_envs}"
            )
        self._status, self._sent_action = Status.INTERRUPTED, None
        self._stream = tuple(state["stream"])
        self._pending_reset = np.array(state["pending_reset"], bool)
        for i, saved in enumerate(state["envs"]):
            self._play_again(i, saved)
            self._recorders[i].finished.clear()
        same = map_tree(np.array_equal, state["obs"], self._buffer.tree)
        differ = [] if all(tree_leaves(same)) else ["observations"]
        rewards = state.get("rewards")
        differ += [] if rewards is None or np.array_equal(rewards, self._rewards()) else ["rewards"]
        if differ:
            raise CheckpointError(
                "the open episodes could not be restored: played again with the same seeds and actions, the "
                f"environments returned other {' and '.join(differ)}. They are not deterministic, they keep "
                "a state over episodes, or they have changed since the checkpoint. With --override "
                "(override=True) the run goes on with new episodes"
            )
        self._status = Status.READY
        return self._buffer.tree

    def _play_again(self, i: int, saved: Mapping[str, Any]) -> None:
        """Restores the open episode of environment ``i`` by repeating its resets and steps."""
        episode = int(saved["episode"])
        calls = saved.get("calls", {"before": {}, "log": []})
        for name, args in calls["before"].items():
            self._call_one(i, name, args)
        self._reset_to_new_game(i, episode)
        self._games[i].calls_before = calls["before"]
        kept_on = [int(step) for step in saved.get("kept_on", ())]
        actions = [] if saved["actions"] is None else split_actions(saved["actions"], self.action_space)
        for step in range(len(actions) + 1):
            for _ in range(kept_on.count(step)):
                self._reset_one(i, episode + 1)
            for at, name, args in calls["log"]:
                if at == step:
                    self._call_one(i, name, args)
            if step < len(actions):
                self._step_one(i, actions[step])

    def close(self) -> None:
        self._status = Status.CLOSED
        close_each({f"env {i}": env for i, env in enumerate(self.envs, self.index_offset)}, self.say)
        self.envs = []


def _calls_of(game: _Game) -> dict[str, Any]:
    """Returns what a checkpoint keeps of the calls of a game; nothing if there were none."""
    if not (game.calls_before or game.calls):
        return {}
    before = {name: list(args) for name, args in game.calls_before.items()}
    return {"calls": {"before": before, "log": [[at, name, list(args)] for at, name, args in game.calls]}}


def _make_env(make: Callable[[int], gym.Env], index: int) -> gym.Env:
    """Returns environment number ``index``; an error says which environment could not be made."""
    try:
        return make(index)
    except DingLiteError:
        raise
    except FOREIGN as error:
        raise EnvError(f"env {index} cannot be made: {error_text(error)}") from error


def _spaces_of(env: gym.Env) -> tuple[gym.Space, gym.Space]:
    return env.observation_space, env.action_space


def _copied(action: Any) -> Any:
    """Returns a copy of an action, because an environment may write into the array that it gets."""
    kind = type(action)
    if kind is int:
        return action
    if kind is np.ndarray:
        return action.copy()
    if kind is dict:
        return {name: _copied(part) for name, part in action.items()}
    if kind is tuple:
        return tuple([_copied(part) for part in action])
    return copy.deepcopy(action)
