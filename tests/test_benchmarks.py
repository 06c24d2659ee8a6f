"""The code of the benchmarks: checks of a system's work, stored results, and their tables."""

from __future__ import annotations

import ast
import importlib.util
import json
import math
import re
import subprocess
import sys
from ctypes.util import find_library
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from ding_lite.config.compile import compile_config, find_config, parse_overrides, read_config

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"
sys.path.append(str(BENCHMARKS))

import comparison  # noqa: E402
import gpu  # noqa: E402
import learning  # noqa: E402
import report  # noqa: E402
import solving  # noqa: E402
import speed_rows  # noqa: E402
import starting  # noqa: E402
import throughput  # noqa: E402
import timing  # noqa: E402
from rows import Comparison, Published, Row  # noqa: E402
from speed_rows import CARTPOLE, COMPILED, SB3, SPEED_ROWS, SpeedRow  # noqa: E402
from work import Done, System, Work, faults  # noqa: E402

TASK = Work("task", "CartPole-v1", envs=4, rollout=25, epochs=2, batch=50, parameters=10)
PHASIC = replace(TASK, epochs=1, aux_freq=2, aux_epochs=3, aux_batch=100)


def document(tmp_path, *sections):
    file = tmp_path / "results.md"
    marks = [f"<!-- {name}: begin -->\nold\n<!-- {name}: end -->\n" for name in sections]
    file.write_text("above\n" + "between\n".join(marks) + "below\n")
    return file


def speeds(*values):
    return [{"speed": float(value), "peak_mib": 100.0 + value} for value in values]


# ------------------------------------------------------------------ equal work


@pytest.mark.parametrize(("work", "updates"), [(TASK, 40), (PHASIC, 20 + 30)])
def test_equal_work_has_no_fault(work, updates):
    assert faults(work, 1_000, Done(1_000, updates, 10)) == []
    assert faults(work, 1_000, Done(990, updates, 10)) == []  # some rows were resets


@pytest.mark.parametrize(
    ("done", "fault"),
    [
        (Done(1_000, 40, 11), "11 parameters, expected 10"),
        (Done(1_000, 30, 10), "30 updates, expected 40"),
        (Done(1_000, 80, 10), "80 updates, expected 40"),
        (Done(2_000, 80, 10), "2,000 env steps, expected 1,000"),
        (Done(500, 20, 10), "500 env steps, expected 1,000"),
    ],
)
def test_different_work_is_a_fault(done, fault):
    assert faults(TASK, 1_000, done) == [fault]


def test_part_without_learning_needs_no_updates():
    assert faults(TASK, 1_000, Done(1_000)) == []


# ------------------------------------------------------------------ tables


def test_table_has_medians_spread_ratio_limit_and_missing_systems():
    systems = {name: System("a:b", TASK, (1, 2)) for name in ("ours", "theirs", "gone", "envs", "net")}
    row = SpeedRow("task", systems, base="theirs", limit=("envs", "net"))
    stored = {
        "ours": speeds(300, 100, 200),
        "theirs": speeds(50, 50, 50),
        "envs": speeds(400),
        "net": speeds(1200),
    }
    lines = row.lines(stored, {"gone": "not installed: gone"})
    assert lines[2:] == [
        "| ours | **200** | 100 to 300 | 4.00 | 300 |",
        "| theirs | **50** | 50 to 50 | 1.00 | 150 |",
        "| gone | not installed: gone | | | |",
        "| envs | **400** | 400 to 400 | 8.00 | 500 |",
        "| net | **1,200** | 1,200 to 1,200 | 24.00 | 1,300 |",
        "| limit: envs, then net | 300 | | 6.00 | |",
    ]


def test_table_without_a_base_has_the_cost_of_a_step():
    row = SpeedRow("task", {"we": System("a:b", TASK, (1, 2))})
    assert row.lines({"we": speeds(2_000)}, {})[2] == "| we | **2,000** | 2,000 to 2,000 | 500.00 | 2,100 |"


def test_table_of_solving_counts_the_solved_seeds():
    seed = {"env_steps": 5_000, "peak_mib": 300.0}
    results = [{**seed, "seconds": s, "solved": s < 5} for s in (3.0, 4.0, 9.0)]
    lines = solving.SolveRow().lines({"ding_lite": results}, {"Stable-Baselines3": "not installed: it"})
    assert lines[2] == "| ding_lite | 3 | 2 | **4.0** | 3.0, 4.0, 9.0 | 5,000 | 300 |"
    assert "not installed: it" in lines[3]


def test_lines_go_between_the_markers_and_nothing_else_changes(tmp_path):
    file = document(tmp_path, "one", "two")
    before = file.read_text()
    report.put("two", ["new", "lines"], file)
    assert file.read_text() == "two: begin -->\nnew\nlines\n".join(before.split("two: begin -->\nold\n"))


