"""Rollouts as columns: side by side, some of them, longer, or cut into segments.

Shapes: T steps, B columns; ``last_obs`` is (B, ...), ``final.t`` and ``final.env`` say where ``final.obs``
(K, ...) belongs. See ``rollout``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ding_lite.rollout import Rollout, as_rollout, map_tree, time_major_fields, to_dict


def side_by_side(left: Rollout, right: Rollout) -> Rollout:
    """Returns two rollouts of the same length as one, the columns of ``right`` after those of ``left``.

    Shapes:
        (T, B) and (T, C) -> (T, B + C)
    """
    one, other = to_dict(left), to_dict(right)
    joined = {
        name: _joined(one[name], other[name], 0 if name == "last_obs" else 1)
        for name in one
        if name != "final"
    }
    columns = left.valid.shape[1]
    finals = [tree["final"] for tree in (one, other) if "final" in tree]
    if "final" in other:
        finals[-1] = {**finals[-1], "env": finals[-1]["env"] + columns}
    if finals:
        joined["final"] = finals[0] if len(finals) == 1 else _joined(finals[0], finals[1], 0)
    return as_rollout(joined)


def select_columns(rollout: Rollout, index: Tensor) -> Rollout:
    """Returns a copy of the columns ``index`` (C,) of a rollout (T, B), which ascend, as (T, C)."""
    fields = to_dict(rollout)
    final = fields.pop("final", None)
    kept = {
        name: map_tree(lambda x, dim=0 if name == "last_obs" else 1: x.index_select(dim, index), field)
        for name, field in fields.items()
    }
    if final is not None:
        new_place = torch.full((rollout.valid.shape[1],), -1, device=index.device)
        new_place[index] = torch.arange(len(index), device=index.device)
        stays = new_place[final["env"]] >= 0
        if bool(stays.any()):
            kept["final"] = map_tree(lambda x: x[stays], final)
            kept["final"]["env"] = new_place[kept["final"]["env"]]
    return as_rollout(kept)


def _joined(left: Any, right: Any, dim: int) -> Any:
    if isinstance(left, dict):
        return {name: _joined(left[name], right[name], dim) for name in left}
    return torch.cat([left, right], dim)


def padded(rollout: Rollout, steps: int) -> Rollout:
    """Returns a rollout (T, B) of whole episodes with rows that are not valid after its last, (steps, B).

    Nothing may go on at its end: those rows say nothing of what comes next.
    """
    if steps == len(rollout.valid):
        return rollout
    return _of_every_step(rollout, lambda leaf: with_rows(leaf, steps))


def with_rows(leaf: Tensor, steps: int) -> Tensor:
    """Returns a leaf (T, ...) with rows of zeros after its last, (steps, ...)."""
    return torch.cat([leaf, leaf.new_zeros((steps - len(leaf), *leaf.shape[1:]))])


def first_rows(rollout: Rollout, steps: int) -> Rollout:
    """Returns a rollout without its rows from ``steps`` on, none of which is valid."""
    return _of_every_step(rollout, lambda leaf: leaf[:steps])


def _of_every_step(rollout: Rollout, function: Callable[[Tensor], Tensor]) -> Rollout:
    """Returns a rollout with ``function`` of each field that is (T, B, ...)."""
    fields = {name: map_tree(function, field) for name, field in time_major_fields(rollout).items()}
    return as_rollout(to_dict(rollout) | fields)


def in_segments(rollout: Rollout, length: int, *, whole_episodes: bool = False) -> Rollout:
    """Returns a rollout (T, B) cut into S = T / length segments, as (length, S B): column s B + b.

    Each has an observation after its last row of its own: the first one of the next segment.

    Args:
        rollout: to be cut.
        length: 0 or 1 is that of the rollout.
        whole_episodes: whether nothing goes on at its end, so that it may be padded.

    Raises:
        ValueError: if ``length`` does not divide T, and it may not.
    """
    if length <= 1:
        return rollout
    steps, columns = rollout.valid.shape
    if whole_episodes:
        rollout = padded(rollout, -(-steps // length) * length)
    elif steps % length:
        raise ValueError(f"a rollout of {steps} steps cannot be cut into segments of {length}")
    fields = to_dict(rollout)
    cut = to_dict(_of_every_step(rollout, lambda leaf: _cut(leaf, length)))
    firsts = map_tree(lambda leaf: leaf[length::length].flatten(0, 1), fields["obs"])
    cut["last_obs"] = _joined(firsts, fields["last_obs"], 0)
    if "final" in fields:
        final = fields["final"]
        columns_before = final["t"] // length * columns
        cut["final"] = {**final, "t": final["t"] % length, "env": columns_before + final["env"]}
    return as_rollout(cut)


def _cut(leaf: Tensor, length: int) -> Tensor:
    return leaf.unflatten(0, (-1, length)).transpose(0, 1).flatten(1, 2)


def put_together(field: Tensor, rollout: Rollout) -> Tensor:
    """Returns a field of :func:`in_segments` as ``rollout``, which was cut, has it: (T, B)."""
    steps, columns = rollout.valid.shape
    return field.unflatten(1, (-1, columns)).transpose(0, 1).flatten(0, 1)[:steps]
