"""The rollout: a time-major tree, written in place while it is collected and indexed as one object.

Fields (T steps, B envs): obs, action, log_prob, reward, terminated, truncated, valid, and what the
policy adds: value, advantage, value_target. Two more are not (T, B): ``last_obs`` (B, ...), the
observation after the last row, and, where episodes were cut, ``final``: ``final.obs`` (K, ...), the true
last observations of the rows ``final.t`` (K,), ``final.env`` (K,).

This is the only module that touches treetensor: its import-time warnings are silenced here.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"treevalue\.")
    warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"treetensor\.|hbutils\.")
    import treetensor.torch as ttorch
    from treevalue import TreeValue
    from treevalue.tree.common import create_storage

# A treetensor whose leaves are the fields above. (The library ships no type hints.)
Rollout = Any
Path = tuple[str, ...]
# What has branches. TreeValue is treetensor's base class; whether a leaf is one is soon known.
BRANCHED = (dict, TreeValue, Mapping)
UNLIKE_THE_REST = ("last_obs", "final")  # fields that are not (T, B, ...)


def as_rollout(fields: Mapping[str, Any]) -> Rollout:
    """Makes a rollout of a nested dict of tensors."""
    # Tensor(dict) would write every leaf out as text on its way: milliseconds, against microseconds.
    return ttorch.Tensor(create_storage(to_dict(fields)))


def to_dict(tree: Any) -> Any:
    """Returns a treetensor, or a tree of anything, as nested plain dicts; leaves are not copied."""
    if isinstance(tree, BRANCHED):
        return {name: to_dict(value) for name, value in tree.items()}
    return tree


def map_tree(function: Any, tree: Any) -> Any:
    """Applies ``function`` to every leaf of a tensor, a nested dict or a treetensor."""
    if isinstance(tree, BRANCHED):
        return {name: map_tree(function, value) for name, value in tree.items()}
    return function(tree)


def leaf_at(tree: Any, path: Sequence[str]) -> Any:
    """Returns the leaf of a tree at a path, None where there is none."""
    for name in path:
        if not isinstance(tree, Mapping):
            return None
        tree = tree.get(name)
    return tree


def view(number: Tensor) -> np.ndarray:
    """Returns an array on a tensor's own memory."""
    array: np.ndarray = (number.detach() if number.requires_grad else number).numpy()
    return array


def to_device(tree: Any, device: torch.device) -> Any:
    """Returns arrays or tensors as tensors on ``device``; on the CPU an array is not copied."""
    return map_tree(lambda x: torch.as_tensor(x, device=device), tree)


def leading_size(tree: Any) -> int:
    """Returns N of a tree of leaves (N, ...)."""
    while isinstance(tree, BRANCHED):
        tree = next(iter(tree.values()))
    return len(tree)


def time_major_fields(rollout: Rollout) -> dict[str, Any]:
    """Returns the fields that are (T, B, ...), by name."""
    return {k: v for k, v in to_dict(rollout).items() if k not in UNLIKE_THE_REST}


def flatten_rows(fields: Mapping[str, Any], rows: Tensor) -> dict[str, Any]:
    """Returns the rows ``rows`` (N,) of flattened (T, B, ...) fields, as (N, ...).

    Nothing is copied where they are all rows; they ascend.
    """

    def flat(leaf: Tensor) -> Tensor:
        leaf = leaf.flatten(0, 1)
        return leaf if len(leaf) == len(rows) else leaf.index_select(0, rows)

    return {name: map_tree(flat, field) for name, field in fields.items()}


