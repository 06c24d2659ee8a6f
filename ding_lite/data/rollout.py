"""The rollout: a time-major tree that is written in place and indexed as one object.

T steps of B environments; K episodes were truncated:

    obs, action, log_prob                 (T, B, ...)   raw: an action is an index from 0, or before squashing
    reward, terminated, truncated, valid  (T, B)        the reward is raw
    value, advantage, value_target        (T, B)        credit, in units of the training reward
    last_obs                              (B, ...)      the observation after the last row
    final.t, final.env, final.obs         (K, ...)      true last observations of truncated rows, if any

    recurrent    hidden (slots, B, ...), before rows 0, L, 2 L, ... with L = ``sequence_length``;
                 last_hidden (B, ...), after the last row; final.hidden (K, ...)
    intrinsic    intrinsic_reward (T, B), not scaled
    kl_beta      reference_logit (T, B, ...)

This is the only module that imports treetensor: the warnings of that import are silenced here.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ding_lite.errors import ContractError, counted
from ding_lite.trees import map_tree, to_dict

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"treevalue\.")
    warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"treetensor\.|hbutils\.")
    import treetensor.torch as ttorch
    from treevalue.tree.common import create_storage

UNLIKE_THE_REST = ("last_obs", "last_hidden", "final", "hidden")  # fields that are not (T, B, ...)


Rollout: TypeAlias = ttorch.Tensor  # with the fields above; its library has no type hints


def as_rollout(fields: Mapping[str, Any]) -> Rollout:
    """Returns a nested dict of tensors as a rollout."""
    # ttorch.Tensor(dict) formats every leaf as text, which takes milliseconds; this takes microseconds.
    return ttorch.Tensor(create_storage(to_dict(fields)))


def require_rollout(data: Any, method: str) -> None:
    """Raises a ContractError if ``data`` is no complete rollout, such as DI-engine's list of transitions.

    Without ``final`` only the last row may be truncated: it continues with ``last_obs``, which must then be
    the episode's true last observation.

    Args:
        data: the argument of a caller.
        method: the name of the called method, for the message.
    """
    if not hasattr(data, "valid"):
        raise ContractError(
            f"{method}: expected a rollout, a tree of tensors (T, B, ...) such as Collector.collect returns "
            f"(ding_lite.data.rollout.as_rollout converts a dict); got a {type(data).__name__}"
        )
    cut = (data.truncated & ~data.terminated & data.valid)[:-1].sum()
    if cut > (known := (data.final.t < len(data.valid) - 1).sum() if "final" in data else 0):
        raise ContractError(
            f"{method}: the rollout has {counted(int(cut), 'truncated row')}, and 'final' has {int(known)}: "
            "others bootstrap from the next episodes; add their last observations, as the docstring of "
            "ding_lite.data.rollout says"
        )


def as_field(tree: Any) -> Any:
    """Returns a dict of tensors as a treetensor, and a tensor as it is."""
    return as_rollout(tree) if isinstance(tree, dict) else tree


def view(number: Any) -> np.ndarray:
    """Returns an array on the host; it shares the memory of an array, or of a tensor on the CPU."""
    if isinstance(number, Tensor):
        return (number.detach() if number.requires_grad else number).cpu().numpy()
    return np.asarray(number)


def to_device(tree: Any, device: torch.device) -> Any:
    """Returns a tree of arrays or tensors as tensors on ``device``; arrays are not copied on the CPU."""
    return map_tree(lambda x: torch.as_tensor(x, device=device), tree)


def flat(tree: Any) -> Any:
    """Returns a tree with its leaves (T, B, ...) flattened to (T B, ...)."""
    return map_tree(lambda leaf: leaf.flatten(0, 1), tree)


class RolloutStorage:
    """Arrays (T + 1, B, ...) that are allocated at the first row and reused for every rollout.

    The arrays are on the host, where the environments are. A complete rollout goes to a device in one copy.

    Args:
        steps: T.
        num_envs: B.

    Attributes:
        arrays: by field, an array (T + 1, B, ...) or a tree of arrays; only obs uses the last row.
    """

    def __init__(self, steps: int, num_envs: int) -> None:
        self.steps, self.num_envs = steps, num_envs
        self.arrays: dict[str, Any] = {}
        self._rows: dict[str, list[Any]] = {}  # a view of each row, made once

    def write(self, t: int, name: str, value: Any, envs: slice = slice(None)) -> Any:
        """Copies ``value`` into the field ``name`` of row ``t``, for the environments ``envs``.

        Returns:
            the view of the storage that was written.

        Raises:
            ContractError: if ``value`` does not have the shape of earlier rows, or is not one number or
                array of numbers for each environment.
            IndexError, KeyError: if it lacks a leaf of earlier rows.
            TypeError: if its numbers are of another kind, such as floats after integers.
        """
        if name not in self._rows:
            self._allocate(name, value, len(range(self.num_envs)[envs]))
        row = self._rows[name][t]
        if type(value) is np.ndarray and type(row) is np.ndarray:  # the usual case
            target = row[envs]
            if value.shape == target.shape and value.dtype == target.dtype:
                target[...] = value
                return target

        def copied(leaf: np.ndarray, value: Any) -> np.ndarray:
            array, target = view(value), leaf[envs]
            if array.shape != target.shape:
                raise _misshapen(name, target.shape, array.shape)
            np.copyto(target, array, casting="same_kind")  # raises a TypeError instead of rounding floats
            return target

        return map_tree(copied, row, value)

    def _allocate(self, name: str, value: Any, envs: int) -> None:
        """Allocates the arrays of a field; ``value`` is its first row, for ``envs`` environments."""

        def zeros(leaf: Any) -> np.ndarray:
            leaf = view(leaf)
            if leaf.shape[:1] != (envs,) or leaf.dtype.kind not in "biuf":
                raise _misshapen(name, f"({envs}, ...)", f"{leaf.shape} of {leaf.dtype}")
            return np.zeros((self.steps + 1, self.num_envs, *leaf.shape[1:]), leaf.dtype)

        array = self.arrays[name] = map_tree(zeros, value)
        self._rows[name] = [map_tree(lambda leaf, t=t: leaf[t], array) for t in range(self.steps + 1)]

    def rollout(self, *names: str, **others: Any) -> Rollout:
        """Returns a rollout of fields, whose tensors share the memory of the storage, and of ``others``.

        Args:
            names: the fields of this rollout; the storage may have more, from earlier rollouts.
            **others: fields that are not (T, B, ...).
        """
        fields = {name: map_tree(lambda leaf: leaf[:-1], self.arrays[name]) for name in names}
        return as_rollout(to_device({**fields, **others}, torch.device("cpu")))


def _misshapen(name: str, expected: Any, got: Any) -> ContractError:
    return ContractError(
        f"the field {name!r} of a rollout: expected {expected} for each row, got {got}. The first dimension "
        "is that of the environments"
    )
