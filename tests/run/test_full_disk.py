"""What cannot be written ends the run with its last checkpoint intact; with room it goes on."""

import json
import os
import subprocess

import pytest
from worlds import digest, small_config

from ding_lite.run.checkpoint import load_checkpoint

LAST = "ckpt/last.safetensors"


def write(folder, **others):
    config = small_config(max_env_step=10**8, env={"manager": {"type": "base"}}, **others)
    (folder / "c.json").write_text(json.dumps(config))
    return ["train", "-c", "c.json", "--exp-name", "run", "-q"]


def state_of(run):
    state, _ = load_checkpoint(run / LAST)
    del state["wall_time"]
    return {name: digest(part) for name, part in state.items()}


def test_a_save_that_fails_ends_the_run_and_leaves_the_checkpoints(warm, tmp_path):
    argv = write(
        tmp_path, policy={"model": {"encoder_hidden_size_list": [128, 128]}}, checkpoint={"freq": 256}
    )
    assert warm.run(*argv, "--max-env-step", "256", cwd=tmp_path).code == 0
    before = state_of(tmp_path / "run")
    resume = ["train", "--resume", "run", "-q", "--max-env-step", "5000"]
    job = warm.run(*resume, cwd=tmp_path, max_file=200_000)
    assert (job.code, "last.safetensors cannot be written" in job.errors) == (5, True)
    assert state_of(tmp_path / "run") == before
    job = warm.run("train", "-c", "c.json", "--exp-name", "other", "-q", cwd=tmp_path, max_file=200_000)
    assert job.code == 5
    assert json.loads((tmp_path / "other" / "result.json").read_text())["checkpoint"] is None
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


def test_a_full_disk_ends_a_run_and_with_room_it_goes_on_to_the_same_end(warm, small_disk):
    disk, enlarge = small_disk
    argv = write(
        disk,
        policy={"eval": {"eval_freq": 512}},
        checkpoint={"freq": 256},
        logger={"trackers": ["tensorboard"]},
    )
    (disk / "filler").write_bytes(b"x" * 420_000)
    job = warm.run(*argv, cwd=disk)
    assert (job.code, "Traceback" in job.errors) == (5, False)
    assert "cannot be written" in job.errors
    saved = load_checkpoint(disk / "run" / LAST)[0]["progress"]
    assert saved["iteration"] >= 2
    assert enlarge() == 0
    limit = str(saved["env_step"] + 600)
    job = warm.run("train", "--resume", "run", "-q", "--max-env-step", limit, cwd=disk)
    assert (job.code, job.errors) == (0, "")
    straight = ["train", "-c", "c.json", "--exp-name", "straight", "-q", "--max-env-step", limit]
    assert warm.run(*straight, cwd=disk).code == 0
    assert state_of(disk / "run") == state_of(disk / "straight")
    rows = [(disk / name / "metrics.csv").read_text().splitlines() for name in ("run", "straight")]
    assert [row.split(",")[:3] for row in rows[0]] == [row.split(",")[:3] for row in rows[1]]


def test_event_files_that_cannot_be_written_are_reported_once_and_the_run_goes_on(warm, tmp_path):
    argv = write(tmp_path, logger={"trackers": ["tensorboard"], "freq": 1})
    job = warm.run(*argv, "--max-env-step", "12800", cwd=tmp_path, max_file=40_000)
    assert (job.code, job.errors) == (0, "")
    assert (tmp_path / "run" / "log.txt").read_text().count("WARNING: tracker tensorboard failed") == 1
