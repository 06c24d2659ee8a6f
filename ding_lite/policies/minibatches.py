"""From a training set, whose leaves are (N, ...), to the minibatches that the losses see."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from ding_lite.rl.losses import normalize_advantage
from ding_lite.rollout import Batch, Rollout, batch_of, map_tree, size_in_bytes, split_batches

SHUFFLED_BYTES = 2**22  # a training set up to this size is put into the order of its minibatches at once


def batch_at(flat: Rollout, index: Tensor | slice, *, normalize: bool) -> Batch:
    """Returns the samples ``index`` as a minibatch; ``normalize`` is of its advantages among themselves."""
    batch = batch_of(flat, index)
    if normalize:
        batch.advantage = normalize_advantage(batch.advantage)
    batch.again = partial(batch_at, flat, index, normalize=normalize)
    return batch


def batches_at(flat: Rollout, order: Tensor, sizes: list[int], *, normalize: bool) -> Iterator[Batch]:
    """Yields the samples ``order`` as minibatches of these sizes, of which all but the last are the same.

    Where the set is small, all are gathered and normalised together, in far fewer calls.
    """
    if size_in_bytes(flat) > SHUFFLED_BYTES:
        yield from (batch_at(flat, index, normalize=normalize) for index in order.split(sizes))
        return
    shuffled = map_tree(lambda leaf: leaf.index_select(0, order), flat)
    if normalize:
        shuffled["advantage"] = _normalized(shuffled["advantage"], sizes)
    for batch, index in zip(split_batches(shuffled, sizes), order.split(sizes), strict=True):
        batch.again = partial(batch_at, flat, index, normalize=normalize)
        yield batch


def _normalized(advantage: Tensor, sizes: list[int]) -> Tensor:
    """Returns advantages, each minibatch's normalised among themselves: those of one size in one go."""
    if sizes[-1] == sizes[0]:
        return normalize_advantage(advantage.view(len(sizes), -1)).flatten()
    equal, last = advantage.split([sum(sizes[:-1]), sizes[-1]])
    return torch.cat([_normalized(equal, sizes[:-1]), normalize_advantage(last)])
