"""What cannot be written ends the run with its last checkpoint intact; with room it goes on."""

import json
import os
import subprocess
import sys

import pytest
from worlds import small_config, state_of

from ding_lite.cli import main
from ding_lite.run.checkpoint import load_checkpoint

LAST = "ckpt/last.safetensors"


def write(folder, **others):
    config = small_config(max_env_step=10**8, env={"manager": {"type": "base"}}, **others)
    (folder / "c.json").write_text(json.dumps(config))
    return ["train", "-c", "c.json", "--exp-name", "run", "-q"]


def run(*argv, cwd, max_file=None):
    """Runs a command in a process that can write no file of more bytes."""
    limit = f"ulimit -f {max_file // 1024}; " if max_file else ""
    command = ["bash", "-c", f'{limit}exec "$@"', "-", sys.executable, "-m", "ding_lite", *argv]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True)


def test_a_save_that_fails_ends_the_run_and_leaves_the_checkpoints(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    argv = write(
        tmp_path, policy={"model": {"encoder_hidden_size_list": [128, 128]}}, checkpoint={"freq": 256}
    )
    assert main([*argv, "--max-env-step", "256"]) == 0
    before = state_of(tmp_path / "run")
    resume = ["train", "--resume", "run", "-q", "--max-env-step", "5000"]
    job = run(*resume, cwd=tmp_path, max_file=200_000)
    assert (job.returncode, "last.safetensors cannot be written" in job.stderr) == (5, True)
    assert state_of(tmp_path / "run") == before
    job = run("train", "-c", "c.json", "--exp-name", "other", "-q", cwd=tmp_path, max_file=200_000)
    assert job.returncode == 5
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


@pytest.mark.slow
def test_a_full_disk_ends_a_run_and_with_room_it_goes_on_to_the_same_end(small_disk):
    disk, enlarge = small_disk
    argv = write(
        disk,
        policy={"eval": {"eval_freq": 512}},
        checkpoint={"freq": 256},
        logger={"trackers": ["tensorboard"]},
    )
    (disk / "filler").write_bytes(b"x" * 420_000)
    job = run(*argv, cwd=disk)
    assert (job.returncode, "Traceback" in job.stderr) == (5, False)
    assert "cannot be written" in job.stderr
    saved = load_checkpoint(disk / "run" / LAST)[0]["progress"]
    assert saved["iteration"] >= 2
    subprocess.run(["dd", "if=/dev/zero", f"of={disk}/more"], capture_output=True)  # the last byte
    job = run("train", "--resume", "run", "-q", cwd=disk)
    assert (job.returncode, "cannot be written to" in job.stderr) == (5, True)
    assert enlarge() == 0
    limit = str(saved["env_step"] + 600)
    job = run("train", "--resume", "run", "-q", "--max-env-step", limit, cwd=disk)
    assert (job.returncode, job.stderr) == (0, "")
    straight = ["train", "-c", "c.json", "--exp-name", "straight", "-q", "--max-env-step", limit]
    assert run(*straight, cwd=disk).returncode == 0
    assert state_of(disk / "run") == state_of(disk / "straight")
    rows = [(disk / name / "metrics.csv").read_text().splitlines() for name in ("run", "straight")]
    assert [row.split(",")[:3] for row in rows[0]] == [row.split(",")[:3] for row in rows[1]]


@pytest.mark.slow
def test_event_files_that_cannot_be_written_are_reported_once_and_the_run_goes_on(tmp_path):
    argv = write(tmp_path, logger={"trackers": ["tensorboard"], "freq": 1})
    job = run(*argv, "--max-env-step", "12800", cwd=tmp_path, max_file=40_000)
    assert (job.returncode, job.stderr) == (0, "")
    assert (tmp_path / "run" / "log.txt").read_text().count("WARNING: tracker tensorboard failed") == 1
