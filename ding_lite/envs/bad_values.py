"""Finds numbers that are not finite before they are stored, shown to a network, or learned from."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ding_lite.envs.transition import Transition
from ding_lite.trees import Tree, map_tree, named_leaves, path_text, tree_leaves

# The values of env.on_bad_value; see docs/environments.md.
RAISE = "raise"
RESET_ENV = "reset_env"
ON_BAD_VALUE = (RAISE, RESET_ENV)
LAST_OBSERVATION = "last observation of the episode before, "  # begins the path of a leaf of ``final_obs``
FLOAT32_MAX = float(np.finfo(np.float32).max)  # rewards are stored as float32


class BadValue(NamedTuple):
    """A number that is not finite."""

    env: int  # row of its environment
    message: str  # such as "reward = nan, which is not finite"


def bad_reward(reward: float) -> str:
    """Returns what is wrong with a reward that float32 cannot hold, or "" if it can."""
    if abs(reward) <= FLOAT32_MAX:
        return ""
    if math.isfinite(reward):
        return (
            f"reward = {reward}, which is greater than float32 can hold ({FLOAT32_MAX:.3g}); rewards are "
            "stored as float32"
        )
    return f"reward = {reward}, which is not finite"


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


def action_is_finite(action: Tree) -> bool:
    """Returns whether all numbers of one action are finite."""
    return all(bool(np.isfinite(leaf).all()) for leaf in tree_leaves(action))


def _all_finite(numbers: np.ndarray) -> bool:
    # A finite sum of squares proves that all numbers are finite, in a quarter of the time of np.isfinite.
    # An infinite sum may come from large finite numbers, so np.isfinite decides.
    flat = numbers.ravel("K")  # in memory order: gymnasium's CartPole returns a transposed array
    return math.isfinite(np.vdot(flat, flat)) or bool(np.isfinite(numbers).all())
