"""The rollout: minibatches that use each sample once, rows that are dropped, storage written in place."""

import copy

import numpy as np
import pytest
import torch

from ding_lite.data.samples import (
    TrainingSet,
    agreed_sizes,
    even_sizes,
    minibatch_sizes,
    permutation,
    scales_over_ranks,
)
from ding_lite.data.rollout import RolloutStorage, as_rollout, flat_at, time_major_fields, to_device
from ding_lite.errors import ContractError
from ding_lite.trees import map_tree, to_dict


@pytest.mark.parametrize(
    ("n", "batch_size", "sizes"),
    [
        (8, 4, [4, 4]),
        (10, 4, [4, 4, 2]),
        (9, 4, [4, 5]),
        (3, 4, [3]),
        (1, 4, [1]),
        (5, 4, [5]),
        (4, 1, [1, 1, 1, 1]),
        (0, 4, []),
    ],
)
def test_short_last_minibatch_is_kept_and_a_single_sample_joins_the_one_before(n, batch_size, sizes):
    assert minibatch_sizes(n, batch_size) == sizes


def test_minibatch_sizes_always_sum_to_the_samples():
    assert all(sum(minibatch_sizes(n, size)) == n for n in range(60) for size in range(1, 20))


def test_one_sample_alone_never_is_a_minibatch_of_many():
    assert all(1 not in minibatch_sizes(n, size) for n in range(2, 60) for size in range(2, 20))


@pytest.mark.parametrize(("n", "batch_size"), [(64, 16), (65, 16), (70, 16), (7, 100)])
def test_each_sample_is_drawn_exactly_once_a_pass(n, batch_size):
    drawn = permutation(n, torch.Generator().manual_seed(0))
    assert sorted(drawn.tolist()) == list(range(n))


def test_two_passes_have_different_orders_and_one_seed_repeats_both():
    def passes():
        generator = torch.Generator().manual_seed(3)
        return [permutation(50, generator).tolist() for _ in range(2)]

    first, second = passes()
    assert first != second
    assert passes() == [first, second]


def test_flatten_rows_goes_through_time_first_and_drops_fillers():
    field = torch.arange(6).view(3, 2)
    valid = torch.tensor([[True, True], [False, True], [True, False]])
    rows = valid.flatten().nonzero().squeeze(-1)
    flat = flat_at({"x": field, "tree": {"y": field * 10}}, rows)
    assert flat["x"].tolist() == [0, 1, 3, 4]
    assert flat["tree"]["y"].tolist() == [0, 10, 30, 40]


def test_flatten_rows_keeps_trailing_dims_and_order_when_all_is_valid():
    field = torch.arange(12).view(3, 2, 2)
    flat = flat_at({"x": field}, torch.arange(6))
    assert flat["x"].tolist() == field.flatten(0, 1).tolist()


def test_batch_of_indexes_every_leaf_alike():
    fields = {"obs": {"a": torch.arange(5), "b": torch.arange(5) * 10}, "reward": torch.arange(5)}
    batch = TrainingSet(fields, 2, normalizes=False).batch(torch.tensor([4, 1]))
    assert batch.reward.tolist() == [4, 1]
    assert batch.obs["b"].tolist() == [40, 10]


def split(fields, sizes):
    """Returns the samples of a small set in their order, as minibatches."""
    training_set = TrainingSet(fields, sizes[0], normalizes=False)
    assert training_set.sizes == sizes
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ding_lite.data.samples.permutation", lambda n, generator: torch.arange(n))
        return list(training_set.draw(len(sizes), torch.Generator())[1])


def test_minibatches_of_a_small_set_have_every_leaf_and_keep_branches():
    tree = {"obs": {"a": torch.arange(12).view(6, 2), "none": {}, "deep": {"b": torch.arange(6)}}}
    batches = split({"reward": torch.arange(6.0), **tree}, [4, 2])
    for batch, rows in zip(batches, (slice(0, 4), slice(4, 6)), strict=True):
        assert torch.equal(batch.obs.deep.b, torch.arange(6)[rows])
        assert torch.equal(batch.obs.a, tree["obs"]["a"][rows])
        assert torch.equal(batch.reward, torch.arange(6.0)[rows])
        assert list(batch.obs.none.keys()) == []
    first, second = (batch.reward.untyped_storage().data_ptr() for batch in batches)
    assert first == second, "a minibatch is a copy"


def cut_in_two(**others):
    """Returns the second half of six samples."""
    fields = {"obs": {"a": torch.arange(6.0)}, "reward": torch.arange(6.0), **others}
    return split(fields, [3, 3])[1]


def test_a_cut_minibatch_gives_all_its_fields():
    batch = cut_in_two(policy_weight=torch.arange(6.0) / 10, _hidden=torch.arange(6))
    fields = batch.fields()
    assert list(fields) == ["obs", "reward", "policy_weight", "_hidden"]
    assert fields["_hidden"].tolist() == [3, 4, 5]
    assert fields["reward"].tolist() == [3, 4, 5]
    assert fields["policy_weight"].tolist() == pytest.approx([0.3, 0.4, 0.5])
    assert batch.value_weight is None


