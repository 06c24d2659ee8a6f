"""Samples: minibatches that use each sample once, and runs of recurrent networks against a loop."""

import numpy as np
import pytest
import torch

from ding_lite.data import samples as samples_module
from ding_lite.data.rollout import as_rollout
from ding_lite.data.samples import Recurrence, Samples, even_sizes
from ding_lite.trees import to_dict

STEPS, COLUMNS = 23, 5


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def numbered(n, **others):
    """Returns n samples, whose every leaf tells their numbers."""
    row = torch.arange(n)
    obs = {"a": row.view(n, 1).expand(n, 2), "none": {}, "deep": {"b": row.to(torch.uint8)}}
    fields = {"obs": obs, "advantage": row.float(), "value_target": row.float(), **others}
    return Samples(fields, index=row + 100)


def drawn_by(samples, size, **options):
    """Returns the numbers of the samples of each minibatch."""
    drawn = samples.minibatches(size, options.pop("generator", generator()), **options)
    found = [batch.value_target.long().tolist() for batch in drawn.batches]
    assert len(found) == drawn.number
    assert samples.index[drawn.rows].tolist() == [100 + k for part in found for k in part]
    return found


# ------------------------------------------------------------------ minibatches


@pytest.mark.parametrize(
    ("n", "size", "sizes"),
    [
        (8, 4, [4, 4]),
        (10, 4, [4, 4, 2]),
        (9, 4, [4, 5]),
        (3, 4, [3]),
        (1, 4, [1]),
        (5, 4, [5]),
        (3, 1, [1, 1, 1]),
    ],
)
def test_a_short_last_minibatch_stays_and_a_single_sample_joins_the_one_before(n, size, sizes):
    found = drawn_by(numbered(n), size)
    assert [len(part) for part in found] == sizes
    assert sorted(sum(found, [])) == list(range(n))


def test_a_pass_that_is_cut_short_has_the_first_minibatches():
    assert drawn_by(numbered(50), 16, steps=2) == drawn_by(numbered(50), 16)[:2]


@pytest.mark.parametrize("most", [0, 2**22])
def test_every_leaf_of_a_minibatch_is_of_the_same_samples(most, monkeypatch):
    """Whether all are gathered at once or one minibatch after the other."""
    monkeypatch.setattr(samples_module, "SHUFFLED_BYTES", most)
    for batch in numbered(20, weight=torch.arange(20)).minibatches(8, generator()).batches:
        row = batch.value_target.long()
        assert batch.obs.a.tolist() == [[k, k] for k in row.tolist()]
        assert batch.obs.deep.b.dtype == torch.uint8
        assert batch.obs.deep.b.tolist() == batch.weight.tolist() == row.tolist()
        assert list(batch.obs.none.keys()) == []
        assert len(batch) == len(row)


def test_advantages_are_normalised_in_each_minibatch_over_all_or_not():
    found = {}
    for kind in ("minibatch", "batch", False):
        parts = list(numbered(50).minibatches(16, generator(), adv_norm=kind).batches)
        found[kind] = [batch.advantage for batch in parts]
        row = torch.cat([batch.value_target for batch in parts])
        assert torch.corrcoef(torch.stack([row, torch.cat(found[kind])]))[0, 1] > 0.9
    for advantages in (*found["minibatch"], torch.cat(found["batch"])):
        assert float(advantages.mean()) == pytest.approx(0, abs=1e-5)
        assert float(advantages.square().mean()) == pytest.approx(1, rel=0.15)
    assert torch.cat(found[False]).sort().values.tolist() == list(range(50))


class TwoAlike:
    """Two ranks with the same samples; the other has samples for ``count`` minibatches only."""

    size, count = 2, 3

    def smallest(self, n):
        return min(n, self.count)

    def sum(self, x):
        return 2 * x


def test_ranks_take_equally_many_minibatches_of_all_their_samples():
    assert [len(part) for part in drawn_by(numbered(50), 16, ranks=TwoAlike())] == [17, 17, 16]
    assert [len(part) for part in drawn_by(numbered(48), 16, ranks=TwoAlike())] == [16, 16, 16]
    assert all(sum(even_sizes(n, k)) == n for n in range(30) for k in range(1, 9))
    (batch,) = numbered(6).minibatches(6, generator(), adv_norm="minibatch", ranks=TwoAlike()).batches
    expected = (batch.value_target - 2.5) / batch.value_target.std(correction=0)
    torch.testing.assert_close(batch.advantage, expected, rtol=1e-5, atol=1e-5)


def test_chunks_are_all_samples_in_order_and_some_are_evenly_spaced(monkeypatch):
    monkeypatch.setattr("ding_lite.data.samples.CHUNK_SAMPLES", 4)
    samples = numbered(10)
    samples.inputs = lambda obs: obs["a"][:, 0] * 2
    batches, _, rows = samples.chunks()
    assert [batch.obs.tolist() for batch in batches] == [[0, 2, 4, 6], [8, 10, 12, 14], [16, 18]]
    assert rows.tolist() == list(range(10))
    assert samples.some(4).value_target.tolist() == [0, 3, 6, 9]


# ------------------------------------------------------------------ runs


def initial_hidden(n):
    return {"h": torch.full((n, 1), -1.0)}


