"""What cannot be written ends the run with its last checkpoint intact; with room it goes on."""

import contextlib
import json
import os
import resource
import subprocess

import pytest
from worlds import digest, small_config

from ding_lite.cli import main
from ding_lite.run.checkpoint import load_checkpoint

LAST = "ckpt/last.safetensors"


def write(folder, **others):
    config = small_config(max_env_step=10**8, env={"manager": {"type": "base"}}, **others)
    (folder / "c.json").write_text(json.dumps(config))
    return ["train", "-c", "c.json", "-q"]


def state_of(run):
    state, _ = load_checkpoint(run / LAST)
    del state["wall_time"]
    return {name: digest(part) for name, part in state.items()}


@contextlib.contextmanager
def files_of(size):
    """In this block a file of more bytes cannot be written."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_save_that_fails_ends_the_run_and_leaves_the_checkpoints(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    big = {"model": {"encoder_hidden_size_list": [128, 128]}}
    argv = write(tmp_path, policy=big, checkpoint={"freq": 256})
    assert main([*argv, "--exp-name", "run", "--max-env-step", "256"]) == 0
    before = state_of(tmp_path / "run")
    with files_of(200_000):
        assert main(["train", "--resume", "run", "-q", "--max-env-step", "5000"]) == 5
        assert "last.safetensors cannot be written" in capsys.readouterr().err
        assert main([*argv, "--exp-name", "other"]) == 5
    assert state_of(tmp_path / "run") == before
    result = json.loads((tmp_path / "other" / "result.json").read_text())
    assert (result["status"], result["checkpoint"]) == ("failed", None)
    assert list((tmp_path / "other" / "ckpt").iterdir()) == []


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 600 kB, with a function that makes it larger; only root may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()

    def mount(*options):
        command = ["mount", "-t", "tmpfs", *options, "none", str(disk)]
        return subprocess.run(command, capture_output=True, check=False).returncode

    if os.name != "posix" or mount("-o", "size=600k") != 0:
        pytest.skip("a small disk cannot be mounted here")
    yield disk, lambda: mount("-o", "remount,size=20m")
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_ends_a_run_and_with_room_it_goes_on_to_the_same_end(small_disk, monkeypatch, capsys):
    disk, enlarge = small_disk
    monkeypatch.chdir(disk)
    often, trackers = {"eval": {"eval_freq": 512}}, {"trackers": ["tensorboard"]}
    argv = write(disk, policy=often, checkpoint={"freq": 256}, logger=trackers)
    (disk / "filler").write_bytes(b"x" * 420_000)
    assert main([*argv, "--exp-name", "run"]) == 5
    assert "cannot be written" in capsys.readouterr().err
    saved = load_checkpoint(disk / "run" / LAST)[0]["progress"]
    assert saved["iteration"] >= 2
    assert enlarge() == 0
    limit = str(saved["env_step"] + 600)
    assert main(["train", "--resume", "run", "-q", "--max-env-step", limit]) == 0
    assert main([*argv, "--exp-name", "straight", "--max-env-step", limit]) == 0
    assert state_of(disk / "run") == state_of(disk / "straight")
    rows = [(disk / name / "metrics.csv").read_text().splitlines() for name in ("run", "straight")]
    assert [row.split(",")[:3] for row in rows[0]] == [row.split(",")[:3] for row in rows[1]]


# The file that cannot be written cannot be closed, either.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_event_files_that_cannot_be_written_are_reported_once_and_the_run_goes_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    argv = write(tmp_path, logger={"trackers": ["tensorboard"], "freq": 1})
    with files_of(40_000):
        assert main([*argv, "--exp-name", "run", "--max-env-step", "12800"]) == 0
    assert (tmp_path / "run" / "log.txt").read_text().count("WARNING: tracker tensorboard failed") == 1
