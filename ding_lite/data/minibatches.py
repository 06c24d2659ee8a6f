"""Minibatches: the samples that a loss sees, and how a training set is cut into them.

Shapes: N samples of a training set or of a minibatch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ding_lite.data.rollout import as_field, bytes_of, view
from ding_lite.ranks import ALONE, Ranks
from ding_lite.rl.losses import normalize_advantage
from ding_lite.trees import leading_size, leaf_at, map_tree

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


def agreed_sizes(n: int, batch_size: int, ranks: Ranks) -> list[int]:
    """Returns the sizes of this rank's minibatches, which are equally many on all ranks.

    They are those of :func:`minibatch_sizes` unless another rank has samples for fewer minibatches.
    """
    sizes = minibatch_sizes(n, batch_size)
    count = ranks.smallest(len(sizes))
    return sizes if count == len(sizes) else even_sizes(n, count)


def even_sizes(n: int, parts: int) -> list[int]:
    """Splits ``n`` samples into parts that differ by one sample at most."""
    return [n // parts + (k < n % parts) for k in range(parts)]


Scale = tuple[Tensor, Tensor]  # std and mean


def scales_over_ranks(parts: Sequence[Tensor], ranks: Ranks) -> list[Scale | None]:
    """Returns std and mean of each minibatch's advantages over all ranks; None where there is one rank.

    One message for all minibatches.

    Shapes:
        parts: (N,) each
    """
    if ranks.size == 1:
        return [None] * len(parts)
    wide = [part.double() for part in parts]
    sums = [torch.stack([torch.full_like(x.sum(), len(x)), x.sum(), x.square().sum()]) for x in wide]
    counts, totals, squares = ranks.sum(torch.stack(sums, 1))
    means = totals / counts
    stds = (squares / counts - means.square()).clamp(min=0).sqrt()
    dtype = parts[0].dtype
    return list(zip(stds.to(dtype).unbind(), means.to(dtype).unbind(), strict=True))


def permutation(n: int, generator: torch.Generator) -> Tensor:
    """Returns the indices (n,) of ``n`` samples in random order."""
    return torch.randperm(n, generator=generator, device=generator.device)


class Batch:
    """The fields of a minibatch, as attributes. A loss changes nothing in a batch.

    In the policy phase these are the fields of the rollout, such as obs, action, log_prob, reward, value,
    advantage and value_target, with the scales of the losses; in the auxiliary phase obs, old_logit
    and value_target. A policy that stores more fields finds them here.

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
    _names: tuple[str, ...] = ()
    # What a field is cut from when it is first read.
    _samples: Samples | None = None
    _rows: slice

    def __init__(self, **fields: Any) -> None:
        self._names = tuple(fields)
        for name, field in fields.items():  # torch 2.11 cannot compile vars(self).update
            setattr(self, name, field)

    @classmethod
    def of(cls, samples: Samples, rows: slice) -> Batch:
        """Returns some rows of samples as a minibatch."""
        # The class has these two, so __getattr__ is not called for them.
        weights = [name for name in ("policy_weight", "value_weight") if name in samples.fields]
        batch = cls(**{name: samples.cut(name, rows) for name in weights})
        vars(batch).update(_names=tuple(samples.fields), _samples=samples, _rows=rows)
        return batch

    def __getattr__(self, name: str) -> Any:
        names = self._names
        if self._samples is not None and name in names:
            field = vars(self)[name] = self._samples.cut(name, self._rows)
            return field
        if "old_logit" in names and "advantage" not in names:  # of the auxiliary phase
            hint = "; a policy's auxiliary_fields names fields of the rollout that are kept for it"
        else:
            hint = f"; it has {', '.join(sorted(names))}"
        raise AttributeError(f"a minibatch has no {name!r}{hint}")

    def __repr__(self) -> str:
        fields = sorted(self.fields().items())
        return f"Batch({', '.join(f'{name}={map_tree(_shape, value)}' for name, value in fields)})"

    @property
    def size(self) -> int:
        """N, the number of samples."""
        return len(self.value_target)

    def fields(self) -> dict[str, Any]:
        """Returns the fields by name."""
        return {name: getattr(self, name) for name in self._names}

    def with_outputs(self, **outputs: Any) -> Batch:
        """Returns a batch of the same fields and ``outputs``, such as ``dist`` and ``new_value``."""
        if self._samples is None:
            return Batch(**{**self.fields(), **outputs})
        batch = Batch()
        names = tuple(dict.fromkeys((*self._names, *outputs)))
        vars(batch).update(vars(self), **outputs, _names=names)
        return batch

    def array(self, name: str, *path: str) -> Any:
        """Returns the leaf at ``name`` and ``path``, which is on the CPU, as an array; None without it."""
        if self._samples is not None and name not in vars(self):
            whole = self._samples.array(name, *path)
            return None if whole is None else whole[self._rows]
        leaf = leaf_at(getattr(self, name, None), path)
        return None if leaf is None else view(leaf)


