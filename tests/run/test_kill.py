"""``kill -9`` at random moments, then ``--resume``: the run ends as an uninterrupted one does."""

import json
import os
import random
import shutil
import signal
import time

from worlds import digest, small_config

from ding_lite.run.checkpoint import checkpoints_of, load_checkpoint

# In the normal suite 20 kills take seconds on idle cores; a soak is DING_LITE_KILLS=500.
ROUNDS = int(os.environ.get("DING_LITE_KILLS", "20"))


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


def state_of(run):
    state, _ = load_checkpoint(run / "ckpt" / "last")
    state.pop("clock")
    return {name: digest(part) for name, part in state.items()}


def metrics_of(run):
    return (run / "metrics.csv").read_bytes() if (run / "metrics.csv").exists() else b""


def timeless(text):
    """Returns the rows of metrics.csv without what depends on the clock."""
    header, *lines = text.splitlines()
    keep = [i for i, name in enumerate(header.split(",")) if not name.startswith("time/")]
    return [[line.split(",")[i] for i in keep] for line in (header, *lines)]


def kept_rows(run):
    """Returns metrics.csv up to the newest checkpoint: what no kill may change any more."""
    iteration = next(iter(checkpoints_of(run).values()))
    return b"".join((run / "metrics.csv").read_bytes().splitlines(keepends=True)[: 1 + iteration])


def test_kill_dash_nine_and_resume_end_where_the_straight_run_does(warm, tmp_path):
    (tmp_path / "c.json").write_text(json.dumps(CONFIG))
    rng, run = random.Random(5), tmp_path / "run"
    for number in range(ROUNDS):
        started = bool(checkpoints_of(run))
        if started:
            argv, kept = ["train", "--resume", "run", "-q"], kept_rows(run)
        else:
            shutil.rmtree(run, ignore_errors=True)
            argv, kept = ["train", "-c", "c.json", "--exp-name", "run", "-q"], b""
        job = warm.start(*argv, cwd=tmp_path)
        if number % 2:  # the others may die before they begin
            job.until(lambda kept=kept: metrics_of(run).startswith(kept) and len(metrics_of(run)) > len(kept))
        time.sleep(rng.uniform(0.0, 0.4))
        job.send(signal.SIGKILL)
        assert (job.wait(), job.errors) == (-9, "")
        assert not started or metrics_of(run).startswith(kept)
    steps = load_checkpoint(run / "ckpt" / "last")[0]["progress"]["env_step"] + 300
    assert warm.run("train", "--resume", "run", "-q", "--max-env-step", steps, cwd=tmp_path).code == 0
    straight = ("train", "-c", "c.json", "--exp-name", "straight", "-q", "--max-env-step", steps)
    assert warm.run(*straight, cwd=tmp_path).code == 0
    assert state_of(run) == state_of(tmp_path / "straight")
    both = [(folder / "metrics.csv").read_text() for folder in (run, tmp_path / "straight")]
    assert timeless(both[0]) == timeless(both[1])
    assert (run / "episodes.csv").read_bytes() == (tmp_path / "straight" / "episodes.csv").read_bytes()
    assert len(both[0].splitlines()) > ROUNDS // 4  # it did train between the kills
    left = [f.name for f in run.rglob("*") if f.name.endswith(".tmp")]
    assert left == []
