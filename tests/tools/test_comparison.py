"""Comparisons of groups of runs: groups, tasks, scores, intervals, notes, the figure and the page."""

from __future__ import annotations

import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from written_runs import write_run

from ding_lite.cli import main
from ding_lite.errors import ConfigError
from ding_lite.tools import statistics
from ding_lite.tools.compare import compare, draw_comparison, number, page_of
from ding_lite.tools.compare.figure import MARKERS, learning_curves, row_label, score_profile

A, B = "a" * 40, "b" * 40


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
    assert (comparison.labels, comparison.tasks, comparison.title) == (
        ("ppo", "ppg"),
        ("CartPole-v1",),
        "CartPole-v1",
    )
    assert [array.tolist() for array in comparison.values(0)] == [[10, 20, 30, 40]]
    ppo, ppg = comparison.summaries()
    assert (ppo.seeds, ppo.mean, ppo.iqm, ppo.improvement) == ((4,), 25.0, 25.0, None)
    assert (ppg.seeds, ppg.mean, ppg.iqm) == ((3,), 40.0, 40.0)
    assert ppg.improvement == pytest.approx((2.5 + 3.5 + 4) / 12)  # 30, 40 and 50 against 10, 20, 30 and 40
    ours, theirs = comparison.values(1), comparison.values(0)
    assert ppg.improvement == float(statistics.probability_of_improvement(ours, theirs))
    assert ppg.improvement_interval == tuple(
        statistics.interval(statistics.probability_of_improvement, ours, theirs)
    )
    assert ppo.iqm_interval == tuple(statistics.interval(statistics.aggregate_iqm, theirs))


def test_the_order_of_the_arguments_decides_which_group_is_the_first(two):
    assert compare([two / "ppg", two / "ppo"]).labels == ("ppg", "ppo")
    assert compare([str(two / "pp*")]).labels == ("ppg", "ppo")  # a pattern is sorted


def test_a_folder_twice_is_one_run(two):
    assert [len(array) for array in compare([two / "ppo", two / "ppo" / "0", two / "ppg"]).values(0)] == [4]


def test_named_groups_compare_equal_configs(tmp_path):
    seeds(tmp_path / "old", 3, [1.0, 2.0, 3.0], commit=A)
    seeds(tmp_path / "new", 3, [4.0, 5.0, 6.0], commit=B)
    unnamed = compare([tmp_path / "old", tmp_path / "new"])  # equal seeds are not independent
    assert unnamed.labels == tuple(f"ppo, {name}/{seed}" for name in ("old", "new") for seed in range(3))
    comparison = compare([f"before={tmp_path / 'old'}", f"after={tmp_path / 'new'}"])
    assert comparison.labels == ("before", "after")
    assert comparison.summaries()[1].improvement == 1.0
    assert comparison.differences == {"git commit": (A[:9], B[:9])}
    with pytest.raises(
        ConfigError, match=r"group all: two runs of CartPole-v1 have the same config and seed"
    ):
        compare([f"all={tmp_path / 'old'}", f"all={tmp_path / 'new'}"])


def test_a_name_cannot_be_that_of_another_group(two):
    with pytest.raises(ConfigError, match="another group is ppg already, by its config: choose another name"):
        compare([two / "ppo", two / "ppg", f"ppg={two / 'ppo'}"])


def test_a_path_with_an_equals_sign_is_a_path(tmp_path):
    seeds(tmp_path / "lr=0.1", 3, [1.0, 2.0, 3.0])
    assert compare([tmp_path / "lr=0.1"]).labels == ("ppo",)
    assert compare([str(tmp_path / "lr=*")]).labels == ("ppo",)


def test_what_differs_is_every_key_with_its_values(two):
    differences = compare([two / "ppo", two / "ppg"]).differences
    assert differences == {"policy.type": ("ppo", "ppg"), "policy.learn.aux_freq": ("-", "5")}
    assert list(differences)[-1] == "policy.learn.aux_freq"


