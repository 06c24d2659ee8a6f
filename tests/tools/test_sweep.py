"""Sweeps on a world whose return is a config key: search spaces, scores, pruning, kill -9, the best."""

from __future__ import annotations

import json
import os
import signal
import subprocess

import pytest
from processes import run, start, until
from small_worlds import LengthEnv
from worlds import result_of, small_config

from ding_lite import compile_config
from ding_lite.config.compile import read_config
from ding_lite.config.schema import leaves
from ding_lite.errors import ConfigError, EnvError

optuna = pytest.importorskip("optuna", reason="the extra sweep is not installed")
from ding_lite.tools.sweep import Worker, begin, open_study, reopen, report, search_space, values_of  # noqa: E402

RATE = "policy.learn.learning_rate"
LENGTH = "env.kwargs.length"
SIZES = "policy.model.encoder_hidden_size_list"


# ------------------------------------------------------------------ the search space


def test_values_of_keys():
    searches = ["a=uniform(0, 0.5)", "b=log(1e-5,1e-2)", "c= int(-2, 10) ", "d=choice(64, 'a b', none, [1])"]
    space = search_space(searches)
    assert (space["a"].low, space["a"].high, space["a"].log) == (0.0, 0.5, False)
    assert (space["b"].low, space["b"].high, space["b"].log) == (1e-5, 1e-2, True)
    assert (space["c"].low, space["c"].high) == (-2, 10)
    values = [values_of({"a": 1e-05, "d": choice}) for choice in space["d"].choices]
    assert values == [{"a": 1e-05, "d": choice} for choice in (64, "a b", None, [1])]
    wrong = ("lgo(1, 2)", "log(", "uniform(1, __import__('os'))")
    for searches in ([], ["seed=int(0, 3)"], *([f"key={values}"] for values in wrong)):
        with pytest.raises(ConfigError, match="search"):
            search_space(searches)


# ------------------------------------------------------------------ one worker, in this process


def config_of(world=LengthEnv, **changes):
    env = {"type": world, "env_id": "", "kwargs": {"length": 1}}
    changes = {"max_env_step": 256, "env": env, "policy": {"eval": {"eval_freq": 256}}, **changes}
    return small_config(**changes)


def sweep(folder, searches, trials, seeds=(0,), resume=False, say=None, **changes):
    """Runs a sweep with one worker; returns its report and the lines that it said."""
    config, space, lines = config_of(**changes), search_space(searches), []
    begin(folder, {"search": {key: str(of_key) for key, of_key in space.items()}}, resume=resume)
    reopen(folder)
    worker = Worker(folder, space, seeds, lambda v: compile_config(config, v), say or lines.append)
    worker.work(trials, 1)
    return report(folder, seeds), lines


def test_sweep_finds_the_best_value_and_writes_its_config(tmp_path):
    folder = tmp_path / "s"
    searches = [f"{LENGTH}=int(1, 30)", f"{SIZES}=choice([8], [4, 4])"]
    found, _ = sweep(folder, searches, 3, seeds=(3, 4))
    trials = found["trials"]
    assert [trial["state"] for trial in trials] == ["complete"] * 3
    assert all(trial["score"] == trial["values"][LENGTH] for trial in trials)
    assert found["best_score"] == max(trial["score"] for trial in trials)
    best = folder / f"trial_{found['best']:03}_s3"
    ours = dict(leaves(compile_config(read_config(folder / "best.py")).values))
    theirs = dict(leaves(compile_config(json.loads((best / "config.json").read_text())).values))
    assert {key for key in ours if ours[key] != theirs[key]} == {"exp_name"}
    # It continues with other values, and only what it was begun with.
    found, _ = sweep(folder, searches, 4, seeds=(3, 4), resume=True)
    assert len(found["trials"]) == 4
    with pytest.raises(ConfigError, match="something else"):
        sweep(folder, [f"{LENGTH}=int(1, 31)"], 4, resume=True)
    with pytest.raises(ConfigError, match="exists"):
        sweep(folder, [f"{LENGTH}=int(1, 31)"], 4)


def test_key_without_effect_is_named_with_its_trial(tmp_path):
    _, lines = sweep(tmp_path / "s", ["policy.model.rnn_layers=int(2, 2)"], 1)
    assert lines[1] == "trial 0: policy.model.rnn_layers=2: no effect without policy.model.rnn"


class SometimesBroken(LengthEnv):
    def step(self, action):
        if self.length == 2:
            raise EnvError("broken")
        return super().step(action)


def test_trial_that_fails_does_not_end_the_sweep(tmp_path):
    found, lines = sweep(tmp_path / "s", [f"{LENGTH}=choice(1, 2)"], 6, world=SometimesBroken)
    states = {(trial["values"][LENGTH], trial["state"]) for trial in found["trials"]}
    assert states == {(1, "complete"), (2, "fail")}
    assert any("failed: " in line and "broken" in line for line in lines)


