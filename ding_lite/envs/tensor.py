"""``vector`` with tensors: a simulator that steps thousands of environments in one call on a device.

The simulator is any object with ``num_envs``, ``single_observation_space``, ``single_action_space``,
``reset`` and ``step``, whose observations, rewards and flags are tensors (N, ...) on one device, and whose
``metadata`` has the autoreset mode. It is recognised by what its ``reset`` returns, not by its class.

    SAME_STEP   last observations in info["final_obs"] or info["final_observation"], of all environments
    DISABLED    ``step`` returns them, and reset(options={"reset_mask": ended}) begins the next episodes
    NEXT_STEP   ``step`` returns them, and its next call begins the next episodes in rows that are not valid

Only the last observations of truncated episodes are read. Where ``final_obs`` is missing, they are unknown:
the observation before is used, as in rsl_rl and rl_games.

Shapes: N environments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor

from ding_lite.envs.native import WholeVectorEnv
from ding_lite.envs.recorder import check_spaces
from ding_lite.envs.vector import NO_ENVS, Episode, Transition, call_method
from ding_lite.errors import FOREIGN, EnvContractError, ReplayError
from ding_lite.rl.seeding import integer_seed, torch_generator
from ding_lite.trees import Tree, from_tree, map_space, map_tree, to_tree, tree_leaves

FINAL = ("final_obs", "final_observation")  # names of the last observations in info
APPROXIMATE = (
    "truncated episodes have no last observation (info['final_obs']): the value of the observation before "
    "takes its place. env.strict_truncation=True refuses this"
)


class TensorStep(NamedTuple):
    """The result of one step, on the device; the next step may overwrite what the simulator has returned.

    Shapes:
        obs: (N, ...), the observations that the policy acts on next
        reward: (N,) float32
        terminated, truncated, valid: (N,) bool, as in :class:`~ding_lite.envs.vector.Transition`
        final_obs: (N, ...), the last observations where an episode was truncated; None: unknown
        returns, lengths: (N,), of the episodes up to this step
        log: the simulator's own metrics, 0-d tensors and numbers by name
    """

    obs: Tree
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    valid: Tensor
    final_obs: Tree | None
    returns: Tensor
    lengths: Tensor
    log: Mapping[str, Any]


class TensorVectorEnv(WholeVectorEnv):
    """Adapts a vector environment of tensors; :meth:`step_tensors` stays on the device.

    Args:
        env: the simulator.
        seed, index_offset: as in :class:`~ding_lite.envs.native.WholeVectorEnv`.
        random_lengths: begin training at random times of the first episodes: set ``episode_length_buf`` to
            random numbers below ``max_episode_length``.
    """

    def __init__(self, env: Any, seed: int = 0, index_offset: int = 0, random_lengths: bool = False) -> None:
        super().__init__(env, seed, index_offset)
        self._core = getattr(env, "unwrapped", env)
        # The buffer of the first random lengths; None: episodes begin at time 0.
        self._length_buffer = self._core.episode_length_buf if random_lengths else None
        self.restorable = hasattr(env, "get_state") and hasattr(env, "set_state")
        self.device: torch.device = tree_leaves(self._reset_env(seed=integer_seed(seed, "device")))[0].device
        self.backend = f"{type(env).__name__}, {self.num_envs:,} environments as tensors on {self.device}"
        self.has_last_obs = bool(env.metadata.get("final_obs", True))
        self.waits = torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)  # next step is a reset
        kind = torch.float32 if self.device.type == "mps" else torch.float64
        self.returns = torch.zeros(self.num_envs, dtype=kind, device=self.device)
        self.lengths = torch.zeros(self.num_envs, dtype=torch.int64, device=self.device)

    def notes(self) -> dict[str, str]:
        notes = super().notes()
        return notes if self.has_last_obs else {**notes, "truncation": APPROXIMATE}

    @property
    def episode_returns(self) -> np.ndarray:  # type: ignore[override]
        return self.returns.cpu().numpy()

    @property
    def episode_lengths(self) -> np.ndarray:  # type: ignore[override]
        return self.lengths.cpu().numpy()

    def reset(self, *stream: str | int) -> Tree:
        self._is_ready = False
        part = (self.index_offset,) if self.index_offset else ()
        obs = self._reset_env(seed=integer_seed(self.seed, *stream, *part))
        for state in (self.waits, self.returns, self.lengths):
            state.zero_()
        if self._length_buffer is not None and stream[0] == "collect":
            draws, most = torch_generator(self.seed, "lengths", *stream, *part), self._core.max_episode_length
            lengths = torch.randint(int(most), self._length_buffer.shape, generator=draws)
            self._core.episode_length_buf = lengths.to(self._length_buffer)
        self._is_ready = True
        return map_tree(_on_host, obs)

    @torch.no_grad()
    def step_tensors(self, action: Tree) -> TensorStep:
        """Steps all environments.

        Args:
            action: (N, ...), in the form that the environments take, on their device.
        """
        self._check_ready()
        self._is_ready = False
        try:
            obs, reward, terminated, truncated, info = self.env.step(from_tree(action, self.action_space))
            obs, reward = self._observations(obs), self._numbers("reward", reward).to(torch.float32)
            terminated, truncated = (
                self._numbers(name, flag).to(torch.bool)
                for name, flag in (("terminated", terminated), ("truncated", truncated))
            )
        except FOREIGN as error:
            raise self._located(f"{type(self.env).__name__}: step", error) from error
        # Reward, flags and counters get new memory: a simulator may return the same tensors at every step.
        valid = ~self.waits
        reward = torch.where(valid, reward, 0.0)
        terminated, truncated = terminated & valid, truncated & ~terminated & valid
        ended = terminated | truncated
        returns, lengths = self.returns + reward, self.lengths + valid
        self.returns, self.lengths = returns.masked_fill(ended, 0), lengths.masked_fill(ended, 0)
        final = obs
        if self.mode is AutoresetMode.SAME_STEP:
            last = next((info[name] for name in FINAL if info.get(name) is not None), None)
            final = None if last is None else self._observations(last)
        elif self.mode is AutoresetMode.NEXT_STEP:
            self.waits = ended
        else:
            final = map_tree(torch.clone, obs)  # the reset may overwrite it
            first = self._reset_env(options={"reset_mask": ended})
            obs = map_tree(lambda leaf, other: torch.where(_as_wide(ended, leaf), leaf, other), first, final)
        self._is_ready = True
        log = info.get("log") or {}
        return TensorStep(obs, reward, terminated, truncated, valid, final, returns, lengths, log)

    @torch.no_grad()
    def _reset_env(self, **arguments: Any) -> Tree:
        try:
            return self._observations(self.env.reset(**arguments)[0])
        except FOREIGN as error:
            raise self._located(f"{type(self.env).__name__}: reset", error) from error

    def _observations(self, obs: Any) -> Tree:
        """Returns observations as the tree that is stored: float64 becomes float32."""

        def stored(space: gym.Space, leaf: Any) -> Tensor:
            leaf = self._numbers("an observation", leaf, space.shape or ())
            return leaf.to(torch.float32) if leaf.dtype == torch.float64 else leaf

        return map_space(stored, self.obs_space, obs)

    def _numbers(self, name: str, leaf: Any, shape: tuple[int, ...] = ()) -> Tensor:
        """Returns ``leaf``, a result of a step or a reset, if it is a tensor of the shape (N, *shape)."""
        expected = (self.num_envs, *shape)
        if not isinstance(leaf, Tensor) or leaf.shape != expected:
            got = tuple(leaf.shape) if isinstance(leaf, Tensor) else f"a {type(leaf).__name__}"
            raise EnvContractError(
                f"{name} must be a tensor of the shape (num_envs, ...) = {expected}, got {got}"
            )
        return leaf

    # -- On the host, for evaluations, random steps and checks

    def step(self, action: Tree) -> Transition:
        step = self.step_tensors(map_tree(lambda leaf: torch.as_tensor(leaf, device=self.device), action))
        obs = map_tree(_on_host, step.obs)
        reward, terminated, truncated, valid = map(_on_host, step[1:5])
        envs = np.flatnonzero(truncated)
        final, final_env = None, NO_ENVS
        if len(envs) and step.final_obs is not None:
            final, final_env = map_tree(lambda leaf: _on_host(leaf)[envs], step.final_obs), envs
        returns, lengths = step.returns.tolist(), step.lengths.tolist()
        ended = np.flatnonzero(terminated | truncated).tolist()
        episodes = [Episode(env, returns[env], lengths[env], {}) for env in ended]
        return Transition(obs, reward, terminated, truncated, valid, final, final_env, episodes)

    # -- State

    def _call(self, name: str, args: Sequence[Any]) -> list[Any]:
        return [call_method(self.env, name, args, self.backend)]

    def state_dict(self) -> dict[str, Any]:
        if not self.restorable:
            return {}
        counters = {"waits": self.waits, "returns": self.returns, "lengths": self.lengths}
        return {"simulator": self.env.get_state(), **map_tree(torch.clone, counters)}

    def load_state_dict(self, state: Mapping[str, Any]) -> Tree:
        """Restores the open episodes: the simulator's ``set_state`` returns their observations.

        ``set_state`` receives what ``get_state`` returned, with tensors on the host. It returns None if it
        restores something else, such as the progress of a curriculum.

        Raises:
            ReplayError: if ``set_state`` returns None.
        """
        tensors = lambda x: torch.from_numpy(np.array(x)) if isinstance(x, np.ndarray) else x  # noqa: E731
        obs = self.env.set_state(map_tree(tensors, state["simulator"]))
        if obs is None:
            raise ReplayError(f"{self.backend}: set_state returned no observations")
        for name in ("waits", "returns", "lengths"):
            setattr(self, name, torch.as_tensor(state[name]).to(getattr(self, name), copy=True))
        self._is_ready = True
        return map_tree(_on_host, self._observations(obs))


def gives_tensors(env: Any) -> bool:
    """Resets a vector environment, and returns whether its observations are tensors.

    Raises:
        EnvContractError: if it does not declare its spaces.
    """
    check_spaces(env, "single_")
    leaves = tree_leaves(to_tree(env.reset()[0], env.single_observation_space))
    return isinstance(leaves[0], Tensor)


def _as_wide(flags: Tensor, leaf: Tensor) -> Tensor:
    """Returns flags (N,) in a shape that broadcasts with a leaf (N, ...)."""
    return flags.view(-1, *[1] * (leaf.dim() - 1))


def _on_host(leaf: Tensor) -> np.ndarray:
    """Returns a copy of a tensor on the host."""
    return leaf.cpu().numpy().copy()
