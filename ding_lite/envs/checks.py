"""Checks what environments return before a policy acts on it or learns from it, on every backend.

Numbers that are not finite are found before they are stored, shown to a network, or learned from.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from ding_lite.envs.masks import mask_fault, without_legal_action
from ding_lite.envs.vector import Transition, VectorEnv
from ding_lite.errors import EnvContractError, NotFiniteError
from ding_lite.trees import (
    MASK_KEY,
    Tree,
    children,
    map_tree,
    named_leaves,
    path_text,
    space_leaves,
    value_at,
)

FLOAT32_MAX = float(np.finfo(np.float32).max)
LAST_OBSERVATION = "last observation of the episode before, "  # begins the path of a leaf of ``final_obs``


class Watch:
    """Refuses values that are not finite, indices outside their range, and masks without a legal action.

    Args:
        envs: the environments whose results are checked.
        suffix: appended to the message of every error, such as ``", in an evaluation"``.

    Raises:
        EnvContractError: if the space of the masks does not fit the action space.
    """

    def __init__(self, envs: VectorEnv, suffix: str) -> None:
        self.envs = envs
        self._suffix = suffix
        self._indices = index_leaves(envs.obs_space)
        mask = (children(envs.obs_space) or {}).get(MASK_KEY)
        self._masked = mask is not None
        if mask is not None and (fault := mask_fault(mask, envs.action_space)):
            raise EnvContractError(fault)

    def reset(self, *stream: str | int) -> Tree:
        """Resets the environments, checks their observations (B, ...), and returns them.

        Raises:
            EnvContractError: if an observation is not finite, an index is outside its range, or a mask leaves
                no legal action.
        """
        obs = self.envs.reset(*stream)
        numbers = np.arange(self.envs.num_envs)
        if bad := bad_observation(obs, "observation after reset"):
            self._refuse(bad.env, bad.message, NotFiniteError)
        self._check_indices(obs, numbers)
        if self._masked:
            self._check_masks(obs, numbers)
        return obs

    def look(self, transition: Transition, numbers: np.ndarray) -> None:
        """Checks one step of some of the environments.

        Args:
            transition: what the step returned, for G environments.
            numbers: (G,), the numbers of these environments in the vector.

        Raises:
            EnvContractError: if a value is not finite, an index is outside its range, or a mask leaves no
                legal action.
        """
        if bad := bad_step(transition):
            self._refuse(int(numbers[bad.env]), bad.message, NotFiniteError)
        self._check_indices(transition.obs, numbers)
        if transition.final_obs is not None:
            self._check_indices(transition.final_obs, numbers[transition.final_env], LAST_OBSERVATION)
        if self._masked:
            acts: np.ndarray | bool = True
            if self.envs.has_fillers:  # the policy's action on an episode's last observation is discarded
                acts = ~(transition.terminated | transition.truncated)
            self._check_masks(transition.obs, numbers, acts)

    def _check_indices(self, obs: Tree, numbers: np.ndarray, name: str = "observation") -> None:
        for leaf in self._indices:
            if found := leaf.first_outside(obs):
                (row, *index), value = found
                where = f"{name}{path_text(leaf.path)}{index or ''}"
                self._refuse(int(numbers[row]), f"{where} = {value}, which is not in {leaf.space}")

    def _check_masks(self, obs: Tree, numbers: np.ndarray, acts: np.ndarray | bool = True) -> None:
        """Refuses masks without a legal action of environments that the policy acts in: ``acts`` (G,)."""
        stuck = without_legal_action(obs[MASK_KEY], self.envs.action_space) & acts
        if stuck.any():
            self._refuse(int(numbers[stuck][0]), f"{MASK_KEY} leaves no legal action")

    def _refuse(self, env: int, message: str, kind: type[EnvContractError] = EnvContractError) -> None:
        raise kind(f"{self.envs.describe(env)}: {message}{self._suffix}")


class IndexLeaf(NamedTuple):
    """A leaf Discrete or MultiDiscrete."""

    path: tuple[str, ...]
    space: gym.Space
    low: Any
    high: Any

    def first_outside(self, obs: Tree) -> tuple[list[int], Any] | None:
        """Returns place and value of the first number that is no index of the space; None if all are."""
        array = value_at(obs, self.path)
        outside = (array < self.low) | (array > self.high)
        if array.dtype.kind == "f":
            outside |= array != np.floor(array)
        if not outside.any():
            return None
        index = np.argwhere(outside)[0].tolist()
        return index, array[tuple(index)]


def index_leaves(space: gym.Space) -> list[IndexLeaf]:
    """Returns the leaves Discrete and MultiDiscrete."""
    found = []
    for path, leaf in space_leaves(space):
        if isinstance(leaf, (gym.spaces.Discrete, gym.spaces.MultiDiscrete)):
            count = leaf.n if isinstance(leaf, gym.spaces.Discrete) else leaf.nvec
            found.append(IndexLeaf(path, leaf, leaf.start, leaf.start + count - 1))
    return found


class BadValue(NamedTuple):
    """A number that is not finite."""

    env: int  # row of its environment
    message: str  # such as "reward = nan, which is not finite"


def bad_reward(reward: float) -> str:
    """Returns what is wrong with a reward that is no finite float32, or "" if it is one."""
    return "" if abs(reward) <= FLOAT32_MAX else f"reward = {reward}, which is not a finite float32"


def bad_observation(obs: Tree, name: str = "observation") -> BadValue | None:
    """Returns the first number of a batch of observations (B, ...) that is not finite, or None."""
    for path, leaf in named_leaves(obs):
        if leaf.dtype.kind == "f" and not _all_finite(leaf):
            env, *index = np.argwhere(~np.isfinite(leaf))[0].tolist()
            where = f"{name}{path_text(path)}{index or ''}"
            return BadValue(env, f"{where} = {leaf[(env, *index)]}, which is not finite")
    return None


def bad_row(obs: Tree, row: int) -> str:
    """Returns what is wrong with row ``row`` of a batch of observations, or "" if all of it is finite."""
    bad = bad_observation(map_tree(lambda leaf: leaf[row : row + 1], obs))
    return bad.message if bad else ""


def bad_step(transition: Transition) -> BadValue | None:
    """Returns the first number of a step that is not finite, or None."""
    if not _all_finite(transition.reward):
        env = int(np.flatnonzero(~np.isfinite(transition.reward))[0])
        return BadValue(env, bad_reward(float(transition.reward[env])))
    if bad := bad_observation(transition.obs):
        return bad
    if transition.final_obs is None:
        return None
    bad = bad_observation(transition.final_obs, LAST_OBSERVATION)
    return bad and BadValue(int(transition.final_env[bad.env]), bad.message)


def _all_finite(numbers: np.ndarray) -> bool:
    # A finite sum of squares proves that all numbers are finite, in a quarter of the time of np.isfinite.
    # An infinite sum may come from large finite numbers, so np.isfinite decides.
    flat = numbers.ravel("K")  # in memory order: gymnasium's CartPole returns a transposed array
    return math.isfinite(np.vdot(flat, flat)) or bool(np.isfinite(numbers).all())
