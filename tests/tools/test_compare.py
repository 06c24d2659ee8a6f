"""Comparisons of groups of runs: groups, tasks, scores, intervals, notes, the figure and the page."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from written_runs import write_run

from ding_lite.errors import ConfigError
from ding_lite.tools import statistics
from ding_lite.tools.compare import compare, table_text
from ding_lite.tools.compare_pictures import draw_comparison, learning_curves, page_of


def seeds(folder: Path, count: int, final: list[float], **options: Any) -> None:
    """Writes runs whose returns rise to ``final``; an evaluation has 5 more than the training return."""
    for seed, value in zip(range(count), final, strict=True):
        returns = [value / 4 - 5, value / 2 - 5, value * 0.75 - 5, value - 5]
        write_run(folder / f"{seed}", seed=seed, returns=returns, **options)


@pytest.fixture
def two(tmp_path):
    seeds(tmp_path / "ppo", 4, [10.0, 20.0, 30.0, 40.0])
    seeds(
        tmp_path / "ppg", 3, [30.0, 40.0, 50.0], policy="ppg", learn={"learning_rate": 0.001, "aux_freq": 5}
    )
    return tmp_path


@pytest.fixture
def tasks(two):
    seeds(two / "pendulum" / "ppo", 3, [-40.0, -60.0, -80.0], env_id="Pendulum-v1")
    seeds(two / "pendulum" / "ppg", 3, [-20.0, -40.0, -60.0], env_id="Pendulum-v1", policy="ppg")
    return two


# Groups and scores


def test_groups_are_configs_and_the_score_is_the_last_evaluation(two):
    comparison = compare([two / "ppo", two / "ppg"])
    assert comparison.labels == ("ppo", "ppg")
    assert (comparison.tasks, comparison.title) == (("CartPole-v1",), "CartPole-v1")
    assert [array.tolist() for array in comparison.values(0)] == [[10, 20, 30, 40]]
    ppo, ppg = comparison.summaries()
    assert (ppo.seeds, ppo.mean, ppo.iqm, ppo.improvement) == ((4,), 25.0, 25.0, None)
    assert (ppg.seeds, ppg.mean, ppg.iqm) == ((3,), 40.0, 40.0)
    assert ppg.improvement == pytest.approx((2.5 + 3.5 + 4) / 12)  # 30, 40 and 50 against 10, 20, 30 and 40
    ours, theirs = comparison.values(1), comparison.values(0)
    better = statistics.probability_of_improvement
    assert ppg.improvement_interval == tuple(statistics.interval(better, ours, theirs))
    assert ppo.iqm_interval == tuple(statistics.interval(statistics.aggregate_iqm, theirs))
    assert comparison.differences() == {"policy.type": ("ppo", "ppg"), "policy.learn.aux_freq": ("-", "5")}


def test_the_order_of_the_arguments_decides_which_group_is_the_first(two):
    assert compare([two / "ppg", two / "ppo", two / "ppo" / "0"]).labels == ("ppg", "ppo")
    assert compare([str(two / "pp*")]).labels == ("ppg", "ppo")  # a pattern is sorted


def test_named_groups_compare_equal_configs(tmp_path):
    seeds(tmp_path / "old", 3, [1.0, 2.0, 3.0])
    seeds(tmp_path / "new", 3, [4.0, 5.0, 6.0])
    unnamed = compare([tmp_path / "old", tmp_path / "new"])  # equal seeds are not independent
    assert unnamed.labels == tuple(f"{name}/{seed}" for name in ("old", "new") for seed in range(3))
    comparison = compare([f"before={tmp_path / 'old'}", f"after={tmp_path / 'new'}"])
    assert comparison.labels == ("before", "after")
    assert comparison.summaries()[1].improvement == 1.0
    with pytest.raises(ConfigError, match="group all"):
        compare([f"all={tmp_path / 'old'}", f"all={tmp_path / 'new'}"])
    with pytest.raises(ConfigError, match="another group is ppo"):
        compare([tmp_path / "old", f"ppo={tmp_path / 'new'}"])


# Tasks


def test_environments_are_tasks_and_scores_are_normalised(tasks):
    comparison = compare([tasks / "ppo", tasks / "ppg", tasks / "pendulum"])
    assert comparison.labels == ("ppo", "ppg")
    assert comparison.tasks == ("CartPole-v1", "Pendulum-v1")
    # From the lowest to the highest evaluation of any run: 5.0 (half of 10) and 50; -80 and -10.
    assert comparison.ranges == {"CartPole-v1": (5.0, 50.0), "Pendulum-v1": (-80.0, -10.0)}
    np.testing.assert_allclose(comparison.values(0)[1], [40 / 70, 20 / 70, 0])
    assert comparison.unit == "Normalised score"
    assert comparison.summaries()[1].mean == pytest.approx(((40 - 5) / 45 + 40 / 70) / 2)
    assert comparison.summaries("Pendulum-v1")[1].mean == -40.0


def test_references_replace_the_range_of_the_runs(tasks):
    references = {"CartPole-v1": (0.0, 100.0), "Pendulum-v1": (-100.0, 0.0)}
    comparison = compare([tasks], references)
    values = comparison.values(0)[comparison.tasks.index("CartPole-v1")]
    np.testing.assert_allclose(values, [0.3, 0.4, 0.5])
    for wrong in ({"CartPole-v1": (0.0, 100.0)}, {**references, "CartPole-v1": (5.0, 5.0)}):
        with pytest.raises(ConfigError, match="CartPole-v1"):
            compare([tasks], wrong)


def test_a_task_where_all_runs_are_equal_counts_as_one(tasks):
    for seed in range(3):
        write_run(tasks / "flat" / f"{seed}", seed=seed, returns=[1.0] * 4, env_id="Flat-v0")
        write_run(tasks / "flat" / f"g{seed}", seed=seed, returns=[1.0] * 4, env_id="Flat-v0", policy="ppg")
    comparison = compare([tasks])
    assert comparison.values(0)[comparison.tasks.index("Flat-v0")].tolist() == [1, 1, 1]


def test_a_task_that_a_group_lacks_is_left_out_and_noted(tasks):
    seeds(tasks / "third", 3, [1.0, 2.0, 3.0], learn={"learning_rate": 0.5})
    comparison = compare([tasks])
    assert comparison.tasks == ("CartPole-v1",)
    assert any(note.startswith("Pendulum-v1 is left out") for note in comparison.notes)
    seeds(tasks / "fourth", 3, [1.0, 2.0, 3.0], env_id="Acrobot-v1", policy="ppg")
    with pytest.raises(ConfigError, match="no environment in common"):
        compare([tasks / "ppo", tasks / "fourth"])


# Limits and runs that did not end


def test_a_resumed_seed_belongs_to_its_group_and_counts_at_the_common_end(tmp_path):
    for seed in range(3):
        write_run(tmp_path / "a" / f"{seed}", seed=seed, returns=[1.0, 2.0, 3.0, 4.0 + seed])
    longer = [1.0, 2.0, 3.0, 7.0, 90.0, 100.0, 110.0, 120.0]
    write_run(tmp_path / "a" / "3", seed=3, returns=longer, limit=8000)
    comparison = compare([tmp_path])
    assert comparison.labels == ("ppo",)
    assert comparison.ends == {"CartPole-v1": 4000}
    assert comparison.values(0)[0].tolist() == [9, 10, 11, 12]
    assert any("taken at 4,000 env steps" in note for note in comparison.notes)


def test_the_evaluation_nearest_to_the_common_end_counts(tmp_path):
    write_run(tmp_path / "a", limit=4000)
    write_run(tmp_path / "b", policy="ppg", returns=[1.0, 2.0, 3.0, 4.0] * 2, every=1, step=1500, limit=12000)
    write_run(tmp_path / "c", policy="x", returns=[1.0, 2.0], every=1, step=900, limit=3600, status="failed")
    runs = compare([tmp_path / name for name in "abc"]).as_json()["runs"]
    found = {run["group"]: (run["env_step"], run["score"]) for run in runs}
    assert found == {"ppo": (4000, 45.0), "ppg": (4500, 8.0), "x": (1800, 7.0)}


def test_runs_that_do_not_count_at_the_common_end_or_not_at_all_are_noted(tmp_path):
    seeds(tmp_path / "a", 3, [1.0, 2.0, 3.0])
    write_run(tmp_path / "a" / "killed", seed=3, returns=[1.0, 2.0], status=None)
    write_run(tmp_path / "a" / "solved", seed=4, returns=[1.0, 9.0], status="solved")
    write_run(tmp_path / "a" / "long", seed=7, returns=[1.0] * 8, every=8, limit=8000)
    write_run(tmp_path / "a" / "blank", seed=5, every=0)
    (write_run(tmp_path / "a" / "torn", seed=6) / "config.json").write_text("{")
    comparison = compare([tmp_path])
    assert [len(array) for array in comparison.values(0)] == [6]
    notes = "\n".join(comparison.notes)
    assert re.search(r"no eval/episode_return_mean: \S*blank \(finished\)", notes)
    assert re.search(r"cannot be read: \S.*torn", notes)
    (elsewhere,) = [note for note in comparison.notes if note.startswith("Elsewhere, 3 runs of ppo")]
    for text in (r"killed \(killed\) at 2,000", r"solved \(solved\) at 2,000", r"long \(finished\) at 8,000"):
        assert re.search(text, elsewhere)


def test_runs_that_train_past_solved_to_their_limits_are_compared_at_the_shortest(tmp_path):
    write_run(tmp_path / "a", status="solved")
    write_run(tmp_path / "b", status="solved", returns=[1.0] * 8, limit=8000, learn={"learning_rate": 0.5})
    comparison = compare([tmp_path])
    assert comparison.ends == {"CartPole-v1": 4000}
    assert not any(note.startswith("Elsewhere") for note in comparison.notes)


def test_nothing_to_compare_says_why(tmp_path):
    write_run(tmp_path / "run", every=0)
    with pytest.raises(ConfigError, match="no eval/episode_return_mean"):
        compare([tmp_path])


def test_two_seeds_have_no_interval_and_a_note(tmp_path):
    seeds(tmp_path / "a", 2, [1.0, 2.0])
    comparison = compare([tmp_path])
    (summary,) = comparison.summaries()
    assert (summary.iqm_interval, summary.improvement) == (None, None)
    assert any(note.startswith("An interval needs 3 runs") for note in comparison.notes)


# What is written


def test_json_has_the_table_the_runs_and_the_notes(tasks):
    data = json.loads(json.dumps(compare([tasks]).as_json()))
    assert [group["group"] for group in data["groups"]] == ["ppg", "ppo"]
    assert data["tasks"]["Pendulum-v1"]["groups"][0]["mean"] == -40.0
    assert data["tasks"]["Pendulum-v1"]["range"] == [-80.0, -10.0]
    assert len(data["runs"]) == 13
    assert data["differences"]["policy.type"] == {"ppg": "ppg", "ppo": "ppo"}


def test_tables_for_a_paper_have_a_row_for_each_task_and_group(tasks):
    comparison = compare([tasks])
    lines = table_text(comparison, ".md").splitlines()
    assert lines[0] == "| task | group | seeds | mean | IQM [95 %] | improvement [95 %] |"
    assert [line.split(" | ")[:2] for line in lines[2:8]] == [
        [f"| {task}", group] for task in ("Normalised score", *comparison.tasks) for group in ("ppg", "ppo")
    ]
    text = table_text(comparison, ".tex")
    assert r"IQM [95 \%]" in text
    assert r"Pendulum-v1 & ppg & 3 & $-$40.0 & $-$40.0 [$-$60.0, $-$20.0] & - \\" in text
    assert text.count(r"\\") == 7


def test_curves_are_interquartile_means_with_intervals(two):
    ppo, ppg = learning_curves(compare([two / "ppo", two / "ppg"]), "CartPole-v1")
    assert (ppo.x.tolist(), ppo.y.tolist()) == ([2000, 4000], [12.5, 25])
    assert ppo.band.shape == (2, 2)
    assert ppg.y.tolist() == [20, 40]


def test_the_figure_has_labelled_axes_for_every_panel(tasks):
    comparison = compare([tasks / "ppo", tasks / "ppg", tasks / "pendulum"])
    figure = draw_comparison(comparison, "A $title_")
    assert [axes.get_xlabel() for axes in figure.axes] == [
        "Env steps", "Env steps", "Normalised score", "Normalised score",
    ]  # fmt: skip
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "ppo (n=3 to 4)",
        "ppg (n=3)",
    ]
    scores = [list(line.get_xdata()) for line in figure.axes[2].get_lines()]
    assert all([summary.iqm] in scores for summary in comparison.summaries())


def test_eight_groups_are_readable(tmp_path):
    for rate in range(1, 9):
        learn = {"a_rather_long_name_of_a_rate": rate / 1000}
        seeds(tmp_path / f"{rate}", 3, [1.0, 2.0, 3.0 + rate], learn=learn)
    figure = draw_comparison(compare([tmp_path]))
    figure.draw_without_rendering()
    looks = {(line.get_color(), line.get_marker()) for line in figure.legends[0].get_lines()}
    assert len(looks) == 8
    legend = figure.legends[0].get_window_extent()
    assert all(axes.get_tightbbox().y0 >= legend.y1 for axes in figure.axes)
    assert 0 <= legend.x0 < legend.x1 <= figure.bbox.x1


class Page(HTMLParser):
    """What a page refers to, its cells, and the number of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.cells: list[str] = []
        self.scripts = 0
        self.open = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.links += [value for name, value in attrs if name in ("src", "href")]
        self.scripts += tag == "script"
        self.open = tag

    def handle_data(self, data):
        if self.open in ("th", "td"):
            self.cells.append(data)


def test_the_page_is_one_file_with_tables_and_the_numbers_of_the_curves(two):
    pytest.importorskip("plotly")
    comparison = compare([two / "ppo", two / "ppg"])
    text = page_of(comparison)
    page = Page(text)
    assert page.links == []
    assert {"25.0", "40.0", "policy.learn.aux_freq", "4000"} <= set(page.cells)
    data = text[text.rindex("Plotly.newPlot(") :]
    assert "Evaluation return (IQM), CartPole-v1" in data
    # Names are no part of the page.
    evil = "</script><script>alert(1)</script>"
    seeds(two / "evil", 3, [1.0, 2.0, 3.0], env_id=evil)
    worse = Page(page_of(compare([f"<b>={two / 'evil'}"]), evil))
    assert worse.scripts == page.scripts
    assert {"<b>", evil} <= set(worse.cells)
