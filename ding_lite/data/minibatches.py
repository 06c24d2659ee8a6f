"""Minibatches: the samples that a loss sees, and how a training set is cut into them.

Shapes: N samples of a training set or of a minibatch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ding_lite.data.rollout import as_rollout, view
from ding_lite.rl.losses import normalize_advantage
from ding_lite.trees import leading_size, leaf_at, map_tree, to_dict, tree_leaves

SHUFFLED_BYTES = 2**22  # a training set up to this size is copied in the order of its minibatches


def minibatch_sizes(n: int, batch_size: int) -> list[int]:
    """Splits ``n`` samples. A short last minibatch is kept; a single sample joins the one before."""
    sizes = [batch_size] * (n // batch_size)
    rest = n % batch_size
    if rest == 1 and sizes:
        sizes[-1] += 1
    elif rest:
        sizes.append(rest)
    return sizes


def permutation(n: int, generator: torch.Generator) -> Tensor:
    """Returns the indices (n,) of ``n`` samples in random order."""
    return torch.randperm(n, generator=generator, device=generator.device)


class Batch:
    """The fields of a minibatch, as attributes. A loss changes nothing in a batch.

    In the policy phase these are the fields of the rollout, such as obs, action, log_prob, reward, value,
    advantage and value_target, with the scales of the losses; in the auxiliary phase obs, old_logit,
    value_target and share. A policy that stores more fields finds them here.

    Shapes:
        every field: (N, ...)

    Attributes:
        dist: the model's fresh action distribution on the batch, in ``policy_loss``.
        new_value: (N,), the model's fresh values on the batch, in ``value_loss``.
        old_logit: parameters of pi_old, with ``kl_penalty`` and in the auxiliary phase.
        policy_weight, value_weight: (N,), weights of the samples in the two losses; None is 1.
        remake: makes the same minibatch again.
    """

    policy_weight: Tensor | None = None
    value_weight: Tensor | None = None
    remake: Callable[[], Batch]

    if TYPE_CHECKING:  # the other fields depend on the policy

        def __getattr__(self, name: str) -> Any: ...

    def __init__(self, **fields: Any) -> None:
        vars(self).update(fields)

    def fields(self) -> dict[str, Any]:
        """Returns the fields by name."""
        return {name: field for name, field in vars(self).items() if name != "remake"}

    def with_outputs(self, **outputs: Any) -> Batch:
        """Returns a batch of the same fields and ``outputs``, such as ``dist`` and ``new_value``."""
        return Batch(**{**self.fields(), **outputs})

    def array(self, *path: str) -> Any:
        """Returns the leaf at ``path``, which is on the CPU, as an array on its memory; None without it."""
        return _array_at({path[0]: getattr(self, path[0], None)}, path)


class _Slice(Batch):
    """The samples ``start`` to ``end`` of a set of fields. A field is cut when it is first read.

    Args:
        whole: the fields.
        arrays: views of their leaves, shared by all slices of the set.
    """

    def __init__(
        self, whole: Mapping[str, Any], arrays: dict[tuple[str, ...], Any], start: int, end: int
    ) -> None:
        super().__init__(_whole=whole, _arrays=arrays, _start=start, _end=end)
        for name in ("policy_weight", "value_weight"):  # the class has these, so __getattr__ is not called
            if name in whole:
                vars(self)[name] = self._cut(name)

    def __getattr__(self, name: str) -> Any:
        if name not in vars(self).get("_whole", ()):  # copy.copy asks before it has set _whole
            raise AttributeError(f"a minibatch has no {name!r}")
        vars(self)[name] = field = self._cut(name)
        return field

    def _cut(self, name: str) -> Any:
        start, size = self._start, self._end - self._start
        cut = map_tree(lambda leaf: leaf.narrow(0, start, size), self._whole[name])
        return as_rollout(cut) if isinstance(cut, dict) else cut

    def fields(self) -> dict[str, Any]:
        # The order is always the same: torch.compile looks at it.
        cut = {name: getattr(self, name) for name in self._whole}
        internal = ("_whole", "_arrays", "_start", "_end")
        return cut | {name: field for name, field in super().fields().items() if name not in internal}

    def array(self, *path: str) -> Any:
        if path[0] in vars(self):  # the attribute may have been replaced
            return super().array(*path)
        if path not in self._arrays:
            self._arrays[path] = _array_at(self._whole, path)
        array = self._arrays[path]
        return None if array is None else array[self._start : self._end]


def _array_at(tree: Mapping[str, Any], path: tuple[str, ...]) -> np.ndarray | None:
    leaf = leaf_at(to_dict(tree), path)
    return None if leaf is None else view(leaf)


class TrainingSet:
    """Samples in the units of the losses, and the minibatches that are cut from them.

    Args:
        fields: trees of leaves (N, ...), by name.
        normalize_advantage: whether each minibatch normalises its advantages.
    """

    def __init__(self, fields: Mapping[str, Any], *, normalize_advantage: bool) -> None:
        self.fields, self.normalize_advantage = dict(fields), normalize_advantage

    def __len__(self) -> int:
        return leading_size(self.fields)

    def batch(self, index: Tensor | slice) -> Batch:
        """Returns the samples ``index`` as a minibatch."""
        fields = map_tree(lambda leaf: _taken(leaf, index), self.fields)
        batch = Batch(**{name: as_rollout(x) if isinstance(x, dict) else x for name, x in fields.items()})
        if self.normalize_advantage:
            vars(batch)["advantage"] = normalize_advantage(batch.advantage)
        batch.remake = partial(self.batch, index)
        return batch

    def count(self, batch_size: int) -> int:
        """Returns the number of minibatches in a pass."""
        return len(minibatch_sizes(len(self), batch_size))

    def draw(self, batch_size: int, steps: int, generator: torch.Generator) -> tuple[Tensor, Iterator[Batch]]:
        """Returns up to ``steps`` minibatches in random order, each sample once, and their samples (n,)."""
        sizes = minibatch_sizes(len(self), batch_size)[:steps]
        order = permutation(len(self), generator)[: sum(sizes)]
        return order, self.batches(order, sizes)

    def batches(self, order: Tensor, sizes: Sequence[int]) -> Iterator[Batch]:
        """Yields the samples ``order`` as minibatches of ``sizes``, which are equal except for the last.

        The minibatches of a small set are gathered and normalised together, in far fewer calls.
        """
        indices = order.split(list(sizes))
        if sum(leaf.numel() * leaf.element_size() for leaf in tree_leaves(self.fields)) > SHUFFLED_BYTES:
            yield from map(self.batch, indices)
            return
        shuffled = map_tree(lambda leaf: leaf.index_select(0, order), self.fields)
        if self.normalize_advantage:
            shuffled["advantage"] = _normalized(shuffled["advantage"], sizes)
        arrays: dict[tuple[str, ...], Any] = {}
        for index, ends in zip(indices, pairwise(accumulate(sizes, initial=0)), strict=True):
            batch = _Slice(shuffled, arrays, *ends)
            batch.remake = partial(self.batch, index)
            yield batch


def _taken(leaf: Tensor, index: Tensor | slice) -> Tensor:
    # leaf[index] takes up to twenty times as long as index_select.
    return leaf[index] if isinstance(index, slice) else leaf.index_select(0, index)


def _normalized(advantage: Tensor, sizes: Sequence[int]) -> Tensor:
    """Returns the advantages (N,), normalised in each minibatch; equal minibatches in one call."""
    if sizes[-1] == sizes[0]:
        return normalize_advantage(advantage.view(len(sizes), -1)).flatten()
    equal, last = advantage.split([sum(sizes[:-1]), sizes[-1]])
    return torch.cat([_normalized(equal, sizes[:-1]), normalize_advantage(last)])
