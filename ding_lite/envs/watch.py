"""What environments show is looked at before a policy acts on it, whoever steps them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from ding_lite.envs.finite import LAST_OBSERVATION, bad_observation, bad_step
from ding_lite.envs.masks import mask_fault, without_legal_action
from ding_lite.envs.spaces import children
from ding_lite.envs.vector import VectorEnv
from ding_lite.errors import EnvContractError, NotFiniteError
from ding_lite.types import MASK_KEY, Transition, Tree


class Watch:
    """Refuses values that are not finite, indices outside of their range, and masks that leave no action.

    Args:
        envs: what is looked at.
        then: how every message goes on.

    Raises:
        EnvContractError: if the masks are not such as the action space has.
    """

    def __init__(self, envs: VectorEnv, then: str) -> None:
        self.envs, self._then = envs, then
        self._indices = list(_indices(envs.obs_space))
        mask = (children(envs.obs_space) or {}).get(MASK_KEY)
        self._masked = mask is not None
        if mask is not None and (fault := mask_fault(mask, envs.action_space)):
            raise EnvContractError(". ".join(fault))

    def reset(self, *stream: str | int) -> Tree:
        """Resets the environments, and returns their obs (B, ...).

        Raises:
            EnvContractError: if there is something wrong with them.
        """
        obs = self.envs.reset(*stream)
        numbers = np.arange(self.envs.num_envs)
        if found := bad_observation(obs, "observation after reset"):
            self._refuse(*found, NotFiniteError)
        self._look(obs, numbers)
        if self._masked:
            self._look_at_masks(obs, np.ones(len(numbers), bool), numbers)
        return obs

    def look(self, transition: Transition, numbers: np.ndarray) -> None:
        """Looks at a step of the environments of these numbers.

        Raises:
            EnvContractError: if there is something wrong with it.
        """
        if found := bad_step(transition):
            self._refuse(int(numbers[found[0]]), found[1], NotFiniteError)
        if self._indices:
            self._look(transition.obs, numbers)
            if transition.final_obs is not None:
                self._look(transition.final_obs, numbers[transition.final_env], LAST_OBSERVATION)
        if self._masked:
            acts = np.ones(len(numbers), bool)
            if self.envs.has_fillers:  # an episode's last observation is shown, and nothing is done after it
                acts = ~(transition.terminated | transition.truncated)
            self._look_at_masks(transition.obs, acts, numbers)

    def _look(self, obs: Tree, numbers: np.ndarray, what: str = "observation") -> None:
        for index in self._indices:
            array = obs
            for name in index.names:
                array = array[name]
            outside = (array < index.low) | (array > index.high)
            if outside.any():
                row, *at = np.argwhere(outside)[0].tolist()
                path = "".join(f"[{name!r}]" for name in index.names)
                value = f"{what}{path}{at or ''} = {array[(row, *at)]}"
                self._refuse(int(numbers[row]), f"{value}, which is not in {index.space}")

    def _look_at_masks(self, obs: Tree, acts: np.ndarray, numbers: np.ndarray) -> None:
        stuck = without_legal_action(obs[MASK_KEY], self.envs.action_space) & acts
        if stuck.any():
            self._refuse(int(numbers[stuck][0]), f"{MASK_KEY} leaves no legal action")

    def _refuse(self, env: int, what: str, kind: type[EnvContractError] = EnvContractError) -> None:
        raise kind(f"{self.envs.describe(env)}: {what}{self._then}")


class _Index(NamedTuple):
    """A leaf of an observation that something is looked up by: a number outside of its range is an error."""

    names: tuple[str, ...]
    space: gym.Space
    low: Any
    high: Any


def _indices(space: gym.Space, names: tuple[str, ...] = ()) -> Iterator[_Index]:
    if isinstance(space, gym.spaces.Discrete):
        yield _Index(names, space, space.start, space.start + space.n - 1)
    elif isinstance(space, gym.spaces.MultiDiscrete):
        yield _Index(names, space, space.start, space.start + space.nvec - 1)
    for name, child in (children(space) or {}).items():
        yield from _indices(child, (*names, name))