@pytest.mark.parametrize("sections", [(), ("one", "one")])
def test_document_without_one_place_for_a_section_is_refused(tmp_path, sections):
    with pytest.raises(ValueError, match="one: begin"):
        report.put("one", ["new"], document(tmp_path, *sections))


# ------------------------------------------------------------------ rounds


@dataclass(frozen=True)
class Counted:
    """A row that measures the order of its calls; its arm "broken" fails."""

    calls: list
    name: str = "counted"
    arms: tuple = ("a", "missing", "b")

    def measure(self, arm, number):
        self.calls.append((arm, number))
        if arm == "broken":
            raise RuntimeError("a long story\nBadError: why")
        return {"skipped": "not installed"} if arm == "missing" else {"value": len(self.calls)}

    def say(self, result):
        return str(result["value"])

    def lines(self, stored, skipped):
        return [
            f"{arm} {[result['value'] for result in stored[arm]]} {skipped.get(arm)}" for arm in self.arms
        ]


def test_rounds_are_interleaved_stored_and_not_repeated(tmp_path):
    calls, file = [], document(tmp_path, "speed counted")
    row = Counted(calls)
    throughput.measure(row, 2, tmp_path, file)
    assert calls == [("a", 0), ("missing", 0), ("b", 0), ("a", 1), ("b", 1)]
    throughput.measure(row, 3, tmp_path, file)
    assert calls[5:] == [("missing", 0), ("a", 2), ("b", 2)]
    text = file.read_text()
    assert "a [1, 4, 7] None\nmissing [] not installed\nb [3, 5, 8] None" in text
    assert "old" not in text
    assert f"{report.machine()}." in text


def test_failing_system_is_named_and_the_others_continue(tmp_path, capsys):
    calls, file = [], document(tmp_path, "speed counted")
    assert throughput.measure(Counted(calls, arms=("broken", "a")), 2, tmp_path, file) == 1
    assert calls == [("broken", 0), ("a", 0), ("a", 1)]
    assert "broken [] failed: BadError: why\na [2, 3] None" in file.read_text()
    assert "a long story" in capsys.readouterr().err


def test_start_shows_the_seconds_beside_torch():
    seconds = {"import torch": 2.0, "import ding_lite": 0.1, "import stable_baselines3": 2.5}
    stored = {arm: [{"seconds": s, "peak_mib": 9.0}] for arm, s in seconds.items()}
    lines = starting.StartRow().lines(stored, {})
    assert lines[2] == "| `import torch` | **2.00** | 2.00 to 2.00 |  | 9 |"
    assert lines[3] == "| `import ding_lite` | **0.10** | 0.10 to 0.10 | torch is not loaded | 9 |"
    assert "| `import stable_baselines3` | **2.50** | 2.50 to 2.50 | 0.50 | 9 |" in lines


# ------------------------------------------------------------------ learning


def measured(*means, ends=None):
    """Returns a stored row whose seeds were evaluated twice, the last time at the given env steps."""
    ends = ends or [200] * len(means)
    seeds = [
        {"seed": seed, "mean": mean, "env_step": end, "wall_time_s": 10.0, "curve": [[100, 0.0], [end, mean]]}
        for seed, (mean, end) in enumerate(zip(means, ends, strict=True))
    ]
    return {"seeds": seeds, "commit": "aaaaaaa"}


@pytest.fixture
def rows(tmp_path, monkeypatch):
    """A row with three seeds, a bar and a published figure, stored with the results that a test gives."""
    row = Row("some_ppo", Published(5.0, "another library, 1M, 1 run"), mean=2.0, worst=1.5, seeds=3)
    monkeypatch.setattr(learning, "ROWS", {"some_ppo": row})
    monkeypatch.setattr(learning, "STORE", tmp_path)
    return lambda stored: (tmp_path / "some_ppo.json").write_text(json.dumps(stored))


@pytest.mark.parametrize(
    ("means", "missed"),
    [
        ([2.0, 3.0, 1.5], ""),
        ([2.0, 3.0], "some_ppo: 2 of 3 seeds"),
        ([1.6, 1.6, 1.6], "some_ppo: mean 1.6 (bar 2)"),
        ([9.0, 9.0, 1.4], "some_ppo: mean 6.467 (bar 2), worst 1.4 (bar 1.5)"),
    ],
)
def test_missed_bar_is_named_in_the_first_lines(rows, means, missed):
    rows(measured(*means))
    assert learning.misses("some_ppo") == missed
    lines = learning.summary()
    assert lines[0] == f"{0 if missed else 1} of 1 rows reach their bars."
    assert lines[1:] == ([f"- Misses its bar: {missed}."] if missed else [])