def test_many_keys_that_a_group_lacks_are_one_line(tmp_path):
    for policy, keys in (("ppo", "ab"), ("ppg", "cdefg"), ("mine", "c")):
        learn = {"rate": len(keys), **dict.fromkeys(keys, 1)}
        write_run(tmp_path / policy, policy=policy, learn=learn)
    comparison = compare([tmp_path / name for name in ("ppo", "ppg", "mine")])
    rows, lines = comparison.folded_differences()
    assert lines == ["4 keys that only ppg has"]
    assert list(rows) == ["policy.type", "policy.learn.rate", *(f"policy.learn.{key}" for key in "abc")]
    assert len(comparison.differences) == 9  # in the page and in the JSON data
    alike = [f"{name}={tmp_path / 'ppg'}" for name in ("one", "two")]
    with_both, lines = compare([*alike, tmp_path / "mine"]).folded_differences()
    assert lines == ["4 keys that only one; two have"]
    assert "policy.learn.d" not in with_both


# Tasks


def test_environments_are_tasks_and_scores_are_normalised(tasks):
    comparison = compare([tasks / "ppo", tasks / "ppg", tasks / "pendulum"])
    assert comparison.labels == ("ppo", "ppg")
    assert comparison.tasks == ("CartPole-v1", "Pendulum-v1")
    # From the lowest to the highest evaluation of any run: 5.0 (half of 10) and 50; -80 and -10.
    assert comparison.ranges == {"CartPole-v1": (5.0, 50.0), "Pendulum-v1": (-80.0, -10.0)}
    np.testing.assert_allclose(comparison.values(0)[1], [40 / 70, 20 / 70, 0])
    assert comparison.unit == "Normalised score"
    ppg = comparison.summaries()[1]
    assert ppg.mean == pytest.approx(((40 - 5) / 45 + 40 / 70) / 2)
    assert comparison.summaries_of("Pendulum-v1")[1].mean == -40.0
    assert "CartPole-v1: a return of 5.00 counts as 0, one of 50.0 as 1." in comparison.notes


def test_references_replace_the_range_of_the_runs(tasks):
    references = {"CartPole-v1": (0.0, 100.0), "Pendulum-v1": (-100.0, 0.0)}
    comparison = compare([tasks], references)
    values = comparison.values(0)[comparison.tasks.index("CartPole-v1")]
    np.testing.assert_allclose(values, [0.3, 0.4, 0.5])
    with pytest.raises(ConfigError, match="no reference for Pendulum-v1"):
        compare([tasks], {"CartPole-v1": (0.0, 100.0)})
    with pytest.raises(ConfigError, match=r"reference of CartPole-v1: expected LOW below HIGH, got 5:5"):
        compare([tasks], {**references, "CartPole-v1": (5.0, 5.0)})


def test_a_task_where_all_runs_are_equal_counts_as_one(tasks):
    for seed in range(3):
        write_run(tasks / "flat" / f"{seed}", seed=seed, returns=[1.0] * 4, env_id="Flat-v0")
        write_run(tasks / "flat" / f"g{seed}", seed=seed, returns=[1.0] * 4, env_id="Flat-v0", policy="ppg")
    comparison = compare([tasks])
    values = comparison.values(0)[comparison.tasks.index("Flat-v0")]
    assert values.tolist() == [1, 1, 1]


def test_a_task_that_a_group_lacks_is_left_out_and_noted(tasks):
    seeds(tasks / "third", 3, [1.0, 2.0, 3.0], learn={"learning_rate": 0.5})
    comparison = compare([tasks])
    assert comparison.tasks == ("CartPole-v1",)
    assert "Pendulum-v1 is left out: there is no run of it in ppo, learning_rate=0.5." in comparison.notes


