"""Checks what environments return, on every backend.

Numbers that are not finite are found before a policy acts on them or learns from them; in tensors at the end
of a rollout (``data.tensors``), before anything is learned from it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from ding_lite.envs.masks import mask_fault, without_legal_action
from ding_lite.envs.vector import ALL, Transition, VectorEnv
from ding_lite.errors import EnvContractError, NotFiniteError
from ding_lite.trees import MASK_KEY, Tree, children, is_image, path_text, space_leaves, value_at

WIDE = 10.0  # action bounds above this are out of reach of a new policy, which draws with a sigma of 1
PIXELS = 36  # images of at least this height and width are pictures, smaller ones grids of cells
FLOAT32_MAX = float(np.finfo(np.float32).max)
# Attributes of gymnasium's wrappers with running statistics, and the keys of policy.normalize to use instead.
ADAPTS = {"obs_rms": "obs", "return_rms": "reward"}
SpaceLeaves = Sequence[tuple[tuple[str, ...], Any]]  # paths and spaces


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
        self._leaves = space_leaves(envs.obs_space)
        mask = (children(envs.obs_space) or {}).get(MASK_KEY)
        self.is_masked = mask is not None
        if mask is not None and (fault := mask_fault(mask, envs.action_space)):
            raise EnvContractError(fault)

    def reset(self, *stream: str | int) -> Tree:
        """Resets the environments, checks their observations (B, ...), and returns them.

        Raises:
            EnvContractError: if an observation is not finite, an index is outside its range, or a mask leaves
                no legal action.
        """
        obs = self.envs.reset(*stream)
        self._check(obs, ALL, "observation after reset")
        return obs

    def look(self, transition: Transition, rows: slice = ALL) -> None:
        """Checks the transition of one step of the environments ``rows`` of the vector.

        Raises:
            EnvContractError: if a value is not finite, an index is outside its range, or a mask leaves no
                legal action.
        """
        if not _all_finite(transition.reward):
            row = int(np.flatnonzero(~np.isfinite(transition.reward))[0])
            self._refuse(Fault(row, bad_reward(float(transition.reward[row])), NotFiniteError), rows)
        if transition.final_obs is not None:
            name = "last observation of the episode before, "
            if fault := first_fault(self._leaves, transition.final_obs, name):
                self._refuse(fault._replace(row=int(transition.final_env[fault.row])), rows)
        self._check(transition.obs, rows, "observation", transition)

    def _check(self, obs: Tree, rows: slice, name: str, transition: Transition | None = None) -> None:
        """Refuses wrong numbers, and masks without a legal action unless the next action is discarded."""
        if fault := first_fault(self._leaves, obs, name):
            self._refuse(fault, rows)
        if self.is_masked:
            stuck = without_legal_action(obs[MASK_KEY], self.envs.action_space)
            if transition is not None and self.envs.has_fillers:  # after an end the action is discarded
                stuck &= ~(transition.terminated | transition.truncated)
            if stuck.any():
                self._refuse(Fault(int(np.argmax(stuck)), f"{MASK_KEY} leaves no legal action"), rows)

    def _refuse(self, fault: Fault, rows: slice) -> None:
        env = self.envs.describe(range(self.envs.num_envs)[rows][fault.row])
        raise fault.kind(f"{env}: {fault.message}{self._suffix}")


class Fault(NamedTuple):
    """A wrong value in a batch."""

    row: int  # index of its environment in the batch
    message: str  # such as "reward = nan, which is not finite"
    kind: type[EnvContractError] = EnvContractError


def first_fault(leaves: SpaceLeaves, obs: Tree, name: str = "observation") -> Fault | None:
    """Returns the first number of observations that is not finite, or is an index outside of its space.

    Args:
        leaves: of the space of one observation, see ``trees.space_leaves``.
        obs: tree of (B, ...).
        name: prefix of the number's path in the message.
    """
    for path, leaf in leaves:
        array = value_at(obs, path)
        is_finite = array.dtype.kind != "f" or _all_finite(array)
        if is_finite and not isinstance(leaf, (gym.spaces.Discrete, gym.spaces.MultiDiscrete)):
            continue
        wrong = ~np.isfinite(array)
        if is_finite:
            count = leaf.n if isinstance(leaf, gym.spaces.Discrete) else leaf.nvec
            wrong = (array < leaf.start) | (array >= leaf.start + count) | (array != np.floor(array))
        if wrong.any():
            row, *index = np.argwhere(wrong)[0].tolist()
            shown = f"{name}{path_text(path)}{index or ''} = {array[(row, *index)]}, which is not"
            if is_finite:
                return Fault(row, f"{shown} in {leaf}")
            return Fault(row, f"{shown} finite", NotFiniteError)
    return None


def layers(env: Any) -> Iterator[Any]:
    """Yields the wrappers of an environment or a vector environment, outermost first, then its core."""
    while isinstance(env, (gym.Wrapper, gym.vector.VectorWrapper)):
        yield env
        env = env.env
    yield env


def notes_on(
    env: Any, obs_space: gym.Space, action_space: gym.Space, info: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, str]:
    """Returns what may impair training, for ``VectorEnv.notes``.

    Args:
        env: an environment, or a vector of environments, with all wrappers.
        obs_space, action_space: of one environment.
        info: of a reset.
    """
    notes = {}
    for path, leaf in space_leaves(action_space):
        if isinstance(leaf, gym.spaces.Box) and WIDE < np.abs([leaf.low, leaf.high]).max() < FLOAT32_MAX:
            notes["actions"] = (
                f"action{path_text(path)} has the bounds {leaf.low.min():g} .. {leaf.high.max():g}, and a "
                'new policy acts within about -2 .. 2; env.wrappers=["action_rescale"] scales to -1 .. 1'
            )
    for path, leaf in space_leaves(obs_space):
        shape = leaf.shape if isinstance(leaf, gym.spaces.Box) and not is_image(leaf) else ()
        if len(shape) > 3 or len(shape) == 2 and min(shape) >= PIXELS:
            notes["images"] = (
                f"observation{path_text(path)} of shape {shape} is not an image: an mlp reads its numbers, "
                "unless policy.model.encoder is set. Images are (H, W, C), (C, H, W), or (H, W) of uint8; "
                "env.wrappers=['frame_stack'] stacks frames as channels"
            )
    adapting = {
        key: type(layer).__name__
        for layer in layers(env)
        for attribute, key in ADAPTS.items()
        if attribute in vars(layer) and getattr(layer, "update_running_mean", True)
    }
    if adapting:
        notes["scale"] = (
            f"{', '.join(adapting.values())} adapts in each environment separately, so evaluations have "
            "another scale, and the same seeds and actions give other numbers. Use "
            f"{', '.join(f'policy.normalize.{key}=True' for key in adapting)} instead: one scale, a part of "
            "the policy"
        )
    if MASK_KEY in (children(obs_space) or {}):
        return notes
    if MASK_KEY in info:
        notes["action mask"] = f"info has the key {MASK_KEY!r}, which is not used. Set env.action_mask='info'"
    elif any(callable(getattr(layer, "action_masks", None)) for layer in layers(env)):
        notes["action mask"] = (
            f"action_masks() is not called. Put its result under the key {MASK_KEY!r} into the "
            "observation, a Dict, or into info, with env.action_mask='info'"
        )
    return notes


def bad_reward(reward: float) -> str:
    """Returns what is wrong with a reward, or "" if it is a finite float32."""
    return "" if abs(reward) <= FLOAT32_MAX else f"reward = {reward}, which is not a finite float32"


def _all_finite(numbers: np.ndarray) -> bool:
    # A finite sum of squares proves that all numbers are finite, in a quarter of the time of np.isfinite.
    # An infinite sum may come from large finite numbers, so np.isfinite decides.
    flat = numbers.ravel("K")  # in memory order: gymnasium's CartPole returns a transposed array
    return math.isfinite(np.vdot(flat, flat)) or bool(np.isfinite(numbers).all())
