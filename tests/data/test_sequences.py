"""The sequences of a rollout against a loop over its rows."""

import numpy as np
import pytest
import torch

from ding_lite.data.rollout import as_rollout
from ding_lite.data.sequences import Grid, SequenceTable, part_count, split_evenly

STEPS, COLUMNS = 23, 5


def random_rollout(seed):
    """Rows that end an episode, that are not valid in between, and that are padding."""
    rng = np.random.default_rng(seed)
    terminated = rng.random((STEPS, COLUMNS)) < 0.15
    truncated = ~terminated & (rng.random((STEPS, COLUMNS)) < 0.1)
    valid = rng.random((STEPS, COLUMNS)) < 0.85
    valid[STEPS - 4 :, 1] = False
    terminated &= valid
    truncated &= valid
    fields = dict(valid=valid, terminated=terminated, truncated=truncated)
    return as_rollout({name: torch.from_numpy(field) for name, field in fields.items()})


def naive_sequences(rollout, grid):
    """Returns {(first row with a loss, column): (rows with burn-in, slot of its memory or None)}."""
    valid, done = rollout.valid.numpy(), (rollout.terminated | rollout.truncated).numpy()
    found = {}
    for column in range(COLUMNS):
        key, episode_start = None, None  # None: the episode began before the rollout
        for t in range(STEPS):
            begins = t > 0 and (done[t - 1, column] or not valid[t - 1, column])
            if begins:
                episode_start, key = t, None
            if not valid[t, column]:
                key = None
                continue
            if key is None or t % grid.length == 0:
                key = (t, column)
                if begins:
                    rows, slot = [], None
                elif t == 0:
                    rows, slot = [], 0
                else:
                    cut = t - grid.burn_in
                    later = episode_start is not None and episode_start >= cut
                    rows = list(range(episode_start if later else cut, t))
                    slot = None if later else grid.slot(cut)
                    assert later or slot is not None
                found[key] = (rows, slot)
            found[key][0].append(t)
    return found


@pytest.mark.parametrize("grid", [Grid(1), Grid(4), Grid(5, 2), Grid(8, 7), Grid(64), Grid(64, 3)], ids=str)
@pytest.mark.parametrize("seed", range(6))
def test_sequences_are_those_of_a_loop_over_the_rows(grid, seed):
    rollout = random_rollout(seed)
    table, naive = SequenceTable(rollout, grid), naive_sequences(rollout, grid)
    assert len(table) == len(naive)
    everything = torch.randperm(len(table), generator=torch.Generator().manual_seed(seed))
    packed = table.packed(everything)
    # Taken apart again: the k-th sample of sequence s is sample s of those with k samples or more.
    assert (packed.sizes[1:] <= packed.sizes[:-1]).all(), "the longest sequences come first"
    rows = [[] for _ in range(len(table))]
    begin = 0
    for size in packed.sizes.tolist():
        for s in range(size):
            rows[s].append(divmod(int(packed.all_rows[begin + s]), COLUMNS))
        begin += size
    for s, of_sequence in enumerate(rows):
        column = of_sequence[0][1]
        assert {c for _, c in of_sequence} == {column}
        ts = [t for t, _ in of_sequence]
        (key,) = [k for k, (expected, _) in naive.items() if k[1] == column and expected == ts]
        slot = naive[key][1]
        assert int(packed.place[s]) == (-1 if slot is None else slot * COLUMNS + column)
    # Every valid row has a loss in exactly one sequence.
    assert sorted(packed.rows.tolist()) == rollout.valid.flatten().nonzero().squeeze(-1).tolist()
    assert int(table.counts.sum()) == int(rollout.valid.sum())


@pytest.mark.parametrize("seed", range(3))
def test_only_sequences_whose_samples_are_all_there_are_drawn(seed):
    rollout = random_rollout(seed)
    table = SequenceTable(rollout, Grid(6, 2))
    rows = rollout.valid.flatten().nonzero().squeeze(-1)
    assert table.all_in(rows).tolist() == list(range(len(table)))
    missing = int(rows[7])
    (without,) = set(range(len(table))) - set(table.all_in(rows[rows != missing]).tolist())
    assert missing in table.packed(torch.tensor([without])).rows.tolist()


def test_memories_are_stored_before_the_rows_that_sequences_begin_with():
    assert [t for t in range(20) if Grid(6).slot(t) is not None] == [0, 6, 12, 18]
    assert [t for t in range(20) if Grid(6, 2).slot(t) is not None] == [0, 4, 10, 16]
    for grid in (Grid(6), Grid(6, 2), Grid(6, 5), Grid(1)):
        for steps in (1, 5, 6, 7, 20):
            slots = [grid.slot(t) for t in range(steps) if grid.slot(t) is not None]
            assert slots == list(range(grid.slots(steps)))


@pytest.mark.parametrize("seed", range(20))
def test_no_minibatch_is_empty_or_far_from_the_mean(seed):
    """Also where sequences are longer than batch_size: a minibatch has then about as many as the longest."""
    rng = np.random.default_rng(seed)
    counts = torch.from_numpy(np.concatenate([rng.integers(1, 65, rng.integers(1, 200)), [64]]))
    counts = counts[torch.randperm(len(counts), generator=torch.Generator().manual_seed(seed))]
    for batch_size in (2, 8, 32, 64, 256):
        parts = part_count(counts, batch_size)
        sizes = [int(counts[part].sum()) for part in split_evenly(torch.arange(len(counts)), counts, parts)]
        assert len(sizes) == parts
        assert min(sizes) >= 1
        assert max(sizes) <= max(2 * batch_size, 64) + 64


def test_minibatches_of_whole_sequences_have_about_equally_many_samples():
    counts = torch.tensor([10, 1, 3, 8, 2, 9, 4, 3])
    assert part_count(counts, 10) == 4
    parts = split_evenly(torch.arange(8), counts, 4)
    assert torch.cat(parts).tolist() == list(range(8))
    assert [int(counts[part].sum()) for part in parts] == [10, 12, 11, 7]
    assert part_count(torch.tensor([5, 5]), 1) == 2
    assert part_count(torch.tensor([64, 1]), 32) == 1, "no minibatch of one sample"
    assert part_count(torch.tensor([5, 5]), 100) == 1


def test_the_number_of_minibatches_is_the_one_whose_sizes_are_nearest_to_the_batch_size():
    counts = {n: torch.full((n,), 10) for n in (7, 9, 10, 16, 17)}
    assert {n: part_count(counts[n], 64) for n in counts} == {7: 1, 9: 1, 10: 2, 16: 2, 17: 3}
