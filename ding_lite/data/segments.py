"""Operations on the columns and rows of rollouts: join, select, pad, and cut into segments.

Shapes: T steps, B columns; ``last_obs`` is (B, ...); ``final.obs`` (K, ...) belongs to the rows ``final.t``
(K,) of the columns ``final.env`` (K,). See ``data.rollout``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ding_lite.data.rollout import OF_COLUMNS, Rollout, as_rollout, time_major_fields
from ding_lite.trees import leading_size, map_tree, to_dict


def side_by_side(left: Rollout, right: Rollout) -> Rollout:
    """Returns one rollout with the columns of ``left`` and after them those of ``right``.

    Shapes:
        (T, B), (T, C) -> (T, B + C)
    """
    left_fields = to_dict(left)
    right_fields = to_dict(right)
    left_final = left_fields.pop("final", None)
    right_final = right_fields.pop("final", None)
    if "memory" in left_fields:  # a longer rollout stores more memories
        slots = max(leading_size(fields["memory"]) for fields in (left_fields, right_fields))
        for fields in (left_fields, right_fields):
            fields["memory"] = map_tree(lambda leaf: with_rows(leaf, slots), fields["memory"])
    joined = {
        name: _concatenated(field, right_fields[name], dim=0 if name in OF_COLUMNS else 1)
        for name, field in left_fields.items()
    }
    if right_final is not None:
        right_final = {**right_final, "env": right_final["env"] + left.valid.shape[1]}
    if left_final is not None and right_final is not None:
        joined["final"] = _concatenated(left_final, right_final, dim=0)
    elif left_final is not None or right_final is not None:
        joined["final"] = right_final if left_final is None else left_final
    return as_rollout(joined)


def select_columns(rollout: Rollout, index: Tensor) -> Rollout:
    """Returns a copy of some columns of a rollout.

    Args:
        rollout: to copy from.
        index: of the columns, in ascending order.

    Shapes:
        (T, B), index: (C,) -> (T, C)
    """
    fields = to_dict(rollout)
    final = fields.pop("final", None)
    kept = {}
    for name, field in fields.items():
        dim = 0 if name in OF_COLUMNS else 1
        kept[name] = map_tree(lambda leaf, dim=dim: leaf.index_select(dim, index), field)
    if final is not None:
        is_kept = torch.isin(final["env"], index)
        if bool(is_kept.any()):
            kept_final = map_tree(lambda leaf: leaf[is_kept], final)
            kept["final"] = {**kept_final, "env": torch.searchsorted(index, kept_final["env"])}
    return as_rollout(kept)


def _concatenated(left: Any, right: Any, dim: int) -> Any:
    """Returns two trees of tensors as one, leaf by leaf."""
    return map_tree(lambda x, y: torch.cat([x, y], dim), left, right)


def padded(rollout: Rollout, steps: int) -> Rollout:
    """Returns a rollout of whole episodes with rows appended that are not valid; itself if none are missing.

    Each column must end with an episode, because an open episode could not continue in the new rows.

    Shapes:
        (T, B) -> (steps, B)
    """
    if steps == len(rollout.valid):
        return rollout
    fields = time_major_fields(rollout)
    # Networks are given all rows, and zeros need not be an observation: the last one is repeated.
    rows = torch.arange(steps, device=rollout.valid.device).clamp(max=len(rollout.valid) - 1)
    obs = map_tree(lambda leaf: leaf.index_select(0, rows), fields.pop("obs"))
    longer = {name: map_tree(lambda leaf: with_rows(leaf, steps), field) for name, field in fields.items()}
    return as_rollout(to_dict(rollout) | longer | {"obs": obs})


def with_rows(leaf: Tensor, steps: int) -> Tensor:
    """Returns a leaf with rows of zeros appended.

    Shapes:
        (T, ...) -> (steps, ...)
    """
    return torch.cat([leaf, leaf.new_zeros((steps - len(leaf), *leaf.shape[1:]))])


def first_rows(rollout: Rollout, steps: int) -> Rollout:
    """Returns the first rows of a rollout; none of the others may be valid.

    Shapes:
        (T, B) -> (steps, B)
    """
    return _map_time_major(rollout, lambda leaf: leaf[:steps])


def _map_time_major(rollout: Rollout, function: Callable[[Tensor], Tensor]) -> Rollout:
    """Returns a rollout with ``function`` applied to the leaves of all fields that are (T, B, ...)."""
    fields = {name: map_tree(function, field) for name, field in time_major_fields(rollout).items()}
    return as_rollout(to_dict(rollout) | fields)


def in_segments(rollout: Rollout, length: int, *, whole_episodes: bool = False) -> Rollout:
    """Returns a rollout cut into S = T / length segments. Segment s of column b becomes column s B + b.

    The ``last_obs`` of a segment is the first observation of the next segment.

    Args:
        rollout: to be cut.
        length: steps of a segment; 0 or 1 returns the rollout itself.
        whole_episodes: whether each column ends with an episode. The rollout is then padded to a multiple
            of ``length``.

    Shapes:
        (T, B) -> (length, S B)

    Raises:
        ValueError: if ``length`` does not divide T and ``whole_episodes`` is False.
    """
    if length <= 1:
        return rollout
    steps, columns = rollout.valid.shape
    if whole_episodes:
        rollout = padded(rollout, -(-steps // length) * length)
    elif steps % length:
        raise ValueError(
            f"a rollout of {steps} steps cannot be cut into segments of {length} steps; set "
            "policy.collect.unroll_len to a divisor of the steps"
        )
    fields = to_dict(rollout)
    segments = to_dict(_map_time_major(rollout, lambda leaf: _cut(leaf, length)))
    next_obs = map_tree(lambda leaf: leaf[length::length].flatten(0, 1), fields["obs"])
    segments["last_obs"] = _concatenated(next_obs, fields["last_obs"], dim=0)
    if "final" in fields:
        final = fields["final"]
        first_column = final["t"] // length * columns
        segments["final"] = {**final, "t": final["t"] % length, "env": first_column + final["env"]}
    return as_rollout(segments)


def _cut(leaf: Tensor, length: int) -> Tensor:
    """Returns a leaf in segments: (T, B, ...) -> (length, S B, ...)."""
    return leaf.unflatten(0, (-1, length)).transpose(0, 1).flatten(1, 2)


def put_together(field: Tensor, rollout: Rollout) -> Tensor:
    """Undoes :func:`in_segments` for one field.

    Args:
        field: of the segments.
        rollout: that was cut.

    Shapes:
        (length, S B, ...) -> (T, B, ...)
    """
    steps, columns = rollout.valid.shape
    return field.unflatten(1, (-1, columns)).transpose(0, 1).flatten(0, 1)[:steps]
