"""Checkpoints: complete or absent, verified to the last bit, and never a way to run code."""

import json
import os
import pickle
import random
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from worlds import digest, same_tree

from ding_lite.errors import CheckpointError
from ding_lite.run import atomic_files, checkpoint
from ding_lite.run.atomic_files import open_locked, write_output
from ding_lite.run.checkpoint import (
    CONFIG,
    FILES,
    MANIFEST,
    STATE,
    TENSORS,
    CheckpointKeeper,
    _canonical,
    _sha256,
    find_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from ding_lite.run.progress import Progress
from ding_lite.run.rank_states import digest as digest_of_entry
from ding_lite.run.rank_states import gathered, of_rank

STATE_TREE = {
    "model": {"layer.0.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "steps": np.array(3, np.int64)},
    "flags": np.array([True, False]),
    "image": np.full((2, 2), 200, np.uint8),
    "mean": np.array([1 / 3, np.nan, np.inf, -0.0]),
    "empty": np.zeros((0, 4), np.float32),
    "scalar bool": np.array(True),
    "adam": {"state": {0: {"step": np.array(2.0, np.float32)}, 10: {"step": 1}}, "betas": [0.9, 0.999]},
    "generator": {"state": 2**127 + 1, "inc": -(2**90)},
    "nothing": None,
    "text": 'ü "quoted"\n#3',
    "yes": True,
    "tiny": 5e-324,
    "third": 1 / 3,
    "no keys": {},
    "no items": [],
    "mixed": [1, None, "a", {"x": np.arange(2)}, [np.array(1.5)]],
}
CONFIG_TREE = {"config": {"seed": 0}, "source": {"seed": "default"}}


@pytest.fixture
def folder(tmp_path):
    target = tmp_path / "ckpt" / "last"
    save_checkpoint(target, STATE_TREE, CONFIG_TREE)
    return target


def resigned(folder):
    """Makes the manifest true again after a file was changed, as an attacker would."""
    body = json.loads((folder / MANIFEST).read_text())
    body.pop("sha256")
    for name in FILES:
        data = (folder / name).read_bytes()
        body["files"][name] = {"bytes": len(data), "sha256": _sha256(data)}
    sign(folder, body)


def sign(folder, body):
    text = json.dumps({**body, "sha256": _sha256(_canonical(body))})
    (folder / MANIFEST).write_text(text)


# ---------------------------------------------------------------------- round trip


def test_nested_state_comes_back_as_it_was(folder):
    state, config = load_checkpoint(folder)
    assert same_tree(state, STATE_TREE)
    assert config == CONFIG_TREE


def test_loaded_arrays_may_be_written_to(folder):
    load_checkpoint(folder)[0]["flags"][0] = False


def test_tensors_come_back_as_arrays(tmp_path):
    tree = {"weight": torch.eye(2, requires_grad=True), "bf": torch.arange(3)[::2], "scalar": torch.tensor(4)}
    save_checkpoint(tmp_path / "c", tree, {})
    state, _ = load_checkpoint(tmp_path / "c")
    assert state["weight"].tolist() == [[1, 0], [0, 1]]
    assert state["bf"].tolist() == [0, 2]
    assert state["scalar"].shape == ()


def test_arrays_in_any_memory_layout_come_back(tmp_path):
    base = np.arange(24, dtype=np.float64).reshape(2, 3, 4)
    tree = {"t": base.T, "reversed": base[::-1], "strided": base[..., ::2], "big endian": base.astype(">f8")}
    save_checkpoint(tmp_path / "c", tree, {})
    state, _ = load_checkpoint(tmp_path / "c")
    assert all(np.array_equal(state[name], tree[name]) for name in tree)


def test_numpy_scalars_come_back_as_plain_numbers(tmp_path):
    save_checkpoint(tmp_path / "c", {"a": np.float64(1 / 3), "b": np.int64(5), "c": np.bool_(True)}, {})
    assert load_checkpoint(tmp_path / "c")[0] == {"a": 1 / 3, "b": 5, "c": True}


@pytest.mark.parametrize(
    "tree",
    [
        {"a.b": np.array([1]), "a": {"b": np.array([2])}},
        {"x": {0: np.array([1]), "0": np.array([2])}},
        {"x": [np.array([1])], "x.0": np.array([2])},
        {"#3": 1, "x": {"#4": np.array([2])}},
        {-1: np.array([1]), "-1": 2},
        {"__array__": "no array", "shape": [1]},
        {"inner": {"__array__": 5}},
    ],
    ids=str,
)
def test_keys_that_look_alike_are_kept_apart_or_refused(tree, tmp_path):
    """Nothing may come back silently as something else."""
    try:
        save_checkpoint(tmp_path / "c", tree, {})
    except CheckpointError:
        return
    assert same_tree(load_checkpoint(tmp_path / "c")[0], tree)


@pytest.mark.parametrize("value", [object(), {1, 2}, b"bytes", 1j, print], ids=lambda v: type(v).__name__)
def test_what_cannot_be_saved_is_named_by_its_path(value, tmp_path):
    with pytest.raises(CheckpointError, match=r"inner\.deep"):
        save_checkpoint(tmp_path / "c", {"inner": {"deep": value}}, {})
    assert list(tmp_path.iterdir()) == []


def test_saving_twice_gives_the_same_bytes(folder, tmp_path):
    save_checkpoint(tmp_path / "again", *load_checkpoint(folder))
    for name in (*FILES, MANIFEST):
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()


def test_saving_over_an_old_one_leaves_only_the_new_one(folder):
    save_checkpoint(folder, {"a": np.ones(2)}, {})
    assert list(load_checkpoint(folder)[0]) == ["a"]
    assert [f.name for f in folder.parent.iterdir()] == ["last"]
    assert sorted(f.name for f in folder.iterdir()) == sorted((*FILES, MANIFEST))


# ---------------------------------------------------------------------- damage


@pytest.mark.parametrize("name", [*FILES, MANIFEST])
def test_file_cut_at_any_byte_is_refused(folder, name):
    data = (folder / name).read_bytes()
    step = max(1, len(data) // 100)
    for size in [*range(0, len(data), step), len(data) - 1]:
        (folder / name).write_bytes(data[:size])
        with pytest.raises(CheckpointError):
            load_checkpoint(folder)


@pytest.mark.parametrize("name", [*FILES, MANIFEST])
def test_one_flipped_bit_anywhere_is_refused_or_changes_nothing(folder, name):
    data = bytearray((folder / name).read_bytes())
    rng = random.Random(0)
    for _ in range(150):
        place, bit = rng.randrange(len(data)), 1 << rng.randrange(8)
        data[place] ^= bit
        (folder / name).write_bytes(data)
        refused_or_same(folder, whitespace_counts=name == MANIFEST)
        data[place] ^= bit


def refused_or_same(folder, whitespace_counts):
    """Space between the manifest's tokens carries nothing; everything else is under a checksum."""
    try:
        state, _ = load_checkpoint(folder)
    except CheckpointError:
        return
    assert whitespace_counts
    assert digest(state) == digest(STATE_TREE)


@pytest.mark.parametrize("name", [*FILES, MANIFEST])
def test_longer_file_is_refused(folder, name):
    with (folder / name).open("ab") as stream:
        stream.write(b"x")
    with pytest.raises(CheckpointError):
        load_checkpoint(folder)


@pytest.mark.parametrize("name", [*FILES, MANIFEST])
def test_missing_file_is_refused_by_its_name(folder, name):
    (folder / name).unlink()
    with pytest.raises(CheckpointError, match=name):
        load_checkpoint(folder)


@pytest.mark.parametrize("name", [*FILES, MANIFEST])
@pytest.mark.parametrize(
    "data",
    [b"", b"\0" * 64, b"<html><body>404 Not Found</body></html>", b"\xff\xfe\x00garbage", b"[1, 2]", b"null"],
    ids=["nothing", "zeros", "html", "garbage", "list", "null"],
)
def test_file_of_something_else_is_refused(folder, name, data):
    (folder / name).write_bytes(data)
    with pytest.raises(CheckpointError):
        load_checkpoint(folder)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    "data",
    [b"", b"\0" * 64, b"<html></html>", b"\xff\xfe\x00garbage", b"[1]", b"null", b"[" * 100_000],
    ids=["nothing", "zeros", "html", "garbage", "list", "null", "deep"],
)
def test_file_of_something_else_is_refused_with_a_true_manifest_too(folder, name, data):
    (folder / name).write_bytes(data)
    resigned(folder)
    with pytest.raises(CheckpointError):
        load_checkpoint(folder)


def test_swapped_files_are_refused(folder):
    first, second = (folder / STATE).read_bytes(), (folder / CONFIG).read_bytes()
    (folder / STATE).write_bytes(second)
    (folder / CONFIG).write_bytes(first)
    with pytest.raises(CheckpointError):
        load_checkpoint(folder)


def test_files_of_two_checkpoints_are_not_mixed(folder, tmp_path):
    other = tmp_path / "other"
    save_checkpoint(other, {**STATE_TREE, "flags": np.array([False, False])}, CONFIG_TREE)
    shutil.copy(other / TENSORS, folder / TENSORS)
    with pytest.raises(CheckpointError, match="damaged"):
        load_checkpoint(folder)


def test_newer_format_is_refused_by_its_number(folder):
    body = json.loads((folder / MANIFEST).read_text())
    body.pop("sha256")
    sign(folder, {**body, "format_version": 99})
    with pytest.raises(CheckpointError, match=r"format version 99 \(written by ding_lite [0-9.]+\).*upgrade"):
        load_checkpoint(folder)


@pytest.mark.parametrize("size", [10**30, -1, 1e300, "12", None, [1]], ids=str)
def test_odd_sizes_in_a_signed_manifest_are_refused(folder, size):
    body = json.loads((folder / MANIFEST).read_text())
    body.pop("sha256")
    body["files"][STATE]["bytes"] = size
    sign(folder, body)
    with pytest.raises(CheckpointError):
        load_checkpoint(folder)


def test_number_of_a_million_digits_in_a_manifest_is_refused(folder):
    (folder / MANIFEST).write_text('{"format_version": ' + "9" * 1_000_000 + "}")
    with pytest.raises(CheckpointError):
        load_checkpoint(folder)


@pytest.mark.parametrize("shape", [[10**18], [-1, 7], ["a"], {"a": 1}, [10**400]], ids=str)
def test_shape_that_does_not_fit_is_refused(folder, shape):
    state = json.loads((folder / STATE).read_text())
    state["flags"]["shape"] = shape
    (folder / STATE).write_text(json.dumps(state))
    resigned(folder)
    with pytest.raises(CheckpointError):
        load_checkpoint(folder)


@pytest.mark.parametrize(
    "header", [{"a": {"dtype": "F32", "shape": [2**60], "data_offsets": [0, 2**62]}}, {}]
)
def test_header_that_claims_more_than_there_is_is_refused(folder, header):
    text = json.dumps(header).encode()
    (folder / TENSORS).write_bytes(len(text).to_bytes(8, "little") + text)
    resigned(folder)
    with pytest.raises(CheckpointError):
        load_checkpoint(folder)


@pytest.mark.parametrize("name", ["../../outside", "state.json/../x", "missing", 5, None, []], ids=str)
def test_array_named_beyond_the_checkpoint_is_refused(folder, name):
    state = json.loads((folder / STATE).read_text())
    state["flags"]["__array__"] = name
    (folder / STATE).write_text(json.dumps(state))
    resigned(folder)
    with pytest.raises(CheckpointError):
        load_checkpoint(folder)


@pytest.mark.parametrize("name", FILES)
def test_link_in_place_of_a_file_is_refused(folder, name, tmp_path):
    (folder / name).rename(tmp_path / "elsewhere")
    (folder / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match=name):
        load_checkpoint(folder)


def test_no_pickle_in_any_file_is_ever_opened(folder, tmp_path):
    canary = tmp_path / "canary"

    class Bomb:
        def __reduce__(self):
            return (os.mkdir, (str(canary),))

    for name in (*FILES, MANIFEST):
        before = (folder / name).read_bytes()
        (folder / name).write_bytes(pickle.dumps(Bomb()))
        for sign_it in (False, True):
            if sign_it and name != MANIFEST:
                resigned(folder)
            with pytest.raises(CheckpointError):
                load_checkpoint(folder)
        (folder / name).write_bytes(before)
        resigned(folder) if name != MANIFEST else None
    assert not canary.exists()


def test_pickled_object_arrays_cannot_be_saved(tmp_path):
    with pytest.raises(CheckpointError):
        save_checkpoint(tmp_path / "c", {"a": np.array([object()])}, {})
    assert list(tmp_path.iterdir()) == []


def test_error_says_which_checkpoint_and_what_is_wrong(folder):
    (folder / TENSORS).write_bytes(b"short")
    with pytest.raises(CheckpointError, match=rf"{folder}.*{TENSORS} has 5 bytes, its manifest says \d+"):
        load_checkpoint(folder)


# ---------------------------------------------------------------------- finding and pruning


def test_run_and_checkpoint_are_both_found(folder, tmp_path):
    assert find_checkpoint(tmp_path, "last") == folder
    assert find_checkpoint(folder, "best") == folder
    assert find_checkpoint(tmp_path, "best") == folder  # a run without an evaluation has only last


def test_folder_of_nothing_says_what_was_expected(tmp_path):
    with pytest.raises(CheckpointError, match=r"neither a run nor a checkpoint.*ckpt/best"):
        find_checkpoint(tmp_path, "best")


def test_snapshot_that_does_not_exist_is_never_replaced_by_another(folder, tmp_path):
    with pytest.raises(CheckpointError, match=r"has no checkpoint 'iteration_00000099'; it has last$"):
        find_checkpoint(tmp_path, "iteration_00000099")


def iteration(n):
    """Progress after iteration ``n``, of one env step."""
    return Progress(env_step=n, iteration=n, turn_began=n - 1)


def test_keeper_keeps_the_newest_snapshots_and_everything_else(tmp_path):
    keeper = CheckpointKeeper(tmp_path, {"a": 1}, keep=2, keep_freq=1)
    for name in ("last", "best"):
        keeper.save(name, {"n": 0})
    for n in (9, 10, 200, 1000):
        keeper.begin_save(keeper.due(iteration(n)), {"n": n})
    assert keeper.outcome(finish=True) is None
    left = sorted(f.name for f in (tmp_path / "ckpt").iterdir())
    assert left == ["best", "iteration_00000200", "iteration_00001000", "last"]
    assert load_checkpoint(tmp_path / "ckpt" / "iteration_00001000") == ({"n": 1000}, {"a": 1})


def test_keeper_names_only_what_is_there(tmp_path):
    keeper = CheckpointKeeper(tmp_path, {}, keep=2)
    keeper.save("last", {})
    assert (keeper.name_of("last"), keeper.name_of("best")) == ("ckpt/last", None)


def test_going_back_moves_a_checkpoint_that_cannot_be_read_too(tmp_path):
    keeper = CheckpointKeeper(tmp_path, {}, keep=3)
    keeper.save("last", {"progress": {"iteration": 3}})
    (tmp_path / "ckpt" / "iteration_00000002").mkdir()
    assert keeper.abandon_after(3) == ["abandoned/1/iteration_00000002"]
    (tmp_path / "ckpt" / "iteration_00000002").mkdir()
    shutil.rmtree(tmp_path / "ckpt" / "abandoned")
    (tmp_path / "ckpt" / "abandoned").write_text("")
    with pytest.raises(CheckpointError, match="cannot be moved"):
        keeper.abandon_after(3)


def test_the_best_one_is_saved_whatever_is_saved_after_it(tmp_path):
    keeper = CheckpointKeeper(tmp_path, {}, keep=1)
    keeper.begin_save(["best", "last"], {"n": 1})
    assert keeper.outcome(finish=True) is None
    assert keeper.best_is_saved


# ---------------------------------------------------------------------- writing that fails


def child(code, *args, **options):
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, args)],
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


