"""Several runs at a time: folders, errors, report; and as processes: failures, signals, resuming, Ray."""

from __future__ import annotations

import json
import signal
import subprocess

import pytest
from processes import run, start, until
from worlds import result_of, small_config, state_of

from ding_lite import compile_config, serial_pipeline
from ding_lite.envs.workers.cores import cores
from ding_lite.errors import counted
from ding_lite.run.checkpoint import load_checkpoint
from ding_lite.tools.parallel import Load, Outcome, exit_code_of, load_of, seeds_report


@pytest.mark.parametrize(
    ("changes", "cores"),
    [
        ({}, 1),
        ({"num_threads": 2}, 2),
        ({"env.manager": {"type": "subprocess", "worker_num": 3}}, 3),
        ({"env.manager": {"type": "subprocess", "worker_num": 9}}, 4),  # as many as environments
        ({"env.manager": {"type": "base", "worker_num": 3}}, 1),
    ],
)
def test_cores_that_a_run_keeps_busy(changes, cores):
    assert load_of(compile_config(small_config(), {"policy.device": "cpu", **changes})) == Load(cores, False)


def test_report_of_seeds(tmp_path):
    results = [("finished", 10.0), ("interrupted", 90.0), ("interrupted", 20.0), ("solved", 30.0)]
    folders = {seed: tmp_path / f"x_s{seed}" for seed in range(6)}
    for folder, (status, score) in zip(folders.values(), results, strict=False):
        folder.mkdir()
        result = {"status": status, "eval_value": score, "env_step": 100, "wall_time_s": 1.5}
        (folder / "result.json").write_text(json.dumps(result))
    # The second was interrupted by a signal, the third ended by a hook, the fifth failed.
    outcomes = [Outcome(0), Outcome(130), Outcome(0), Outcome(0), Outcome(3, "broken"), Outcome(130)]
    report = seeds_report(folders, outcomes)
    assert [run["score"] for run in report["runs"]] == [10.0, None, 20.0, 30.0, None, None]
    assert [run["status"] for run in report["runs"]] == [
        "finished", "interrupted", "interrupted", "solved", "failed", "not started",
    ]  # fmt: skip
    assert (report["n"], report["mean"]) == (3, 20.0)
    low, high = report["interval"]
    assert 10 <= low < 20 < high <= 30
    assert (report["runs"][4]["exit_code"], report["runs"][4]["error"]) == (3, "broken")
    assert exit_code_of(outcomes) == 3


# ------------------------------------------------------------------ processes


@pytest.mark.slow
@pytest.mark.skipif(cores() < 2, reason="needs two cores")
@pytest.mark.parametrize(("seeds", "runs"), [("0", 1), ("0,1", 2)])
def test_a_run_on_images_uses_all_cores_and_seeds_share_them(seeds, runs, tmp_path, monkeypatch):
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    write(tmp_path, env={"type": "anything:Anything", "env_id": "", "kwargs": {"observation": "image-hwc"}})
    code, output, errors = run("train", "-c", "c.json", "-s", seeds, cwd=tmp_path)
    assert code == 0, errors
    assert output.count(f"{counted(cores() // runs, 'torch thread')}, seed") == runs


def write(folder, **changes):
    config = small_config(**{"max_env_step": 512, "exp_name": "c", **changes})
    (folder / "c.json").write_text(json.dumps(config))


def slow(folder, pause):
    """Writes a config whose run takes as long as the test needs."""
    env = {"type": "slow_worlds:SlowEnv", "env_id": "", "kwargs": {"pause": pause}}
    write(folder, env=env, max_env_step=5120, policy={"eval": {"eval_freq": 1024}})


def iterations_of(folder):
    metrics = folder / "metrics.csv"
    return metrics.read_text().count("\n") - 1 if metrics.exists() else 0


def processes_of(folder):
    found = subprocess.run(["pgrep", "-f", f"train .*{folder}"], capture_output=True, text=True).stdout
    return found.split()