def test_a_minibatch_without_a_field_says_so():
    with pytest.raises(AttributeError, match="no 'vaule'"):
        cut_in_two().vaule  # noqa: B018
    assert copy.deepcopy(cut_in_two()).reward.tolist() == [3, 4, 5]


@pytest.mark.parametrize("read_before", [False, True])
def test_arrays_of_a_minibatch_are_on_the_memory_of_its_set(read_before):
    batch = cut_in_two()
    if read_before:
        assert (batch.obs.a.tolist(), batch.reward.tolist()) == ([3, 4, 5], [3, 4, 5])
    batch.array("obs", "a")[0], batch.array("reward")[1] = 7, 8
    assert batch.obs.a.tolist() == [7, 4, 5]
    assert batch.reward.tolist() == [3, 8, 5]
    assert batch.array("obs", "b") is None
    assert batch.array("reward", "b") is None
    assert batch.array("policy_weight") is None


def test_arrays_of_a_minibatch_are_of_what_was_put_into_it():
    batch = cut_in_two()
    batch.reward, batch.value_weight = torch.ones(3), torch.full((3,), 2.0)
    assert batch.array("reward").tolist() == [1, 1, 1]
    assert batch.array("value_weight").tolist() == [2, 2, 2]
    assert cut_in_two().array("reward").tolist() == [3, 4, 5]


def test_time_major_fields_leave_out_what_is_not_time_major():
    rollout = as_rollout(
        {"reward": torch.zeros(2, 3), "last_obs": torch.zeros(3, 4), "final": {"t": torch.zeros(1)}}
    )
    assert list(time_major_fields(rollout)) == ["reward"]


def test_to_dict_gives_back_the_very_tensors():
    leaf = torch.zeros(3)
    tree = to_dict(as_rollout({"a": {"b": leaf}}))
    assert type(tree) is dict
    assert type(tree["a"]) is dict
    assert tree["a"]["b"].data_ptr() == leaf.data_ptr()


def test_map_tree_takes_trees_of_every_kind():
    tree = {"a": torch.ones(2), "b": {"c": torch.ones(2)}}
    for given in (tree, as_rollout(tree)):
        mapped = map_tree(lambda x: x.sum().item(), given)
        assert mapped == {"a": 2, "b": {"c": 2}}


def test_to_device_on_the_cpu_does_not_copy():
    array = np.zeros(3, np.float32)
    to_device({"a": array}, torch.device("cpu"))["a"][0] = 5
    assert array[0] == 5


def test_storage_is_written_in_place_and_used_again():
    storage = RolloutStorage(2, 3)
    for t in range(2):
        storage.write(t, "reward", np.full(3, t, np.float32))
    first = storage.rollout()
    assert first.reward.tolist() == [[0, 0, 0], [1, 1, 1]]
    address = first.reward.data_ptr()
    storage.write(0, "reward", np.full(3, 9, np.float32))
    assert storage.rollout().reward.data_ptr() == address
    assert first.reward[0].tolist() == [9, 9, 9]


def test_written_row_is_a_copy_and_its_view_is_returned():
    storage = RolloutStorage(2, 3)
    given = np.ones(3, np.float32)
    row = storage.write(1, "x", given)
    given[:] = 7
    assert row.tolist() == [1, 1, 1]
    row[:] = 5
    assert storage.array("x")[1].tolist() == [5, 5, 5]


def test_copied_storage_is_written_for_itself():
    storage = RolloutStorage(2, 3)
    storage.write(0, "x", np.ones(3, np.float32))
    other = copy.deepcopy(storage)
    other.write(1, "x", np.full(3, 7, np.float32))
    assert other.array("x").tolist() == [[1, 1, 1], [7, 7, 7]]
    assert storage.array("x").tolist() == [[1, 1, 1], [0, 0, 0]]


def test_what_is_not_written_any_more_is_not_in_the_next_rollout():
    storage = RolloutStorage(1, 2)
    storage.write(0, "a", np.ones(2))
    storage.write(0, "b", np.ones(2))
    storage.begin()
    storage.write(0, "b", np.zeros(2))
    assert set(to_dict(storage.rollout(c=np.ones(1)))) == {"b", "c"}


def test_row_is_written_a_group_of_environments_at_a_time():
    storage = RolloutStorage(2, 3)
    view = storage.write(1, "x", np.array([[1, 2], [5, 6]]), slice(0, None, 2))
    storage.write(1, "x", np.array([[3, 4]]), slice(1, None, 2))
    assert storage.array("x").tolist() == [[[0, 0]] * 3, [[1, 2], [3, 4], [5, 6]]]
    assert view.tolist() == [[1, 2], [5, 6]]
    view[:] = 9
    assert storage.array("x")[1].tolist() == [[9, 9], [3, 4], [9, 9]]


