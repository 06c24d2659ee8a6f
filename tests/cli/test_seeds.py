"""``ding-lite train`` with several seeds, as processes: folders, failures, signals, resuming."""

from __future__ import annotations

import errno
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import processes
import pytest
from worlds import digest, small_config

from ding_lite.cli import main
from ding_lite.cli.program import parse
from ding_lite.run.checkpoint import load_checkpoint

TESTS = Path(__file__).parents[1]
COMMAND = (sys.executable, "-m", "ding_lite")


def start(*words, cwd, program=COMMAND):
    paths = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        [*program, *map(str, words)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run(*words, cwd):
    process = start(*words, cwd=cwd, program=[processes.ding_lite()])
    output, errors = process.communicate(timeout=600)
    return process.returncode, output, errors


def until(condition, process, seconds=300):
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def state_of(folder):
    state = load_checkpoint(folder / "ckpt" / "last.safetensors")[0]
    return {part: digest(value) for part, value in state.items() if part != "clock"}


def result_of(folder):
    return json.loads((folder / "result.json").read_text())


def write(folder, **changes):
    (folder / "c.json").write_text(
        json.dumps(small_config(**{"max_env_step": 512, "exp_name": "c", **changes}))
    )


def slow(folder, pause):
    """Writes a config whose run takes as long as the test needs."""
    env = {"type": "slow_worlds:SlowEnv", "env_id": "", "kwargs": {"pause": pause}}
    write(folder, env=env, max_env_step=5120, policy={"eval": {"eval_freq": 1024}})


def iterations_of(folder):
    metrics = folder / "metrics.csv"
    return metrics.read_text().count("\n") - 1 if metrics.exists() else 0


def processes_of(folder):
    """Returns the ids of the trainings in a folder that live."""
    found = subprocess.run(
        ["pgrep", "-f", f"train --quiet.* {folder}"], capture_output=True, text=True
    ).stdout
    return found.split()


# ------------------------------------------------------------------ the command line


@pytest.mark.parametrize(
    ("words", "seeds", "overrides"),
    [
        (["-s", "3", "a.b=1"], [3], ["a.b=1"]),
        (["-s", "0", "1", "2", "a.b=1", "-c", "x"], [0, 1, 2], ["a.b=1"]),
        (["a.b=1", "-c", "x", "--seed", "4", "5"], [4, 5], ["a.b=1"]),
        (["-s", "1", "-c", "x", "-s", "2", "c.d=2", "--ray", "a.b=1"], [1, 2], ["c.d=2", "a.b=1"]),
        (["--seed=7", "a.b=1"], [7], ["a.b=1"]),
        (["a.b=1"], None, ["a.b=1"]),
    ],
)
def test_seeds_do_not_take_the_overrides_behind_them(words, seeds, overrides):
    args = parse(["train", *words])
    assert (args.seeds, args.overrides) == (seeds, overrides)


@pytest.mark.parametrize("option", ["--resume", "--ray"])
def test_options_of_a_sweep_do_not_take_the_override_behind_them(option):
    assert parse(["sweep", "-c", "x", option, "a.b=1"]).overrides == ["a.b=1"]


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["-s", "0", "0"], "the seed 0 is given twice"),
        (["-s", "0", "1", "seed=4"], "-s 0 1 and seed= contradict each other"),
        (["-s", "0", "1", "--resume", "--init-from", "x"], "--resume and --init-from exclude each other"),
        (["-s", "0", "1", "policy.learn.lr=1"], "'learning_rate' exists at"),
        (["-s", "0", "1", "env.env_id=CartPol-v1"], "CartPol"),
        (["--jobs", "2"], "--jobs is for several seeds"),
        (["-s", "0", "--json"], "--json is for several seeds"),
        (
            ["-s", "0", "1", "--resume", "--exp-name", "nosuch"],
            "no run to continue: nosuch_s0, nosuch_s1 do not",
        ),
    ],
)
def test_misuse_is_refused_before_a_run_starts(words, fault, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    assert main(["train", "-c", "c.json", *words]) in (2, 3)
    assert fault in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["c.json"]


def test_resume_of_several_seeds_asks_for_the_config_again(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--resume", "c", "-s", "0", "1"]) == 2
    assert (
        "--resume with several seeds needs the config that they were started with: give -c (or --env) again"
        in (capsys.readouterr().err)
    )


def test_missing_ray_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "ding_lite.tools.ray_jobs", raising=False)
    assert main(["train", "-c", "c.json", "-s", "0", "1", "--ray"]) == 2
    assert 'pip install "ding_lite[ray]"' in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("named_by", ["option", "variable"])
def test_ray_cluster_that_cannot_be_reached_is_named_at_once(named_by, tmp_path, monkeypatch):
    pytest.importorskip("ray")
    write(tmp_path)
    if named_by == "variable":
        monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    address = ["127.0.0.1:1"] if named_by == "option" else []
    code, _, errors = run("train", "-c", "c.json", "-s", 0, 1, "--ray", *address, cwd=tmp_path)
    assert code == 2
    refused = f"[Errno {errno.ECONNREFUSED}]"
    assert f"--ray: the Ray cluster '127.0.0.1:1' cannot be reached: {refused}" in errors


# ------------------------------------------------------------------ runs


@pytest.mark.slow
def test_seeds_are_the_runs_of_single_commands_and_can_be_continued(tmp_path):
    write(tmp_path)
    code, output, errors = run(
        "train", "-c", "c.json", "-s", 0, 1, 2, "policy.learn.batch_size=32", cwd=tmp_path
    )
    assert (code, errors) == (0, "")
    lines = output.splitlines()
    assert sum(line.endswith(tuple(f": started, runs/c_s{n}" for n in range(3))) for line in lines) == 3
    assert sum(" steps  evaluation " in line for line in lines) == 3
    folders = [tmp_path / "runs" / f"c_s{seed}" for seed in range(3)]
    scores = [result_of(folder)["eval_value"] for folder in folders]
    assert f"mean {sum(scores) / 3:.1f} over 3 of 3 seeds, 95 % bootstrap interval [" in lines[-1]
    single = ("train", "-q", "-c", "c.json", "-s", 1, "policy.learn.batch_size=32", "--exp-name", "single")
    assert run(*single, cwd=tmp_path) == (0, "", "")
    assert state_of(folders[1]) == state_of(tmp_path / "single")
    assert state_of(folders[1]) != state_of(folders[0])
    again = ("train", "-c", "c.json", "-s", 2, 3, "policy.learn.batch_size=32")
    code, output, errors = run(*again, cwd=tmp_path)
    assert (code, output) == (2, "")
    assert "these run folders exist: runs/c_s2;" in errors
    code, output, errors = run(*again, "--resume", "--json", "--max-env-step", 1024, cwd=tmp_path)
    assert (code, errors) == (0, "")
    runs = json.loads(output)["runs"]
    assert [(r["seed"], r["status"]) for r in runs] == [(2, "finished"), (3, "finished")]
    assert all(1024 <= r["env_step"] < 1280 for r in runs)


@pytest.mark.slow
def test_seed_that_fails_does_not_end_the_others(tmp_path):
    write(tmp_path)
    assert run("train", "-q", "-c", "c.json", "-s", 0, 1, "--exp-name", "run", cwd=tmp_path)[0] == 0
    for checkpoint in (tmp_path / "run_s0" / "ckpt").iterdir():
        (checkpoint / "state.json").write_text("{}")
    words = ("train", "-c", "c.json", "-s", 0, 1, "--resume", "run", "--max-env-step", 1024, "--jobs", 1)
    code, output, _ = run(*words, cwd=tmp_path)
    assert code == 5
    assert "seed 0: failed: run_s0 has no undamaged checkpoint" in output
    assert result_of(tmp_path / "run_s1")["env_step"] >= 1024
    assert (
        output.splitlines()[-1]
        == f"mean {result_of(tmp_path / 'run_s1')['eval_value']:.1f} over 1 of 2 seeds"
    )


@pytest.mark.slow
def test_ctrl_c_saves_all_seeds_and_resuming_ends_where_they_would_have(tmp_path):
    slow(tmp_path, 0.0005)
    words = ("train", "-c", "c.json", "-s", 0, 1, "--jobs", 2, "--exp-name", "run")
    process = start(*words, cwd=tmp_path)
    files = [tmp_path / f"run_s{seed}" / "metrics.csv" for seed in (0, 1)]
    until(lambda: all(f.exists() and f.read_text().count("\n") > 2 for f in files), process)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 130
    for seed in (0, 1):
        assert f"seed {seed}: interrupted after " in output
        result = result_of(tmp_path / f"run_s{seed}")
        assert (result["status"], result["error"]) == ("interrupted", "SIGINT")
        state = load_checkpoint(tmp_path / f"run_s{seed}" / "ckpt" / "last.safetensors")[0]
        assert state["progress"]["env_step"] == result["env_step"] < 5120
    command = shlex.split(output.splitlines()[-1].partition("try: ")[2])
    assert command[-2:] == ["--resume", "run"]
    assert run(*command[1:], cwd=tmp_path)[0] == 0
    slow(tmp_path, 0.0)  # not the numbers, only the pace
    assert run("train", "-q", "-c", "c.json", "-s", 1, "--exp-name", "straight", cwd=tmp_path)[0] == 0
    resumed, straight = state_of(tmp_path / "run_s1"), state_of(tmp_path / "straight")
    assert resumed["policy"] == straight["policy"]
    assert resumed["progress"] == straight["progress"]


@pytest.mark.slow
def test_second_ctrl_c_ends_all_at_once_and_a_killed_command_ends_its_runs(tmp_path):
    slow(tmp_path, 0.02)  # an iteration takes over 1 s
    words = ("train", "-c", "c.json", "-s", 0, 1, "--jobs", 2, "--exp-name")
    process = start(*words, tmp_path / "run", cwd=tmp_path)
    until(lambda: all(iterations_of(tmp_path / f"run_s{n}") > 0 for n in (0, 1)), process)
    assert len(processes_of(tmp_path / "run_s")) == 2
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=300)
    assert process.returncode == 130
    assert processes_of(tmp_path / "run_s") == []
    process = start(*words, tmp_path / "other", cwd=tmp_path)
    until(lambda: all(iterations_of(tmp_path / f"other_s{n}") > 0 for n in (0, 1)), process)
    process.kill()
    process.communicate(timeout=300)
    deadline = time.monotonic() + 120
    while processes_of(tmp_path / "other_s"):
        assert time.monotonic() < deadline, "a run has outlived its command"
        time.sleep(0.1)
    assert result_of(tmp_path / "other_s0")["error"] == "SIGTERM"  # saved


@pytest.mark.slow
def test_seeds_on_ray_are_the_same_runs(tmp_path):
    pytest.importorskip("ray")
    write(tmp_path)
    assert run("train", "-q", "-c", "c.json", "-s", 0, 1, "--exp-name", "here", cwd=tmp_path)[0] == 0
    code, output, _ = run("train", "-c", "c.json", "-s", 0, 1, "--exp-name", "ray", "--ray", cwd=tmp_path)
    assert code == 0, output
    assert "over 2 of 2 seeds" in output
    for seed in (0, 1):
        assert state_of(tmp_path / f"ray_s{seed}") == state_of(tmp_path / f"here_s{seed}")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
