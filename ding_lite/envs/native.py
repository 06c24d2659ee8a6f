"""``vector``: a gymnasium ``VectorEnv``, which steps all its environments in one call.

Its autoreset mode is read from ``metadata["autoreset_mode"]``. It is seeded once, at ``reset``. Its open
episodes can be saved and restored if a state adapter is registered for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector import VectorEnv as GymnasiumVectorEnv

from ding_lite.envs.masks import all_legal, as_mask, mask_of_info, with_branch, with_mask_space
from ding_lite.envs.recorder import check_spaces, info_number, refuse, reset_fault, step_fault
from ding_lite.envs.spaces import ObservationBuffer
from ding_lite.envs.transition import Episode, Transition
from ding_lite.envs.vector import NO_ENVS, Status, VectorEnv, call_method, close_each
from ding_lite.errors import (
    FOREIGN,
    CheckpointError,
    EnvContractError,
    EnvError,
    error_text,
    is_of_signal,
)
from ding_lite.rl.seeding import integer_seed
from ding_lite.trees import (
    MASK_KEY,
    Tree,
    children,
    from_tree,
    map_tree,
    observation_to_tree,
    path_text,
    space_leaves,
    value_at,
)


class StateAdapter(NamedTuple):
    """Reads and writes the whole state of a native environment."""

    read: Callable[[Any], dict[str, Any]]  # returns the state as plain data
    write: Callable[[Any, Mapping[str, Any]], None]
    observe: Callable[[Any], Tree]  # returns the observations (B, ...) of the current state


def _cartpole_state(env: Any) -> dict[str, Any]:
    return {
        "state": env.state.copy(),
        "steps": env.steps.copy(),
        "prev_done": env.prev_done.copy(),
        "generator": env.np_random.bit_generator.state,
    }


def _set_cartpole_state(env: Any, state: Mapping[str, Any]) -> None:
    env.state = np.array(state["state"])
    env.steps = np.array(state["steps"])
    env.prev_done = np.array(state["prev_done"])
    env.np_random.bit_generator.state = state["generator"]


STATE_ADAPTERS = {  # by vector entry point
    "gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv": StateAdapter(
        _cartpole_state, _set_cartpole_state, lambda env: env.state.T.astype(np.float32)
    ),
}


class NativeVectorEnv(VectorEnv):
    """Adapts a gymnasium vector environment of any autoreset mode.

    Args:
        env: a ``gymnasium.vector.VectorEnv``.
        seed: of the run.
        entry_point: of the environment, which selects its state adapter.
        info_keys: keys of an ended episode's info that are recorded.
        mask_from_info: whether to copy ``info["action_mask"]`` into the observation.
        index_offset: number of the first environment if these are a part of a larger vector.

    Raises:
        EnvContractError: if the environment does not declare its spaces or its autoreset mode.
    """

    def __init__(
        self,
        env: GymnasiumVectorEnv,
        seed: int = 0,
        entry_point: str = "",
        info_keys: tuple[str, ...] = (),
        mask_from_info: bool = False,
        index_offset: int = 0,
    ) -> None:
        check_spaces(env, "single_")
        self.env = env
        self.seed = seed
        self.index_offset = index_offset
        self.info_keys = info_keys
        self.mask_from_info = mask_from_info
        self.num_envs = env.num_envs
        self.action_space = env.single_action_space
        self._obs_space_without_mask = env.single_observation_space
        self.obs_space = self._obs_space_without_mask
        if mask_from_info:
            self.obs_space = with_mask_space(self._obs_space_without_mask, self.action_space)
        # Looked up once: looking up the class of a space in each step takes 1/30 of a CartPole step.
        self._has_obs_branches = children(self._obs_space_without_mask) is not None
        self._has_action_branches = children(self.action_space) is not None
        self.mode = _autoreset_mode(env)
        self.has_fillers = self.mode is AutoresetMode.NEXT_STEP
        self.backend = f"{type(env.unwrapped).__name__}, {self.num_envs} environments in one call"
        self.adapter = STATE_ADAPTERS.get(entry_point)
        self.restorable = self.adapter is not None
        self.episode_returns = np.zeros(self.num_envs, np.float64)
        self.episode_lengths = np.zeros(self.num_envs, np.int64)
        self._pending_reset = np.zeros(self.num_envs, bool)
        self._any_pending = False  # whether any reset is pending
        self._all_valid = np.ones(self.num_envs, bool)
        self._final = ObservationBuffer(self._obs_space_without_mask, self.num_envs)
        self._obs_leaves = [
            (path, (self.num_envs, *(leaf.shape or ())))
            for path, leaf in space_leaves(self._obs_space_without_mask)
        ]
        self._checked_kinds: tuple[Any, ...] | None = None  # of the last step that was checked in full
        self._last_info: Mapping[str, Any] = {}

    def reset(self, *stream: str | int) -> Tree:
        self._check_open()
        self._status, self._sent_action = Status.INTERRUPTED, None
        self.episode_returns[:] = 0
        self.episode_lengths[:] = 0
        self._pending_reset[:] = False
        self._any_pending = False
        part = (self.index_offset,) if self.index_offset else ()
        obs, info = self._begin(integer_seed(self.seed, *stream, *part))
        obs = _with_masks(obs, self._masks_of(info))
        self._status = Status.READY
        return obs

    def _begin(self, seed: int) -> tuple[Tree, dict[str, Any]]:
        """Seeds all environments, begins an episode in each, and returns what ``reset`` returns."""
        return self._reset_env(seed=seed)

    def _reset_env(self, **arguments: Any) -> tuple[Tree, dict[str, Any]]:
        try:
            result = self.env.reset(**arguments)
            refuse(reset_fault(result))
            obs, info = result
            obs = self._to_tree(obs)
            self._check_shapes("observation", obs)
        except FOREIGN as error:
            raise self._located("reset", error) from error
        return obs, info

    def _to_tree(self, obs: Any) -> Tree:
        return observation_to_tree(obs, self._obs_space_without_mask)

    def _masks_of(self, info: Mapping[str, Any]) -> Tree | None:
        """Returns the masks (B, ...) of ``info``, or None if the config does not ask for them."""
        if not self.mask_from_info:
            return None
        return _batch_of_masks(mask_of_info(info, f"the info of {self.backend}"), self.action_space)

    def _raw_reward(self, reward: np.ndarray, info: Mapping[str, Any]) -> np.ndarray:
        """Returns the rewards (B,) that episode returns are sums of."""
        return reward

    def step(self, action: Tree) -> Transition:
        self._check_idle()
        if self._has_action_branches:
            action = from_tree(action, self.action_space)
        self._status = Status.INTERRUPTED
        try:
            result = self.env.step(action)
            kinds = self._kinds(result)
            if kinds is None or kinds != self._checked_kinds:
                self._check_step(result)
                self._checked_kinds = kinds
            obs, reward, terminated, truncated, info = result
            self._last_info = info
            if self._has_obs_branches:
                obs = self._to_tree(obs)
                self._check_shapes("observation", obs)
            elif obs.dtype == np.float64:
                obs = self._to_tree(obs)
        except FOREIGN as error:
            raise self._located("step", error) from error
        reward = np.asarray(reward, np.float32)
        raw_reward = self._raw_reward(reward, info)
        valid = self._all_valid
        if self._any_pending:
            valid = ~self._pending_reset
            reward, raw_reward = np.where(valid, reward, 0), np.where(valid, raw_reward, 0)
            terminated, truncated = terminated & valid, truncated & valid
        self.episode_returns += raw_reward
        self.episode_lengths += valid
        done = terminated | truncated
        any_done = bool(np.count_nonzero(done))  # takes a third of the time of done.any()
        if self.has_fillers:
            self._pending_reset, self._any_pending = done, any_done
        final_obs, final_env, episodes, masks = None, NO_ENVS, [], self._masks_of(info)
        if any_done:
            truncated = truncated & ~terminated
            final_env = np.flatnonzero(truncated)
            final_obs = self._final_obs(obs, info, final_env) if len(final_env) else None
            episodes = self._finish(done, info)
            if self.mode is AutoresetMode.DISABLED:
                reward, terminated = reward.copy(), terminated.copy()  # the reset may write over them
                obs, masks = self._reset_ended(done, masks)
        obs = _with_masks(obs, masks)
        self._status = Status.READY
        return Transition(obs, reward, terminated, truncated, valid, final_obs, final_env, episodes)

    def _reset_ended(self, done: np.ndarray, masks: Tree | None) -> tuple[Tree, Tree | None]:
        """Begins episodes in the environments ``done`` (B,); returns observations and masks of all."""
        masks = None if masks is None else map_tree(np.copy, masks)
        obs, info = self._reset_env(options={"reset_mask": done})
        if masks is not None:  # info has those of the environments that were reset
            masks = map_tree(partial(_replaced_rows, done), masks, self._masks_of(info))
        return obs, masks

    def _kinds(self, result: Any) -> tuple[Any, ...] | None:
        """Returns the shapes and dtypes that :meth:`_check_step` checks; None if some have none."""
        try:
            obs, reward, terminated, truncated, info = result
            kinds = (
                *(reward.shape, reward.dtype, terminated.shape, terminated.dtype),
                *(truncated.shape, truncated.dtype, type(info)),
            )
            return kinds if self._has_obs_branches else (obs.shape, obs.dtype, *kinds)
        except (TypeError, ValueError, AttributeError):
            return None

    def _check_step(self, result: Any) -> None:
        """Checks the kinds and shapes of what ``step`` returns, but those of a tree of observations."""
        refuse(step_fault(result))
        obs, reward, terminated, truncated, _ = result
        if not self._has_obs_branches:
            if not isinstance(obs, np.ndarray):
                raise EnvContractError(f"observations must be an array, got a {type(obs).__name__}")
            self._check_shapes("observation", obs)
        for name, flags in {"terminated": terminated, "truncated": truncated}.items():
            if not isinstance(flags, np.ndarray) or flags.dtype != bool:
                kind = getattr(flags, "dtype", type(flags).__name__)
                raise EnvContractError(f"{name} must be an array of bool, got {kind}")
        if np.asarray(reward).dtype.kind not in "biuf":
            raise EnvContractError(f"reward must be an array of numbers, got {reward!r:.60}")
        for name, values in {"reward": reward, "terminated": terminated, "truncated": truncated}.items():
            if np.shape(values) != (self.num_envs,):
                raise EnvContractError(
                    f"{name} must have the shape (num_envs,) = ({self.num_envs},), got {np.shape(values)}"
                )

    def _check_shapes(self, name: str, obs: Tree) -> None:
        """Refuses observations that are not numbers, or not one of the space for each environment."""
        for path, expected in self._obs_leaves:
            array = value_at(obs, path)
            found = array.shape if isinstance(array, np.ndarray) else f"a {type(array).__name__}"
            if found != expected:
                raise EnvContractError(
                    f"{name}{path_text(path)} must have the shape (num_envs, *shape) = {expected}, got "
                    f"{found}"
                )
            if array.dtype.kind not in "biuf":
                raise EnvContractError(
                    f"{name}{path_text(path)} must be an array of numbers, got {array.dtype}"
                )

    def _located(self, call: str, error: BaseException) -> EnvError:
        """Returns an error that says in which call ``error`` was raised.

        Raises ``error`` itself if it is that of a signal.
        """
        if is_of_signal(error):
            raise error
        if isinstance(error, EnvContractError):
            return EnvContractError(f"{self.backend}: {call}: {error}")
        return EnvError(f"{self.backend}: {call} raised {error_text(error)}")

    def _final_obs(self, obs: Tree, info: Mapping[str, Any], final_env: np.ndarray) -> Tree:
        """Returns the last observations (K, ...) of the environments ``final_env`` (K,)."""
        if self.mode is not AutoresetMode.SAME_STEP:
            final_obs = map_tree(lambda array: array[final_env].copy(), obs)
        elif "final_obs" not in info:
            raise EnvContractError(
                f"{self.backend}: envs {final_env.tolist()} were truncated in autoreset mode SAME_STEP, "
                "but info has no 'final_obs': the value of their last observation is unknown"
            )
        else:
            for env in final_env:
                self._final.write(int(env), info["final_obs"][env])
            final_obs = self._final.rows(final_env)
        if self.mask_from_info:  # the policy does not act on these observations: any mask will do
            final_obs = with_branch(final_obs, MASK_KEY, all_legal(self.action_space, len(final_env)))
        return final_obs

    def _finish(self, done: np.ndarray, info: Mapping[str, Any]) -> list[Episode]:
        """Returns the episodes that ended, ``done`` (B,), and clears their returns and lengths."""
        final_info = info.get("final_info", info)
        envs = np.flatnonzero(done)
        returns = self.episode_returns[envs].tolist()
        lengths = self.episode_lengths[envs].tolist()
        self.episode_returns[envs] = 0
        self.episode_lengths[envs] = 0
        return [
            Episode(env, total, length, self._chosen_info(final_info, env))
            for env, total, length in zip(envs.tolist(), returns, lengths, strict=True)
        ]

    def _chosen_info(self, info: Any, env: int) -> dict[str, float]:
        """Returns the numbers of ``info_keys`` that an environment has.

        Args:
            info: a dict of arrays (B,), where gymnasium writes 0 for the environments that lack a key; or a
                sequence of B dicts or None, as ``final_info`` was before gymnasium 1.0.
            env: number of the environment.
        """
        if not self.info_keys:
            return {}
        if not isinstance(info, Mapping):
            own = self._of_env("final_info", info, env)
            if own is None:
                return {}
            if not isinstance(own, Mapping):
                raise EnvContractError(
                    f"{self.backend}: step: info['final_info'][{env}] must be a dict or None, got {own!r:.60}"
                )
            return {key: info_number(key, own[key]) for key in self.info_keys if key in own}
        return {
            key: info_number(key, self._of_env(key, info[key], env))
            for key in self.info_keys
            if key in info and (f"_{key}" not in info or self._of_env(f"_{key}", info[f"_{key}"], env))
        }

    def _of_env(self, key: str, values: Any, env: int) -> Any:
        """Returns the value that an info has for an environment.

        Raises:
            EnvContractError: if it has not one for each.
        """
        try:
            if len(values) == self.num_envs:
                return values[env]
        except (TypeError, KeyError):  # one number, or a dict
            pass
        raise EnvContractError(
            f"{self.backend}: step: info[{key!r}] must have a value for each of the {self.num_envs} "
            f"environments, got {values!r:.60}: return an array (num_envs,), or leave the key out of "
            "env.info_keys"
        )

    def open_info(self, env: int) -> dict[str, float]:
        return self._chosen_info(self._last_info, env)

    def _call(self, name: str, args: Sequence[Any]) -> list[Any]:
        return [call_method(self.env.unwrapped, name, args, self.backend)]

    def state_dict(self) -> dict[str, Any]:
        native = None if self.adapter is None else self.adapter.read(self.env.unwrapped)
        return {
            "native": native,
            "pending_reset": self._pending_reset.copy(),
            "returns": self.episode_returns.copy(),
            "lengths": self.episode_lengths.copy(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> Tree:
        self._check_open()
        if self.adapter is None or state["native"] is None:
            raise CheckpointError(f"{self.backend}: its open episodes cannot be restored")
        self._status, self._sent_action = Status.INTERRUPTED, None
        self.env.reset(seed=0)  # creates the generator and the arrays that the adapter fills
        self.adapter.write(self.env.unwrapped, state["native"])
        self._pending_reset = np.array(state["pending_reset"], bool)
        self._any_pending = bool(self._pending_reset.any())
        self.episode_returns = np.array(state["returns"], np.float64)
        self.episode_lengths = np.array(state["lengths"], np.int64)
        obs = self.adapter.observe(self.env.unwrapped)
        self._status = Status.READY
        return obs

    def close(self) -> None:
        self._status = Status.CLOSED
        close_each({self.backend: self.env}, self.say)


def _autoreset_mode(env: GymnasiumVectorEnv) -> AutoresetMode:
    """Returns the autoreset mode that a vector environment declares.

    Raises:
        EnvContractError: if it declares none. A wrong guess would train on wrong transitions.
    """
    declared = env.metadata.get("autoreset_mode")
    try:
        return AutoresetMode(declared)
    except ValueError as error:
        raise EnvContractError(
            f"{type(env.unwrapped).__name__}.metadata['autoreset_mode'] is {declared!r}: the meaning of the "
            "row after an episode's end is unknown. Declare what the environment does, NEXT_STEP, SAME_STEP "
            'or DISABLED: metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP}'
        ) from error


def _with_masks(obs: Tree, masks: Tree | None) -> Tree:
    return obs if masks is None else with_branch(obs, MASK_KEY, masks)


def _replaced_rows(rows: np.ndarray, old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Returns ``old`` (B, ...) with the rows (B,) of ``new``."""
    return np.where(rows.reshape(-1, *[1] * (new.ndim - 1)), new, old)


def _batch_of_masks(mask: Any, action_space: gym.Space) -> Tree:
    """Returns a batch of masks.

    Args:
        mask: an array (B, n), a dict of such arrays, or an object array with one mask per environment.
        action_space: of one environment.
    """
    if isinstance(mask, np.ndarray) and mask.dtype == object:
        rows = [as_mask(row, action_space) for row in mask]
        return map_tree(lambda *leaves: np.stack(leaves), *rows)
    return as_mask(mask, action_space)
