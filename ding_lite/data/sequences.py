"""The sequences that a policy with memory learns from: a rollout, cut at episode starts and every L rows.

Each sequence begins with the memory that its first row was played with: that of an episode's start, or the
one that was stored with the rollout. Rows that are not valid are in no sequence.

With ``burn_in`` a sequence that begins within an episode also has the rows before it, as many as the episode
has there, which bring the memory up to date and give no output. (R2D2, Kapturowski et al., ICLR 2019, section
3: "stored state" and "burn-in".)

Shapes: T rows, C columns of a rollout, K slots (stored memories of each column), S sequences, M samples of
them with burn-in, N samples without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ding_lite.data.minibatches import Batch, Scale, permutation, scales_over_ranks
from ding_lite.data.rollout import Rollout, as_field
from ding_lite.models.memory import Sequences, chosen_memories
from ding_lite.ranks import ALONE, Ranks
from ding_lite.rl.losses import normalize_advantage
from ding_lite.trees import Tree, map_tree


class Grid(NamedTuple):
    """Where rollouts are cut.

    Attributes:
        length: L, rows between two cuts.
        burn_in: rows before a cut that bring the memory up to date; less than L.
    """

    length: int
    burn_in: int = 0

    def slot(self, t: int) -> int | None:
        """Returns the slot 0 ... K - 1 in which the memory before row ``t`` is stored; None: in none."""
        if t == 0:
            return 0
        slot, rest = divmod(t + self.burn_in, self.length)
        return None if rest else slot

    def slots(self, steps: int) -> int:
        """Returns K of a rollout of ``steps`` rows."""
        return (max(steps, 1) - 1 + self.burn_in) // self.length + 1


class SequenceTable:
    """All sequences of a rollout, and where their samples are.

    Args:
        rollout: (T, C) with ``valid``, ``terminated`` and ``truncated``.
        grid: where it is cut.

    Attributes:
        counts: (S,), number of samples of each sequence, without burn-in.
        rows: T C.
    """

    def __init__(self, rollout: Rollout, grid: Grid) -> None:
        # Columns one after the other, so that the rows of a sequence are adjacent.
        valid, done = (x.t() for x in (rollout.valid, rollout.terminated | rollout.truncated))
        self.columns, steps = valid.shape
        self.rows = valid.numel()
        t = torch.arange(steps, device=valid.device).expand_as(valid)
        begins_episode = torch.zeros_like(valid)  # not set at row 0: the memory stored there is right already
        begins_episode[:, 1:] = done[:, :-1] | ~valid[:, :-1]
        episode_start = torch.where(begins_episode, t, -1).cummax(1).values
        is_start = valid & (begins_episode | (t % grid.length == 0))
        column, start = is_start.nonzero().unbind(1)
        number = is_start.flatten().long().cumsum(0) - 1
        self._number = torch.where(valid.flatten(), number, len(start))  # of each row's sequence
        self.counts = torch.bincount(self._number, minlength=len(start) + 1)[:-1]
        cut = start - grid.burn_in  # where a sequence within an episode begins
        within = ~begins_episode[column, start] & (start > 0)
        began = episode_start[column, start]
        stored = (start == 0) | (within & (began < cut))
        first = torch.where(within, torch.maximum(began, cut), start)
        slot = torch.where(start > 0, start // grid.length, 0)
        self._column = column
        self._first = first
        self._burnt = start - first
        # Place of the stored memory in the flattened (K, C); -1: that of an episode's start.
        self._place = torch.where(stored, slot * self.columns + column, -1)

    def __len__(self) -> int:
        return len(self.counts)

    def all_in(self, rows: Tensor) -> Tensor:
        """Returns the sequences (S,) all of whose samples are among ``rows`` (N,), places in (T, C)."""
        t, column = rows // self.columns, rows % self.columns
        number = self._number[column * (self.rows // self.columns) + t]
        return (torch.bincount(number, minlength=len(self.counts)) == self.counts).nonzero().squeeze(-1)

    def packed(self, index: Tensor) -> Packed:
        """Returns the sequences ``index`` (S,) in packed order."""
        counts, burnt = self.counts[index] + self._burnt[index], self._burnt[index]
        longest_first = counts.argsort(descending=True, stable=True)
        index, counts, burnt = index[longest_first], counts[longest_first], burnt[longest_first]
        sequence = torch.arange(len(index), device=index.device).repeat_interleave(counts)
        step = torch.arange(len(sequence), device=index.device)
        step = step - (counts.cumsum(0) - counts).repeat_interleave(counts)
        order = (step * len(index) + sequence).argsort()
        sequence, step = sequence[order], step[order]
        rows = (self._first[index][sequence] + step) * self.columns + self._column[index][sequence]
        kept = (step >= burnt[sequence]).nonzero().squeeze(-1) if bool(burnt.any()) else None
        return Packed(rows, torch.bincount(step).cpu(), self._place[index], kept)


class Packed(NamedTuple):
    """Some sequences in packed order (``models.memory``).

    Attributes:
        all_rows: (M,), places of the samples in the flattened (T, C).
        sizes: (L,), on the host.
        place: (S,), places of the stored memories in the flattened (K, C); -1: that of an episode's start.
        kept: (N,), the samples without burn-in; None: all.
    """

    all_rows: Tensor
    sizes: Tensor
    place: Tensor
    kept: Tensor | None

    @property
    def rows(self) -> Tensor:
        """The places (N,) of the samples without burn-in."""
        return self.all_rows if self.kept is None else self.all_rows[self.kept]

    @property
    def last_rows(self) -> Tensor:
        """The place (S,) of each sequence's last sample."""
        number = torch.arange(len(self.place))
        steps = (self.sizes[:, None] > number).sum(0)
        before = self.sizes.cumsum(0) - self.sizes  # samples before each step
        return self.all_rows[(before[steps - 1] + number).to(self.all_rows.device)]

    def inputs(self, obs: Any, stored: Tree, initial_state: Callable[[int], Tree]) -> Sequences:
        """Returns the input of the model.

        Args:
            obs: (T C, ...), of the whole rollout.
            stored: (K C, ...), memories.
            initial_state: of n episodes.
        """
        initial = initial_state(len(self.place))
        place = self.place.clamp(min=0)
        memories = map_tree(lambda leaf, like: leaf[place].to(like.device), stored, initial)
        state = chosen_memories(self.place < 0, initial, memories)
        return Sequences(map_tree(lambda leaf: leaf[self.all_rows], obs), state, self.sizes, self.kept)


