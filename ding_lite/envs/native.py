"""``vector`` and ``env_pool``: vector environments of gymnasium and EnvPool, stepped in one call.

The autoreset mode is read from ``metadata["autoreset_mode"]``. A vector is seeded once, at ``reset``. Its
open episodes can be saved and restored if ``STATES`` lists the attributes of its state.

Shapes: B environments, K episodes with a final observation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector import VectorEnv as GymnasiumVectorEnv

from ding_lite.envs.checks import notes_on
from ding_lite.envs.recorder import check_result, check_spaces
from ding_lite.envs.spaces import ObservationBuffer
from ding_lite.envs.vector import (
    NO_ENVS,
    Episode,
    Transition,
    VectorEnv,
    call_method,
    close_each,
    info_numbers,
)
from ding_lite.errors import FOREIGN, EnvContractError
from ding_lite.rl.seeding import integer_seed
from ding_lite.trees import (
    Tree,
    children,
    from_tree,
    map_tree,
    observation_to_tree,
    path_text,
    space_leaves,
    value_at,
)

# By entry point: the attributes that, with the random generator, are the whole state of a vector environment.
# The first one has the observations, in float64 and with the environments along the last axis.
STATES = {"gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv": ("state", "steps", "prev_done")}


class WholeVectorEnv(VectorEnv):
    """A vector environment of another library, which steps all of its environments in one call.

    Args:
        env: the vector environment.
        seed: of the run.
        index_offset: number of the first environment if these are a part of a larger vector.

    Raises:
        EnvContractError: if it does not declare its spaces or its autoreset mode.
    """

    def __init__(self, env: Any, seed: int, index_offset: int) -> None:
        check_spaces(env, "single_")
        self.env, self.seed, self.index_offset = env, seed, index_offset
        self.num_envs = env.num_envs
        self.obs_space, self.action_space = env.single_observation_space, env.single_action_space
        declared = (getattr(env, "metadata", None) or {}).get("autoreset_mode")
        try:
            self.mode = AutoresetMode(declared)
        except ValueError as error:  # a wrong guess would train on wrong transitions
            name = type(getattr(env, "unwrapped", env)).__name__
            raise EnvContractError(
                f"{name}.metadata['autoreset_mode'] is {declared!r}; declare which row follows an episode's "
                "end: NEXT_STEP, SAME_STEP or DISABLED of gymnasium.vector.AutoresetMode"
            ) from error
        self.has_fillers = self.mode is AutoresetMode.NEXT_STEP

    def notes(self) -> dict[str, str]:
        return notes_on(self.env, self.obs_space, self.action_space)

    def close(self) -> None:
        self._is_ready = False
        if hasattr(self.env, "close"):
            close_each([(self.backend, self.env)], self.say)


class NativeVectorEnv(WholeVectorEnv):
    """Adapts a gymnasium vector environment of any autoreset mode.

    Resets and the first step are checked in full. The caller checks that numbers are finite.

    Args:
        env: a ``gymnasium.vector.VectorEnv``.
        seed, index_offset: as in :class:`WholeVectorEnv`.
        info_keys: keys of an ended episode's info that are recorded.
    """

    def __init__(
        self,
        env: GymnasiumVectorEnv,
        seed: int = 0,
        info_keys: tuple[str, ...] = (),
        index_offset: int = 0,
    ) -> None:
        super().__init__(env, seed, index_offset)
        self.info_keys = info_keys
        # Looked up once: looking up the class of a space in each step takes 1/30 of a CartPole step.
        self._has_obs_branches = children(self.obs_space) is not None
        self._has_action_branches = children(self.action_space) is not None
        self.backend = f"{type(env.unwrapped).__name__}, {self.num_envs} environments in one call"
        # A wrapper may have a state of its own, so the class is that of the whole environment.
        self._state: Sequence[str] = STATES.get(f"{type(env).__module__}:{type(env).__name__}", ())
        self.restorable = bool(self._state)
        self.episode_returns = np.zeros(self.num_envs, np.float64)
        self.episode_lengths = np.zeros(self.num_envs, np.int64)
        self._pending_reset = np.zeros(self.num_envs, bool)
        self._all_valid = np.ones(self.num_envs, bool)
        self._final = ObservationBuffer(self.obs_space, self.num_envs)
        self._is_checked = False  # whether a step was checked

    def reset(self, *stream: str | int) -> Tree:
        self._is_ready = False
        self.episode_returns[:] = 0
        self.episode_lengths[:] = 0
        self._pending_reset[:] = False
        part = (self.index_offset,) if self.index_offset else ()
        obs = self._begin(integer_seed(self.seed, *stream, *part))
        self._is_ready = True
        return obs

    def _begin(self, seed: int) -> Tree:
        """Seeds all environments, begins an episode in each, and returns their observations (B, ...)."""
        return self._reset_env(seed=seed)

    def _reset_env(self, **arguments: Any) -> Tree:
        try:
            result = self.env.reset(**arguments)
            check_result("reset", result, 2)
            obs = observation_to_tree(result[0], self.obs_space)
            self._check(obs)
        except FOREIGN as error:
            raise self._located(f"{self.backend}: reset", error) from error
        return obs

    def _game(
        self, reward: np.ndarray, done: np.ndarray, truncated: np.ndarray, info: Mapping[str, Any]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the rewards (B,) that episode returns sum up, and where a whole game ended (B,)."""
        return reward, done

    def step(self, action: Tree) -> Transition:
        self._check_ready()
        if self._has_action_branches:
            action = from_tree(action, self.action_space)
        try:
            obs, reward, terminated, truncated, info = self.env.step(action)
            if self._has_obs_branches or getattr(obs, "dtype", None) == np.float64:
                obs = observation_to_tree(obs, self.obs_space)
            if not self._is_checked:
                self._check(obs, reward=reward, terminated=terminated, truncated=truncated)
                self._is_checked = True
        except FOREIGN as error:
            self._is_ready = False
            raise self._located(f"{self.backend}: step", error) from error
        reward = np.asarray(reward, np.float32)
        valid = ~self._pending_reset
        if np.count_nonzero(self._pending_reset):  # in a third of the time of any()
            reward = np.where(valid, reward, 0)
            terminated, truncated = terminated & valid, truncated & valid
        done = terminated | truncated
        raw_reward, game_ended = self._game(reward, done, truncated, info)
        self.episode_returns += raw_reward * valid
        self.episode_lengths += valid
        if self.has_fillers:
            self._pending_reset = done
        final_obs, final_env, episodes = None, NO_ENVS, []
        if np.count_nonzero(done):
            truncated = truncated & ~terminated
            final_env = np.flatnonzero(truncated)
            final_obs = self._final_obs(obs, info, final_env) if len(final_env) else None
            episodes = self._finish(game_ended, info)
            if self.mode is AutoresetMode.DISABLED:
                reward, terminated = reward.copy(), terminated.copy()  # the reset may overwrite them
                obs = self._reset_env(options={"reset_mask": done})
        return Transition(obs, reward, terminated, truncated, valid, final_obs, final_env, episodes)

    def _check(self, obs: Any, **others: Any) -> None:
        """Refuses arrays that do not have the shape (B, ...) of their space, or have a wrong dtype."""
        arrays = [
            (f"observation{path_text(path)}", value_at(obs, path), leaf.shape or (), "biuf")
            for path, leaf in space_leaves(self.obs_space)
        ]
        arrays += [(name, array, (), "biuf" if name == "reward" else "b") for name, array in others.items()]
        for name, array, shape, kinds in arrays:
            expected = (self.num_envs, *shape)
            actual = array.shape if isinstance(array, np.ndarray) else f"a {type(array).__name__}"
            if actual != expected or array.dtype.kind not in kinds:
                raise EnvContractError(
                    f"{name} must be an array of {'bool' if kinds == 'b' else 'numbers'} with the shape "
                    f"(num_envs, ...) = {expected}, got {actual} {getattr(array, 'dtype', '')}"
                )

    def _final_obs(self, obs: Tree, info: Mapping[str, Any], final_env: np.ndarray) -> Tree:
        """Returns the last observations (K, ...) of the environments ``final_env`` (K,)."""
        if self.mode is not AutoresetMode.SAME_STEP:
            return map_tree(lambda array: array[final_env].copy(), obs)
        if "final_obs" not in info:
            raise EnvContractError(
                f"{self.backend}: envs {final_env.tolist()} were truncated in autoreset mode SAME_STEP, "
                "but info has no 'final_obs': the value of their last observation is unknown"
            )
        for env in final_env:
            self._final.write(int(env), info["final_obs"][env])
        return self._final.rows(final_env)

    def _finish(self, done: np.ndarray, info: Mapping[str, Any]) -> list[Episode]:
        """Returns the episodes that ended, ``done`` (B,), and clears their returns and lengths."""
        info, episodes = info.get("final_info", info), []
        for env in np.flatnonzero(done).tolist():
            # info[key] is an array (B,); info["_key"] says which environments have the key.
            has = [key for key in self.info_keys if key in info and info.get(f"_{key}", self._all_valid)[env]]
            numbers = info_numbers({key: info[key][env] for key in has}, has) if has else {}
            total, length = float(self.episode_returns[env]), int(self.episode_lengths[env])
            episodes.append(Episode(env, total, length, numbers))
        self.episode_returns[done] = 0
        self.episode_lengths[done] = 0
        return episodes

    def _call(self, name: str, args: Sequence[Any]) -> list[Any]:
        """Calls a method of the vector or, if it has no such method, the method of each environment."""
        env = self.env.unwrapped
        if not hasattr(env, name) and hasattr(env, "call"):
            return list(call_method(env, "call", (name, *args), f"{self.backend}, method {name}"))
        return [call_method(env, name, args, self.backend)]

    def state_dict(self) -> dict[str, Any]:
        env: Any = self.env.unwrapped
        native = {name: getattr(env, name).copy() for name in self._state}
        return {
            "native": {**native, "generator": env.np_random.bit_generator.state},
            "pending_reset": self._pending_reset.copy(),
            "returns": self.episode_returns.copy(),
            "lengths": self.episode_lengths.copy(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> Tree:
        self._is_ready = False
        env: Any = self.env.unwrapped
        env.reset(seed=0)  # creates the generator
        for name in self._state:
            setattr(env, name, np.array(state["native"][name]))
        env.np_random.bit_generator.state = state["native"]["generator"]
        self._pending_reset = np.array(state["pending_reset"], bool)
        self.episode_returns = np.array(state["returns"], np.float64)
        self.episode_lengths = np.array(state["lengths"], np.int64)
        self._is_ready = True
        return getattr(env, self._state[0]).T.astype(np.float32)


class EnvPoolVectorEnv(NativeVectorEnv):
    """``env_pool``: B environments stepped by EnvPool's C++ threads (extra ``envpool``).

    EnvPool takes its seed when it is made, so ``reset`` makes a new one. It begins an episode in the step
    after the end of the last episode (NEXT_STEP). It cannot save an open episode.

    Args:
        env_id: EnvPool's name of the environment, such as ``"BigfishEasy-v0"``.
        num_envs: B.
        seed: of the run.
        kwargs: arguments of ``envpool.make_gymnasium``, such as ``num_threads``.
        options: the other arguments of :class:`NativeVectorEnv`.
    """

    def __init__(
        self,
        env_id: str,
        num_envs: int,
        seed: int = 0,
        kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self._env_id = env_id
        self._kwargs = dict(kwargs or {})
        super().__init__(self._make(num_envs, integer_seed(seed, "spaces")), seed, **options)
        self.backend = f"EnvPool's {env_id}, {num_envs} environments"

    def _make(self, num_envs: int, seed: int) -> Any:
        import envpool

        return envpool.make_gymnasium(self._env_id, num_envs=num_envs, seed=seed, **self._kwargs)

    def _begin(self, seed: int) -> Tree:
        self.env.close()
        self.env = self._make(self.num_envs, seed)
        return self._reset_env()

    def _game(
        self, reward: np.ndarray, done: np.ndarray, truncated: np.ndarray, info: Mapping[str, Any]
    ) -> tuple[np.ndarray, np.ndarray]:
        # On Atari, info has the reward before EnvPool's own clipping, and whether the game has ended: with
        # episodic_life a lost life ends only the agent's episode.
        ended = info["terminated"].astype(bool) | truncated if "terminated" in info else True
        return np.asarray(info.get("reward", reward), np.float32), done & ended
