"""Checks what environments return before a policy acts on it or learns from it, on every backend."""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from ding_lite.envs.bad_values import LAST_OBSERVATION, bad_observation, bad_step
from ding_lite.envs.masks import mask_fault, without_legal_action
from ding_lite.envs.transition import Transition
from ding_lite.envs.vector import VectorEnv
from ding_lite.errors import EnvContractError, NotFiniteError
from ding_lite.trees import MASK_KEY, Tree, children, path_text, space_leaves, value_at

ROUNDING = np.float32(1e-5)  # relative error that a float at a bound may have


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
        self._indices = IndexRanges(envs.obs_space)
        self._boxes = _bounded_boxes(envs.obs_space)
        mask = (children(envs.obs_space) or {}).get(MASK_KEY)
        self._masked = mask is not None
        if mask is not None and (fault := mask_fault(mask, envs.action_space)):
            raise EnvContractError(". ".join(fault))

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

    def look_at_bounds(self, obs: Tree) -> None:
        """Reports the first number outside of its Box, once for each leaf; it is used as it is.

        Args:
            obs: (T, B, ...), of a rollout.
        """
        for leaf in list(self._boxes):
            if found := leaf.first_outside(obs):
                self._boxes.remove(leaf)
                (_, env, *index), value = found
                space: Any = leaf.space
                low, high = (bound[tuple(index)] for bound in (space.low, space.high))
                self.envs.say(
                    f"WARNING: env {self.envs.index_offset + env}: observation{path_text(leaf.path)}"
                    f"{index or ''} = {value}, and its space is from {low} to {high}. "
                    "It is used as it is, and reported once: widen low and high, or clip (`ding-lite "
                    "check-env --rollout 1000` shows the range)"
                )

    def _check_indices(self, obs: Tree, numbers: np.ndarray, name: str = "observation") -> None:
        if found := self._indices.first_outside(obs):
            row, what = found
            self._refuse(int(numbers[row]), f"{name}{what}")

    def _check_masks(self, obs: Tree, numbers: np.ndarray, acts: np.ndarray | bool = True) -> None:
        """Refuses masks without a legal action of environments that the policy acts in: ``acts`` (G,)."""
        stuck = without_legal_action(obs[MASK_KEY], self.envs.action_space) & acts
        if stuck.any():
            self._refuse(int(numbers[stuck][0]), f"{MASK_KEY} leaves no legal action")

    def _refuse(self, env: int, message: str, kind: type[EnvContractError] = EnvContractError) -> None:
        raise kind(f"{self.envs.describe(env)}: {message}{self._suffix}")


class _BoundedLeaf(NamedTuple):
    """A leaf of numbers within bounds, such as indices."""

    path: tuple[str, ...]
    space: gym.Space
    low: Any
    high: Any

    def first_outside(self, obs: Tree) -> tuple[list[int], Any] | None:
        """Returns index and value of the first number outside of the bounds; None if all are within."""
        array = value_at(obs, self.path)
        return _first(array, (array < self.low) | (array > self.high))

    def first_fraction(self, obs: Tree) -> tuple[list[int], Any] | None:
        """Returns index and value of the first number that is not whole; None if all are whole."""
        array = value_at(obs, self.path)
        return None if array.dtype.kind != "f" else _first(array, array != np.floor(array))


def _first(array: np.ndarray, chosen: np.ndarray) -> tuple[list[int], Any] | None:
    if not chosen.any():
        return None
    index = np.argwhere(chosen)[0].tolist()
    return index, array[tuple(index)]


class IndexRanges:
    """The ranges of the indices in observations of ``space``: its leaves Discrete and MultiDiscrete."""

    def __init__(self, space: gym.Space) -> None:
        self._leaves: list[_BoundedLeaf] = []
        for path, leaf in space_leaves(space):
            if isinstance(leaf, (gym.spaces.Discrete, gym.spaces.MultiDiscrete)):
                count = leaf.n if isinstance(leaf, gym.spaces.Discrete) else leaf.nvec
                self._leaves.append(_BoundedLeaf(path, leaf, leaf.start, leaf.start + count - 1))

    def first_outside(self, obs: Tree) -> tuple[int, str] | None:
        """Returns the row of the first index outside its range, and what it is; None if there is none.

        Args:
            obs: (B, ...).
        """
        for leaf in self._leaves:
            if found := leaf.first_outside(obs) or leaf.first_fraction(obs):
                (row, *index), value = found
                return row, f"{path_text(leaf.path)}{index or ''} = {value}, which is not in {leaf.space}"
        return None


def _bounded_boxes(space: gym.Space) -> list[_BoundedLeaf]:
    """Returns the Boxes with bounds that their dtype can exceed; floats may do so by a rounding error."""
    found = []
    for path, leaf in space_leaves(space):
        if not isinstance(leaf, gym.spaces.Box) or leaf.dtype == bool or path[:1] == (MASK_KEY,):
            continue
        low, high = leaf.low, leaf.high
        if low.dtype.kind == "f":
            with np.errstate(over="ignore"):  # the largest floats become infinite: no bound
                low, high = (bound.astype(np.float32) for bound in (low, high))
                low = low - ROUNDING * np.maximum(1, np.abs(low))
                high = high + ROUNDING * np.maximum(1, np.abs(high))
            unbounded = np.isinf(low) & np.isinf(high)
        else:
            limits = np.iinfo(low.dtype)
            unbounded = (low == limits.min) & (high == limits.max)
        if not unbounded.all():
            found.append(_BoundedLeaf(path, leaf, low, high))
    return found