def test_groups_without_a_common_task_are_an_error(two):
    seeds(two / "pendulum", 3, [1.0, 2.0, 3.0], env_id="Pendulum-v1", policy="ppg")
    with pytest.raises(
        ConfigError, match="no environment in common: CartPole-v1 in 1 of 2 groups, Pendulum-v1 in 1 of 2"
    ):
        compare([two / "ppo", two / "pendulum"])


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


def test_runs_that_did_not_end_are_noted(tmp_path):
    seeds(tmp_path / "a", 3, [1.0, 2.0, 3.0])
    write_run(tmp_path / "a" / "killed", seed=3, returns=[1.0, 2.0], status=None)
    write_run(tmp_path / "a" / "solved", seed=4, returns=[1.0, 9.0], status="solved")
    write_run(tmp_path / "a" / "blank", seed=5, every=0)
    (write_run(tmp_path / "a" / "torn", seed=6) / "config.json").write_text("{")
    comparison = compare([tmp_path])
    assert [len(array) for array in comparison.values(0)] == [5]
    notes = "\n".join(comparison.notes)
    assert re.search(r"killed \(ppo\) is killed: its evaluation at 2,000 env steps counts", notes)
    assert re.search(r"Left out, since it has no evaluation: \S*blank \(finished\)", notes)
    assert re.search(r"Left out, since it cannot be read: cannot read the config in \S*torn", notes)
    assert "solved (ppo) is" not in notes


def test_runs_that_ended_at_the_stop_value_are_noted(tmp_path):
    seeds(tmp_path / "a", 3, [1.0, 2.0, 3.0])
    assert "stop_value" not in "".join(compare([tmp_path]).notes)
    for seed in (3, 4):
        write_run(tmp_path / "a" / f"{seed}", seed=seed, returns=[9.0] * 2, status="solved")
    (note,) = [note for note in compare([tmp_path]).notes if "stop_value" in note]
    assert note == (
        "2 of 5 runs of CartPole-v1 ended early, at env.stop_value (status solved); the runs end at 2,000 to "
        "4,000 env steps. Such scores say little: train with env.stop_value=None for a comparison."
    )
    # Runs that are solved at the same step can be compared.
    same = [write_run(tmp_path / f"b{seed}", seed=seed, status="solved") for seed in range(3)]
    assert "stop_value" not in "".join(compare(same).notes)


def test_runs_that_train_past_solved_to_their_limits_are_compared_at_the_shortest(tmp_path):
    short = write_run(tmp_path / "a", status="solved")
    write_run(tmp_path / "b", status="solved", returns=[1.0] * 8, limit=8000, learn={"learning_rate": 0.5})
    comparison = compare([tmp_path])
    assert comparison.ends == {"CartPole-v1": 4000}
    notes = "\n".join(comparison.notes)
    assert f"taken at 4,000 env steps, where {short} ends" in notes
    assert "stop_value" not in notes


def test_a_run_without_an_evaluation_at_the_common_end_is_noted(tmp_path):
    seeds(tmp_path / "a", 3, [1.0, 2.0, 3.0])
    write_run(tmp_path / "a" / "long", seed=3, returns=[1.0] * 8, every=8, limit=8000)
    notes = "\n".join(compare([tmp_path]).notes)
    assert re.search(r"long \(ppo\) has no evaluation at 4,000 env steps", notes)


def test_nothing_to_compare_says_why(tmp_path):
    write_run(tmp_path / "run", every=0)
    with pytest.raises(
        ConfigError, match=r"no run to compare\.\n  Left out, since it has no evaluation: \S*run"
    ):
        compare([tmp_path])


def test_two_seeds_have_no_interval_and_a_note(tmp_path):
    seeds(tmp_path / "a", 2, [1.0, 2.0])
    comparison = compare([tmp_path])
    (summary,) = comparison.summaries()
    assert (summary.iqm_interval, summary.improvement) == (None, None)
    assert "An interval needs 3 runs of each environment; fewer: ppo." in comparison.notes