def test_trial_that_stays_behind_is_pruned_and_not_in_its_first_fifth(tmp_path):
    study, lines = open_study(tmp_path), []
    for _ in range(5):  # trials that are better than any length
        study.add_trial(
            optuna.trial.create_trial(
                params={LENGTH: 30},
                distributions={LENGTH: optuna.distributions.IntDistribution(1, 30)},
                value=100.0,
                intermediate_values=dict.fromkeys(range(1, 12), 100.0),
            )
        )
    config = config_of(max_env_step=2560)
    space = search_space([f"{LENGTH}=int(1, 30)"])
    Worker(tmp_path, space, (0,), lambda v: compile_config(config, v), lines.append).work(6, 1)
    assert study.trials[5].state.name == "PRUNED"
    assert lines[-1] == "trial 5: pruned"
    result = json.loads((tmp_path / "trial_005_s0" / "result.json").read_text())
    assert 512 <= result["env_step"] < 2048


def test_an_open_trial_continues_its_run_with_its_values(tmp_path):
    """A worker is ended by Ctrl-C in the second run of its first trial."""
    folder, searches = tmp_path / "s", [f"{LENGTH}=int(1, 30)"]

    def say(line):
        if line.startswith("trial 0, seed 1: 5"):  # at 512 steps
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        sweep(folder, searches, 2, seeds=(0, 1), say=say, max_env_step=1024)
    first = open_study(folder).trials[0].params
    found, lines = sweep(folder, searches, 2, seeds=(0, 1), resume=True, max_env_step=1024)
    assert [trial["state"] for trial in found["trials"]] == ["complete"] * 2, lines
    assert found["trials"][0]["values"] == first
    log = (folder / "trial_000_s1" / "log.txt").read_text()
    assert "at 768 env steps" in log or "at 512 env steps" in log


# ------------------------------------------------------------------ processes


def write(folder, **changes):
    (folder / "c.py").write_text(f"config = {small_config(**changes)!r}\n")


def test_the_score_of_a_trial_is_the_mean_over_its_seeds(tmp_path):
    write(tmp_path, max_env_step=256, env={"n_evaluator_episode": 8})
    words = ["--search", f"{RATE}=log(1e-4,1e-2)", "--trials", "1", "-s", "0,1", "--exp-name", "s", "--json"]
    _, output, _ = run("sweep", "-c", "c.py", *words, cwd=tmp_path)
    (trial,) = json.loads(output)["trials"]
    first, second = (result_of(tmp_path / "s" / f"trial_000_s{seed}")["eval_value"] for seed in (0, 1))
    assert (trial["state"], trial["score"]) == ("complete", (first + second) / 2)
    assert first != second


@pytest.mark.slow
@pytest.mark.parametrize("what", ["sweep", "worker"])
def test_sweep_that_was_killed_continues_and_has_all_its_trials(what, tmp_path):
    world = {"type": "slow_worlds:SlowEnv", "env_id": "", "kwargs": {"pause": 0.001}}
    write(tmp_path, max_env_step=2048, env=world, checkpoint={"freq": 256})
    words = ["sweep", "-c", "c.py", "--exp-name", "s", "--search", f"{LENGTH}=int(1,30)", "--trials", "3"]
    process = start(*words, "--jobs", "2", cwd=tmp_path)
    metrics = [tmp_path / "s" / f"trial_00{number}_s0" / "metrics.csv" for number in (0, 1)]
    until(lambda: all(file.exists() and file.read_text().count("\n") > 2 for file in metrics), process)
    workers = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout
    os.kill(process.pid if what == "sweep" else int(workers.split()[0]), signal.SIGKILL)
    errors = process.communicate(timeout=300)[1]
    still_open = [
        trial.number for trial in open_study(tmp_path / "s").trials if trial.state.name == "RUNNING"
    ]
    assert still_open
    if what == "worker":
        (number,) = still_open
        assert process.returncode == 1
        assert f"trial {number} did not end" in errors
        assert "worker 1: ended by SIGKILL" in errors
    code, output, errors = run(*words, "--jobs", "2", "--resume", "--json", cwd=tmp_path)
    assert (code, errors) == (0, "")
    trials = json.loads(output)["trials"]
    assert [trial["state"] for trial in trials] == ["complete"] * 3
    assert all(trial["score"] == trial["values"][LENGTH] for trial in trials)
    for number in set(still_open) & {0, 1}:  # from their checkpoints, and not anew
        assert "resumed from " in (tmp_path / "s" / f"trial_00{number}_s0" / "log.txt").read_text()
