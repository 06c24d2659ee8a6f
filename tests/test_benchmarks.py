"""The benchmarks: equal work, a tiny row from end to end, and the generated parts of RESULTS.md."""

from __future__ import annotations

import ast
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ding_lite.config.compile import (
    compile_config,
    find_config,
    parse_overrides,
    read_config,
    shipped_configs,
)

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.append(str(BENCHMARKS))

import harness  # noqa: E402
import learning  # noqa: E402
import tables  # noqa: E402
import throughput  # noqa: E402
import zoo  # noqa: E402
from rows import Comparison, Row  # noqa: E402
from systems import Done, Skipped, Work, faults  # noqa: E402
from throughput import Training  # noqa: E402

TASK = Work("task", "CartPole-v1", envs=4, rollout=25, epochs=2, batch=50, parameters=10)
PHASIC = replace(TASK, epochs=1, aux_freq=2, aux_epochs=3, aux_batch=100)
HERE = {"commit": "aaaaaaa", "machine": "here", "date": "2026-01-01"}


# ------------------------------------------------------------------ speed


@pytest.mark.parametrize(
    ("work", "done", "fault"),
    [
        (TASK, Done(1_000, 40, 10), []),
        (TASK, Done(990, 40, 10), []),  # some rows were resets
        (PHASIC, Done(1_000, 20 + 30, 10), []),
        (TASK, Done(1_000), []),  # without learning
        (TASK, Done(1_000, 40, 11), ["11 parameters, expected 10"]),
        (TASK, Done(1_000, 80, 10), ["80 updates, expected 40"]),
        (TASK, Done(500, 20, 10), ["500 env steps, expected 1,000"]),
    ],
)
def test_different_work_is_a_fault(work, done, fault):
    assert faults(work, 1_000, done) == fault


def test_speed_comes_from_two_lengths_after_an_uncounted_run(monkeypatch):
    ran = []

    def slow_at_first(self, steps):
        ran.append(steps)
        done = Done(steps, int(TASK.updates(steps)), TASK.parameters)
        return harness.Process(2.0 + 100.0 * (len(ran) == 1) + steps / 500, 9.0, ""), done

    monkeypatch.setattr(Training, "run", slow_at_first)
    system = Training(TASK, "ours:train", (1_000, 5_000))
    assert system.measure(0) == {"steps_per_second": pytest.approx(500), "peak_mib": 9.0}
    assert ran == [1_000, 1_000, 5_000]


def test_rounds_are_interleaved_stored_and_not_repeated(tmp_path, monkeypatch):
    store, called = tmp_path / "throughput.csv", []
    store.write_text(throughput.STORE.read_text().splitlines()[0] + "\n")
    monkeypatch.setattr(throughput, "STORE", store)

    def measure(self, number):
        called.append((self.function, number))
        if self.function == "missing":
            raise Skipped("not installed")
        return {"steps_per_second": float(len(called)), "peak_mib": 1.0}

    monkeypatch.setattr(Training, "measure", measure)
    systems = {name: Training(TASK, name, (1, 2)) for name in ("ours", "missing", "theirs")}
    monkeypatch.setattr(throughput, "ROWS", {"row": throughput.Row(systems, base="theirs")})
    assert not throughput.measure("row", 2, deadline=0.0)
    assert throughput.measure("row", 2)
    assert called == [("ours", 0), ("missing", 0), ("theirs", 0), ("ours", 1), ("theirs", 1)]
    assert throughput.measure("row", 2)
    assert called[5:] == [("missing", 0)]
    *_, ours, theirs = throughput.sections()["speed"]
    assert "| row | ours | **2** | 1 to 4 | 0.62 (0.33 to 0.80) | 1 | 2 |" in ours
    assert "| row | theirs | **4** | 3 to 5 | 1.00 | 1 | 2 |" in theirs


@pytest.mark.parametrize("row", throughput.ROWS.values(), ids=throughput.ROWS)
def test_systems_name_functions_that_exist(row):
    assert row.base in row.systems
    for system in row.systems.values():
        if isinstance(system, Training):
            module, function = system.function.split(":")
            tree = ast.parse((BENCHMARKS / "systems" / f"{module}.py").read_text())
            assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ding_lite", "ding_lite, a loss of the user"])
def test_ding_lite_does_the_work_it_is_measured_on(name):
    system = throughput.ROWS["cartpole"].systems[name]
    process, done = system.run(1_024)
    assert faults(system.work, 1_024, done) == []
    assert process.peak_mib > 50


@pytest.mark.slow
def test_cartpole_is_solved_from_the_command_line():
    solved = throughput.ROWS["solve"].systems["ding_lite"].measure(1)
    assert solved["env_steps"] < zoo.TO_SOLVE.steps


