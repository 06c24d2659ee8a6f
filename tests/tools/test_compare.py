"""Comparisons of groups of runs: groups, tasks, scores, intervals, notes, the figure and the page."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from written_runs import write_run

from ding_lite.errors import ConfigError
from ding_lite.tools import statistics
from ding_lite.tools.compare import compare, table_text
from ding_lite.tools.compare_pictures import draw_comparison, page_of


def seeds(folder: Path, final: list[float], **options: Any) -> None:
    """Writes runs whose returns rise to ``final``; an evaluation has 5 more than the training return."""
    for seed, value in enumerate(final):
        returns = [value / 4 - 5, value / 2 - 5, value * 0.75 - 5, value - 5]
        write_run(folder / f"{seed}", seed=seed, returns=returns, **options)


@pytest.fixture
def two(tmp_path):
    seeds(tmp_path / "ppo", [10.0, 20.0, 30.0, 40.0])
    seeds(tmp_path / "ppg", [30.0, 40.0, 50.0], policy="ppg", learn={"learning_rate": 0.001, "aux_freq": 5})
    return tmp_path


@pytest.fixture
def tasks(two):
    seeds(two / "pendulum" / "ppo", [-40.0, -60.0, -80.0], env_id="Pendulum-v1")
    seeds(two / "pendulum" / "ppg", [-20.0, -40.0, -60.0], env_id="Pendulum-v1", policy="ppg")
    return two


# Groups and scores


def test_groups_are_configs_and_the_score_is_the_last_evaluation(two):
    comparison = compare([two / "ppo", two / "ppg"])
    assert (list(comparison.scores), list(comparison.ends)) == (["ppo", "ppg"], ["CartPole-v1"])
    assert comparison.title == "CartPole-v1"
    assert [array.tolist() for array in comparison.values("ppo")] == [[10, 20, 30, 40]]
    ppo, ppg = comparison.summaries()
    assert (ppo.seeds, ppo.mean, ppo.iqm, ppo.improvement) == ((4,), 25.0, 25.0, None)
    assert (ppg.seeds, ppg.mean, ppg.iqm) == ((3,), 40.0, 40.0)
    assert ppg.improvement == pytest.approx((2.5 + 3.5 + 4) / 12)  # 30, 40 and 50 against 10, 20, 30 and 40
    ours, theirs = comparison.values("ppg"), comparison.values("ppo")
    better = statistics.probability_of_improvement
    assert ppg.improvement_interval == statistics.interval(better, ours, theirs)
    assert ppo.iqm_interval == statistics.interval(statistics.aggregate_iqm, theirs)
    assert comparison.differences() == {"policy.type": ["ppo", "ppg"], "policy.learn.aux_freq": ["-", "5"]}
    # The order of the arguments decides which group is the first; a pattern is sorted.
    assert list(compare([two / "ppg", two / "ppo", two / "ppo" / "0"]).scores) == ["ppg", "ppo"]
    assert list(compare([str(two / "pp*")]).scores) == ["ppg", "ppo"]


def test_named_groups_compare_equal_configs(tmp_path):
    seeds(tmp_path / "old", [1.0, 2.0, 3.0])
    seeds(tmp_path / "new", [4.0, 5.0, 6.0])
    unnamed = compare([tmp_path / "old", tmp_path / "new"])  # equal seeds are not independent
    assert list(unnamed.scores) == [f"{name}/{seed}" for name in ("old", "new") for seed in range(3)]
    comparison = compare([f"before={tmp_path / 'old'}", f"after={tmp_path / 'new'}"])
    assert list(comparison.scores) == ["before", "after"]
    assert comparison.summaries()[1].improvement == 1.0
    mixed = compare([tmp_path / "old", f"after={tmp_path / 'new'}"])
    assert list(mixed.scores) == ["ppo", "after"], "in the order of the command line"
    with pytest.raises(ConfigError, match="group all"):
        compare([f"all={tmp_path / 'old'}", f"all={tmp_path / 'new'}"])
    with pytest.raises(ConfigError, match="another group is labelled ppo"):
        compare([tmp_path / "old", f"ppo={tmp_path / 'new'}"])


# Tasks


def test_environments_are_tasks_and_scores_are_normalised(tasks):
    comparison = compare([tasks / "ppo", tasks / "ppg", tasks / "pendulum"])
    assert list(comparison.scores) == ["ppo", "ppg"]
    # From the lowest to the highest evaluation of any run: 5.0 (half of 10) and 50; -80 and -10.
    assert comparison.ranges == {"CartPole-v1": (5.0, 50.0), "Pendulum-v1": (-80.0, -10.0)}
    np.testing.assert_allclose(comparison.values("ppo")[1], [40 / 70, 20 / 70, 0])
    assert comparison.summaries()[1].mean == pytest.approx(((40 - 5) / 45 + 40 / 70) / 2)
    assert comparison.summaries("Pendulum-v1")[1].mean == -40.0
    references = {"CartPole-v1": (0.0, 100.0), "Pendulum-v1": (-100.0, 0.0)}
    comparison = compare([tasks / "ppg", tasks], references)
    np.testing.assert_allclose(comparison.values("ppg")[0], [0.3, 0.4, 0.5])
    for wrong in ({"CartPole-v1": (0.0, 100.0)}, {**references, "CartPole-v1": (5.0, 5.0)}):
        with pytest.raises(ConfigError, match="CartPole-v1"):
            compare([tasks], wrong)
    for seed in range(3):  # all are equal, and count as 1
        write_run(tasks / "flat" / f"{seed}", seed=seed, returns=[1.0] * 4, env_id="Flat-v0")
        write_run(tasks / "flat" / f"g{seed}", seed=seed, returns=[1.0] * 4, env_id="Flat-v0", policy="ppg")
    assert compare([tasks / "flat", tasks]).values("ppo")[0].tolist() == [1, 1, 1]


def test_a_task_that_a_group_lacks_is_left_out_and_noted(tasks):
    seeds(tasks / "third", [1.0, 2.0, 3.0], learn={"learning_rate": 0.5})
    comparison = compare([tasks])
    assert list(comparison.ends) == ["CartPole-v1"]
    assert any(note.startswith("Pendulum-v1 is left out") for note in comparison.notes)
    seeds(tasks / "fourth", [1.0, 2.0, 3.0], env_id="Acrobot-v1", policy="ppg")
    with pytest.raises(ConfigError, match="no environment in common"):
        compare([tasks / "ppo", tasks / "fourth"])


# Limits and runs that did not end


def test_the_evaluation_nearest_to_the_common_end_counts(tmp_path):
    """The shortest run that reached its limit sets it; a run may be resumed, or train past solved."""
    write_run(tmp_path / "a", limit=4000)
    longer = [1.0, 2.0, 3.0, 7.0, 90.0, 100.0, 110.0, 120.0]
    write_run(tmp_path / "a2", seed=1, returns=longer, limit=8000, status="solved")
    write_run(tmp_path / "b", policy="ppg", returns=[1.0, 2.0, 3.0, 4.0] * 2, every=1, step=1500, limit=12000)
    write_run(tmp_path / "c", policy="x", returns=[1.0, 2.0], every=1, step=900, limit=3600, status="failed")
    comparison = compare([tmp_path / name for name in ("a", "a2", "b", "c")])
    assert comparison.ends == {"CartPole-v1": 4000}
    found = [(run["group"], run["env_step"], run["score"]) for run in comparison.as_json()["runs"]]
    assert found == [("ppo", 4000, 45.0), ("ppo", 4000, 12.0), ("ppg", 4500, 8.0), ("x", 1800, 7.0)]


def test_runs_that_do_not_count_at_the_common_end_or_not_at_all_are_noted(tmp_path):
    seeds(tmp_path / "a", [1.0, 2.0])
    write_run(tmp_path / "a" / "killed", seed=3, returns=[1.0, 2.0], status=None)
    write_run(tmp_path / "a" / "solved", seed=4, returns=[1.0, 9.0], status="solved")
    write_run(tmp_path / "a" / "long", seed=7, returns=[1.0] * 8, every=8, limit=8000)
    write_run(tmp_path / "a" / "blank", seed=5, every=0)
    (write_run(tmp_path / "a" / "torn", seed=6) / "config.json").write_text("{")
    write_run(tmp_path / "few", policy="ppg")
    comparison = compare([tmp_path / "a", tmp_path / "few"])
    assert list(map(len, comparison.values("ppo"))) == [5]
    notes = "\n".join(comparison.notes)
    for text in (
        r"no eval/episode_return_mean: \S*blank \(finished\)",
        r"cannot be read: \S.*torn",
        r"taken at 4,000 env steps",
        r"runs: \S*killed \(killed\) at 2,000, \S*long \(finished\) at 8,000, \S*solved \(solved\)",
        r"An interval needs 3 runs of each environment; fewer: ppg\.",
    ):
        assert re.search(text, notes), text
    few = comparison.summaries()[1]
    assert (few.iqm_interval, few.improvement_interval) == (None, None)
    with pytest.raises(ConfigError, match="no eval/episode_return_mean"):
        compare([tmp_path / "a" / "blank"])


# What is written


def test_tables_for_a_paper_have_a_row_for_each_task_and_group(tasks):
    comparison = compare([tasks])
    lines = table_text(comparison).splitlines()
    assert lines[0] == "| task | group | seeds | mean | IQM [95 %] | improvement [95 %] |"
    assert [line.split(" | ")[:2] for line in lines[2:8]] == [
        [f"| {task}", group] for task in ("Normalised score", *comparison.ends) for group in ("ppg", "ppo")
    ]
    assert "\n| CartPole-v1 | ppo | 4 | 25.0 |" in table_text(compare([tasks / "ppo"]))


def test_the_figure_has_the_curves_and_the_scores_and_a_readable_legend(tasks):
    for number in range(6):
        policy, final = f"a_rather_long_name_of_a_policy_{number}", [1.0, 2.0, 3.0 + number]
        seeds(tasks / f"{number}", final, policy=policy)
        seeds(tasks / "pendulum" / f"{number}", final, policy=policy, env_id="Pendulum-v1")
    comparison = compare([tasks])
    figure = draw_comparison(comparison, "A $title_")
    figure.draw_without_rendering()
    labels = ["Env steps", "Env steps", "Normalised score", "Normalised score"]
    assert [axes.get_xlabel() for axes in figure.axes] == labels
    place = list(comparison.scores).index("ppo")
    (curve,) = (axes.get_lines()[place] for axes in figure.axes if "CartPole" in axes.get_title("left"))
    assert curve.get_xydata().tolist() == [[2000, 12.5], [4000, 25]]  # interquartile means
    scores = [list(line.get_xdata()) for line in figure.axes[2].get_lines()]
    assert all([summary.iqm] in scores for summary in comparison.summaries())
    (legend,) = figure.legends
    assert {"ppo (n=3 to 4)", "ppg (n=3)"} <= {text.get_text() for text in legend.get_texts()}
    assert len({(line.get_color(), line.get_linestyle()) for line in legend.get_lines()}) == 8
    box = legend.get_window_extent()
    assert all(axes.get_tightbbox().y0 >= box.y1 for axes in figure.axes)
    assert 0 <= box.x0 < box.x1 <= figure.bbox.x1


def cells_of(page: str) -> set[str]:
    """Returns the texts in the tables of a page."""
    return set(map(unescape, re.findall(r"<t[dh]>(.*?)</t[dh]>", page)))


def test_the_page_is_one_file_with_tables_and_the_numbers_of_the_curves(two):
    pytest.importorskip("plotly")
    comparison = compare([two / "ppo", two / "ppg"])
    text = page_of(comparison)
    assert not re.search(r"<[^>]*\b(src|href)=", re.sub(r"(?s)<script.*?</script>", "", text))
    assert {"25.0", "40.0", "policy.learn.aux_freq"} <= cells_of(text)
    data = text[text.rindex("Plotly.newPlot(") :]
    assert "Evaluation return (IQM), CartPole-v1" in data
    # Names are no part of the page.
    evil = "</script><script>alert(1)</script>"
    seeds(two / "evil", [1.0, 2.0, 3.0], env_id=evil)
    worse = page_of(compare([f"<b>={two / 'evil'}"]), evil)
    assert worse.count("<script") == text.count("<script")
    assert "<b>" in cells_of(worse)