def random_rollout(seed, length):
    """Rows that end an episode or are not valid; observations and hidden states tell where they are from."""
    rng = np.random.default_rng(seed)
    terminated = rng.random((STEPS, COLUMNS)) < 0.15
    truncated = ~terminated & (rng.random((STEPS, COLUMNS)) < 0.1)
    valid = rng.random((STEPS, COLUMNS)) < 0.85
    valid[STEPS - 4 :, 1] = False
    slots = -(-STEPS // length)
    place = torch.arange(STEPS * COLUMNS).view(STEPS, COLUMNS)
    return as_rollout(
        {
            **{k: torch.from_numpy(x) for k, x in dict(valid=valid, terminated=terminated & valid).items()},
            "truncated": torch.from_numpy(truncated & valid),
            "obs": {"place": place.unsqueeze(-1)},
            "value_target": place.float(),
            "hidden": {"h": torch.arange(1.0, slots * COLUMNS + 1).view(slots, COLUMNS, 1)},
        }
    )


def naive_runs(rollout, length):
    """Returns {place of the first row: (places of all rows, hidden state)} by a loop over the rows."""
    valid, done = rollout.valid.numpy(), (rollout.terminated | rollout.truncated).numpy()
    found = {}
    for column in range(COLUMNS):
        key = None
        for t in range(STEPS):
            begins = t > 0 and (done[t - 1, column] or not valid[t - 1, column])
            if not valid[t, column]:
                key = None
                continue
            if key is None or begins or t % length == 0:
                key = t * COLUMNS + column
                hidden = -1.0 if begins else float(rollout.hidden.h[t // length, column, 0])
                found[key] = ([], hidden)
            found[key][0].append(t * COLUMNS + column)
    return found


def taken_apart(sequences):
    """Returns {place of the first row: (places of all rows, hidden state)} of sequences in packed order."""
    sizes, place = sequences.sizes.tolist(), sequences.obs["place"][:, 0].tolist()
    assert sizes == sorted(sizes, reverse=True)
    assert sum(sizes) == len(place)
    rows, begin = [[] for _ in range(sizes[0])], 0
    for size in sizes:  # the k-th sample of run s is sample s of those with k samples or more
        for s in range(size):
            rows[s].append(place[begin + s])
        begin += size
    return {run[0]: (run, float(sequences.hidden["h"][s, 0])) for s, run in enumerate(rows)}


def samples_of(rollout, length, chosen=None):
    chosen = rollout.valid if chosen is None else chosen
    return Samples.of(rollout, chosen, to_dict(rollout), Recurrence(length, initial_hidden))


@pytest.mark.parametrize("length", [1, 4, 8, 64])
@pytest.mark.parametrize("seed", range(6))
def test_runs_are_those_of_a_loop_over_the_rows(length, seed):
    rollout = random_rollout(seed, length)
    samples, expected = samples_of(rollout, length), naive_runs(rollout, length)
    drawn, found = samples.minibatches(16, generator(seed)), {}
    places = []
    for batch in drawn.batches:
        found |= taken_apart(batch.obs)
        assert batch.value_target.tolist() == batch.obs.obs["place"][:, 0].tolist()
        places += batch.value_target.long().tolist()
    assert found == expected
    assert samples.index[drawn.rows].tolist() == places
    assert sorted(places) == rollout.valid.flatten().nonzero().squeeze(-1).tolist()
    assert len(samples) == len(places)


@pytest.mark.parametrize("seed", range(3))
def test_runs_that_begin_with_a_chosen_row_are_drawn_whole(seed):
    rollout = random_rollout(seed, 6)
    chosen = rollout.valid & (torch.rand(STEPS, COLUMNS, generator=generator(seed)) < 0.5)
    samples = samples_of(rollout, 6, chosen)
    (batch,) = samples.minibatches(10**6, generator()).batches
    places = set(chosen.flatten().nonzero().squeeze(-1).tolist())
    assert taken_apart(batch.obs) == {k: run for k, run in naive_runs(rollout, 6).items() if k in places}


@pytest.mark.parametrize("size", [7, 1000])
def test_chunks_and_joined_samples_keep_their_runs(size, monkeypatch):
    monkeypatch.setattr("ding_lite.data.samples.CHUNK_SAMPLES", size)
    rollouts = [random_rollout(seed, 6) for seed in (0, 1)]
    rollouts[1].obs.place += STEPS * COLUMNS
    rollouts[1].hidden.h += 1000
    joined = Samples.joined([samples_of(each, 6) for each in rollouts], [STEPS * COLUMNS] * 2)
    one, other = (naive_runs(each, 6) for each in rollouts)
    offset = STEPS * COLUMNS
    expected = one | {k + offset: ([p + offset for p in run], h) for k, (run, h) in other.items()}
    batches, _, rows = joined.chunks()
    found, places = {}, []
    for batch in batches:
        found |= taken_apart(batch.obs)
        places.append(batch.obs.obs["place"])
    assert torch.equal(joined.fields["obs"]["place"][rows], torch.cat(places))
    assert found == expected
    assert rows.sort().values.tolist() == list(range(len(joined)))
    some = taken_apart(joined.some(20).obs)
    assert 1 < len(some) < len(expected)
    assert all(expected[key] == run for key, run in some.items())


@pytest.mark.parametrize("seed", range(10))
def test_no_minibatch_of_runs_is_empty_or_far_from_the_mean(seed):
    """Also where runs are longer than batch_size: a minibatch has then about as many as the longest."""
    rng = np.random.default_rng(seed)
    length = torch.from_numpy(np.concatenate([rng.integers(1, 65, rng.integers(1, 200)), [64]]))
    n = int(length.sum())
    runs = samples_module.Runs(length, initial_hidden(len(length)))
    for size in (2, 8, 32, 64, 256):
        drawn = Samples({"obs": {}, "value_target": torch.arange(n)}, runs).minibatches(size, generator(seed))
        sizes = [len(batch) for batch in drawn.batches]
        assert sum(sizes) == n
        assert len(sizes) == drawn.number == max(1, min(round(n / size), n // 64))
        assert max(sizes) <= max(2 * size, 64) + 64