@pytest.mark.parametrize("limit", [1_000, 30_000, 200_000])
def test_write_that_fails_leaves_the_old_checkpoint_and_nothing_else(folder, limit):
    code = """
        import signal, sys
        from pathlib import Path
        import numpy as np
        from ding_lite.run.checkpoint import save_checkpoint
        from ding_lite.errors import CheckpointError
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        try:
            state = {"a": np.zeros(100_000), "b": list(range(20_000))}
            save_checkpoint(Path(sys.argv[1]), state, {})
        except CheckpointError as error:
            sys.exit(0 if "cannot be written" in str(error) else 4)
        sys.exit(3)
    """
    before = digest(load_checkpoint(folder)[0])
    process = child(
        code, folder, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    )
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert digest(load_checkpoint(folder)[0]) == before
    assert [f.name for f in folder.parent.iterdir()] == ["last"]


def test_unreadable_checkpoint_never_replaces_a_readable_one(folder, monkeypatch):
    before = digest(load_checkpoint(folder)[0])
    monkeypatch.setattr("ding_lite.run.checkpoint.MAX_JSON_BYTES", 1000)
    with pytest.raises(CheckpointError, match=r"state.json has \d+ bytes, and at most 1000 are read"):
        save_checkpoint(folder, {"long": "x" * 2000}, {})
    monkeypatch.undo()
    assert digest(load_checkpoint(folder)[0]) == before
    assert [f.name for f in folder.parent.iterdir()] == ["last"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
@pytest.mark.parametrize("there", [True, False], ids=["over an old one", "where there is none"])
def test_all_of_it_is_on_the_disk_before_it_takes_its_place_and_the_place_after(tmp_path, monkeypatch, there):
    """A power loss cannot be had here; every call that guards against it is let through, and noted."""
    target, noted = tmp_path / "ckpt" / "last", []
    if there:
        save_checkpoint(target, {}, {})

    def noting(function, name):
        def noted_call(*args):
            noted.append(name(*args))
            return function(*args)

        return noted_call

    monkeypatch.setattr(os, "fsync", noting(os.fsync, lambda fd: Path(f"/proc/self/fd/{fd}").readlink()))
    replace = noting(checkpoint.replace_folder, lambda new, old: "replaced")
    monkeypatch.setattr(checkpoint, "replace_folder", replace)
    save_checkpoint(target, STATE_TREE, CONFIG_TREE)
    if not there:
        assert noted.pop() == target.parent.parent
    *synced, temporary, replaced, parent = noted
    assert sorted(path.name for path in synced) == sorted([*FILES, MANIFEST])
    assert {path.parent for path in synced} == {temporary}
    assert (replaced, parent) == ("replaced", target.parent)


def full_disk(*args):
    raise OSError("no space")


def test_snapshot_that_fails_prunes_no_older_one(tmp_path, monkeypatch):
    keeper = CheckpointKeeper(tmp_path, {}, keep=1, keep_freq=1)
    keeper.begin_save(keeper.due(iteration(1)), {"n": 1})
    assert keeper.outcome(finish=True) is None
    with pytest.raises(CheckpointError):
        keeper.begin_save(keeper.due(iteration(2)), {"n": object()})
    monkeypatch.setattr(checkpoint, "write_synced", full_disk)
    keeper.begin_save(keeper.due(iteration(3)), {"n": 3})
    assert "number 1" in keeper.outcome(finish=True)
    assert [f.name for f in (tmp_path / "ckpt").glob("iteration_*")] == ["iteration_00000001"]


def test_failures_are_counted_from_the_last_snapshot_that_was_saved(tmp_path, monkeypatch):
    keeper = CheckpointKeeper(tmp_path, {}, keep=1, keep_freq=1)
    for n in (1, 3, 5, 7):
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint, "write_synced", full_disk)
            keeper.begin_save(keeper.due(iteration(n)), {"n": n})
            assert "number 1" in keeper.outcome(finish=True)
        keeper.begin_save(keeper.due(iteration(n + 1)), {"n": n + 1})
        assert keeper.outcome(finish=True) is None