def minibatch_sizes(n: int, batch_size: int) -> list[int]:
    """Splits ``n`` samples: a short last minibatch is kept, one sample alone joins the one before."""
    sizes = [batch_size] * (n // batch_size)
    rest = n % batch_size
    if rest == 1 and sizes:
        sizes[-1] += 1
    elif rest:
        sizes.append(rest)
    return sizes


def minibatches(n: int, batch_size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yields the indices of one pass over ``n`` samples in random order, each exactly once."""
    yield from permutation(n, generator).split(minibatch_sizes(n, batch_size))


def permutation(n: int, generator: torch.Generator) -> Tensor:
    """Returns the indices (n,) of so many samples in random order."""
    return torch.randperm(n, generator=generator, device=generator.device)


class Batch:
    """What a loss sees: the fields of a minibatch (N, ...) and the model's fresh outputs on it.

    ``dist`` is the action distribution, ``new_value`` the value (N,), each where the loss asked for it.
    ``policy_weight`` and ``value_weight`` (N,) weigh the samples of the two losses; None is 1. ``again``
    makes the same minibatch once more.
    """

    policy_weight: Tensor | None = None
    value_weight: Tensor | None = None
    new_value: Any = None

    if TYPE_CHECKING:  # what else it has is up to the policy

        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: Any) -> None: ...

    def __init__(self, **fields: Any) -> None:
        vars(self).update(fields)

    def fields(self) -> dict[str, Any]:
        """Returns what a loss is given, without what it makes of it."""
        return {name: x for name, x in vars(self).items() if name not in ("dist", "new_value", "again")}

    def array(self, *path: str) -> Any:
        """Returns a leaf, which is on the CPU, as an array on its memory; None where there is none."""
        return _array_at({path[0]: getattr(self, path[0], None)}, path)


def size_in_bytes(tree: Any) -> int:
    """Returns the bytes that the leaves of a tree take together."""
    sizes: list[int] = []
    map_tree(lambda leaf: sizes.append(leaf.numel() * leaf.element_size()), tree)
    return sum(sizes)


def batch_of(flat: Rollout, index: Tensor | slice) -> Batch:
    """Returns the samples ``index`` of a flat tree."""

    def taken(leaf: Tensor) -> Tensor:  # leaf[index] takes up to twenty times as long as index_select
        return leaf[index] if isinstance(index, slice) else leaf.index_select(0, index)

    fields = map_tree(taken, flat)
    return Batch(**{k: as_rollout(x) if isinstance(x, dict) else x for k, x in fields.items()})


class _Cut(Batch):
    """The samples from ``start`` to ``end`` of a set: a field is cut out when somebody reads it.

    Args:
        whole: the set.
        arrays: of its leaves, kept for all that are cut out of it.
    """

    def __init__(self, whole: Mapping[str, Any], arrays: dict[Path, Any], start: int, end: int) -> None:
        super().__init__(_whole=whole, _arrays=arrays, _start=start, _end=end)
        for name in ("policy_weight", "value_weight", "new_value"):  # which __getattr__ is not asked for
            if name in whole:
                setattr(self, name, self._cut(name))

    def __getattr__(self, name: str) -> Any:
        if name not in vars(self).get("_whole", ()):  # which a copy that is being made has not yet
            raise AttributeError(f"a minibatch has no {name!r}")
        field = self._cut(name)
        setattr(self, name, field)
        return field

    def _cut(self, name: str) -> Any:
        start, size = self._start, self._end - self._start
        cut = map_tree(lambda leaf: leaf.narrow(0, start, size), self._whole[name])
        return as_rollout(cut) if isinstance(cut, dict) else cut

    def fields(self) -> dict[str, Any]:
        # Always in this order: compilers look at it.
        cut = {name: getattr(self, name) for name in self._whole}
        own = ("_whole", "_arrays", "_start", "_end")
        return cut | {name: x for name, x in super().fields().items() if name not in own}

    def array(self, *path: str) -> Any:
        if path[0] in vars(self):  # and may be another by now
            return super().array(*path)
        if path not in self._arrays:
            self._arrays[path] = _array_at(self._whole, path)
        array = self._arrays[path]
        return None if array is None else array[self._start : self._end]


def split_batches(whole: Mapping[str, Any], sizes: list[int]) -> Iterator[Batch]:
    """Yields the samples of a flat tree, so many after so many; nothing is copied."""
    arrays: dict[Path, Any] = {}
    return (_Cut(whole, arrays, *ends) for ends in pairwise(accumulate(sizes, initial=0)))


def _array_at(tree: Mapping[str, Any], path: Path) -> np.ndarray | None:
    leaf = leaf_at(to_dict(tree), path)
    return None if leaf is None else view(leaf)


class RolloutStorage:
    """Arrays (T, B, ...) allocated at the first row and written in place ever after.

    Args:
        steps: T.
        num_envs: B.

    Everything collected is kept on the host: it comes from environments there, and goes to a device
    in one copy when the rollout is complete.
    """

    def __init__(self, steps: int, num_envs: int) -> None:
        self.steps, self.num_envs = steps, num_envs
        self._arrays: dict[str, Any] = {}
        self._rows: dict[str, list[Any]] = {}  # views of them, made once: one a step
        self._written: set[str] = set()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_rows": {}}  # of a copy they would be views no more

    def begin(self) -> None:
        """Begins a rollout: what is not written from now on will not be in it."""
        self._written.clear()

    def reserve(self, steps: int) -> None:
        """Makes room for so many rows at least; those that are there stay."""
        if steps <= self.steps:
            return
        more, self.steps = max(steps, 2 * self.steps) - self.steps, max(steps, 2 * self.steps)
        self._rows = {}
        self._arrays = map_tree(
            lambda leaf: np.concatenate([leaf, np.zeros((more, *leaf.shape[1:]), leaf.dtype)]), self._arrays
        )

    def write(self, t: int, name: str, value: Any, envs: slice = slice(None)) -> Any:
        """Copies the environments ``envs`` of one row of the field ``name`` in.

        Returns:
            their view of the storage.
        """
        self._written.add(name)
        if name not in self._rows:
            if name not in self._arrays:
                self._arrays[name] = self._allocate(value)
            array = self._arrays[name]
            self._rows[name] = [map_tree(lambda leaf, t=t: leaf[t], array) for t in range(self.steps)]
        row = self._rows[name][t]
        if type(row) is dict:
            return _write(row, envs, value)
        row[envs] = value if type(value) is np.ndarray else _as_array(value)
        return row[envs]

    def _allocate(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: self._allocate(leaf) for name, leaf in value.items()}
        leaf = _as_array(value)
        return np.zeros((self.steps, self.num_envs, *leaf.shape[1:]), leaf.dtype)

    def array(self, name: str) -> Any:
        """Returns the array (T, B, ...) of one field."""
        return self._arrays[name]

    def rollout(self, steps: int | None = None, **others: Any) -> Rollout:
        """Returns all fields as one tree of tensors that share the storage, and ``others`` with them.

        Args:
            steps: of the first so many rows; None is all.
        """
        written = {name: array for name, array in self._arrays.items() if name in self._written}
        fields = map_tree(lambda leaf: torch.from_numpy(leaf[:steps]), written)
        others = {name: to_device(value, torch.device("cpu")) for name, value in others.items()}
        return as_rollout({**fields, **others})


def _write(row: Any, envs: slice, value: Any) -> Any:
    if isinstance(row, dict):
        return {name: _write(leaf, envs, value[name]) for name, leaf in row.items()}
    row[envs] = _as_array(value)
    return row[envs]


def _as_array(value: Any) -> np.ndarray:
    if type(value) is np.ndarray:  # nearly always; this is called some times for every step
        return value
    if isinstance(value, Tensor):
        return value.numpy() if value.is_cpu else value.cpu().numpy()
    return np.asarray(value)
