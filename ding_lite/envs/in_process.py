"""``base``: steps environments one after the other in this process.

Every episode has its own seed, derived from (run seed, stream, env, episode). An open episode is therefore
saved as its number and its actions, and restored by playing the actions again. With
``env.seed_resets="first"`` only the first reset of an environment has a seed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.utils.seeding import np_random

from ding_lite.envs.checks import bad_reward, layers, notes_on
from ding_lite.envs.recorder import EpisodeRecorder, as_bool, as_float
from ding_lite.envs.spaces import ObservationBuffer, split_actions, stack_actions
from ding_lite.envs.vector import (
    ALL,
    NOTES,
    Episode,
    Transition,
    VectorEnv,
    call_method,
    close_each,
    common_spaces,
    signals_kept,
)
from ding_lite.envs.wrappers import action_maps
from ding_lite.errors import FOREIGN, NotFiniteError, ReplayError, counted
from ding_lite.trees import Tree, map_tree, tree_leaves

LEVELS = (
    "a seed decides more than one episode, such as the levels, and here each reset has a new seed, so new "
    "levels. env.seed_resets=first seeds only the first reset, as is gymnasium's convention"
)


class InProcessVectorEnv(VectorEnv):
    """Steps B environments in a loop.

    Args:
        make: makes environment number i, with an :class:`EpisodeRecorder` among its wrappers.
        num_envs: B.
        seed: of the run.
        index_offset: number of the first environment, for ``make``, seeds and messages.
        seed_every: seed each reset; otherwise only the resets of :meth:`begin`, with always the same seed.

    Raises:
        EnvError: if an environment cannot be made, or the environments differ in their spaces.
    """

    advice = ". If it fails only sometimes: env.manager.type=subprocess replaces it, and the run goes on"

    @signals_kept()
    def __init__(
        self,
        make: Callable[[int], gym.Env],
        num_envs: int,
        seed: int = 0,
        index_offset: int = 0,
        seed_every: bool = True,
    ) -> None:
        self.num_envs = num_envs
        self.seed = seed
        self.index_offset = index_offset
        self.seed_every = self.restorable = seed_every
        self.backend = f"{counted(num_envs, 'environment')} in this process"
        self.envs: list[gym.Env] = []
        try:
            for number in range(index_offset, index_offset + num_envs):
                self.envs.append(make(number))
            spaces = [(env.observation_space, env.action_space) for env in self.envs]
            self.obs_space, self.action_space = common_spaces(list(enumerate(spaces, index_offset)))
            self.action_maps = action_maps(self.envs[0])
            self._recorders = [
                next(layer for layer in layers(env) if isinstance(layer, EpisodeRecorder))
                for env in self.envs
            ]
            self._buffer = ObservationBuffer(self.obs_space, num_envs)
        except BaseException:
            self.close()
            raise

    @property
    def episode_returns(self) -> np.ndarray:  # type: ignore[override]
        return np.array([recorder.game.episode_return for recorder in self._recorders])

    @property
    def episode_lengths(self) -> np.ndarray:  # type: ignore[override]
        return np.array([recorder.game.length for recorder in self._recorders])

    def notes(self) -> dict[str, str]:
        self._is_ready, self._stream = False, NOTES
        self._reset_one(0, 0)
        info = self._recorders[0].game.info
        notes = notes_on(self.envs[0], self.obs_space, self.action_space, info)
        if self.seed_every and "scale" not in notes and self._keeps_levels():
            notes["seed"] = LEVELS
        return notes

    def _keeps_levels(self) -> bool:
        """Returns whether a seed decides more than the next episode, such as levels that are drawn once.

        If so, the result of a seeded reset (the one before this call) differs from an unseeded reset with an
        equal generator. If ``reset`` does not draw from the ``np_random`` that the seed creates, this cannot
        be tested, and the result is False.
        """
        core: Any = self.envs[0].unwrapped
        fresh = np_random(self._seed_of(0, 0))[0]

        def state() -> tuple[Any, Tree]:
            return core.np_random.bit_generator.state, map_tree(np.ndarray.tolist, self._buffer.rows([0]))

        try:
            first, unused = state(), fresh.bit_generator.state
            if first[0] == unused or first[0]["state"]["inc"] != unused["state"]["inc"]:
                return False
            self._reset_one(0, 1)
            core.np_random = fresh
            self._reset_one(0, 0, seeded=False)
            other = state()
            self._reset_one(0, 0)
            return other != first == state()
        except FOREIGN:  # for example, an environment that always needs a seed
            return False

    def reset(self, *stream: str | int) -> Tree:
        return self.begin(stream, [0] * self.num_envs)

    def begin(self, stream: tuple[str | int, ...], episodes: Sequence[int]) -> Tree:
        """Begins a new game in each environment and returns the observations (B, ...).

        Args:
            stream: names the random stream that seeds the episodes.
            episodes: the number of the episode to begin, for each environment.
        """
        self._is_ready, self._stream = False, stream
        for i, episode in enumerate(episodes):
            self._begin_game(i, episode)
            self._recorders[i].finished.clear()
        self._is_ready = True
        return self._buffer.tree

    def _begin_game(self, i: int, episode: int) -> None:
        """Resets environment ``i`` until a new game begins: a wrapper may not pass on the first reset."""
        game = self._recorders[i].game
        self._reset_one(i, episode)
        if self._recorders[i].game is game:
            self._reset_one(i, episode)

    @signals_kept()
    def _reset_one(self, i: int, episode: int, seeded: bool = True) -> None:
        """Resets environment ``i``, which begins game number ``episode`` or continues the open game."""
        recorder = self._recorders[i]
        # The reset records the open game if it cuts it short. Games that end in steps of the reset, such as
        # no-ops, were not played by the policy: they are deleted below.
        reported, before = len(recorder.finished) + recorder.game.is_open, recorder.game
        recorder.next_number = episode
        try:
            obs, _ = self.envs[i].reset(seed=self._seed_of(i, episode) if seeded else None)
            self._buffer.write(i, obs)
        except FOREIGN as error:
            raise self._located(f"{self.describe(i)}, reset", error) from error
        finally:
            if recorder.game is not before:
                del recorder.finished[reported:]

    def step(self, action: Tree, rows: slice = ALL) -> Transition:
        """Steps the environments ``rows`` with one action each."""
        self._check_ready()
        envs = range(self.num_envs)[rows]
        actions = split_actions(action, self.action_space)
        self._is_ready = False  # until every environment has been stepped
        reward = np.zeros(len(envs), np.float32)
        terminated = np.zeros(len(envs), bool)
        truncated = np.zeros(len(envs), bool)
        final_rows: list[int] = []
        final_obs: list[Tree] = []
        episodes: list[Episode] = []
        for row, (i, env_action) in enumerate(zip(envs, actions, strict=True)):
            recorder = self._recorders[i]
            reward[row], is_terminated, is_truncated = self._step_one(i, env_action)
            if is_terminated or is_truncated:
                terminated[row], truncated[row] = is_terminated, not is_terminated
                if not is_terminated:
                    final_rows.append(row)
                    final_obs.append(self._buffer.rows(slice(i, i + 1)))
                self._reset_one(i, recorder.game.number + 1, self.seed_every)
            if recorder.finished:
                episodes += recorder.episodes(row)
        self._is_ready = True
        return Transition(
            obs=map_tree(lambda leaf: leaf[rows], self._buffer.tree),
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            valid=np.ones(len(envs), bool),
            final_obs=map_tree(lambda *leaves: np.concatenate(leaves), *final_obs) if final_obs else None,
            final_env=np.array(final_rows, np.int64),
            episodes=episodes,
        )

    def _step_one(self, i: int, action: Any) -> tuple[float, bool, bool]:
        """Steps environment ``i`` and returns (reward, terminated, truncated).

        The recorder checks the results of the environment itself; this checks the results of its wrappers.
        """
        # A copy, because an environment may write into the array that it receives.
        copied = action.copy() if type(action) is np.ndarray else copy.deepcopy(action)
        self._recorders[i].game.actions.append(copied)
        try:
            obs, reward, terminated, truncated, _ = self.envs[i].step(action)
            self._buffer.write(i, obs)
            number = as_float(reward)
            if fault := bad_reward(number):
                raise NotFiniteError(fault)
            return number, as_bool(terminated, "terminated"), as_bool(truncated, "truncated")
        except FOREIGN as error:
            where = f"{self.describe(i)}, step with action {action!r:.100}"
            raise self._located(where, error) from error

    def describe(self, env: int) -> str:
        game = self._recorders[env].game
        return self._description(env, game.number, game.length)

    def _call(self, name: str, args: Sequence[Any]) -> list[Any]:
        return [call_method(env, name, args, self.describe(i)) for i, env in enumerate(self.envs)]

    def state_dict(self) -> dict[str, Any]:
        games = [recorder.game for recorder in self._recorders]
        return {
            "stream": list(self._stream),
            "obs": map_tree(np.copy, self._buffer.tree),
            "returns": self.episode_returns,
            "envs": [
                {"episode": game.number, "actions": stack_actions(game.actions, self.action_space)}
                for game in games
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> Tree:
        self._is_ready, self._stream = False, tuple(state["stream"])
        for i, saved in enumerate(state["envs"]):
            episode, actions = int(saved["episode"]), saved["actions"]
            self._begin_game(i, episode)
            for action in [] if actions is None else split_actions(actions, self.action_space):
                _, terminated, truncated = self._step_one(i, action)
                if terminated or truncated:  # a wrapper ended an episode without a reset of the environment
                    self._reset_one(i, episode + 1)
            self._recorders[i].finished.clear()
        same = map_tree(np.array_equal, state["obs"], self._buffer.tree)
        if not (all(tree_leaves(same)) and np.array_equal(state["returns"], self.episode_returns)):
            raise ReplayError(
                "the open episodes could not be restored: played again with the same seeds and actions, the "
                "environments returned other observations or rewards. They are not deterministic, they keep "
                "a state over episodes, or they have changed since the checkpoint"
            )
        self._is_ready = True
        return self._buffer.tree

    def close(self) -> None:
        self._is_ready = False
        close_each([(f"env {i}", env) for i, env in enumerate(self.envs, self.index_offset)], self.say)
        self.envs = []
