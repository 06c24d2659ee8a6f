"""Action masks: trees of bools that say which actions are legal.

An environment returns its mask in the observation, as ``obs["action_mask"]``, or in its info. The policy
always reads it from the observation. A mask has the structure of the action space. A leaf has the shape (n,)
for Discrete, the concatenated masks of all components for MultiDiscrete, and the shape of the action for
MultiBinary (True: the bit may be 1). A Box has no mask.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from ding_lite.errors import EnvContractError
from ding_lite.trees import MASK_KEY, Tree, children, space_leaves

OBSERVATION = "observation"  # the key of an observation that was not a Dict before a mask was added to it


def mask_space(action_space: gym.Space) -> gym.Space | None:
    """Returns the space of the masks for an action space, or None if none of its leaves can be masked."""
    branches = children(action_space)
    if branches is not None:
        masks = {name: mask_space(child) for name, child in branches.items()}
        present = {name: mask for name, mask in masks.items() if mask is not None}
        return gym.spaces.Dict(present) if present else None
    if isinstance(action_space, gym.spaces.MultiBinary):
        shape = action_space.shape
    elif isinstance(action_space, (gym.spaces.Discrete, gym.spaces.MultiDiscrete)):
        shape = (gym.spaces.flatdim(action_space),)
    else:
        return None
    return gym.spaces.Box(np.zeros(shape, np.bool_), np.ones(shape, np.bool_), dtype=np.bool_)


def mask_fault(declared: gym.Space, action_space: gym.Space) -> str:
    """Returns what is wrong with a declared space of masks, and what to do; "" if it fits the actions.

    A branch of the actions may lack a mask.
    """
    expected = mask_space(action_space)
    shapes = {} if expected is None else {path: leaf.shape for path, leaf in space_leaves(expected)}
    if all(shapes.get(path) == leaf.shape for path, leaf in space_leaves(declared)):
        return ""
    return (
        f"obs[{MASK_KEY!r}] is {declared}, and masks of the actions {action_space} are {expected}: True "
        "where an action is legal. If a wrapper has changed it, such as "
        "frame_stack, put the mask into info, with env.action_mask='info'"
    )


def as_mask(mask: Any, action_space: gym.Space) -> Tree:
    """Returns the mask of an environment as a tree of bools.

    Args:
        mask: in the form of gymnasium's ``sample(mask)`` (int8 arrays, in tuples and dicts), or a tree.
        action_space: of the environment.
    """
    branches = children(action_space)
    if branches is not None:
        named = mask if isinstance(mask, Mapping) else {str(i): part for i, part in enumerate(mask)}
        return {
            name: as_mask(named[name], child)
            for name, child in branches.items()
            if mask_space(child) is not None
        }
    if isinstance(action_space, gym.spaces.MultiDiscrete) and isinstance(mask, (tuple, list)):
        mask = np.concatenate([np.ravel(part) for part in mask])
    return np.asarray(mask, np.bool_)


class MaskFromInfo(gym.Wrapper):
    """Copies ``info["action_mask"]`` into the observation at every reset and step.

    Raises:
        EnvContractError: if no leaf of the action space can be masked, or an info has no mask.
    """

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        masks = mask_space(env.action_space)
        if masks is None:
            raise EnvContractError(f"env.action_mask: the actions {env.action_space} cannot be masked")
        space = env.observation_space
        parts = space.spaces if isinstance(space, gym.spaces.Dict) else {OBSERVATION: space}
        self.observation_space = gym.spaces.Dict({**parts, MASK_KEY: masks})

    def reset(self, **kwargs: Any) -> Any:
        obs, info = self.env.reset(**kwargs)
        return self._masked(obs, info), info

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._masked(obs, info), reward, terminated, truncated, info

    def _masked(self, obs: Any, info: Mapping[str, Any]) -> dict[str, Any]:
        if MASK_KEY not in info:
            raise EnvContractError(
                f"env.action_mask='info', but the info has no {MASK_KEY!r}: it has {sorted(map(str, info))}"
            )
        mask = as_mask(info[MASK_KEY], self.env.action_space)
        return {**(obs if isinstance(obs, dict) else {OBSERVATION: obs}), MASK_KEY: mask}


def without_legal_action(mask: Tree, action_space: gym.Space) -> np.ndarray:
    """Returns which rows of a batch of masks leave no legal action, (B,)."""
    branches = children(action_space)
    if branches is not None:
        parts = [without_legal_action(mask[name], branches[name]) for name in branches if name in mask]
        return np.logical_or.reduce(parts)
    if isinstance(action_space, gym.spaces.MultiDiscrete):
        ends = np.cumsum(action_space.nvec.ravel())[:-1]
        components = np.split(np.asarray(mask, np.bool_), ends, axis=-1)
        return ~np.logical_and.reduce([part.any(-1) for part in components])
    mask = np.asarray(mask, np.bool_)
    if isinstance(action_space, gym.spaces.MultiBinary):
        return np.zeros(len(mask), bool)  # setting every bit to 0 is always legal
    return ~mask.any(-1)
