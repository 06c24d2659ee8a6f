"""Checkpoint files: whole or absent, equal to what was saved, and refused if anything in them has changed."""

import os

import numpy as np
import pytest
import safetensors.numpy
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import SCALARS, TEXTS, arrays, dicts, same
from worlds import save_checkpoint

from ding_lite.errors import CheckpointError
from ding_lite.run.checkpoint import (
    SUFFIX,
    Checkpoints,
    checkpoints_of,
    find_checkpoint,
    load_checkpoint,
    load_of_run,
    newest_of_run,
)
from ding_lite.trees import named_leaves

DAMAGES = 10  # of each state
STATE = {"w": np.arange(12, dtype=np.float32).reshape(3, 4), "moments": {0: {"step": 3}}}
CONFIG = {"config": {"seed": 3}, "source": {}}


@pytest.fixture
def file(tmp_path):
    save_checkpoint(tmp_path / "last.safetensors", STATE, CONFIG)
    return tmp_path / "last.safetensors"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A file that the examples of a property write over."""
    return tmp_path_factory.mktemp("properties") / "last.safetensors"


def states():
    """Nested dicts and lists of arrays in any memory layout, of numbers, and of texts, even of digests."""
    layouts = st.sampled_from([np.array, np.transpose, np.asfortranarray, lambda x: x[::-1] if x.ndim else x])
    native = arrays().map(lambda x: x.astype(x.dtype.newbyteorder("="))) | st.just(
        np.arange(6.0).reshape(2, 3)
    )
    leaf = SCALARS | st.builds(lambda x, layout: layout(x), native, layouts)
    leaf |= st.just('{"sha256": "' + "0" * 64 + '"')
    keys = TEXTS.filter(lambda name: not name.startswith("#")) | st.integers()
    part = st.recursive(leaf, lambda part: st.lists(part, max_size=3) | dicts(part, keys), max_leaves=8)
    return dicts(part, keys)


@given(states(), dicts(SCALARS))
def test_state_and_config_come_back_and_arrays_may_be_written_to(place, state, config):
    save_checkpoint(place, state, config)
    data = place.read_bytes()
    save_checkpoint(place, state, config)
    assert place.read_bytes() == data, "one state has the same bytes each time"
    safetensors.numpy.load(data)  # as other programs read it
    found = load_checkpoint(place)
    assert same(found, (state, config))
    for array in (leaf for _, leaf in named_leaves(found[0]) if isinstance(leaf, np.ndarray)):
        array[...] = 0


def test_tensors_and_scalars_come_back_as_arrays_and_numbers(file):
    state = {"tensor": torch.arange(3, dtype=torch.int32), "big": np.arange(3.0).astype(">f8")}
    save_checkpoint(file, {**state, "scalar": np.uint8(7)}, {})
    found = {"tensor": np.arange(3, dtype=np.int32), "big": np.arange(3.0), "scalar": 7}
    assert same(load_checkpoint(file)[0], found)


UNSAVED = [object(), {1, 2}, b"bytes", np.array(["text"]), np.complex64(1), {"#1": 0}]


@pytest.mark.parametrize("value", UNSAVED, ids=lambda value: type(value).__name__)
def test_what_cannot_be_saved_is_named_by_its_path_and_the_old_file_stays(value, file):
    with pytest.raises(CheckpointError, match="a.b"):
        save_checkpoint(file, {"a": {"b": value}}, {})
    assert load_checkpoint(file)[1] == CONFIG


@given(states(), st.randoms())
def test_a_file_with_any_bit_flipped_or_cut_anywhere_is_refused(place, state, rng):
    save_checkpoint(place, state, CONFIG)
    data = place.read_bytes()
    for number in range(DAMAGES):
        damaged = bytearray(data)
        if number % 3:
            damaged[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        else:
            del damaged[rng.randrange(len(data)) :]
        place.write_bytes(damaged if number else data + b"\0")
        with pytest.raises(CheckpointError, match="last.safetensors"):
            load_checkpoint(place)


@pytest.mark.parametrize("data", [b"", b"{}", b"\0" * 100, b"\xff" * 100, b'{"ding_lite": "\\"sha256\\": '])
def test_a_file_of_something_else_is_refused(data, file):
    file.write_bytes(data)
    with pytest.raises(CheckpointError):
        load_checkpoint(file)


# ---------------------------------------------------------------------- of a run


def write(run, *names):
    for number, name in enumerate(names):
        save_checkpoint(run / "ckpt" / f"{name}{SUFFIX}", {"number": number}, CONFIG)


def test_the_newest_undamaged_checkpoint_is_found_and_damaged_ones_are_named(tmp_path):
    write(tmp_path, "best", "iteration_00000009", "mine", "last", "iteration_00000010")
    names = ["last", "iteration_00000010", "iteration_00000009", "best", "mine"]
    assert [file.stem for file in checkpoints_of(tmp_path)] == names
    for number, name in enumerate(names):
        (file, _, config), lines = newest_of_run(tmp_path)
        assert (file.stem, config, len(lines)) == (name, CONFIG, number)
        assert all(damaged in "".join(lines) for damaged in names[:number])
        os.truncate(file, 50)
        offer = f"next older one is .*{names[number + 1]}" if number < 4 else "checksum"
        with pytest.raises(CheckpointError, match=offer):
            load_of_run(file)
    with pytest.raises(CheckpointError, match="no undamaged checkpoint"):
        newest_of_run(tmp_path)


def test_a_run_whose_last_checkpoint_is_damaged_goes_on_from_the_newest_of_the_others(tmp_path):
    for name, iteration in (("iteration_00000004", 4), ("best", 5)):
        save_checkpoint(tmp_path / "ckpt" / f"{name}{SUFFIX}", {"progress": {"iteration": iteration}}, CONFIG)
    assert newest_of_run(tmp_path)[0].file.stem == "best"


def test_a_checkpoint_is_found_by_its_run_or_its_path_with_and_without_suffix(tmp_path):
    write(tmp_path, "last", "iteration_00000002")
    last = tmp_path / "ckpt" / f"last{SUFFIX}"
    for path in (last, tmp_path / "ckpt" / "last"):
        assert find_checkpoint(path) == last
    assert find_checkpoint(tmp_path) == last, "a run may not have been evaluated"
    for path, name in (
        (tmp_path, "best"),
        (tmp_path / "ckpt", None),
        (tmp_path / "no", None),
        (last, "last"),
    ):
        with pytest.raises(CheckpointError, match=str(path)):
            find_checkpoint(path, name)


def test_a_thread_saves_what_the_state_was_and_keeps_the_newest_snapshots(tmp_path):
    checkpoints = Checkpoints(tmp_path / "ckpt", CONFIG, keep=2)
    array = np.zeros(1000)
    for number in range(4):
        array[:] = number
        checkpoints.save([f"iteration_{number:08d}", "last"], {"array": array})
    array[:] = -1
    checkpoints.close()
    names = [file.stem for file in checkpoints_of(tmp_path)]
    assert names == ["last", "iteration_00000003", "iteration_00000002"]
    assert set(load_checkpoint(tmp_path / "ckpt" / f"last{SUFFIX}")[0]["array"]) == {3.0}


def test_a_save_that_fails_leaves_the_old_file_and_is_told_by_the_next_one(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path / "ckpt", CONFIG, keep=2)
    checkpoints.save(["last"], {"number": 1}, wait=True)

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    checkpoints.save(["last"], {"number": 2})
    with pytest.raises(CheckpointError, match="No space left"):
        checkpoints.save(["last"], {"number": 3})
    monkeypatch.undo()
    assert load_checkpoint(tmp_path / "ckpt" / f"last{SUFFIX}")[0] == {"number": 1}
    assert os.listdir(tmp_path / "ckpt") == [f"last{SUFFIX}"]
    checkpoints.close()
