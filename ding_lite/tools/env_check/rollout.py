"""A random rollout as a tree with shapes, dtypes and ranges, as a policy would receive it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ding_lite.rl.seeding import integer_seed, numpy_generator
from ding_lite.tools.env_check.playing import is_set, make_bare, reset_env, step_env
from ding_lite.tools.env_check.trees import draw_legal, stored
from ding_lite.tools.table import aligned
from ding_lite.trees import Tree, map_tree


def random_rollout(env_cfg: Mapping[str, Any], steps: int, seed: int = 0) -> Tree:
    """Returns ``steps`` random transitions of one environment, in the dtypes of a rollout.

    Shapes:
        obs, action, next.obs: (steps, ...); reward, terminated, truncated: (steps,)
    """
    env = make_bare(env_cfg)
    try:
        rng = numpy_generator(seed, "check", "rollout")
        rows: list[Tree] = []
        over, episode = True, 0
        while len(rows) < steps:
            if over:
                obs, _ = reset_env(env, integer_seed(seed, "check", "rollout", episode))
                episode += 1
            action = draw_legal(env.action_space, obs, rng)
            after, reward, terminated, truncated, _ = step_env(env, action)
            row = {
                "obs": stored(env.observation_space, obs),
                "action": stored(env.action_space, action),
                "reward": np.float32(np.asarray(reward, np.float64).reshape(())),
                "terminated": np.bool_(is_set(terminated)),
                "truncated": np.bool_(is_set(truncated)),
                "next": {"obs": stored(env.observation_space, after)},
            }
            rows.append(row)
            obs, over = after, is_set(terminated) or is_set(truncated)
    finally:
        env.close()
    return map_tree(lambda *leaves: np.stack(leaves), *rows)


def tree_lines(tree: Tree) -> list[str]:
    """Returns a tree of arrays as lines of text: name, shape, dtype and range of each leaf."""
    return aligned(list(_rows(tree, "")))


def _rows(tree: Tree, indent: str) -> Iterator[tuple[str, str, str, str]]:
    for i, (name, value) in enumerate(tree.items()):
        last = i == len(tree) - 1
        head = f"{indent}{'└── ' if last else '├── '}{name}"
        if isinstance(value, dict):
            yield head, "", "", ""
            yield from _rows(value, indent + ("    " if last else "│   "))
        else:
            yield head, str(value.shape), str(value.dtype), _range(value)


def _range(array: np.ndarray) -> str:
    if array.dtype == np.bool_:
        return f"{int(array.sum())} of {array.size} True"
    return f"{array.min():.4g} .. {array.max():.4g}" if array.size else ""


def as_shapes(tree: Tree) -> Any:
    """Returns a tree of arrays as JSON data: the shape and dtype of each leaf."""
    return map_tree(lambda array: {"shape": list(array.shape), "dtype": str(array.dtype)}, tree)