def test_a_save_has_the_state_from_its_beginning(tmp_path, monkeypatch):
    may_write = threading.Event()
    write_checkpoint = checkpoint.write_checkpoint

    def late(*args):
        may_write.wait(10)
        write_checkpoint(*args)

    monkeypatch.setattr(checkpoint, "write_checkpoint", late)
    keeper = CheckpointKeeper(tmp_path, {}, keep=1, freq=1)
    weights = np.zeros(3)
    keeper.begin_save(
        ["best", *keeper.due(iteration(1))], {"weights": weights, "tensor": torch.from_numpy(weights)}
    )
    weights += 1  # the next iteration trains while the thread writes
    assert keeper.outcome(finish=False) is None
    assert not (tmp_path / "ckpt").exists()
    may_write.set()
    keeper.close()
    for name in ("best", "last"):
        state = load_checkpoint(tmp_path / "ckpt" / name)[0]
        assert not state["weights"].any()
        assert not state["tensor"].any()


@pytest.mark.parametrize("exchanges", [True, False])
@pytest.mark.parametrize("target", ["iteration_00000001", "gone"])
def test_a_link_in_place_of_a_checkpoint_is_replaced_and_its_target_stays(
    target, exchanges, tmp_path, monkeypatch
):
    if not exchanges:
        monkeypatch.setattr(atomic_files, "_exchange", lambda a, b: False)
    save_checkpoint(tmp_path / "iteration_00000001", {"a": 1}, {})
    last = tmp_path / "last"
    last.symlink_to(target)
    (tmp_path / f".last.{os.getpid()}.tmp").symlink_to(target)  # left by a save that failed
    for number in (2, 3):
        save_checkpoint(last, {"a": number}, {})
        assert load_checkpoint(last)[0] == {"a": number}
    assert load_checkpoint(tmp_path / "iteration_00000001")[0] == {"a": 1}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["iteration_00000001", "last"]
    assert not last.is_symlink()