# What is written


def test_json_has_the_table_the_runs_and_the_notes(tasks):
    data = json.loads(json.dumps(compare([tasks]).as_json()))
    assert [group["label"] for group in data["groups"]] == ["ppg", "ppo"]
    assert data["tasks"]["Pendulum-v1"]["groups"][0]["mean"] == -40.0
    assert data["tasks"]["Pendulum-v1"]["range"] == [-80.0, -10.0]
    assert len(data["runs"]) == 13
    assert data["differences"]["policy.type"] == {"ppg": "ppg", "ppo": "ppo"}


@pytest.mark.parametrize(
    ("value", "text"), [(1234.56, "1,234.6"), (-9.5, "-9.50"), (0.934, "0.93"), (0, "0.00")]
)
def test_numbers_have_as_many_digits_as_are_of_use(value, text):
    assert number(value) == text


def test_curves_are_interquartile_means_with_intervals(two):
    ppo, ppg = learning_curves(compare([two / "ppo", two / "ppg"]), "CartPole-v1")
    assert (ppo.x.tolist(), ppo.y.tolist()) == ([2000, 4000], [12.5, 25])
    assert ppo.band.shape == (2, 2)
    assert ppg.y.tolist() == [20, 40]


def test_the_profile_spans_the_scores(two):
    found = score_profile(compare([two / "ppo", two / "ppg"]))
    assert found.levels[0] < 10
    assert found.levels[-1] > 50
    assert (found.shares[0][0], found.shares[1][-1]) == (1.0, 0.0)
    assert found.shares[0][np.searchsorted(found.levels, 25)] == 0.5


def test_the_figure_has_labelled_axes_for_every_panel(tasks):
    comparison = compare([tasks / "ppo", tasks / "ppg", tasks / "pendulum"])
    figure = draw_comparison(comparison, "A $title_")
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == [
        "Evaluation return, CartPole-v1",
        "Evaluation return, Pendulum-v1",
        "Final score: interquartile mean, 95 % interval",
        "Performance profile",
        "Probability of improvement",
    ]
    assert [axes.get_xlabel() for axes in figure.axes] == [
        "Env steps", "Env steps", "Normalised score", "Normalised score", "P(higher score than ppo)",
    ]  # fmt: skip
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["ppo (n=3 to 4)", "ppg (n=3)"]
    scores = [list(line.get_xdata()) for line in figure.axes[2].get_lines()]
    assert all([summary.iqm] in scores for summary in comparison.summaries())
    figure.draw_without_rendering()
    assert [text.get_text() for text in figure.axes[4].get_yticklabels()] == ["", "ppg"]


def test_rows_have_the_names_of_long_groups_and_the_legend_their_marks(tmp_path):
    for rate in range(1, 7):
        seeds(tmp_path / f"{rate}", 3, [1.0, 2.0, 3.0 + rate], learn={"learning_rate": rate / 1000})
    figure = draw_comparison(compare([tmp_path]))
    figure.draw_without_rendering()
    names = [f"learning_rate={rate / 1000}" for rate in range(1, 7)]
    _, scores, _, improvement = figure.axes
    assert [text.get_text() for text in scores.get_yticklabels()] == names
    assert [text.get_text() for text in improvement.get_yticklabels()] == ["", *names[1:]]
    assert [line.get_marker() for line in figure.legends[0].get_lines()] == list(MARKERS[:6])
    alone = draw_comparison(compare([tmp_path]), panels=["evaluation"])
    assert [line.get_marker() for line in alone.legends[0].get_lines()] == [""] * 6  # lines without marks


@pytest.mark.parametrize(
    ("label", "lines", "text"),
    [
        ("ppo", 2, "ppo"),
        ("learning_rate=0.0001", 1, "learning_rate=0.0001"),
        ("learning_rate=0.001, batch_size=128", 2, "learning_rate=0.001,\nbatch_size=128"),
        ("learning_rate=0.008096117930775642", 2, "learning_rate=\n0.008096117930775642"),
        ("learning_rate=0.008096117930775642", 1, "learning_r...7930775642"),
    ],
)
def test_long_labels_of_rows_are_wrapped_or_shortened(label, lines, text):
    assert row_label(label, lines) == text


