"""``vector``: a gymnasium ``VectorEnv`` that steps all its environments by itself.

Its autoreset mode is read from ``metadata["autoreset_mode"]``. It is seeded once, when it is reset;
where a state adapter is known, its open episodes can be saved and brought back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector import VectorEnv as GymnasiumVectorEnv

from ding_lite.envs.masks import OBSERVATION, as_mask, mask_space, with_mask_space
from ding_lite.envs.recorder import check_spaces
from ding_lite.envs.spaces import ObservationBuffer, children, tree_map
from ding_lite.envs.vector import CLOSED, NO_ENVS, VectorEnv
from ding_lite.errors import FOREIGN, CheckpointError, EnvContractError, EnvError, told
from ding_lite.seeding import integer_seed
from ding_lite.types import MASK_KEY, Episode, Transition, Tree


class StateAdapter(NamedTuple):
    """How to read the whole state of a native environment as plain data, set it, and see it."""

    read: Callable[[Any], dict[str, Any]]
    write: Callable[[Any, Mapping[str, Any]], None]
    observe: Callable[[Any], Tree]


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


STATE_ADAPTERS = {
    "gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv": StateAdapter(
        _cartpole_state, _set_cartpole_state, lambda env: env.state.T.astype(np.float32)
    ),
}


class NativeVectorEnv(VectorEnv):
    """Wraps a gymnasium vector environment of any autoreset mode.

    Args:
        env: a ``gymnasium.vector.VectorEnv``.
        seed: the run's.
        entry_point: of the environment, to find its state adapter.
        info_keys: of an ended episode's info, recorded with it.
        mask_from_info: put ``info["action_mask"]`` into the observation.

    Raises:
        EnvContractError: if the environment does not declare its spaces, or its autoreset mode.
    """

    def __init__(
        self,
        env: GymnasiumVectorEnv,
        seed: int = 0,
        entry_point: str = "",
        info_keys: tuple[str, ...] = (),
        mask_from_info: bool = False,
    ) -> None:
        self.env, self.seed, self.info_keys, self.mask_from_info = env, seed, info_keys, mask_from_info
        check_spaces(env, "single_")
        self.num_envs = env.num_envs
        self._own_obs_space, self.action_space = env.single_observation_space, env.single_action_space
        self.obs_space = self._own_obs_space
        # Asked in each step, a space's class costs a thirtieth of CartPole's.
        self._branched_obs = children(self.obs_space) is not None
        self._branched_actions = children(self.action_space) is not None
        if mask_from_info:
            self.obs_space = with_mask_space(self._own_obs_space, self.action_space)
        self.mode = _mode_of(env)
        self.has_fillers = self.mode is AutoresetMode.NEXT_STEP
        self.backend = f"{type(env.unwrapped).__name__}, {self.num_envs} environments in one call"
        self.adapter = STATE_ADAPTERS.get(entry_point)
        self.restorable = self.adapter is not None
        self.final_of_terminated = False
        self.episode_returns = np.zeros(self.num_envs, np.float64)
        self.episode_lengths = np.zeros(self.num_envs, np.int64)
        self._pending_reset = np.zeros(self.num_envs, bool)
        self._resets = False  # whether any is pending
        self._all_valid = np.ones(self.num_envs, bool)
        self._final = ObservationBuffer(self._own_obs_space, self.num_envs)

    def reset(self, *stream: str | int) -> Tree:
        self._check_open()
        self._lacking, self._sent = "", None
        self.episode_returns[:] = 0
        self.episode_lengths[:] = 0
        self._pending_reset[:] = self._resets = False
        return self._reset_env(integer_seed(self.seed, *stream))

    def _reset_env(self, seed: int) -> Tree:
        try:
            obs, info = self.env.reset(seed=seed)
        except FOREIGN as error:
            raise self._blamed("reset", error) from error
        return self._with_mask(as_tree(obs, self._own_obs_space), info)

    def _with_mask(self, obs: Tree, info: Mapping[str, Any]) -> Tree:
        """Puts the masks of ``info`` into a batch of observations, where the config asks for it."""
        if not self.mask_from_info:
            return obs
        if MASK_KEY not in info:
            raise EnvContractError(
                f"env.action_mask='info', and the info of {self.backend} has no {MASK_KEY!r}: "
                f"it has {sorted(map(str, info))}"
            )
        plain = obs if isinstance(obs, dict) else {OBSERVATION: obs}
        return {**plain, MASK_KEY: _stacked_mask(info[MASK_KEY], self.action_space)}

    def _raw_reward(self, reward: np.ndarray, info: Mapping[str, Any]) -> np.ndarray:
        """Returns what episode returns are sums of."""
        return reward

    def step(self, action: Tree) -> Transition:
        if self._lacking or self._sent is not None:
            raise self._cannot_step()
        if self._branched_actions:
            action = _as_space(action, self.action_space)
        try:
            obs, reward, terminated, truncated, info = self.env.step(action)
        except FOREIGN as error:
            raise self._blamed("step", error) from error
        if self._branched_obs or obs.dtype == np.float64:
            obs = as_tree(obs, self._own_obs_space)
        reward = np.asarray(reward, np.float32)
        raw, valid = self._raw_reward(reward, info), self._all_valid
        if self._resets:
            valid = ~self._pending_reset
            reward, raw = np.where(valid, reward, 0), np.where(valid, raw, 0)
            terminated, truncated = terminated & valid, truncated & valid
        self.episode_returns += raw
        self.episode_lengths += valid
        done = terminated | truncated
        some_done = bool(np.count_nonzero(done))  # in a third of any()'s time
        if self.mode is AutoresetMode.NEXT_STEP:
            self._pending_reset, self._resets = done, some_done
        final_obs, final_env, episodes = None, NO_ENVS, []
        if some_done:
            truncated = truncated & ~terminated
            final_env = np.flatnonzero(done if self.final_of_terminated else truncated)
            final_obs = self._final_obs(obs, info, final_env) if len(final_env) else None
            episodes = self._finish(done, info)
            if self.mode is AutoresetMode.DISABLED:
                obs, info = self.env.reset(options={"reset_mask": done})
                obs = as_tree(obs, self._own_obs_space)
        obs = self._with_mask(obs, info)
        return Transition(obs, reward, terminated, truncated, valid, final_obs, final_env, episodes)

    def _blamed(self, call: str, error: BaseException) -> EnvError:
        return EnvError(f"{self.backend}: {call} raised {told(error)}")

    def _final_obs(self, obs: Tree, info: Mapping[str, Any], final_env: np.ndarray) -> Tree:
        if self.mode is not AutoresetMode.SAME_STEP:
            return self._legal(tree_map(lambda array: array[final_env].copy(), obs), len(final_env))
        if "final_obs" not in info:
            raise EnvContractError(
                f"{self.backend}: envs {final_env.tolist()} were truncated in autoreset mode SAME_STEP, "
                "and info has no 'final_obs': the value of their last observation cannot be known"
            )
        for env in final_env:
            self._final.write(int(env), info["final_obs"][env])
        return self._legal(self._final.rows(final_env), len(final_env))

    def _legal(self, obs: Tree, n: int) -> Tree:
        """Gives last observations (n, ...), after which nothing is done, masks that allow everything."""
        if not self.mask_from_info:
            return obs
        masks = mask_space(self.action_space)
        plain = obs if isinstance(obs, dict) else {OBSERVATION: obs}
        return {**plain, MASK_KEY: _all_true(masks, n)}

    def _finish(self, done: np.ndarray, info: Mapping[str, Any]) -> list[Episode]:
        info = info.get("final_info", info)
        keys = [key for key in self.info_keys if key in info]
        envs = np.flatnonzero(done)
        returns, lengths = self.episode_returns[envs].tolist(), self.episode_lengths[envs].tolist()
        self.episode_returns[envs] = self.episode_lengths[envs] = 0
        return [
            Episode(env, total, length, {key: float(info[key][env]) for key in keys})
            for env, total, length in zip(envs.tolist(), returns, lengths, strict=True)
        ]

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
            raise CheckpointError(f"{self.backend}: its open episodes cannot be brought back")
        self._lacking, self._sent = "", None
        self.env.reset(seed=0)  # makes the generator and the arrays that the adapter fills
        self.adapter.write(self.env.unwrapped, state["native"])
        self._pending_reset = np.array(state["pending_reset"], bool)
        self._resets = bool(self._pending_reset.any())
        self.episode_returns = np.array(state["returns"], np.float64)
        self.episode_lengths = np.array(state["lengths"], np.int64)
        return self.adapter.observe(self.env.unwrapped)

    def close(self) -> None:
        self._closed = self._lacking = CLOSED
        self.env.close()


def _mode_of(env: GymnasiumVectorEnv) -> AutoresetMode:
    """Returns what a vector environment declares; a guess would be trained on, right or wrong."""
    declared = env.metadata.get("autoreset_mode")
    try:
        return AutoresetMode(declared)
    except ValueError as error:
        raise EnvContractError(
            f"{type(env.unwrapped).__name__}.metadata['autoreset_mode'] is {declared!r}: nobody can tell "
            "what the row after an episode's end is. Declare what the environment does, NEXT_STEP, "
            "SAME_STEP or DISABLED: "
            'metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP}'
        ) from error


def _stacked_mask(mask: Any, action_space: gym.Space) -> Tree:
    """Returns a batch of masks: an array (B, n), a dict of such, or an object array of single ones."""
    if isinstance(mask, np.ndarray) and mask.dtype == object:
        rows = [as_mask(one, action_space) for one in mask]
        return tree_map(lambda *leaves: np.stack(leaves), *rows)
    return as_mask(mask, action_space)


def _all_true(masks: gym.Space | None, n: int) -> Tree:
    branches = children(masks) if masks is not None else None
    if branches is not None:
        return {name: _all_true(child, n) for name, child in branches.items()}
    return np.ones((n, *(masks.shape or ())), np.bool_) if masks is not None else {}


def as_tree(obs: Any, space: gym.Space) -> Tree:
    """Returns a batch as gymnasium gives it in the form that is stored: nested dicts, no float64."""
    branches = children(space)
    if branches is None:
        return obs.astype(np.float32) if obs.dtype == np.float64 else obs
    keys = range(len(branches)) if isinstance(space, gym.spaces.Tuple) else branches
    return {name: as_tree(obs[k], child) for (name, child), k in zip(branches.items(), keys, strict=True)}


def _as_space(action: Tree, space: gym.Space) -> Any:
    branches = children(space)
    if branches is None:
        return action
    parts = {name: _as_space(action[name], child) for name, child in branches.items()}
    return tuple(parts.values()) if isinstance(space, gym.spaces.Tuple) else parts
