"""The samples of gradient steps: rows of rollouts, and minibatches of them.

Without a recurrent network each row is drawn on its own. With one, rows are drawn in runs: a rollout is split
where an episode begins and every ``length`` rows, and each run begins with the hidden state with which its
first row was collected ("stored state" of R2D2, Kapturowski et al., ICLR 2019). No run has invalid rows.

Shapes: T steps, B environments, N samples, S runs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ding_lite.data.rollout import UNLIKE_THE_REST, Rollout, as_field, flat, to_device
from ding_lite.models.recurrent import Sequences, chosen_hidden
from ding_lite.ranks import ALONE, Ranks
from ding_lite.rl.returns import normalize_advantage
from ding_lite.trees import Tree, in_one_order, is_branch, leading_size, map_tree, tree_leaves

CHUNK_SAMPLES, CHUNK_BYTES = 2**13, 2**24  # limits of a network's input in a call without a gradient
SHUFFLED_BYTES = 2**22  # up to this size, one call gathers the samples of all minibatches


class Recurrence(NamedTuple):
    """How rollouts are split for a recurrent network.

    Attributes:
        length: largest number of rows in a run.
        initial_hidden: n -> the hidden state (n, ...) before the first step of n episodes.
    """

    length: int
    initial_hidden: Callable[[int], Tree]


class Runs(NamedTuple):
    """Consecutive rows for a recurrent network; the samples are all rows of all runs.

    Attributes:
        length: (S,), number of rows of each run.
        hidden: (S, ...), hidden states before the first row of each run.
    """

    length: Tensor
    hidden: Tree


class Batch(SimpleNamespace):
    """The fields of a minibatch, as attributes. A loss must not change them.

    In the policy phase they are the fields of the rollout, such as obs (scaled), action, log_prob, reward,
    value, advantage and value_target; in the auxiliary phase obs, old_logit, value_target and the
    ``auxiliary_fields``. With a recurrent network obs are ``Sequences``.

    Attributes:
        dist, new_value, auxiliary: the model's fresh outputs, as far as the loss reads them.
        value, value_target: normalised by value_norm; ``advantage`` as adv_norm says.
        log_prob: (N,), log-prob in the ratio's denominator: of pi_prox, or of mu with proximal="behaviour".
        policy_weight: (N,), weights w of the samples in the policy loss; None: all are 1.
        prox_log_prob: (N,), log-prob of pi_prox, if ``log_prob`` is of mu; else None.

    Shapes:
        every field: (N, ...)
    """

    policy_weight: Tensor | None = None
    prox_log_prob: Tensor | None = None

    def __len__(self) -> int:
        return len(self.value_target)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"a minibatch has no {name!r}; it has {', '.join(sorted(vars(self)))}")

    def plus(self, **fields: Any) -> Batch:
        """Returns a batch with ``fields`` added or replaced."""
        return Batch(**{**vars(self), **fields})


class Samples:
    """Rows of rollouts.

    Args:
        fields: trees of leaves (N, ...), by name.
        runs: the runs that the rows form, for a recurrent network.
        index: (N,), the positions of the samples in the rollouts, each flattened (T B), one after the other.
        inputs: turns observations (N, ...) into the model's inputs, on its device; None: they already are.

    Attributes:
        device: where minibatches are; None: where the fields are.
    """

    device: torch.device | None = None

    def __init__(
        self,
        fields: Mapping[str, Any],
        runs: Runs | None = None,
        index: Tensor | None = None,
        inputs: Callable[[Tree], Any] | None = None,
    ) -> None:
        self.fields, self.runs, self.index, self.inputs = dict(fields), runs, index, inputs

    @classmethod
    def of(
        cls, rollout: Rollout, chosen: Tensor, fields: Mapping[str, Any], recurrence: Recurrence | None
    ) -> Samples:
        """Returns the chosen rows of a rollout; with recurrence, the runs that begin with a chosen row.

        Args:
            rollout: with recurrence it has the field ``hidden``.
            chosen: (T, B), a mask of valid rows.
            fields: (T, B, ...), by name; the fields of a rollout that are unlike these are left out.
            recurrence: the recurrence of the network, if it has one.
        """
        if recurrence is None:
            index, runs = chosen.flatten().nonzero().squeeze(-1), None
        else:
            index, runs = _runs_of(rollout, chosen, recurrence)
        rows = flat({name: field for name, field in fields.items() if name not in UNLIKE_THE_REST})
        if runs is not None or len(index) < chosen.numel():
            rows = map_tree(lambda leaf: leaf.index_select(0, index), rows)
        return cls(rows, runs, index)

    def __len__(self) -> int:
        return leading_size(self.fields)

    @staticmethod
    def joined(parts: Sequence[Samples], sizes: Sequence[int]) -> Samples:
        """Returns the samples of several rollouts as one.

        Args:
            parts: the samples of each rollout, with the same fields.
            sizes: T B of each rollout; the indices of the next rollout continue there.
        """
        if len(parts) == 1:
            return parts[0]
        runs = [part.runs._asdict() for part in parts if part.runs is not None]
        starts = itertools.accumulate(sizes[:-1], initial=0)
        pairs = zip(parts, starts, strict=True)
        indices = [part.index + start for part, start in pairs if part.index is not None]
        fields = _joined([part.fields for part in parts])
        return Samples(fields, Runs(**_joined(runs)) if runs else None, torch.cat(indices))

    def minibatches(
        self,
        size: int,
        generator: torch.Generator | None,
        *,
        steps: int | None = None,
        adv_norm: str | bool = False,
        ranks: Ranks = ALONE,
    ) -> Pass:
        """Cuts the samples into minibatches, in random order, without replacement.

        A short last minibatch stays; a single sample joins the one before. With runs a minibatch has about
        ``size`` samples. All ranks take the same number of minibatches. Their sizes differ, and the mean
        gradient weights each by its size. No rank drops samples to equal another: a rank with more resets has
        fewer valid rows, so each of them would count more.

        Args:
            size: samples of a minibatch.
            generator: draws the order; None: samples stay in their order.
            steps: most minibatches; None: all.
            adv_norm: normalise advantages in each "minibatch", over the whole "batch", or not (False).
            ranks: take each step together; advantages are normalised over the samples of all ranks.
        """
        if self.runs:
            groups = self._run_groups(size, generator, ranks)[:steps]
        else:
            order = self._order(len(self), generator)
            parts = order.split(size)
            if len(self) % size == 1 and len(parts) > 1:
                parts = (*parts[:-2], torch.cat(parts[-2:]))
            if ranks.size > 1 and (number := ranks.smallest(len(parts))) < len(parts):
                parts = order.split(even_sizes(len(self), number))
            groups = [Group(rows) for rows in parts[:steps]]
        fields, rows = dict(self.fields), torch.cat([group.rows for group in groups])
        if adv_norm == "batch":
            fields["advantage"] = _normalized(fields["advantage"], [len(self)], ranks)
        elif adv_norm:
            whole = fields["advantage"]
            sizes = [len(group.rows) for group in groups]
            fields["advantage"] = whole.index_copy(0, rows, _normalized(whole[rows], sizes, ranks))
        return Pass(self._batches(fields, groups), len(groups), rows)

    def chunks(self) -> Pass:
        """Returns all samples, some megabytes at a time, for calls without a gradient."""
        sample_bytes = 4 * sum(math.prod(leaf.shape[1:]) for leaf in tree_leaves(self.fields["obs"]))
        return self.minibatches(max(1, min(CHUNK_SAMPLES, CHUNK_BYTES // max(1, sample_bytes))), None)

    def _order(self, count: int, generator: torch.Generator | None) -> Tensor:
        if generator is None:
            return torch.arange(count, device=tree_leaves(self.fields)[0].device)
        return torch.randperm(count, generator=generator, device=generator.device)

    def _batches(self, fields: dict[str, Any], groups: Sequence[Group]) -> Iterator[Batch]:
        trees = [name for name, field in fields.items() if is_branch(field)]
        # Few samples are gathered for all minibatches together, in far fewer calls.
        if sum(leaf.nbytes for leaf in tree_leaves(fields)) <= SHUFFLED_BYTES:
            order, sizes = torch.cat([group.rows for group in groups]), [len(group.rows) for group in groups]
            parts = map_tree(lambda leaf: leaf.index_select(0, order).split_with_sizes(sizes), fields)
            for name in trees:
                parts[name] = [map_tree(lambda x, k=k: x[k], parts[name]) for k in range(len(groups))]
            batches = (dict(zip(parts, row, strict=True)) for row in zip(*parts.values(), strict=True))
        else:
            batches = (map_tree(lambda leaf, g=g: leaf.index_select(0, g.rows), fields) for g in groups)
        for group, batch in zip(groups, batches, strict=True):
            batch = batch if self.device is None else to_device(batch, self.device)
            if self.inputs is not None:
                batch["obs"] = self.inputs(batch["obs"])
            if group.sizes is not None:
                hidden = group.hidden if self.device is None else to_device(group.hidden, self.device)
                batch["obs"] = Sequences(batch["obs"], hidden, group.sizes)
            for name in trees:
                batch[name] = as_field(batch[name])
            yield Batch(**batch)

    def _run_groups(self, size: int, generator: torch.Generator | None, ranks: Ranks) -> list[Group]:
        assert self.runs is not None
        counts = self.runs.length
        order = self._order(len(counts), generator).to(counts.device)
        total = int(counts.sum())
        # A minibatch has on average at least as many samples as the longest run, so none is empty.
        number = ranks.smallest(max(1, min(round(total / size), total // int(counts.max()))))
        return [self._packed(runs) for runs in _split_evenly(order, counts[order], number)]

    def some(self, count: int) -> Batch:
        """Returns about ``count`` samples, evenly spaced, as one minibatch."""
        step = -(-len(self) // count)
        if self.runs is None:
            return next(self._batches(self.fields, [Group(torch.arange(0, len(self), step))]))
        return next(self._batches(self.fields, [self._packed(torch.arange(0, len(self.runs.length), step))]))

    def _packed(self, index: Tensor) -> Group:
        """Returns runs (S,) in packed order: all first rows, longest run first, then all second rows, ..."""
        runs = self.runs
        assert runs is not None
        index = index[runs.length[index].argsort(descending=True, stable=True)]
        count = runs.length[index]
        run = torch.arange(len(index), device=index.device).repeat_interleave(count)
        step = torch.arange(len(run), device=index.device)
        step = step - (count.cumsum(0) - count).repeat_interleave(count)
        order = (step * len(index) + run).argsort()
        run, step = run[order], step[order]
        hidden = map_tree(lambda leaf: leaf[index.to(leaf.device)], runs.hidden)
        start = runs.length.cumsum(0) - runs.length
        return Group(start[index][run] + step, torch.bincount(step).cpu(), hidden)


class Pass(NamedTuple):
    """One pass over samples, in minibatches.

    Attributes:
        batches, number: the minibatches, and their number.
        rows: (n,), the indices of all their samples, in order.
    """

    batches: Iterator[Batch]
    number: int
    rows: Tensor


class Group(NamedTuple):
    """The rows (n,) of a minibatch; of packed runs also ``Sequences.sizes`` (L,) and ``hidden`` (S, ...)."""

    rows: Any
    sizes: Tensor | None = None
    hidden: Tree = None


class Store:
    """Samples of the last iterations, on the host, in memory that is allocated once per phase.

    Leaves keep their dtype: uint8 images stay uint8.

    Attributes:
        iterations, size: number of iterations and of samples.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Drops all samples."""
        self.iterations = self.size = 0
        self._fields: dict[str, Any] = {}
        self._runs: list[dict[str, Any]] = []

    def append(self, samples: Samples, planned: int) -> None:
        """Adds the samples of an iteration; ``planned``: number of samples when the store is full."""
        end = self.size + len(samples)
        if not self._fields or leading_size(self._fields) < end:
            old, capacity = self._fields, max(planned, end)
            self._fields = map_tree(
                lambda leaf: torch.empty((capacity, *leaf.shape[1:]), dtype=leaf.dtype), samples.fields
            )
            if self.size:
                map_tree(lambda to, leaf: to[: self.size].copy_(leaf), self._fields, old)
        map_tree(lambda to, leaf: to[self.size : end].copy_(leaf), self._fields, samples.fields)
        if samples.runs is not None:
            self._runs.append(map_tree(lambda leaf: leaf.cpu().clone(), samples.runs._asdict()))
        self.iterations, self.size = self.iterations + 1, end

    def samples(self) -> Samples:
        """Returns all samples; they share the memory of the store."""
        fields = map_tree(lambda leaf: leaf[: self.size], self._fields)
        return Samples(fields, Runs(**_joined(self._runs)) if self._runs else None)

    def state_dict(self) -> dict[str, Any]:
        fields = in_one_order(self.samples().fields) if self.size else {}
        return {"iterations": self.iterations, "size": self.size, "fields": fields, "runs": self._runs}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.iterations, self.size = int(state["iterations"]), int(state["size"])
        self._fields = map_tree(torch.as_tensor, state["fields"])
        self._runs = [map_tree(torch.as_tensor, runs) for runs in state["runs"]]


def _runs_of(rollout: Rollout, chosen: Tensor, recurrence: Recurrence) -> tuple[Tensor, Runs]:
    """Returns the chosen runs, after the indices (N,) of all their rows in the flattened (T, B)."""
    steps, columns = rollout.valid.shape
    # (B, T), so that the rows of a run are adjacent.
    valid, done = rollout.valid.t(), (rollout.terminated | rollout.truncated).t()
    t = torch.arange(steps, device=valid.device).expand_as(valid)
    begins_episode = torch.zeros_like(valid)  # not set at row 0: the hidden state stored there is right
    begins_episode[:, 1:] = done[:, :-1] | ~valid[:, :-1]
    is_start = valid & (begins_episode | (t % recurrence.length == 0))
    column, row = valid.nonzero().unbind(1)
    number = is_start[column, row].cumsum(0) - 1  # the index of each row's run
    first = is_start[column, row].nonzero().squeeze(-1)
    count = torch.bincount(number, minlength=len(first))
    is_chosen = chosen.t()[column[first], row[first]]
    first, count, rows = first[is_chosen], count[is_chosen], is_chosen[number].nonzero().squeeze(-1)
    column_of, row_of = column[first], row[first]
    stored = map_tree(
        lambda leaf: leaf[(row_of // recurrence.length).to(leaf.device), column_of.to(leaf.device)],
        rollout["hidden"],
    )
    initial = recurrence.initial_hidden(len(first))
    stored = map_tree(lambda leaf, like: leaf.to(like), stored, initial)
    hidden = chosen_hidden(begins_episode[column_of, row_of], initial, stored)
    return (row * columns + column)[rows], Runs(count, hidden)


def _joined(trees: Sequence[Tree]) -> Any:
    """Returns trees with leaves (N, ...), concatenated."""
    return map_tree(lambda *leaves: torch.cat(leaves), *trees)


def even_sizes(n: int, parts: int) -> list[int]:
    """Splits ``n`` samples into parts that differ by one sample at most."""
    return [n // parts + (k < n % parts) for k in range(parts)]


def _split_evenly(index: Tensor, counts: Tensor, parts: int) -> list[Tensor]:
    """Splits runs (S,) of ``counts`` samples, in their order, into parts of about equally many samples."""
    # A run goes to the part in which its middle lies.
    part = ((2 * counts.cumsum(0) - counts) * parts // (2 * counts.sum())).clamp(max=parts - 1)
    return [chosen for chosen in (index[part == k] for k in range(parts)) if len(chosen)]


def _normalized(advantage: Tensor, sizes: list[int], ranks: Ranks) -> Tensor:
    """Returns advantages (N,), each minibatch of ``sizes`` normalised over the samples of all ranks."""
    if ranks.size == 1:
        # The first minibatches, up to one of another size, are the rows of one matrix.
        equal = next((k for k, size in enumerate(sizes) if size != sizes[0]), len(sizes))
        first, *rest = advantage.split([equal * sizes[0], *sizes[equal:]])
        return torch.cat([*normalize_advantage(first.view(equal, -1)), *map(normalize_advantage, rest)])
    wide = advantage.double().split(sizes)
    sums = [torch.stack([torch.full_like(x.sum(), len(x)), x.sum(), x.square().sum()]) for x in wide]
    counts, totals, squares = ranks.sum(torch.stack(sums, 1))
    means = totals / counts
    stds = (squares / counts - means.square()).clamp(min=0).sqrt()
    each = torch.tensor(sizes, device=advantage.device)
    std, mean = (x.to(advantage.dtype).repeat_interleave(each) for x in (stds, means))
    return normalize_advantage(advantage, (std, mean))
