"""The benchmarks: equal work, a tiny row from end to end, and the generated parts of RESULTS.md."""

from __future__ import annotations

import ast
import sys
from dataclasses import replace
from pathlib import Path

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
import out_of_the_box  # noqa: E402
import side_by_side  # noqa: E402
import throughput  # noqa: E402
from rows import Row  # noqa: E402
from systems import Done, Work, faults  # noqa: E402
from systems.tasks import TO_SOLVE  # noqa: E402
from throughput import Training  # noqa: E402

TASK = Work("task", "CartPole-v1", envs=4, rollout=25, epochs=2, batch=50, parameters=10)
PHASIC = replace(TASK, epochs=1, aux_freq=2, aux_epochs=3, aux_batch=100)


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
    process = harness.python(system.words(1_024))
    assert faults(system.work, 1_024, throughput.done_by(process)) == []
    assert process.peak_mib > 50


@pytest.mark.slow
def test_cartpole_is_solved_from_the_command_line():
    solved = throughput.ROWS["solve"].systems["ding_lite"].measure(1)
    assert solved["env_steps"] < TO_SOLVE.steps


# ------------------------------------------------------------------ learning


@pytest.mark.parametrize("name", learning.EVERY_ROW)
def test_learning_row_has_a_shipped_config_and_known_keys(name):
    row = learning.EVERY_ROW[name]
    compile_config(read_config(find_config(row.config)), parse_overrides(row.keys.split()))


def test_every_shipped_config_has_a_measured_row():
    seeds_of = learning.stored()
    measured = {row.config for name, row in learning.EVERY_ROW.items() if name in seeds_of}
    # Thousands of robots need a GPU and their simulator: no machine of these measurements had both.
    assert set(shipped_configs()) - measured == {"locomotion_ppo"}


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
    assert [seed["seed"] for seed in stored] == [600, 601]
    assert learning.missing_seeds("tiny") == []
    assert all(seed["env_step"] >= 2000 and 1 <= seed["return"] <= 500 for seed in stored)
    assert (tmp_path / "tiny.png").stat().st_size > 1000


# ------------------------------------------------------------------ RESULTS.md


@pytest.mark.parametrize("module", [learning, out_of_the_box, side_by_side, throughput])
def test_generated_parts_are_those_of_the_stored_results(module):
    texts = [document.read_text() for document in harness.DOCUMENTS]
    for name, lines in module.sections().items():
        begin, end = harness.marks(name)
        (text,) = (text for text in texts if begin in text)
        assert text.split(begin)[1].split(end)[0].splitlines()[1:] == lines, f"{name}: write it again"