def test_row_that_is_not_measured_is_named(rows):
    assert learning.summary() == ["0 of 1 rows reach their bars.", "- Not measured: some_ppo."]
    assert len(learning.table()) == 2


def test_table_has_the_published_figure_the_interquartile_mean_and_the_commit_of_each_seed(rows):
    stored = measured(1.0, 2.0, 12.0)
    stored["seeds"][2]["commit"] = "bbbbbbb"
    rows(stored)
    *_, line = learning.table()
    # The middle half of three seeds: the second one, and a quarter of the others.
    assert line == (
        "| some_ppo | 5 (another library, 1M, 1 run) | **3.5** | 1.0 to 12.0 | 5.0 | 2 | 1.0, 2.0, 12.0 "
        "| 200 to 200 | 10 | aaaaaaa, bbbbbbb |"
    )


def test_title_of_a_row_has_what_differs_from_its_config(monkeypatch):
    overrides = ("policy.learn.compile=True", "seed=3")
    monkeypatch.setitem(learning.ROWS, "other", Row("some_ppo", checkpoint="best", overrides=overrides))
    assert learning.title("other") == "other: some_ppo, seed=3, best checkpoint"


def test_curve_of_a_row_goes_on_after_a_seed_is_solved():
    seeds = measured(4.0, 4.0, 8.0, ends=[200, 300, 400])["seeds"]
    drawn = comparison.curve_of_row(seeds)
    assert (drawn.x[0], drawn.x[-1]) == (100, 400)
    assert drawn.y[-1] == pytest.approx((4 / 4 + 4 + 8 / 4) / 1.5)
    assert drawn.y[0] == 0


def test_rows_are_drawn_if_they_have_two_seeds(tmp_path):
    row, file = Row("some_ppo", Published(5.0, "another library, 1M")), tmp_path / "curves" / "group.png"
    one, two = measured(1.0)["seeds"], measured(1.0, 2.0)["seeds"]
    assert not comparison.draw_rows({"a": row}, {"a": one}, file)
    assert not file.exists()
    assert comparison.draw_rows({"a": row, "b": row}, {"a": one, "b": two}, file)
    assert file.stat().st_size > 1000


def raced(*returns, elsewhere=None):
    """Returns a seed that was evaluated every 100 steps, and perhaps in other levels at the end."""
    curve = [[100 * (k + 1), value] for k, value in enumerate(returns)]
    seed = {"mean": returns[-1], "curve": curve, "wall_time_s": 10.0}
    return seed if elsewhere is None else {**seed, comparison.ELSEWHERE: elsewhere}


def test_comparison_tells_the_steps_to_the_last_return_of_its_baseline():
    arms = {"game.ppo": Row("some_ppg"), "game.ppg": Row("some_ppg"), "game.slow": Row("some_ppg")}
    race = Comparison(arms, measure="mean", unit="return", baseline="ppo", race=True)
    seeds_of = {
        # The means over both seeds: 0, 1, 2, 3, 4; the last return is (2 + 3 + 4) / 3.
        "game.ppo": [raced(0, 0, 2, 2, 4, elsewhere=1.5), raced(0, 2, 2, 4, 4, elsewhere=2.5)],
        "game.ppg": [raced(1, 2, 4, 3, 1)],  # (1 + 2 + 4) / 3 is less, (2 + 4 + 3) / 3 is as much
        "game.slow": [raced(0, 0, 0, 0, 8)],
    }
    header, _, ppo, ppg, slow = comparison.comparison_lines(race, seeds_of)
    assert header.endswith("| on unseen levels | env steps to the last return of ppo | s a run |")
    assert ppo.endswith("| 4, 4 | 1.5, 2.5 | 500 | 10 |")
    assert ppg.endswith("| 1 |  | 400 | 10 |")
    assert slow.endswith("| 8 |  | not reached | 10 |")


# ------------------------------------------------------------------ the rows as they are


@pytest.mark.parametrize("name", throughput.ROWS)
def test_row_has_its_place_in_the_results(name):
    text = (BENCHMARKS / "RESULTS.md").read_text()
    assert text.count(f"<!-- speed {name}: begin -->") == 1
    assert text.count(f"<!-- speed {name}: end -->") == 1


def test_learning_rows_have_their_place_in_the_results():
    text = (BENCHMARKS / "RESULTS.md").read_text()
    for section in ("learning", *learning.COMPARISONS):
        assert text.count(f"<!-- {section}: begin -->") == 1


@pytest.mark.parametrize("name", learning.EVERY_ROW)
def test_learning_row_has_a_shipped_config_and_known_keys(name):
    row = learning.EVERY_ROW[name]
    compile_config(read_config(find_config(row.config)), parse_overrides(list(row.overrides)))