# Names that a field of a rollout cannot have: of the class itself, and of what is added to a minibatch. A
# policy may give the two weights of samples.
TAKEN_NAMES = frozenset(
    {*vars(Batch), *Batch.__annotations__, "dist", "new_value", "old_logit"}
    - {"policy_weight", "value_weight"}
)


def _shape(field: Any) -> str:
    """Returns the shape of a tensor, or what another field is."""
    return str(tuple(field.shape)) if isinstance(field, Tensor) else type(field).__name__


class Samples:
    """Samples that minibatches are cut from, each field when it is read: a loss reads half of them.

    Args:
        fields: trees of leaves (N, ...), by name.
    """

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self.fields = fields
        self._arrays: dict[tuple[str, ...], np.ndarray | None] = {}  # made once for all minibatches

    def cut(self, name: str, rows: slice) -> Any:
        """Returns rows of a field."""
        return as_field(map_tree(lambda leaf: leaf[rows], self.fields[name]))

    def array(self, *path: str) -> np.ndarray | None:
        """Returns the leaf at ``path``, which is on the CPU, as an array on its memory; None without it."""
        if path not in self._arrays:
            leaf = leaf_at(self.fields.get(path[0]), path[1:])
            self._arrays[path] = None if leaf is None else view(leaf)
        return self._arrays[path]


class TrainingSet:
    """Samples in the units of the losses, and the minibatches that are cut from them.

    Args:
        fields: trees of leaves (N, ...), by name.
        batch_size: of a minibatch.
        normalizes: whether each minibatch normalises its advantages.
        ranks: that have a minibatch each at every gradient step; its advantages are normalised over all. They
            make their sets together.

    Attributes:
        sizes: of the minibatches of a pass.
    """

    def __init__(
        self,
        fields: Mapping[str, Any],
        batch_size: int,
        *,
        normalizes: bool,
        ranks: Ranks = ALONE,
    ) -> None:
        self.fields = dict(fields)
        self.normalizes = normalizes
        self.ranks = ranks
        self.sizes = agreed_sizes(len(self), batch_size, ranks)

    def __len__(self) -> int:
        return leading_size(self.fields)

    def batch(self, index: Tensor, scale: Scale | None = None) -> Batch:
        """Returns the samples ``index`` as a minibatch.

        Args:
            index: (N,)
            scale: of the advantages, if it is known.
        """
        # leaf[index] takes up to twenty times as long.
        fields = map_tree(lambda leaf: leaf.index_select(0, index), self.fields)
        if self.normalizes:
            if scale is None:
                scale = self._scales([index])[0]
            fields["advantage"] = normalize_advantage(fields["advantage"], scale)
        batch = Batch(**{name: as_field(tree) for name, tree in fields.items()})
        batch.remake = partial(self.batch, index, scale)
        return batch

    def _scales(self, indices: Sequence[Tensor]) -> list[Scale | None]:
        if self.ranks.size == 1 or not self.normalizes:
            return [None] * len(indices)
        return scales_over_ranks([self.fields["advantage"][index] for index in indices], self.ranks)

    @property
    def count(self) -> int:
        """The number of minibatches in a pass."""
        return len(self.sizes)

    def draw(self, steps: int, generator: torch.Generator) -> tuple[Tensor, Iterator[Batch]]:
        """Returns samples (n,) in random order, each once, and up to ``steps`` minibatches of them."""
        sizes = self.sizes[:steps]
        order = permutation(len(self), generator)[: sum(sizes)]
        indices = order.split(sizes)
        scales = self._scales(indices)
        if bytes_of(self.fields) > SHUFFLED_BYTES:
            return order, map(self.batch, indices, scales)
        # The minibatches of a small set are gathered and normalised together, in far fewer calls.
        shuffled = map_tree(lambda leaf: leaf.index_select(0, order), self.fields)
        if self.normalizes:
            shuffled["advantage"] = _normalized(shuffled["advantage"], sizes, scales)
        samples, batches = Samples(shuffled), []
        for index, scale, rows in zip(indices, scales, pairwise(accumulate(sizes, initial=0)), strict=True):
            batch = Batch.of(samples, slice(*rows))
            batch.remake = partial(self.batch, index, scale)
            batches.append(batch)
        return order, iter(batches)


def _normalized(advantage: Tensor, sizes: Sequence[int], scales: Sequence[Scale | None]) -> Tensor:
    """Returns the advantages (N,), normalised in each minibatch.

    With one rank, minibatches of one size are normalised in one call.
    """
    if scales[0] is not None:
        parts = zip(advantage.split(list(sizes)), scales, strict=True)
        return torch.cat([normalize_advantage(part, scale) for part, scale in parts])
    if sizes[-1] == sizes[0]:
        return normalize_advantage(advantage.view(len(sizes), -1)).flatten()
    equal, last = advantage.split([sum(sizes[:-1]), sizes[-1]])
    return torch.cat([_normalized(equal, sizes[:-1], scales), normalize_advantage(last)])
