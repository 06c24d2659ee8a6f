"""Output that cannot be written: a full disk, a limit on files, a reader that went away."""

import json
import os
import subprocess
import sys

import pytest
from worlds import digest, small_config

from ding_lite.run.checkpoint import load_checkpoint

DING_LITE = f"{sys.executable} -m ding_lite"


def write(folder, **others):
    config = small_config(max_env_step=10**8, env={"manager": {"type": "base"}}, **others)
    (folder / "c.json").write_text(json.dumps(config))
    return ["train", "-c", "c.json", "--exp-name", "run"]


def result(folder):
    return json.loads((folder / "run" / "result.json").read_text())


def last(folder):
    return load_checkpoint(folder / "run" / "ckpt" / "last")[0]


# ---------------------------------------------------------------------- RLIMIT_FSIZE


@pytest.mark.slow
def test_failed_save_is_reported_and_the_third_in_a_row_ends_the_run(warm, tmp_path):
    big = {"model": {"encoder_hidden_size_list": [128, 128]}}
    argv = write(tmp_path, policy=big, checkpoint={"freq": 256})
    assert warm.run(*argv, "--max-env-step", "256", cwd=tmp_path).code == 0
    before = digest(last(tmp_path))
    limit = ["--resume", "run", "--max-env-step", "5000"]
    job = warm.run("train", *limit, cwd=tmp_path, max_file=200_000)
    assert job.code == 5  # the new limit could not be saved: the run does not begin
    assert "ckpt/last cannot be written: " in job.errors
    assert digest(last(tmp_path)) == before

    job = warm.run("train", "-c", "c.json", "--exp-name", "other", cwd=tmp_path, max_file=200_000)
    assert job.code == 5
    assert job.output.count("Training goes on") == 2
    last_one = tmp_path / "other" / "ckpt" / "last"
    assert job.errors.startswith(f"ding-lite train: error: checkpoint {last_one} cannot be written: ")
    outcome = json.loads((tmp_path / "other" / "result.json").read_text())
    # The third save goes on while the fourth iteration trains, which then waits for its end.
    assert (outcome["status"], outcome["iterations"], outcome["checkpoint"]) == ("failed", 4, None)
    assert list((tmp_path / "other" / "ckpt").iterdir()) == []


def test_best_that_could_not_be_saved_is_not_the_best(warm, tmp_path):
    big = {"model": {"encoder_hidden_size_list": [128, 128]}, "eval": {"eval_freq": 256}}
    argv = write(tmp_path, policy=big, checkpoint={"freq": 0})
    job = warm.run(*argv, cwd=tmp_path, max_file=200_000)
    assert job.code == 5
    assert (result(tmp_path)["best_eval_value"], result(tmp_path)["best_checkpoint"]) == (None, None)


# ---------------------------------------------------------------------- a disk that is full


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


def test_full_disk_ends_a_run_in_order_and_with_room_it_goes_on_to_the_same_end(warm, small_disk):
    disk, enlarge = small_disk
    argv = write(
        disk, policy={"eval": {"eval_freq": 512}}, checkpoint={"freq": 256}, logger={"tensorboard": True}
    )
    (disk / "filler").write_bytes(b"x" * 420_000)
    job = warm.run(*argv, cwd=disk)
    assert (job.code, "Traceback" in job.errors) == (5, False)
    assert "cannot be written" in job.errors
    saved = last(disk)["progress"]
    assert saved["iteration"] >= 2
    assert enlarge() == 0
    limit = str(saved["env_step"] + 600)
    job = warm.run("train", "--resume", "run", "--max-env-step", limit, cwd=disk)
    assert (job.code, job.errors) == (0, "")
    resumed = {name: digest(part) for name, part in last(disk).items() if name != "clock"}
    straight = ["train", "-c", "c.json", "--exp-name", "straight", "--max-env-step", limit]
    assert warm.run(*straight, cwd=disk).code == 0
    expected, _ = load_checkpoint(disk / "straight" / "ckpt" / "last")
    assert resumed == {name: digest(part) for name, part in expected.items() if name != "clock"}
    rows = [(disk / name / "metrics.csv").read_text().splitlines() for name in ("run", "straight")]
    assert [row.split(",")[:3] for row in rows[0]] == [row.split(",")[:3] for row in rows[1]]


@pytest.mark.slow
def test_disk_too_small_for_a_checkpoint_ends_a_run_with_a_message(small_disk):
    disk, _ = small_disk
    argv = write(disk, checkpoint={"freq": 10**8}, logger={"tensorboard": True, "freq": 1})
    (disk / "filler").write_bytes(b"x" * 560_000)
    done = shell(f"{DING_LITE} {' '.join(argv)}", disk)
    assert done.returncode == 5
    *_, message = done.stderr.splitlines()
    assert message.startswith("ding-lite train: error: run folder run cannot be written to: ")
    assert done.stderr.count("\n") == 1, done.stderr  # nor does anything speak up at the exit
    assert "if there was one" in message


def test_event_files_that_cannot_be_written_are_reported_once_and_the_run_goes_on(warm, tmp_path):
    argv = write(tmp_path, checkpoint={"freq": 0}, logger={"tensorboard": True, "freq": 1})
    job = warm.run(*argv, "--max-env-step", "12800", cwd=tmp_path, max_file=30_000)
    assert (job.code, job.errors) == (0, "")
    assert (tmp_path / "run" / "log.txt").read_text().count("WARNING: tracker tensorboard failed") == 1
    assert (tmp_path / "run" / "metrics.csv").read_text().count("\n") == 1 + result(tmp_path)["iterations"]


# ---------------------------------------------------------------------- standard output


def shell(command, cwd):
    return subprocess.run(
        ["bash", "-c", command], cwd=cwd, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.slow
def test_reader_that_went_away_does_not_end_a_training(tmp_path):
    argv = write(tmp_path, policy={"eval": {"eval_freq": 256}})
    command = f"{DING_LITE} {' '.join(argv)} --max-env-step 2000 | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = shell(command, tmp_path)
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["new run  folder run", "0"]
    assert result(tmp_path)["status"] == "finished"


@pytest.mark.slow
def test_output_to_a_full_disk_does_not_end_a_training(tmp_path):
    done = shell(f"{DING_LITE} {' '.join(write(tmp_path))} --max-env-step 512 > /dev/full", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert result(tmp_path)["status"] == "finished"


@pytest.mark.slow
def test_output_that_was_all_there_was_to_do_is_missed(tmp_path):
    done = shell(f"{DING_LITE} list policies > /dev/full", tmp_path)
    assert done.returncode == 1
    assert "error: cannot write the output" in done.stderr
    done = shell(f"{DING_LITE} config --env CartPole-v1 | head -n 1; echo ${{PIPESTATUS[0]}}", tmp_path)
    assert (done.stdout.splitlines()[1:], done.stderr) == (["0"], "")
