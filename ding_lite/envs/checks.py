"""Checks what environments return before a policy acts on it or learns from it, on every backend.

Numbers that are not finite are found before they are stored, shown to a network, or learned from.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
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
    named_leaves,
    path_text,
    space_leaves,
    value_at,
)

WIDE = 10.0  # bounds of actions that a new policy does not reach: it draws them with a sigma of 1
FLOAT32_MAX = float(np.finfo(np.float32).max)
# Attributes of wrappers with running statistics, as gymnasium names them, and the key that does the same.
ADAPTS = {"obs_rms": "obs", "return_rms": "reward"}
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
        self._refuse(bad_observation(obs, "observation after reset"), numbers, NotFiniteError)
        self._check(obs, numbers)
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
        if fault := bad_step(transition):
            self._refuse(fault, numbers, NotFiniteError)
        if transition.final_obs is not None:
            fault = first_outside(self._indices, transition.final_obs, LAST_OBSERVATION)
            self._refuse(fault, numbers[transition.final_env])
        acts: np.ndarray | bool = True
        if (
            self._masked and self.envs.has_fillers
        ):  # the policy's action on an episode's last observation is discarded
            acts = ~(transition.terminated | transition.truncated)
        self._check(transition.obs, numbers, acts)

    def _check(self, obs: Tree, numbers: np.ndarray, acts: np.ndarray | bool = True) -> None:
        """Refuses wrong indices, and masks without a legal action where the policy acts: ``acts`` (G,)."""
        if self._indices:
            self._refuse(first_outside(self._indices, obs), numbers)
        if self._masked:
            stuck = without_legal_action(obs[MASK_KEY], self.envs.action_space) & acts
            if stuck.any():
                self._refuse(Fault(int(np.argmax(stuck)), f"{MASK_KEY} leaves no legal action"), numbers)

    def _refuse(
        self, fault: Fault | None, numbers: np.ndarray, kind: type[EnvContractError] = EnvContractError
    ) -> None:
        if fault is not None:
            env = self.envs.describe(int(numbers[fault.row]))
            raise kind(f"{env}: {fault.message}{self._suffix}")


class Fault(NamedTuple):
    """A wrong value in a batch."""

    row: int  # of its environment
    message: str  # such as "reward = nan, which is not finite"


class IndexLeaf(NamedTuple):
    """A leaf Discrete or MultiDiscrete, and its smallest and largest index."""

    path: tuple[str, ...]
    space: gym.Space
    low: Any
    high: Any


def layers(env: Any) -> Iterator[Any]:
    """Yields an environment, or a vector of them, from its outermost wrapper to its core."""
    while isinstance(env, (gym.Wrapper, gym.vector.VectorWrapper)):
        yield env
        env = env.env
    yield env


def notes_on(env: Any, obs_space: gym.Space, action_space: gym.Space) -> dict[str, str]:
    """Returns what may train badly, as sentences by short names: the first lines of a run, and check-env.

    Args:
        env: an environment, or a vector of environments, with all wrappers.
        obs_space, action_space: of one environment.
    """
    notes = {}
    for path, leaf in space_leaves(action_space):
        if isinstance(leaf, gym.spaces.Box) and WIDE < np.abs([leaf.low, leaf.high]).max() < FLOAT32_MAX:
            notes["actions"] = (
                f"action{path_text(path)} has the bounds {leaf.low.min():g} .. {leaf.high.max():g}, and a "
                'new policy acts within about -2 .. 2; env.wrappers=["action_rescale"] makes them -1 .. 1'
            )
    for path, leaf in space_leaves(obs_space):
        if isinstance(leaf, gym.spaces.Box) and leaf.dtype == np.uint8 and len(leaf.shape) > 3:
            where = f"observation{path_text(path)} of shape {leaf.shape}"
            notes["images"] = (
                f"{where} is no image: an mlp gets its bytes, unless policy.model.encoder is set"
            )
    for layer in layers(env):
        for attribute, key in ADAPTS.items():
            if attribute in vars(layer) and getattr(layer, "update_running_mean", True):
                notes[f"scale of {key}"] = (
                    f"{type(layer).__name__} adapts in each environment alone, so evaluations have another "
                    f"scale. In its place policy.normalize.{key}=True is one scale, a part of the policy"
                )
        if callable(getattr(layer, "action_masks", None)) and MASK_KEY not in (children(obs_space) or {}):
            notes["action mask"] = (
                f"action_masks() is not called. Put its result under the key {MASK_KEY!r} into the "
                "observation, a Dict, or into info, with env.action_mask='info'"
            )
    return notes


def index_leaves(space: gym.Space) -> list[IndexLeaf]:
    """Returns the leaves Discrete and MultiDiscrete."""
    found = []
    for path, leaf in space_leaves(space):
        if isinstance(leaf, (gym.spaces.Discrete, gym.spaces.MultiDiscrete)):
            count = leaf.n if isinstance(leaf, gym.spaces.Discrete) else leaf.nvec
            found.append(IndexLeaf(path, leaf, leaf.start, leaf.start + count - 1))
    return found


def first_outside(leaves: Sequence[IndexLeaf], obs: Tree, name: str = "observation") -> Fault | None:
    """Returns the first number of a batch of observations that is no index of its space, or None."""
    for path, space, low, high in leaves:
        array = value_at(obs, path)
        outside = (array < low) | (array > high)
        if array.dtype.kind == "f":
            outside |= array != np.floor(array)
        if outside.any():
            row, *index = np.argwhere(outside)[0].tolist()
            where = f"{name}{path_text(path)}{index or ''}"
            return Fault(row, f"{where} = {array[(row, *index)]}, which is not in {space}")
    return None


def bad_reward(reward: float) -> str:
    """Returns what is wrong with a reward that is no finite float32, or "" if it is one."""
    return "" if abs(reward) <= FLOAT32_MAX else f"reward = {reward}, which is not a finite float32"


def bad_observation(obs: Tree, name: str = "observation") -> Fault | None:
    """Returns the first number of a batch of observations (B, ...) that is not finite, or None."""
    for path, leaf in named_leaves(obs):
        if leaf.dtype.kind == "f" and not _all_finite(leaf):
            row, *index = np.argwhere(~np.isfinite(leaf))[0].tolist()
            where = f"{name}{path_text(path)}{index or ''}"
            return Fault(row, f"{where} = {leaf[(row, *index)]}, which is not finite")
    return None


def bad_step(transition: Transition) -> Fault | None:
    """Returns the first number of a step that is not finite, or None."""
    if not _all_finite(transition.reward):
        row = int(np.flatnonzero(~np.isfinite(transition.reward))[0])
        return Fault(row, bad_reward(float(transition.reward[row])))
    if bad := bad_observation(transition.obs):
        return bad
    if transition.final_obs is None:
        return None
    bad = bad_observation(transition.final_obs, LAST_OBSERVATION)
    return bad and Fault(int(transition.final_env[bad.row]), bad.message)


def _all_finite(numbers: np.ndarray) -> bool:
    # A finite sum of squares proves that all numbers are finite, in a quarter of the time of np.isfinite.
    # An infinite sum may come from large finite numbers, so np.isfinite decides.
    flat = numbers.ravel("K")  # in memory order: gymnasium's CartPole returns a transposed array
    return math.isfinite(np.vdot(flat, flat)) or bool(np.isfinite(numbers).all())