def test_storage_keeps_dtypes_and_trees():
    storage = RolloutStorage(1, 2)
    obs = {"image": np.zeros((2, 4), np.uint8), "pair": {"0": np.zeros(2, np.int64), "1": np.zeros(2, bool)}}
    storage.write(0, "obs", obs)
    storage.write(0, "log_prob", torch.zeros(2))
    rollout = storage.rollout()
    assert rollout.obs["image"].dtype == torch.uint8
    assert rollout.obs["pair"]["0"].dtype == torch.int64
    assert rollout.obs["pair"]["1"].dtype == torch.bool
    assert rollout.log_prob.shape == (1, 2)


def test_keys_of_an_observation_need_not_be_identifiers():
    storage = RolloutStorage(1, 2)
    storage.write(0, "obs", {"left arm": np.ones(2), "values": np.zeros(2)})
    assert storage.rollout().obs["left arm"].tolist() == [[1, 1]]
    assert storage.rollout().obs["values"].tolist() == [[0, 0]]


def test_row_of_another_shape_is_refused():
    storage = RolloutStorage(2, 3)
    storage.write(0, "x", np.zeros((3, 2)))
    with pytest.raises(ContractError, match=r"field 'x'.*expected \(3, 2\).*got \(3, 4\)"):
        storage.write(1, "x", np.zeros((3, 4)))
    with pytest.raises(ContractError, match="field 'x'.*The first dimension is that of the environments"):
        storage.write(1, "x", np.zeros((2, 2)))
    storage.write(0, "tree", {"a": np.zeros(3)})
    for wrong in ({"b": np.zeros(3)}, {"a": np.zeros(3), "b": np.zeros(3)}, np.zeros(3)):
        with pytest.raises(ContractError, match="field 'tree'.*keys"):
            storage.write(1, "tree", wrong)
    for wrong in (np.zeros((1, 2)), np.zeros(2), 1.0):  # which NumPy would broadcast
        with pytest.raises(ContractError, match="field 'x'"):
            storage.write(1, "x", wrong)
    for wrong in (np.zeros((1, 2)), None, 1.0):
        with pytest.raises(ContractError, match=r"field 'new'.*\(3, ...\)"):
            storage.write(0, "new", wrong)


def test_others_are_carried_beside_the_storage():
    storage = RolloutStorage(1, 2)
    storage.write(0, "reward", np.zeros(2))
    rollout = storage.rollout(last_obs={"a": np.ones((2, 3))})
    assert rollout.last_obs["a"].tolist() == [[1, 1, 1], [1, 1, 1]]


# ------------------------------------------------------------------ one tree


def test_rollout_is_made_of_the_tensors_it_is_given(monkeypatch):
    """Shared, in their order, trees inside trees; none is written out as text, which takes milliseconds."""

    def written(self, **options):
        raise AssertionError("a tensor was written out as text")

    monkeypatch.setattr(torch.Tensor, "__repr__", written)
    obs, reward = torch.zeros(3, 2, 4), torch.ones(3, 2)
    inner = as_rollout({"b": {"c": reward}, "a": obs})
    rollout = as_rollout({"reward": reward, "obs": inner, "final": {"t": torch.zeros(2)}})
    assert list(rollout.keys()) == ["reward", "obs", "final"]
    assert rollout.reward is reward
    assert rollout.obs.a is obs
    assert rollout.obs.b.c is reward
    assert type(rollout.obs.b) is type(rollout.final) is type(rollout)
    assert rollout[:1].obs.b.c.shape == (1, 2)


class TwoAlike:
    """Two ranks with the same samples; the other has samples for ``count`` minibatches only."""

    size = 2

    def __init__(self, count=3):
        self.count = count

    def smallest(self, n):
        return min(n, self.count)

    def sum(self, x):
        return 2 * x


def test_fewer_minibatches_of_another_rank_have_all_samples():
    assert agreed_sizes(50, 16, TwoAlike()) == [17, 17, 16]
    assert agreed_sizes(48, 16, TwoAlike()) == [16, 16, 16]
    assert all(sum(even_sizes(n, k)) == n for n in range(30) for k in range(1, 9))
    assert all(max(s) - min(s) <= 1 for s in (even_sizes(n, k) for n in range(30) for k in range(1, 9)))


def test_scale_over_ranks_is_that_of_the_population():
    x = torch.tensor([1.0, 2.0, 6.0])
    ((std, mean),) = scales_over_ranks([x], TwoAlike())
    torch.testing.assert_close(torch.stack([std, mean]), torch.stack(torch.std_mean(x, correction=0)))


def test_a_row_of_another_kind_is_refused_and_not_cut():
    storage = RolloutStorage(2, 3)
    storage.begin()
    storage.write(0, "cost", np.zeros(3, np.int64))
    storage.write(0, "nested", {"cost": np.zeros(3, np.int64)})
    for name, value in (("cost", np.full(3, 0.5)), ("nested", {"cost": np.full(3, 0.5)})):
        with pytest.raises(ContractError, match=r"cost' of a rollout: float64 .* cut to int64"):
            storage.write(1, name, value)
    storage.write(1, "cost", np.ones(3, np.int32))
