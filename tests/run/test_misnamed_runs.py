"""A path that is no run is answered with the runs and checkpoints that there are."""

import os
from pathlib import Path

import pytest

from ding_lite.errors import CheckpointError
from ding_lite.run.checkpoint import find_checkpoint
from ding_lite.run.misnamed import is_run, runs_in
from ding_lite.run.resume import run_of


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make_runs(folder, *names):
    """Makes runs with a checkpoint, each newer than the one before."""
    for age, name in enumerate(names):
        checkpoint = folder / "runs" / name / "ckpt" / "last"
        checkpoint.mkdir(parents=True)
        (checkpoint / "manifest.json").write_text("{}")
        os.utime(folder / "runs" / name, (1e9 + age, 1e9 + age))


def answer(path, find=lambda path: find_checkpoint(path, "best")):
    with pytest.raises(CheckpointError) as caught:
        find(Path(path))
    return str(caught.value)


def test_missing_folder_is_answered_with_the_newest_runs(home):
    make_runs(home, "a", "b", "c", "d")
    for path in ("runs/nope", "nope", "nope/nope"):
        assert (
            answer(path)
            == f"there is no folder {path}; the newest runs are runs/d, runs/c, runs/b and 1 more"
        )


def test_folder_with_a_typo_is_answered_with_the_one_that_is_meant(home):
    make_runs(home, "cartpole_ppo", "pendulum")
    assert (
        answer("runs/cartpole_pppo")
        == "there is no folder runs/cartpole_pppo; did you mean runs/cartpole_ppo?"
    )


def test_missing_folder_beside_the_runs_of_its_seeds_is_answered_with_them(home):
    make_runs(home, "ci_s10", "ci_s1", "ci_s0", "ci_sweep")
    expected = "there is no folder runs/ci; runs/ci_s0, runs/ci_s1, runs/ci_s10 exist, one run for each seed"
    assert answer("runs/ci") == answer("runs/ci", run_of) == expected


def test_folder_of_runs_is_answered_with_their_number_and_one_of_them(home):
    make_runs(home, "a", "sweep/trial_0")
    assert (
        answer("runs") == answer("runs", run_of) == "runs holds 2 runs; name one, such as runs/sweep/trial_0"
    )


def test_missing_checkpoint_of_a_run_is_answered_with_those_that_it_has(home):
    make_runs(home, "a")
    assert answer("runs/a/ckpt/best") == "there is no folder runs/a/ckpt/best; runs/a/ckpt has last"


def test_folder_of_the_checkpoints_is_answered_with_their_names(home):
    make_runs(home, "a")
    answered = "runs/a/ckpt has the checkpoints last; name one, such as runs/a/ckpt/last"
    assert answer("runs/a/ckpt") == answered


def test_without_any_run_the_command_that_lists_them_is_named():
    assert answer("nope") == "there is no folder nope; `ding-lite runs FOLDER` lists the runs in a folder"


def test_folder_and_file_of_something_else_are_told_what_was_expected(home):
    (home / "videos").mkdir()
    (home / "notes.txt").write_text("")
    for name in ("videos", "notes.txt"):
        assert answer(name).startswith(f"{name} is neither a run nor a checkpoint: expected {name}/ckpt/best")


def test_folder_of_a_sweep_is_no_run(home):
    make_runs(home, "sweep/trial_0")
    (home / "runs" / "sweep" / "log.txt").write_text("")
    assert not is_run(home / "runs" / "sweep")
    assert runs_in(home / "runs") == [home / "runs" / "sweep" / "trial_0"]
