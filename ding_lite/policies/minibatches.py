"""From a training set, whose leaves are (N, ...), to the minibatches that the losses see."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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


def batches_at(flat: Rollout, draws: Sequence[Tensor], *, normalize: bool) -> Iterator[Batch]:
    """Yields a minibatch for each of some draws, of which all but the last have the same size.

    Where the set is small, all are gathered and normalised together, in far fewer calls.
    """
    if size_in_bytes(flat) > SHUFFLED_BYTES:
        yield from (batch_at(flat, index, normalize=normalize) for index in draws)
        return
    order, sizes = torch.cat(list(draws)), [len(index) for index in draws]
    shuffled = map_tree(lambda leaf: leaf[order], flat)
    if normalize:
        equal, last = shuffled["advantage"].split([sum(sizes[:-1]), sizes[-1]])
        parts = [equal.view(len(sizes) - 1, sizes[0]), last] if len(sizes) > 1 else [last]
        shuffled["advantage"] = torch.cat([normalize_advantage(part).flatten() for part in parts])
    for batch in split_batches(shuffled, sizes):
        batch.again = partial(Batch, **vars(batch))
        yield batch
