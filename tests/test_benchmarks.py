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
from rows import Comparison, Published, Row  # noqa: E402
from speed_rows import CARTPOLE, COMPILED, SB3, SPEED_ROWS, SpeedRow  # noqa: E402
from systems import Done, Skipped, Work, faults  # noqa: E402

TASK = Work("task", "CartPole-v1", envs=4, rollout=25, epochs=2, batch=50, parameters=10)
PHASIC = replace(TASK, epochs=1, aux_freq=2, aux_epochs=3, aux_batch=100)
HERE = {"commit": "aaaaaaa", "machine": "here", "date": "2026-01-01"}


@pytest.fixture
def store(tmp_path):
    """A file of speed results that has no line yet."""
    file = tmp_path / "throughput.csv"
    file.write_text((BENCHMARKS / "throughput.csv").read_text().splitlines()[0] + "\n")
    return file


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


@pytest.mark.parametrize(
    ("arm", "number", "before"), [(SB3, 0, 1024), (COMPILED, 0, 20_480), (COMPILED, 1, 1024)]
)
def test_speed_comes_from_two_lengths_after_an_uncounted_run(monkeypatch, arm, number, before):
    ran = []

    def slow_at_first(self, arm, steps):
        ran.append(steps)
        done = Done(steps, int(CARTPOLE.updates(steps)), CARTPOLE.parameters)
        return harness.Process(2.0 + 100.0 * (len(ran) == 1) + steps / 500, 9.0, ""), done

    monkeypatch.setattr(SpeedRow, "run", slow_at_first)
    row = SPEED_ROWS["cartpole"]
    assert row.measure(arm, number) == {"steps_per_second": pytest.approx(500), "peak_mib": 9.0}
    assert ran == [before, *row.systems[arm].lengths]


def test_rounds_are_interleaved_stored_and_not_repeated(store, monkeypatch):
    called = []

    def measure(self, arm, number):
        called.append((arm, number))
        if arm == "Tianshou":
            raise Skipped("not installed")
        return {"steps_per_second": float(len(called)), "peak_mib": 1.0}

    monkeypatch.setattr(SpeedRow, "measure", measure)
    systems = {name: SPEED_ROWS["halfcheetah"].systems[name] for name in ("ding_lite", "Tianshou", SB3)}
    row = replace(SPEED_ROWS["halfcheetah"], systems=systems)
    assert not throughput.measure(row, 2, deadline=0.0, store=store)
    assert throughput.measure(row, 2, store=store)
    assert called == [("ding_lite", 0), ("Tianshou", 0), (SB3, 0), ("ding_lite", 1), (SB3, 1)]
    assert throughput.measure(row, 2, store=store)
    assert called[5:] == [("Tianshou", 0)]
    *_, ours, theirs = throughput.sections(store)["speed"]
    assert "| halfcheetah | ding_lite | **2** | 1 to 4 | 0.62 (0.33 to 0.80) | 1 | 2 |" in ours
    assert f"| halfcheetah | {SB3} | **4** | 3 to 5 | 1.00 | 1 | 2 |" in theirs


@pytest.mark.parametrize("name", [name for name, row in SPEED_ROWS.items() if isinstance(row, SpeedRow)])
def test_systems_name_functions_that_exist(name):
    row = SPEED_ROWS[name]
    assert row.base in row.systems
    for system in row.systems.values():
        module, function = system.function.split(":")
        tree = ast.parse((BENCHMARKS / "systems" / f"{module}.py").read_text())
        assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.slow
def test_ding_lite_does_the_work_it_is_measured_on():
    for arm in ("ding_lite", "ding_lite, a loss of the user"):
        process, done = SPEED_ROWS["cartpole"].run(arm, 1_024)
        assert faults(CARTPOLE, 1_024, done) == []
        assert process.peak_mib > 50


@pytest.mark.slow
def test_cartpole_is_solved_from_the_command_line():
    assert SPEED_ROWS["solve"].measure("ding_lite", 1)["env_steps"] < zoo.TO_SOLVE.steps


# ------------------------------------------------------------------ learning


@pytest.mark.parametrize("name", learning.EVERY_ROW)
def test_learning_row_has_a_shipped_config_and_known_keys(name):
    row = learning.EVERY_ROW[name]
    compile_config(read_config(find_config(row.config)), parse_overrides(row.keys.split()))


def test_every_shipped_config_has_a_measured_row():
    seeds_of, _ = learning.stored()
    measured = {row.config for name, row in learning.EVERY_ROW.items() if name in seeds_of}
    # Fine-tuning is in benchmarks/notes/learning.md.
    assert measured | {"cartpole_pole_ppo"} == set(shipped_configs())


@pytest.mark.slow
def test_a_tiny_row_from_end_to_end(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("STORE", "POINTS"):
        file = tmp_path / getattr(learning, name).name
        file.write_text(getattr(learning, name).read_text().splitlines()[0] + "\n")
        monkeypatch.setattr(learning, name, file)
    row = Row("cartpole_ppo", "max_env_step=2000 policy.eval.eval_freq=1000", mean=600.0, seeds=2)
    monkeypatch.setattr(learning, "ROWS", {"tiny": row})
    monkeypatch.setattr(learning, "EVERY_ROW", {"tiny": row})
    monkeypatch.setattr(learning, "DRAWN", {"tiny"})
    monkeypatch.setattr(learning, "write", lambda pictures=True: None)
    monkeypatch.setattr(sys, "argv", ["learning.py", "--check"])
    assert learning.main() == 1
    assert "tiny: mean " in capsys.readouterr().out
    seeds_of, points_of = learning.stored()
    assert [seed["seed"] for seed in seeds_of["tiny"]] == [0, 1]
    assert all(seed["env_step"] >= 2000 and 1 <= seed["return"] <= 500 for seed in seeds_of["tiny"])
    tables.draw({"tiny": {"tiny": points_of["tiny"]}}, tmp_path / "tiny.png", {"tiny": row.published})
    assert (tmp_path / "tiny.png").stat().st_size > 1000


def seeds(row, *returns, **others):
    ends = {"env_step": 200, "wall_time_s": 10.0}
    return [{"row": row, "seed": k, "return": x, **ends, **HERE, **others} for k, x in enumerate(returns)]


def test_table_has_the_published_figure_and_the_interquartile_mean():
    row = Row("some_ppo", "env.env_id=A-v1 seed=3", Published(5.0, "another, 1M"), checkpoint="best")
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
    lines = tables.comparison_table(Comparison(arms, baseline="ppo"), found)
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


def test_results_are_short():
    assert len((BENCHMARKS / "RESULTS.md").read_text().splitlines()) <= 300
