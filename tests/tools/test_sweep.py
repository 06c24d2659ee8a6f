"""Sweeps, as processes on a world whose return is a config key: scores, pruning, kill -9, the best config."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import processes
import pytest
from worlds import small_config

from ding_lite import compile_config
from ding_lite.cli import main
from ding_lite.config.compile import read_config
from ding_lite.config.schema import leaves
from ding_lite.tools.several import Board, Training

TESTS = Path(__file__).parents[1]
COMMAND = (sys.executable, "-m", "ding_lite")
# The return of an episode of LengthEnv is its length.
WORLD = {"type": "small_worlds:LengthEnv", "env_id": "", "kwargs": {"length": 1}}
LENGTH = "env.kwargs.length=int(1,30)"


def start(*words, cwd, program=COMMAND):
    paths = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        [*program, *map(str, words)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(*words, cwd):
    process = start(*words, cwd=cwd, program=[processes.ding_lite()])
    output, errors = process.communicate(timeout=600)
    return process.returncode, output, errors


def write(folder, sweep=None, **changes):
    config = small_config(**{"max_env_step": 512, "exp_name": "c", **changes})
    (folder / "c.py").write_text(f"config = {config!r}\n" + (f"sweep = {sweep!r}\n" if sweep else ""))


def result_of(folder):
    return json.loads((folder / "result.json").read_text())


# ------------------------------------------------------------------ without a training


@pytest.mark.parametrize(
    ("sweep", "words", "fault"),
    [
        (None, [], "no search space: give --search"),
        (None, ["--search", "policy.learn.learning_rat=log(1e-5,1e-2)"], "did you mean 'learning_rate'?"),
        ({"search": {"policy.gamma": [0.9, 0.99]}}, [], "policy.collect.discount_factor"),
        ({"serach": {}}, [], "sweep: unknown key 'serach'; did you mean 'search'?"),
        ({"seeds": [0, 0]}, [], "expected different numbers"),
        ({"seeds": [0.5]}, [], "sweep.seeds: expected a whole number"),
        ({"trials": 0}, [], "sweep.trials: expected a number at least 1, got 0"),
        (None, ["--search", "seed=int(0,3)"], "seed: cannot be searched"),
        (None, ["--search", "num_threads=[1,2]"], "num_threads: expected uniform(a, b)"),
        (
            None,
            ["--search", "num_threads=int(1,2)", "num_threads=1"],
            "num_threads is set on the",
        ),
        (None, ["--search", "num_threads=int(1,2)", "--resume"], "c_sweep is not the folder of a sweep"),
        (None, ["--search", "num_threads=loguniform(1,2)"], "did you mean 'log'?"),
    ],
)
def test_misuse_is_refused_before_anything_starts(sweep, words, fault, tmp_path, monkeypatch, capsys):
    pytest.importorskip("optuna")
    monkeypatch.chdir(tmp_path)
    write(tmp_path, sweep)
    assert main(["sweep", "-c", "c.py", *words]) == 2
    assert fault in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["c.py"]


@pytest.mark.parametrize("package", ["optuna", "matplotlib.ticker"])
def test_missing_package_is_named_before_the_search(package, tmp_path, monkeypatch, capsys):
    pytest.importorskip("optuna")
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    for module in ("ding_lite.tools.sweep", "ding_lite.tools.sweep_report"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    assert main(["sweep", "-c", "c.py", "--search", LENGTH]) == 2
    assert 'pip install "ding_lite[sweep]"' in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["c.py"]


def test_value_of_a_run_at_a_step_is_its_last_one_due_by_then():
    pytest.importorskip("optuna")
    from ding_lite.tools.sweep import _value_at

    run = Training("x", 0, Path("x"), [], 100, evaluations=[(1040, 1.0), (2010, 2.0)])
    assert [_value_at(run, step, 1000) for step in (0, 1000, 2000, 3000)] == [None, 1.0, 2.0, None]
    run.code = 0  # solved before the others
    assert [_value_at(run, step, 1000) for step in (0, 1000, 2000, 3000)] == [None, 1.0, 2.0, 2.0]


class FakeCrew:
    """Trains nothing."""

    board, stopped_by = Board(), ""


RATE = "policy.learn.learning_rate"


def idle_sweep(folder, **options):
    """Returns a sweep with two seeds, with evaluations every 100 steps, whose runs never start."""
    pytest.importorskip("optuna")
    from ding_lite.tools.search import search_space
    from ding_lite.tools.sweep import Sweep

    config = compile_config(small_config(policy={"eval": {"eval_freq": 100}}))
    return Sweep(
        folder, config, search_space({RATE: "log(1e-5, 1e-2)"}), (0, 1), ["train"], FakeCrew(), **options
    )


def test_an_evaluation_of_a_trial_is_the_mean_of_its_seeds_and_is_reported_once(tmp_path):
    sweep = idle_sweep(tmp_path / "s")
    first, second = sweep._runs(1)
    for run, value in ((first, 1.0), (second, 3.0)):
        run.status, run.evaluations = "running", [(100, value)]
    sweep._on_evaluation(first)
    sweep._on_evaluation(second)
    assert sweep.trials()[0].intermediate_values == {100: 2.0}
    assert sweep._open[first.name].reported == {100}
    sweep.close()
    resumed = idle_sweep(tmp_path / "s", resume=True)
    first, _ = resumed._runs(1)
    assert resumed._open[first.name].reported == {100}
    resumed.close()


def test_the_best_trial_is_that_with_the_highest_score(tmp_path):
    sweep = idle_sweep(tmp_path / "s")
    for score in (1.0, 3.0, -2.0):
        sweep.study.tell(sweep.study.ask(), score)
    assert [trial.value for trial in sweep.ranked()] == [3.0, 1.0, -2.0]
    assert sweep.best().number == 1
    sweep.close()


def end(sweep, run, **result):
    """Lets a run of an idle sweep end with a result."""
    run.code, run.status, run.result = 0, result["status"], result
    sweep._on_end(run)


def test_a_trial_whose_runs_a_hook_has_ended_is_complete(tmp_path):
    sweep = idle_sweep(tmp_path / "s")
    first, second = sweep._runs(1)
    end(sweep, first, status="interrupted", error="no evaluation was above 9", eval_value=1.0)
    end(sweep, second, status="finished", eval_value=3.0)
    assert [(trial.state.name, trial.value) for trial in sweep.trials()] == [("COMPLETE", 2.0)]
    sweep.close()


def test_a_trial_without_a_finite_score_has_failed_and_says_so(tmp_path):
    sweep = idle_sweep(tmp_path / "s")
    first, _ = sweep._runs(1)
    end(sweep, first, status="finished", eval_value=None)
    assert [trial.state.name for trial in sweep.trials()] == ["FAIL"]
    log = (tmp_path / "s" / "log.txt").read_text()
    assert "trial 0: failed: it has no evaluation with a finite mean return\n" in log
    sweep.close()


def test_a_sweep_of_another_version_is_resumed_if_its_keys_have_their_defaults(tmp_path):
    from ding_lite.errors import ConfigError

    idle_sweep(tmp_path / "s").close()
    file = tmp_path / "s" / "sweep.json"
    saved = json.loads(file.read_text())
    del saved["config"]["num_threads"]  # a new key
    saved["config"]["policy"]["learn"]["old"] = 3
    saved["source"]["policy.learn.old"] = "default"
    file.write_text(json.dumps(saved))
    idle_sweep(tmp_path / "s", resume=True).close()
    saved["source"]["policy.learn.old"] = "command line"
    file.write_text(json.dumps(saved))
    with pytest.raises(ConfigError, match=r"something else:\n  policy.learn.old: 3 -> None\n"):
        idle_sweep(tmp_path / "s", resume=True)


@pytest.mark.parametrize("name", ["sweep.json", "sweep.db", "log.txt", "trial_000_s0"])
def test_a_link_in_the_folder_of_a_sweep_is_not_followed(name, tmp_path):
    from ding_lite.errors import ConfigError

    sweep = idle_sweep(tmp_path / "s")
    sweep.run_folder(0, 0).mkdir()
    sweep.close()
    (tmp_path / "s" / name).rename(tmp_path / "elsewhere")
    (tmp_path / "s" / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=f"{name} is a link"):
        idle_sweep(tmp_path / "s", resume=True)


def test_a_resumed_sweep_draws_other_values(tmp_path):
    sweep = idle_sweep(tmp_path / "s")
    list(sweep._runs(3))
    sweep.close()
    resumed = idle_sweep(tmp_path / "s", resume=True)
    list(resumed._runs(4))
    assert len({trial.params[RATE] for trial in resumed.trials()}) == 4
    resumed.close()


def test_no_trial_is_pruned_in_the_first_fifth_of_the_longest_one(tmp_path):
    sweep = idle_sweep(tmp_path / "s")
    for _ in range(5):
        trial = sweep.study.ask()
        for step in range(100, 1001, 100):
            trial.report(10.0, step)
        sweep.study.tell(trial, 10.0)
    runs = list(sweep._runs(6))
    for step, ending in ((100, ""), (200, "pruned")):
        for run in runs:
            run.status = "running"
            run.evaluations.append((step, 0.0))
        sweep._on_evaluation(runs[0])
        assert sweep._open[runs[0].name].ending == ending
    sweep.close()


class FakeSweep(NamedTuple):
    """What the next command of a sweep is made from."""

    folder: Path
    seeds: tuple[int, ...]


@pytest.mark.parametrize(
    ("seeds", "unused"), [((0,), "1 2 3"), ((0, 7), "8 9 10"), ((3, 1, 2, 0), "4 5 6 7")]
)
def test_the_best_config_is_trained_with_unused_seeds_that_are_enough_for_an_interval(seeds, unused):
    pytest.importorskip("optuna")
    from ding_lite.tools.sweep_report import best_command

    command = best_command(FakeSweep(Path("runs/s"), seeds), ["--import", "my.py"])
    assert command == f"ding-lite train -c runs/s/best.py -s {unused} --import my.py"


def test_importance_from_a_few_trials_is_a_guess():
    pytest.importorskip("optuna")
    from ding_lite.tools.sweep_report import caution

    assert caution(8) == " (a rough guess: from 8 trials, of which it compares the best tenth with all)"
    assert caution(50) == ""


# ------------------------------------------------------------------ sweeps


@pytest.mark.slow
def test_sweep_finds_the_best_value_and_its_config_trains_to_the_same_score(tmp_path):
    pytest.importorskip("optuna")
    search = {"env.kwargs.length": "int(1, 30)", "policy.model.encoder_hidden_size_list": [[8], [4, 4]]}
    write(tmp_path, {"search": search, "trials": 3, "seeds": [3, 4]}, env=WORLD)
    code, output, errors = run("sweep", "-c", "c.py", "--json", "policy.learn.batch_size=32", cwd=tmp_path)
    assert (code, errors) == (0, "")
    report = json.loads(output)
    trials = report["trials"]
    assert [trial["state"] for trial in trials] == ["complete"] * 3
    assert all(trial["score"] == trial["values"]["env.kwargs.length"] for trial in trials)
    assert report["best_score"] == max(trial["score"] for trial in trials)
    assert len({trial["score"] for trial in trials}) > 1
    folder = tmp_path / "runs" / "c_sweep"
    assert (folder / "sweep.png").stat().st_size > 10_000
    best = folder / f"trial_{report['best']:03}_s3"
    ours = dict(leaves(compile_config(read_config(folder / "best.py")).values))
    theirs = dict(leaves(compile_config(json.loads((best / "config.json").read_text())).values))
    assert {key for key in ours if ours[key] != theirs[key]} == {"exp_name"}
    assert run("train", "-q", "-c", folder / "best.py", "--exp-name", "again", cwd=tmp_path) == (0, "", "")
    measured = ("time", "wall_time_s", "env_steps_per_second")
    again, first = result_of(tmp_path / "again"), result_of(best)
    assert {k: v for k, v in again.items() if k not in measured} == {
        k: v for k, v in first.items() if k not in measured
    }
    assert (tmp_path / "again" / "episodes.csv").read_text() == (best / "episodes.csv").read_text()
    code, output, _ = run(
        "sweep", "-c", "c.py", "policy.learn.batch_size=32", "--resume", "--trials", 4, cwd=tmp_path
    )
    assert code == 0
    assert "4 trials: 4 complete" in output
    assert output.startswith("3 of 4 trials are done\n")
    assert "(a rough guess: from 4 trials" in output
    assert not any((tmp_path / "runs" / "c_sweep").glob("trial_004*"))


@pytest.mark.slow
def test_the_printed_command_trains_the_best_config_of_a_file_that_registers_its_policy(tmp_path):
    pytest.importorskip("optuna")
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    project.mkdir()
    elsewhere.mkdir()
    write(project, policy={"type": "mine"})
    registers = (
        "from ding_lite import POLICY_REGISTRY, PPOPolicy\n\n"
        "@POLICY_REGISTRY.register('mine')\nclass Mine(PPOPolicy):\n    pass\n\n"
    )
    (project / "c.py").write_text(registers + (project / "c.py").read_text())
    search = f"{RATE}=log(1e-4,1e-2)"
    code, output, _ = run("sweep", "-c", project / "c.py", "--search", search, "--trials", 1, cwd=elsewhere)
    assert code == 0
    (line,) = [line for line in output.splitlines() if "best.py" in line]
    words = shlex.split(line.partition("try: ")[2])
    assert words[-2:] == ["--import", str(project / "c.py")]
    assert run(*words[1:], "-q", cwd=elsewhere) == (0, "", "")


@pytest.mark.slow
def test_trial_that_fails_does_not_end_the_sweep(tmp_path):
    pytest.importorskip("optuna")
    write(tmp_path, env=WORLD)  # a minibatch of 512 does not fit a rollout of 256
    searches = [LENGTH, "policy.learn.batch_size=choice(64,512)", "policy.collect.n_sample=choice(256,1024)"]
    words = ["sweep", "-c", "c.py", "--trials", 3, *(w for s in searches for w in ("--search", s))]
    code, output, errors = run(*words, cwd=tmp_path)
    assert (code, errors) == (0, "")
    trials = json.loads(run(*words, "--resume", "--json", cwd=tmp_path)[1])["trials"]
    assert len(trials) == 3
    keys = ("policy.learn.batch_size", "policy.collect.n_sample")
    states = [trial["state"] for trial in trials]
    fits = [[trial["values"][key] for key in keys] != [512, 256] for trial in trials]
    assert states == ["complete" if fit else "failed" for fit in fits]
    assert set(states) == {"complete", "failed"}
    failed = states.index("failed")
    assert f"trial {failed}, seed 0: failed: " in output
    assert "a minibatch of 512 samples is larger than a rollout, which has 256" in output


@pytest.mark.slow
@pytest.mark.parametrize("limit", [("--max-env-step", 2048), ("--max-train-iter", 64)])
def test_trial_that_stays_behind_is_pruned(tmp_path, limit):
    optuna = pytest.importorskip("optuna")
    world = {"type": "slow_worlds:SlowEnv", "env_id": "", "kwargs": {"pause": 0.001}}
    write(tmp_path, env=world, max_env_step=100_000, policy={"eval": {"eval_freq": 256}})
    words = ("sweep", "-c", "c.py", "--search", LENGTH, "--exp-name", "s", *limit)
    assert run(*words, "--trials", 1, cwd=tmp_path)[0] == 0
    study = optuna.load_study(study_name="sweep", storage=f"sqlite:///{tmp_path / 's' / 'sweep.db'}")
    steps = range(256, 2049, 256)
    for _ in range(4):  # trials that are better than any length
        study.add_trial(
            optuna.trial.create_trial(
                params={"env.kwargs.length": 30},
                distributions={"env.kwargs.length": optuna.distributions.IntDistribution(1, 30)},
                value=100.0,
                intermediate_values=dict.fromkeys(steps, 100.0),
            )
        )
    code, output, errors = run(*words, "--trials", 6, "--resume", "--json", cwd=tmp_path)
    assert (code, errors) == (0, "")
    assert json.loads(output)["trials"][5]["state"] == "pruned"
    result = result_of(tmp_path / "s" / "trial_005_s0")
    assert (result["status"], result["error"]) == ("interrupted", "SIGTERM")
    assert 512 <= result["env_step"] < 2048  # not in the first fifth of 2,048 steps


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGKILL", "SIGINT"])
def test_sweep_that_was_ended_continues_and_has_all_its_trials(name, tmp_path):
    pytest.importorskip("optuna")
    world = {"type": "slow_worlds:SlowEnv", "env_id": "", "kwargs": {"pause": 0.001}}
    write(tmp_path, env=world, max_env_step=2048, checkpoint={"freq": 256})
    command = ("sweep", "-c", "c.py", "--search", LENGTH, "--trials", 2, "--jobs", 2, "--exp-name", "s")
    process = start(*command, cwd=tmp_path)
    metrics = tmp_path / "s" / "trial_001_s0" / "metrics.csv"
    deadline = time.monotonic() + 300
    while not (metrics.exists() and metrics.read_text().count("\n") > 2):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.Signals[name])
    output, _ = process.communicate(timeout=300)
    assert process.returncode == {"SIGKILL": -9, "SIGINT": 130}[name]
    if name == "SIGINT":
        assert "to continue: the same command with --resume" in output
    other = [LENGTH if word == LENGTH else word for word in command]
    other[other.index(LENGTH)] = "env.kwargs.length=int(1,31)"
    code, _, errors = run(*other, "--resume", cwd=tmp_path)
    assert code == 2
    assert "env.kwargs.length: 'int(1, 30)' -> 'int(1, 31)'" in errors
    code, output, errors = run(*command, "--resume", cwd=tmp_path)
    assert (code, errors) == (0, "")
    assert "2 trials: 2 complete" in output
    assert re.match(r"0 of 2 trials are done, [12] open\n", output)
    scores = [line.split()[1] for line in output.splitlines() if "length=" in line and "trial " not in line]
    assert len(scores) == 2
    log = (tmp_path / "s" / "trial_001_s0" / "log.txt").read_text()
    assert "resumed at " in log  # from its checkpoint, and not anew
    (line,) = [line for line in output.splitlines() if "try: " in line]
    words = shlex.split(line.partition("try: ")[2])
    assert words[:3] == ["ding-lite", "train", "-c"]
    assert (tmp_path / words[3]).is_file()
