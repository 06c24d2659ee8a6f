"""`ding-lite runs` and `ding-lite compare` as processes: on real runs, and with wrong input."""

from __future__ import annotations

import json
import re

import pytest
from written_runs import write_run

TINY = [
    *("--env", "CartPole-v1", "env.collector_env_num=4", "env.evaluator_env_num=2", "-q"),
    *("env.n_evaluator_episode=4", "policy.collect.n_sample=256", "policy.eval.eval_freq=256"),
    *("policy.learn.epoch_per_collect=2", "max_env_step=512"),
]  # fmt: skip


@pytest.fixture(scope="module")
def home(warm, tmp_path_factory):
    """A folder with the runs of three seeds of two configs; one seed was resumed with a higher limit."""
    folder = tmp_path_factory.mktemp("home")
    for seed in range(3):
        for name, option in (
            ("slow", "policy.learn.learning_rate=1e-4"),
            ("fast", "policy.learn.learning_rate=1e-3"),
        ):
            options = ["-s", seed, "--exp-name", f"runs/{name}_{seed}", option]
            job = warm.run("train", *TINY, *options, cwd=folder)
            assert (job.code, job.errors) == (0, "")
    job = warm.run("train", "--resume", "runs/fast_0", "--max-env-step", "1024", "-q", cwd=folder)
    assert (job.code, job.errors) == (0, "")
    return folder


def output_of(warm, *argv, cwd):
    job = warm.run(*argv, cwd=cwd)
    assert (job.code, job.errors) == (0, "")
    return job.output


def failure_of(warm, *argv, cwd):
    job = warm.run(*argv, cwd=cwd)
    assert (job.code, job.output) == (2, "")
    assert "Traceback" not in job.errors
    return job.errors


@pytest.mark.slow
def test_runs_lists_real_runs(warm, home):
    lines = output_of(warm, "runs", "--sort", "name", cwd=home).splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [
        [f"{name}_{seed}", "finished"] for name in ("fast", "slow") for seed in range(3)
    ]
    assert re.search(r" 1,\d\d\d / 1,024 ", lines[1])
    assert all(re.search(r" [5-7]\d\d / 512 ", line) for line in lines[2:])
    assert lines[1].endswith("learning_rate=0.001")
    data = json.loads(output_of(warm, "runs", "--json", cwd=home))
    oldest = data["runs"][-1]["folder"]  # the newest first; two seeds begin at a time
    assert oldest in ("runs/slow_0", "runs/slow_1")
    assert max(run["env_step"] for run in data["runs"]) > 1024


@pytest.mark.slow
def test_compare_prints_a_table_and_writes_figures_and_a_page(warm, home):
    outputs = [word for name in ("a.png", "a.svg", "a.html") for word in ("-o", name)]
    text = output_of(warm, "compare", "runs/slow*", "runs/fast*", *outputs, "--title", "Two rates", cwd=home)
    rows = [re.split(r"  +", line.strip()) for line in text.splitlines()]
    header, slow, fast = (row for row in rows if len(row) == 7)
    assert header[:4] == ["group", "seeds", "mean", "IQM"]
    assert (slow[:2], fast[:2]) == (["learning_rate=0.0001", "3"], ["learning_rate=0.001", "3"])
    assert 0 <= float(fast[5]) <= 1
    assert ["policy.learn.learning_rate", "0.0001", "0.001"] in rows
    assert re.search(r"Scores of CartPole-v1 are taken at [5-7]\d\d env steps, where .* the shortest", text)
    assert (home / "a.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (home / "a.svg").read_bytes()
    assert "<title>Two rates</title>" in (home / "a.html").read_text()
    data = json.loads(output_of(warm, "compare", "runs", "--json", cwd=home))
    assert len(data["runs"]) == 6
    assert all(512 <= run["env_step"] < 800 for run in data["runs"])


@pytest.mark.slow
def test_plot_draws_the_resumed_seed_in_its_group(warm, home):
    assert output_of(warm, "plot", "runs/fast*", "--iqm", "-o", "b.svg", cwd=home) == "b.svg\n"
    assert "b.svg" in output_of(warm, "plot", "runs", "-o", "b.svg", cwd=home)


def test_faults_of_runs_and_compare_are_named(warm, tmp_path):
    write_run(tmp_path / "runs" / "a")
    (tmp_path / "empty").mkdir()
    assert "there is no folder nowhere" in failure_of(warm, "runs", "nowhere", cwd=tmp_path)
    assert output_of(warm, "runs", "empty", cwd=tmp_path) == "no runs in empty\n"
    faults = {
        ("nowhere",): "there is no run folder nowhere",
        ("nowhere*",): "no folder matches nowhere*",
        ("a=nowhere",): "there is no run folder nowhere",
        ("empty",): "empty is not a run folder and has none in it",
        ("runs", "-o", "a.gif"): "its name must end in one of .html, .png, .pdf, .svg",
        ("runs", "-o", "missing/a.html"): "there is no folder missing",
        ("runs", "-o", "a.html", "--panels", "scores"): "--panels and --width are of a figure",
        ("runs", "--title", "Mine"): "--title is of a figure or a page: add -o FILE.png or -o FILE.html",
        ("runs", "--reference", "CartPole-v1=1"): "--reference: expected ENV=LOW:HIGH",
        ("runs", "--reference", "CartPole-v1=a:b"): "--reference: expected ENV=LOW:HIGH",
        ("runs", "--reference", "Other=0:1"): "no run has this environment; there are CartPole-v1",
        ("=runs",): "there is no run folder =runs; expected NAME=FOLDER",
        ("runs", "-o", ""): "expected a path, got ''",
    }
    for argv, message in faults.items():
        assert message in failure_of(warm, "compare", *argv, cwd=tmp_path)
    (tmp_path / "a.html").mkdir()
    assert "cannot write a.html" in failure_of(warm, "compare", "runs", "-o", "a.html", cwd=tmp_path)


def test_runs_cuts_what_differs_to_the_width_of_a_terminal(warm, tmp_path, monkeypatch):
    for layers in ([64] * 30, [128] * 30):
        write_run(tmp_path / "runs" / f"a{layers[0]}", learn={"layers": layers})
    write_run(tmp_path / "runs" / "b", policy="ppg")
    monkeypatch.setenv("COLUMNS", "0")  # that is, not set
    whole = output_of(warm, "runs", cwd=tmp_path)  # a pipe has no width
    monkeypatch.setenv("COLUMNS", "130")
    assert output_of(warm, "runs", "--all", cwd=tmp_path) == whole
    *table, blank, note = output_of(warm, "runs", cwd=tmp_path).splitlines()
    assert (blank, note) == ("", "the column differs is cut to 130 characters a line: --all shows all of it")
    for line, full in zip(table, whole.splitlines(), strict=True):
        assert line == (full if len(full) <= 130 else f"{full[:127]}...")
    assert sum(line.endswith("...") for line in table) == 2
    assert table[0].endswith("differs")


def test_broken_runs_are_listed_with_the_reason(warm, tmp_path):
    (write_run(tmp_path / "runs" / "torn") / "config.json").write_text("{")
    write_run(tmp_path / "runs" / "killed", status=None)
    text = output_of(warm, "runs", cwd=tmp_path)
    assert re.search(r"^torn +unreadable ", text, re.MULTILINE)
    assert re.search(r"^killed +killed +45\.0 ± 2\.5 ", text, re.MULTILINE)
    assert "torn: cannot read the config in runs/torn/config.json" in text