@pytest.mark.slow
def test_a_seed_of_a_learning_row_is_trained_and_evaluated(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    row = Row("cartpole_pole_ppo", overrides=("max_env_step=2000",))
    result = learning.run_seed("pole", row, 3, "cpu")
    assert (result["seed"], result["status"]) == (3, "finished")
    assert result["env_step"] >= 2000
    assert math.isfinite(result["mean"])


@pytest.mark.parametrize("name", SPEED_ROWS)
def test_systems_name_functions_that_exist(name):
    row = SPEED_ROWS[name]
    assert set(row.limit) | ({row.base} - {""}) <= set(row.systems)
    for system in row.systems.values():
        module, function = system.function.split(":")
        tree = ast.parse((BENCHMARKS / "systems" / f"{module}.py").read_text())
        assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert system.lengths[0] + system.work.samples <= system.lengths[1]


def test_both_sides_solve_by_the_same_rule():
    config = compile_config(read_config(solving.CONFIG)).values
    learn, env, zoo = config.policy.learn, config.env, solving.ZOO
    assert (config.max_env_step, config.policy.eval.eval_freq) == (solving.MAX_ENV_STEP, solving.EVERY)
    assert (env.n_evaluator_episode, env.stop_value) == (solving.EPISODES, solving.VALUE)
    assert (env.collector_env_num, config.policy.collect.n_sample) == (zoo.envs, zoo.samples)
    assert (learn.epoch_per_collect, learn.batch_size) == (zoo.epochs, zoo.batch)
    assert learn.learning_rate == zoo.learning_rate


@pytest.mark.slow
def test_ding_lite_does_the_work_it_is_measured_on():
    process, done = timing.run_system("cartpole", "ding_lite", 1_024, 1)
    assert faults(CARTPOLE, 1_024, done) == []
    assert process.seconds > 0.1
    assert process.peak_mib > 50


def test_peer_that_is_not_installed_is_reported():
    process, done = timing.run_system("cartpole", "Tianshou", 1_024, 1)
    if importlib.util.find_spec("tianshou") is None:
        assert done is None
        assert re.fullmatch(r"not installed: tianshou[\w.]*", process.skipped)
    else:
        assert faults(CARTPOLE, 1_024, done) == []


@pytest.mark.parametrize(
    ("arm", "number", "before"), [(SB3, 0, 1024), (COMPILED, 0, 20_480), (COMPILED, 1, 1024)]
)
def test_speed_comes_from_two_lengths_after_an_uncounted_run(monkeypatch, arm, number, before):
    ran = []

    def slow_at_first(row, name, steps, threads):
        ran.append(steps)
        done = Done(steps, int(CARTPOLE.updates(steps)), CARTPOLE.parameters)
        return timing.Process(2.0 + 100.0 * (len(ran) == 1) + steps / 500, 9.0, ""), done

    monkeypatch.setattr(speed_rows, "run_system", slow_at_first)
    row = SPEED_ROWS["cartpole"]
    assert row.measure(arm, number)["speed"] == pytest.approx(500)
    assert ran == [before, *row.systems[arm].lengths]


def test_failing_process_raises_its_error():
    with pytest.raises(RuntimeError, match="ended with 1:(.|\n)*ZeroDivisionError"):
        timing.run([sys.executable, "-c", "1 / 0"])


# ------------------------------------------------------------------ what waits for a GPU


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(step, marks=pytest.mark.slow if step == "gradients" else pytest.mark.bench)
        for step in sorted(gpu.STEPS.keys() - {"tests", "bigfish_ppg"})  # one of the games
    ],
)
def test_each_gpu_step_runs_on_the_cpu(step, tmp_path):
    if step not in ("waits", "gradients"):
        pytest.importorskip("envpool", reason="EnvPool's environments need the extra envpool")
    if step not in ("waits", "gradients", "atari") and not find_library("Qt5Core"):
        pytest.skip("EnvPool's Procgen needs Qt 5 (libqt5core5a, libqt5gui5)")
    command = [sys.executable, str(BENCHMARKS / "gpu.py"), "--dry-run", step]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] == "all of it is done"
    if step in ("atari", "procgen"):
        assert ": runs" in done.stdout


def test_gpu_steps_have_a_place_in_the_results():
    text = report.RESULTS.read_text()
    for step in gpu.STEPS:
        assert f"<!-- gpu {step}: begin -->" in text


def test_gpu_steps_are_refused_without_a_gpu(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["gpu.py"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as ended:
        gpu.main()
    assert ended.value.code == 2
    assert "--dry-run" in capsys.readouterr().err