def test_panels_of_the_figure_are_chosen_by_name(tasks):
    comparison = compare([tasks / "ppo", tasks / "ppg", tasks / "pendulum"])
    figure = draw_comparison(comparison, panels=["improvement", "evaluation"], width=3.3)
    assert [axes.get_title(loc="left").split(",")[0] for axes in figure.axes] == [
        "Evaluation return", "Evaluation return", "Probability of improvement",
    ]  # fmt: skip
    assert figure.get_figwidth() == 3.3
    assert figure.axes[0].get_subplotspec().get_gridspec().ncols == 1
    with pytest.raises(ConfigError, match="no panel 'curves'; the panels are: evaluation, scores, profile, "):
        draw_comparison(comparison, panels=["curves"])
    with pytest.raises(ConfigError, match="the panel improvement needs two groups, got 1"):
        draw_comparison(compare([tasks / "ppo"]), panels=["improvement"])


def test_a_figure_of_one_group_compares_nothing(two):
    figure = draw_comparison(compare([two / "ppo"]))
    assert len(figure.axes) == 3


class Page(HTMLParser):
    """What a page refers to and contains."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.cells: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        (self.data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text)

    def handle_starttag(self, tag, attrs):
        self.links += [value for name, value in attrs if name in ("src", "href", "srcset", "action")]
        self.open.append(tag)

    def handle_data(self, data):
        if self.open and self.open[-1] in ("th", "td", "code", "svg"):
            self.cells.append(data.strip())


def test_the_page_is_one_file_with_tables_and_the_numbers_of_the_curves(two):
    comparison = compare([two / "ppo", two / "ppg"])
    text = page_of(comparison)
    page = Page(text)
    assert page.links == []
    assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)|@import|url\((?!#)", text)
    assert {"25.0", "40.0", "policy.learn.aux_freq", "4,000"} <= set(page.cells)
    charts = {chart["title"]: chart for chart in json.loads(page.data)["charts"]}
    line = charts["Evaluation return, CartPole-v1"]["lines"][0]
    assert (line["x"], line["y"]) == ([2000, 4000], [12.5, 25])
    assert [seed["y"][-1] for seed in line["seeds"]] == [10, 20, 30, 40]
    assert charts["Probability of a higher score than ppo"]["rows"][0]["group"] == 1


def test_names_cannot_write_into_the_page(tmp_path):
    evil = "</script><script>alert(1)</script>{{runs}}"
    seeds(tmp_path / "a", 3, [1.0, 2.0, 3.0], env_id=evil)
    text = page_of(compare([f"<b>{{{{title}}}}={tmp_path}"]), evil)
    assert text.count("<script") == 2
    assert "<b>" not in text
    assert "&lt;b&gt;{{title}}" in text
    assert json.loads(Page(text).data)["groups"] == ["<b>{{title}}"]


def test_the_run_that_sets_the_step_of_the_scores_is_named(two):
    short = write_run(two / "short", returns=[1.0, 2.0], learn={"learning_rate": 0.5})
    (note,) = [note for note in compare([two]).notes if "are taken at" in note]
    assert f"taken at 2,000 env steps, where {short} ends, the shortest finished run; without it" in note


def test_a_page_takes_a_folder_whose_name_is_no_text(tmp_path):
    folder = Path(os.fsdecode(bytes(tmp_path) + b"/caf\xe9"))
    seeds(folder, 3, [1.0, 2.0, 3.0])
    assert main(["compare", str(folder), "-o", str(tmp_path / "page.html")]) == 0
    assert "caf?" in (tmp_path / "page.html").read_text()