# ------------------------------------------------------------------ learning


@pytest.mark.parametrize("name", learning.EVERY_ROW)
def test_learning_row_has_a_shipped_config_and_known_keys(name):
    row = learning.EVERY_ROW[name]
    compile_config(read_config(find_config(row.config)), parse_overrides(row.keys.split()))


def test_every_shipped_config_has_a_measured_row():
    seeds_of = learning.stored()
    measured = {row.config for name, row in learning.EVERY_ROW.items() if name in seeds_of}
    assert measured == set(shipped_configs())


@pytest.mark.slow
def test_a_tiny_row_from_end_to_end(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("STORE", "POINTS"):
        file = tmp_path / getattr(learning, name).name
        file.write_text(getattr(learning, name).read_text().splitlines()[0] + "\n")
        monkeypatch.setattr(learning, name, file)
    row = Row("cartpole_ppo", "max_env_step=2000 policy.eval.eval_freq=1000", mean=600.0, seeds=2)
    monkeypatch.setattr(learning, "ROWS", {"tiny": row})
    monkeypatch.setattr(learning, "GROUPS", {"tiny": {"tiny": row}})
    monkeypatch.setattr(learning, "EVERY_ROW", {"tiny": row})
    monkeypatch.setattr(learning, "DRAWN", {"tiny"})
    monkeypatch.setattr(harness, "put", lambda sections: None)
    monkeypatch.setattr(learning, "PICTURES", tmp_path)
    monkeypatch.setattr(sys, "argv", ["learning.py", "--check"])
    assert learning.main() == 1
    assert "tiny: mean " in capsys.readouterr().out
    stored = learning.stored()["tiny"]
    assert [seed["seed"] for seed in stored] == [0, 1]
    assert all(seed["env_step"] >= 2000 and 1 <= seed["return"] <= 500 for seed in stored)
    assert (tmp_path / "tiny.png").stat().st_size > 1000


def seeds(row, *returns, **others):
    ends = {"env_step": 200, "wall_time_s": 10.0}
    return [{"row": row, "seed": k, "return": x, **ends, **HERE, **others} for k, x in enumerate(returns)]


def test_table_has_the_published_figure_and_the_interquartile_mean():
    row = Row("some_ppo", "env.env_id=A-v1 seed=3", (5.0, "another, 1M"), checkpoint="best")
    # The middle half of three seeds: the second one, and a quarter of the others.
    assert tables.rows_table({"other": row, "new": row}, {"other": seeds("other", 1.0, 2.0, 12.0)})[2:] == [
        "| other: some_ppo, A-v1, 1 other key, best checkpoint | 5 (another, 1M) | **3.5** (1.0 to 12.0) "
        "| 5.0 | 1.0, 2.0, 12.0 | 200 to 200 | 10 | aaaaaaa |",
        "",
        "3 seeds, 2026-01-01, here.",
    ]


def test_comparison_has_a_line_for_each_arm_and_a_column_for_each_group():
    arms = {f"{group}.{arm}": Row("some_ppg") for group in ("a", "b") for arm in ("ppo", "ppg")}
    found = {"a.ppo": seeds("a.ppo", 1.0, 2.0, 3.0), "a.ppg": seeds("a.ppg", 2.5, 3.5, elsewhere=7.0)}
    lines = tables.comparison_table(Comparison(arms, baseline="ppo", where="on unseen levels"), found)
    assert lines[2:4] == [
        "| ppo | **2.0** (1.0 to 3.0) |",
        "| ppg | **3.0**, beats 0.83; on unseen levels 7.0 |",
    ]
    games = tables.comparison_table(Comparison(arms, baseline="ppo", games=True), found)
    assert games[3].endswith(" | **1.50** |")


def test_curves_of_seeds_are_on_one_grid():
    first, second = (
        (np.array([100.0, 200.0]), np.array([0.0, 4.0])),
        (np.array([100.0, 400.0]), np.array([1.0, 7.0])),
    )
    x, values = tables._on_one_grid([first, second])
    assert x.tolist() == [100, 200, 400]
    assert values.tolist() == [[0, 4, 4], [1, 3, 7]]  # the first seed was solved and keeps its last value


# ------------------------------------------------------------------ RESULTS.md


@pytest.mark.parametrize("module", [learning, throughput, zoo])
def test_generated_parts_are_those_of_the_stored_results(module):
    texts = [document.read_text() for document in harness.DOCUMENTS]
    for name, lines in module.sections().items():
        begin, end = harness.marks(name)
        (text,) = (text for text in texts if begin in text)
        assert text.split(begin)[1].split(end)[0].splitlines()[1:] == lines, f"{name}: write it again"
