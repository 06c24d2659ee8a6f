"""Action masks: which actions are legal, as a tree of bools shaped like the action space.

They travel as ``obs["action_mask"]``, whatever their source. A leaf is (n,) for Discrete, the masks of all
parts side by side for MultiDiscrete, and the action's own shape for MultiBinary (True: may be 1). A
Box has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from ding_lite.envs.spaces import children
from ding_lite.errors import EnvContractError
from ding_lite.types import MASK_KEY, Tree

OBSERVATION = "observation"  # where an observation that is not a Dict goes, beside its mask


def mask_space(action_space: gym.Space) -> gym.Space | None:
    """Returns the space of the masks for an action space, ``None`` where nothing can be masked."""
    branches = children(action_space)
    if branches is not None:
        masks = {name: mask_space(child) for name, child in branches.items()}
        present = {name: mask for name, mask in masks.items() if mask is not None}
        return gym.spaces.Dict(present) if present else None
    if isinstance(action_space, gym.spaces.Discrete):
        shape: tuple[int, ...] = (int(action_space.n),)
    elif isinstance(action_space, gym.spaces.MultiDiscrete):
        shape = (int(action_space.nvec.sum()),)
    elif isinstance(action_space, gym.spaces.MultiBinary):
        shape = tuple(action_space.shape)
    else:
        return None
    return gym.spaces.Box(np.zeros(shape, np.bool_), np.ones(shape, np.bool_), dtype=np.bool_)


def mask_fault(given: gym.Space, action_space: gym.Space) -> tuple[str, str] | None:
    """Returns what is wrong with a space of masks, and what to do; None if it is one for these actions."""
    if _fits(given, action_space):
        return None
    seen = f"obs[{MASK_KEY!r}] is {given}, and the actions are {action_space}"
    wanted = mask_space(action_space)
    if wanted is None:
        return seen, "They cannot be masked: give that key another name"
    return seen, f"Declare it as {wanted}: True where an action is legal"


def _fits(given: gym.Space, action_space: gym.Space) -> bool:
    """Tells whether masks are such as the head of these actions takes; not every branch needs to have one."""
    branches, parts = children(action_space), children(given)
    if branches is not None:
        known = parts is not None and parts.keys() <= branches.keys()
        return known and all(_fits(part, branches[name]) for name, part in (parts or {}).items())
    if parts is not None and isinstance(action_space, gym.spaces.MultiDiscrete):  # one mask a part
        return [part.shape for part in parts.values()] == [(n,) for n in action_space.nvec.ravel()]
    wanted = mask_space(action_space)
    return wanted is not None and given.shape == wanted.shape


def as_mask(mask: Any, action_space: gym.Space) -> Tree:
    """Returns a mask as environments give it (gymnasium's ``sample(mask)``: int8, tuples) as bools."""
    branches = children(action_space)
    if branches is not None:
        named = mask if isinstance(mask, Mapping) else {str(i): part for i, part in enumerate(mask)}
        return {n: as_mask(named[n], c) for n, c in branches.items() if mask_space(c) is not None}
    if isinstance(action_space, gym.spaces.MultiDiscrete) and isinstance(mask, (tuple, list)):
        mask = np.concatenate([np.ravel(part) for part in mask])
    return np.asarray(mask, np.bool_)


def with_mask_space(obs_space: gym.Space, action_space: gym.Space) -> gym.spaces.Dict:
    """Returns the observation space with the masks in it.

    Raises:
        EnvContractError: if no action of the space can be masked.
    """
    masks = mask_space(action_space)
    if masks is None:
        raise EnvContractError(f"env.action_mask: the actions {action_space} cannot be masked")
    plain = obs_space.spaces if isinstance(obs_space, gym.spaces.Dict) else {OBSERVATION: obs_space}
    return gym.spaces.Dict({**plain, MASK_KEY: masks})


class MaskFromInfo(gym.Wrapper):
    """Puts ``info["action_mask"]`` into the observation, at every reset and step."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.observation_space = with_mask_space(env.observation_space, env.action_space)

    def reset(self, **kwargs: Any) -> Any:
        obs, info = self.env.reset(**kwargs)
        return self._masked(obs, info), info

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._masked(obs, info), reward, terminated, truncated, info

    def _masked(self, obs: Any, info: Mapping[str, Any]) -> dict[str, Any]:
        if MASK_KEY not in info:
            raise EnvContractError(
                f"env.action_mask='info', and this info has no {MASK_KEY!r}: it has {sorted(map(str, info))}"
            )
        plain = obs if isinstance(obs, dict) else {OBSERVATION: obs}
        return {**plain, MASK_KEY: as_mask(info[MASK_KEY], self.env.action_space)}


def without_legal_action(mask: Tree, action_space: gym.Space) -> np.ndarray:
    """Returns which rows (B,) of a batch of masks leave no action at all."""
    branches = children(action_space)
    if branches is not None:
        found = [without_legal_action(mask[n], c) for n, c in branches.items() if n in mask]
        return np.logical_or.reduce(found)
    if isinstance(action_space, gym.spaces.MultiDiscrete):
        if isinstance(mask, Mapping):  # a Tuple observation: one mask a part
            parts = [np.asarray(part, np.bool_) for part in mask.values()]
        else:
            ends = np.cumsum(action_space.nvec.ravel())[:-1]
            parts = np.split(np.asarray(mask, np.bool_), ends, axis=-1)
        return ~np.logical_and.reduce([part.any(-1) for part in parts])
    mask = np.asarray(mask, np.bool_)
    if isinstance(action_space, gym.spaces.MultiBinary):
        return np.zeros(len(mask), bool)  # leaving every bit at 0 is an action
    return ~mask.any(-1)