class SequenceSet:
    """A training set whose minibatches have whole sequences; ``draw`` and ``count`` are ``TrainingSet``'s.

    Args:
        samples: trees of leaves (N, ...) by name: the rows ``rows`` of a rollout.
        batch_size: about how many samples a minibatch has.
        rows: (N,), places in the flattened (T, C), ascending.
        obs: (T C, ...), of the whole rollout.
        stored: (K C, ...), the memories of the rollout.
        table: the sequences of the rollout.
        initial_state: of n episodes, of the model.
        normalizes: whether each minibatch normalises its advantages.
        ranks: that have a minibatch each at every gradient step; its advantages are normalised over all. They
            make their sets together.

    Attributes:
        sequences: (S,), those with all samples in the set.
        count: number of minibatches in a pass, the smallest of all ranks'.
    """

    def __init__(
        self,
        samples: Mapping[str, Any],
        batch_size: int,
        rows: Tensor,
        obs: Any,
        stored: Tree,
        table: SequenceTable,
        initial_state: Callable[[int], Tree],
        *,
        normalizes: bool,
        ranks: Ranks = ALONE,
    ) -> None:
        self.samples = samples
        self.obs = obs
        self.stored = stored
        self.table = table
        self.initial_state = initial_state
        self.normalizes = normalizes
        self.ranks = ranks
        self.sequences = table.all_in(rows)
        self.count = ranks.smallest(part_count(table.counts[self.sequences], batch_size))
        self._index = torch.full((table.rows,), -1, device=rows.device)  # of each place among the samples
        self._index[rows] = torch.arange(len(rows), device=rows.device)

    def draw(self, steps: int, generator: torch.Generator) -> tuple[Tensor, Iterator[Batch]]:
        """Returns the samples (n,) that up to ``steps`` minibatches have, and those minibatches.

        Sequences are in random order and stay whole.
        """
        order = self.sequences[permutation(len(self.sequences), generator)]
        groups = split_evenly(order, self.table.counts[order], self.count)[:steps]
        packed = [self.table.packed(group) for group in groups]
        places = [self._index[each.rows] for each in packed]
        scales: list[Scale | None] = [None] * len(groups)
        if self.normalizes and self.ranks.size > 1:
            scales = scales_over_ranks([self.samples["advantage"][place] for place in places], self.ranks)
        return torch.cat(places), map(self._batch, packed, scales)

    def _batch(self, packed: Packed, scale: Scale | None) -> Batch:
        """Returns some sequences as a minibatch, whose ``obs`` are ``Sequences``.

        Args:
            packed: the sequences.
            scale: of the advantages over all ranks; None: of these samples.
        """
        places = self._index[packed.rows]
        fields = {name: map_tree(lambda leaf: leaf[places], tree) for name, tree in self.samples.items()}
        if self.normalizes:
            fields["advantage"] = normalize_advantage(fields["advantage"], scale)
        batch = Batch(
            **{name: as_field(tree) for name, tree in fields.items()},
            obs=packed.inputs(self.obs, self.stored, self.initial_state),
        )
        batch.remake = partial(self._batch, packed, scale)
        return batch


def part_count(counts: Tensor, batch_size: int) -> int:
    """Returns the number of minibatches of about ``batch_size`` samples, of sequences of ``counts`` (S,).

    A minibatch has, on average, at least as many samples as the longest sequence, so that none is empty.
    """
    total = int(counts.sum())
    return max(1, min(round(total / batch_size), total // int(counts.max())))


def split_evenly(index: Tensor, counts: Tensor, parts: int) -> list[Tensor]:
    """Splits sequences, in their order, into parts of about equally many samples.

    No part is empty if ``parts`` times the longest sequence is not more than all samples.

    Shapes:
        index, counts: (S,)
    """
    # With all samples side by side, a sequence is in the part in which its middle lies.
    twice_the_middle = 2 * counts.cumsum(0) - counts
    part = (twice_the_middle * parts // (2 * counts.sum())).clamp(max=parts - 1)
    return [chosen for chosen in (index[part == k] for k in range(parts)) if len(chosen)]
