"""``kill -9`` at random moments, then ``--resume``: the run ends as an uninterrupted one does."""

import json
import multiprocessing
import os
import random
import shutil
import signal
import time

from worlds import small_config, state_of, timeless_rows

from ding_lite.cli import main
from ding_lite.run.checkpoint import checkpoints_of, load_checkpoint

ROUNDS = int(os.environ.get("DING_LITE_KILLS", "20"))  # a soak is DING_LITE_KILLS=500
CONFIG = small_config(
    max_env_step=10**9,
    env={"manager": {"type": "base"}},
    policy={
        "normalize": {"obs": True, "reward": True},
        "learn": {"lr_schedule": "linear", "schedule_env_step": 10**5},
        "collect": {"n_sample": 64},
        "eval": {"eval_freq": 640},
    },
    checkpoint={"freq": 1, "keep_freq": 320, "keep": 2},
)


def start(argv):
    """Runs a command in a process that is forked from this one, which has imported torch."""
    process = multiprocessing.get_context("fork").Process(target=main, args=[argv])
    process.start()
    return process


def test_kill_dash_nine_and_resume_end_where_the_straight_run_does(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.json").write_text(json.dumps(CONFIG))
    rng, run = random.Random(5), tmp_path / "run"
    reached = 0
    for number in range(ROUNDS):
        if checkpoints_of(run):
            argv = ["train", "--resume", "run", "-q"]
            reached = load_checkpoint(run / "ckpt" / "last.safetensors")[0]["progress"]["iteration"]
        else:
            shutil.rmtree(run, ignore_errors=True)
            argv = ["train", "-c", "c.json", "--exp-name", "run", "-q"]
        job = start(argv)
        if number % 2:  # the others may die before they begin
            last = run / "ckpt" / "last.safetensors"
            before = last.stat().st_ino if last.exists() else 0
            while not (last.exists() and last.stat().st_ino != before):
                assert job.is_alive()
                time.sleep(0.005)
        time.sleep(rng.uniform(0.0, 0.4))
        job.kill()
        job.join()
        assert job.exitcode == -signal.SIGKILL
        rows = (run / "metrics.csv").read_text().count("\n") if (run / "metrics.csv").exists() else 0
        assert rows >= reached, "a row that a checkpoint has is lost"
    steps = load_checkpoint(run / "ckpt" / "last.safetensors")[0]["progress"]["env_step"] + 300
    limit = ["-q", "--max-env-step", str(steps)]
    assert main(["train", "--resume", "run", *limit]) == 0
    assert main(["train", "-c", "c.json", "--exp-name", "straight", *limit]) == 0
    assert state_of(run) == state_of(tmp_path / "straight")
    rows = timeless_rows(run)
    assert rows == timeless_rows(tmp_path / "straight")
    assert (run / "episodes.csv").read_bytes() == (tmp_path / "straight" / "episodes.csv").read_bytes()
    assert len(rows) >= ROUNDS // 4  # it did train between the kills
    assert not [f.name for f in run.rglob("*") if f.name.endswith(".tmp")]
