"""The rollout: one tree, written in place."""

import numpy as np
import pytest
import torch

from ding_lite.data.rollout import RolloutStorage, as_rollout
from ding_lite.errors import ContractError
from ding_lite.trees import to_dict


def test_storage_is_written_in_place_and_used_again():
    storage = RolloutStorage(2, 3)
    for t in range(2):
        storage.write(t, "reward", np.full(3, t, np.float32))
    first = storage.rollout("reward")
    assert first.reward.tolist() == [[0, 0, 0], [1, 1, 1]]
    address = first.reward.data_ptr()
    storage.write(0, "reward", np.full(3, 9, np.float32))
    assert storage.rollout("reward").reward.data_ptr() == address
    assert first.reward[0].tolist() == [9, 9, 9]


def test_written_row_is_a_copy_and_its_view_is_returned():
    storage = RolloutStorage(2, 3)
    given = np.ones(3, np.float32)
    row = storage.write(1, "x", given)
    given[:] = 7
    assert row.tolist() == [1, 1, 1]
    row[:] = 5
    assert storage.arrays["x"][1].tolist() == [5, 5, 5]


def test_a_rollout_has_the_fields_that_are_asked_for():
    storage = RolloutStorage(1, 2)
    storage.write(0, "a", np.ones(2))
    storage.write(0, "b", np.ones(2))
    assert set(to_dict(storage.rollout("b", c=np.ones(1)))) == {"b", "c"}


def test_row_of_another_shape_is_refused():
    storage = RolloutStorage(2, 3)
    storage.write(0, "x", np.zeros((3, 2)))
    with pytest.raises(ContractError, match=r"field 'x'.*expected \(3, 2\).*got \(3, 4\)"):
        storage.write(1, "x", np.zeros((3, 4)))
    with pytest.raises(ContractError, match="field 'x'.*The first dimension is that of the environments"):
        storage.write(1, "x", np.zeros((2, 2)))
    storage.write(0, "tree", {"a": np.zeros(3)})
    for wrong in ({"b": np.zeros(3)}, np.zeros(3)):
        with pytest.raises((KeyError, IndexError)):
            storage.write(1, "tree", wrong)
    for wrong in (np.zeros((1, 2)), np.zeros(2), 1.0):  # which NumPy would broadcast
        with pytest.raises(ContractError, match="field 'x'"):
            storage.write(1, "x", wrong)
    for wrong in (np.zeros((1, 2)), None, 1.0):
        with pytest.raises(ContractError, match=r"field 'new'.*\(3, ...\)"):
            storage.write(0, "new", wrong)


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


def test_a_row_of_another_kind_is_refused_and_not_cut():
    storage = RolloutStorage(2, 3)
    storage.write(0, "cost", np.zeros(3, np.int64))
    storage.write(0, "nested", {"cost": np.zeros(3, np.int64)})
    for name, value in (("cost", np.full(3, 0.5)), ("nested", {"cost": np.full(3, 0.5)})):
        with pytest.raises(TypeError, match=r"float64.*int64"):
            storage.write(1, name, value)
    storage.write(1, "cost", np.ones(3, np.int32))