def test_folder_that_cannot_be_written_to_is_a_checkpoint_error(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError, match="cannot be written"):
        save_checkpoint(tmp_path / "file" / "ckpt", {}, {})


def test_output_that_the_user_named_goes_where_a_link_leads_and_into_a_pipe(tmp_path):
    target, link, pipe = (tmp_path / name for name in ("target", "link", "pipe"))
    target.write_text("old")
    link.symlink_to(target)
    write_output(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_output(pipe, "new")
    assert os.read(reader, 9) == b"new"
    os.close(reader)


class First:
    """Rank 1 of two, whose exchange with rank 0 is a dict."""

    size, rank, is_first = 2, 1, False

    def __init__(self, of_first):
        self.of_first, self.sent = of_first, None

    def from_first(self, call):
        return self.of_first

    def to_first(self, entries):
        self.sent = entries
        return


def test_a_rank_has_no_entries_that_only_the_first_one_has():
    of_first = {"collector": {"count": 7, "infos": [1.0]}}
    own = {"collector": {"count": 3}}
    ranks = First(
        {("collector", name): digest_of_entry(entry) for name, entry in of_first["collector"].items()}
    )
    gathered(own, ranks)
    saved = {**of_first, "ranks": {"size": 2, "rank 1": ranks.sent}}
    assert of_rank(saved, ranks)[0] == own


def test_replacing_never_has_a_moment_without_a_checkpoint(folder):
    """A child saves over and over and is killed at a random time; what is there loads, each time."""
    code = """
        import sys
        from pathlib import Path
        import numpy as np
        from ding_lite.run.checkpoint import save_checkpoint
        n = 0
        while True:
            n += 1
            save_checkpoint(Path(sys.argv[1]), {"n": n, "a": np.full(20_000, n)}, {})
            if n == 1:
                print("ready", flush=True)
    """
    rng = random.Random(0)
    for _ in range(12):
        process = child(code, folder, stdout=subprocess.PIPE)
        assert process.stdout.readline() == "ready\n"
        time.sleep(rng.uniform(0, 0.05))
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
        state, _ = load_checkpoint(folder)
        assert (state["a"] == state["n"]).all()


def test_reader_beside_a_writer_always_finds_a_whole_checkpoint_folder(folder):
    code = """
        import sys
        from pathlib import Path
        import numpy as np
        from ding_lite.run.checkpoint import save_checkpoint
        for n in range(60):
            save_checkpoint(Path(sys.argv[1]), {"n": n, "a": np.full(20_000, n)}, {})
    """
    process, looks = child(code, folder), 0
    while process.poll() is None:
        assert (folder / MANIFEST).exists()
        looks += 1
    assert process.communicate()[1] == ""
    assert process.returncode == 0
    assert looks > 60


def test_a_look_at_the_lock_of_a_run_does_not_keep_a_run_from_starting(tmp_path):
    """``ding-lite runs`` beside a run that starts."""
    file = tmp_path / "log.txt"
    file.touch()
    command = "import sys; from ding_lite.run.atomic_files import is_locked; from pathlib import Path\n"
    command += f"print('looks', flush=True)\nwhile True: is_locked(Path({str(file)!r}))"
    with subprocess.Popen([sys.executable, "-c", command], stdout=subprocess.PIPE) as looking:
        assert looking.stdout.readline()
        for _ in range(2_000):
            open_locked(file).close()
        looking.kill()
    with open_locked(file), pytest.raises(BlockingIOError):
        open_locked(file)