@pytest.mark.slow
def test_seeds_are_the_runs_of_single_commands_and_can_be_continued(tmp_path):
    write(tmp_path)
    words = ("train", "-c", "c.json", "policy.learn.batch_size=32", "exp_name=named")
    code, output, errors = run(*words, "-s", "0,1", cwd=tmp_path)
    assert (code, errors) == (0, "")
    lines = output.splitlines()
    assert {line.partition(":")[0] for line in lines if " steps  evaluation " in line} == {
        f"seed {seed}" for seed in range(2)
    }
    folders = [tmp_path / "runs" / f"named_s{seed}" for seed in range(2)]
    assert f"mean {sum(result_of(folder)['eval_value'] for folder in folders) / 2:.1f} over 2 of 2" in output
    config = json.loads((tmp_path / "c.json").read_text())
    config["policy"]["learn"]["batch_size"] = 32
    serial_pipeline(config, seed=1, folder=tmp_path / "single")
    assert state_of(folders[1]) == state_of(tmp_path / "single")
    assert state_of(folders[1]) != state_of(folders[0])
    for checkpoint in (folders[0] / "ckpt").iterdir():  # a seed that fails does not end the others
        checkpoint.write_bytes(b"{}")
    again = ("--resume", "runs/named", "-s", "0,3", "--json", "--max-env-step", 1024)
    code, output, errors = run(*words, *again, cwd=tmp_path)
    assert code == 5
    assert "seed 0 failed" in errors
    runs = json.loads(output)["runs"]
    assert [(r["seed"], r["status"]) for r in runs] == [(0, "failed"), (3, "finished")]
    assert 1024 <= runs[1]["env_step"] < 1280


@pytest.mark.slow
def test_ctrl_c_saves_all_seeds_and_resuming_ends_where_they_would_have(tmp_path):
    slow(tmp_path, 0.0005)
    words = ("train", "-c", "c.json", "-s", "0,1", "--jobs", 2)
    process = start(*words, "--exp-name", "run", cwd=tmp_path)
    folders = [tmp_path / f"run_s{seed}" for seed in (0, 1)]
    until(lambda: all(iterations_of(folder) > 1 for folder in folders), process)
    process.send_signal(signal.SIGINT)
    assert "to continue: the same command with --resume auto" in process.communicate(timeout=300)[0]
    assert process.returncode == 130
    for folder in folders:
        result = result_of(folder)
        assert (result["status"], result["error"]) == ("interrupted", "SIGINT")
        state = load_checkpoint(folder / "ckpt" / "last.safetensors")[0]
        assert state["progress"]["env_step"] == result["env_step"] < 5120
    assert run(*words, "--exp-name", "run", "--resume", "auto", cwd=tmp_path)[0] == 0
    slow(tmp_path, 0.0)  # not the numbers, only the pace
    assert run("train", "-q", "-c", "c.json", "-s", 1, "--exp-name", "straight", cwd=tmp_path)[0] == 0
    resumed, straight = state_of(folders[1]), state_of(tmp_path / "straight")
    assert resumed["policy"] == straight["policy"]
    assert resumed["progress"] == straight["progress"]


@pytest.mark.slow
def test_a_killed_command_ends_its_runs(tmp_path):
    slow(tmp_path, 0.01)
    words = ("train", "-c", "c.json", "-s", "0,1", "--jobs", 2, "--exp-name")
    process = start(*words, tmp_path / "other", cwd=tmp_path)
    until(lambda: all(iterations_of(tmp_path / f"other_s{n}") > 0 for n in (0, 1)), process)
    process.kill()
    process.communicate(timeout=300)
    until(lambda: processes_of(tmp_path / "other_s") == [], seconds=120)
    assert result_of(tmp_path / "other_s0")["error"] == "SIGTERM"  # saved


@pytest.mark.slow
def test_seeds_on_ray_are_the_same_runs(tmp_path):
    pytest.importorskip("ray")
    write(tmp_path)
    words = ("train", "-c", "c.json", "-s", "0,1")
    assert run(*words, "-q", "--exp-name", "here", cwd=tmp_path)[0] == 0
    code, output, errors = run(*words, "--exp-name", "ray", "--ray", "auto", cwd=tmp_path)
    assert code == 0, output + errors
    assert "over 2 of 2 seeds" in output
    for seed in (0, 1):
        assert state_of(tmp_path / f"ray_s{seed}") == state_of(tmp_path / f"here_s{seed}")
