"""Numbers that are not finite: found before they are stored, shown to a network, or learned from."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ding_lite.envs.spaces import tree_map
from ding_lite.types import Transition, Tree

# What an environment's ``on_bad_value`` may be; see docs/environments.md.
RAISE, RESET_ENV, DROP = ON_BAD_VALUE = ("raise", "reset_env", "drop")
LAST_OBSERVATION = "last observation of the episode before, "
LARGEST = float(np.finfo(np.float32).max)  # rewards are stored as float32


def bad_reward(reward: float) -> str:
    """Says what is wrong with a reward that float32 cannot hold; empty where nothing is."""
    if abs(reward) <= LARGEST:
        return ""
    beyond = (
        math.isfinite(reward) and f"greater than float32 can hold, in which rewards are kept ({LARGEST:.3g})"
    )
    return f"reward = {reward}, which is {beyond or 'not finite'}"


def bad_observation(obs: Tree, path: str = "observation") -> tuple[int, str] | None:
    """Returns the row, and words for the first number in it, of a batch (B, ...) that is not finite."""
    if isinstance(obs, dict):
        found = (bad_observation(child, f"{path}[{name!r}]") for name, child in obs.items())
        return next(filter(None, found), None)
    if obs.dtype.kind != "f" or _all_finite(obs):
        return None
    row, *index = np.argwhere(~np.isfinite(obs))[0].tolist()
    return row, f"{path}{index or ''} = {obs[(row, *index)]}, which is not finite"


def _all_finite(numbers: np.ndarray) -> bool:
    # Their square is, nearly always, and is had in a quarter of the time; that of large ones may not be.
    flat = numbers.ravel("K")  # as they lie in memory: gymnasium's own CartPole gives its columns
    return math.isfinite(np.vdot(flat, flat)) or bool(np.isfinite(numbers).all())


def bad_row(obs: Tree, row: int) -> str:
    """Says what is not finite in one row of a batch; empty where all is."""
    found = bad_observation(tree_map(lambda leaf: leaf[row : row + 1], obs))
    return found[1] if found else ""


def is_finite(action: Any) -> bool:
    """Tells whether all numbers of one action, as an environment takes it, are finite."""
    if isinstance(action, (dict, tuple)):
        return all(map(is_finite, action.values() if isinstance(action, dict) else action))
    return bool(np.isfinite(action).all())


def bad_step(transition: Transition) -> tuple[int, str] | None:
    """Returns the environment, and words for the first number of a step, that is not finite."""
    if not _all_finite(transition.reward):
        env = int(np.flatnonzero(~np.isfinite(transition.reward))[0])
        return env, bad_reward(float(transition.reward[env]))
    if found := bad_observation(transition.obs):
        return found
    if transition.final_obs is None:
        return None
    found = bad_observation(transition.final_obs, LAST_OBSERVATION)
    return found and (int(transition.final_env[found[0]]), found[1])
