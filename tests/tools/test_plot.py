"""Learning curves: the numbers that are drawn, the file, and every error."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from written_runs import write_run

from ding_lite.errors import ConfigError
from ding_lite.tools.plot import (
    PANELS,
    Curve,
    common_grid,
    curve,
    draw,
    format_count,
    plot_runs,
)
from ding_lite.tools.runs import Group, Run, group_runs
from ding_lite.tools.runs import read_run as read

TRAIN_RETURN, TRAIN_LENGTH, EVAL_RETURN, EVAL_LENGTH = PANELS


def read_run(folder: Path) -> Run:
    return read(folder, {column for panel in PANELS for column in panel.columns})


def lines(figure: Any, panel: int) -> list[tuple[list[float], list[float]]]:
    return [(list(line.get_xdata()), list(line.get_ydata())) for line in figure.axes[panel].get_lines()]


def titles(figure: Any) -> list[str]:
    return [axes.get_title(loc="left") for axes in figure.axes]


def runs_at(x: list[float], *ys: list[float]) -> list[Run]:
    columns = [{TRAIN_RETURN.column: np.array(y, dtype=float)} for y in ys]
    return [
        Run(Path(f"run{seed}"), {"seed": seed}, np.array(x, dtype=float), column)
        for seed, column in enumerate(columns)
    ]


# What is read and drawn


def test_the_lines_are_the_numbers_of_the_csv(tmp_path):
    run = read_run(write_run(tmp_path / "run"))
    figure = draw(group_runs([run]))
    assert titles(figure) == [panel.title for panel in PANELS]
    steps = [1000, 2000, 3000, 4000]
    assert lines(figure, 0) == [(steps, [10, 20, 15, 40])]
    assert lines(figure, 1) == [(steps, [30, 60, 45, 120])]
    # Rows without an evaluation are missing, not zero.
    assert lines(figure, 2) == [([2000, 4000], [25, 45])]
    assert lines(figure, 3) == [([2000, 4000], [40, 80])]


def test_cells_that_are_empty_or_nan_are_missing(tmp_path):
    folder = write_run(tmp_path / "run")
    rows = "env_step,collect/episode_return\n1,5\n2,\n\n3,nan\n,9\n4,8\n"
    (folder / "metrics.csv").write_text(rows)
    drawn = curve([read_run(folder)], TRAIN_RETURN)
    assert drawn is not None
    assert drawn.x.tolist() == [1, 4]
    assert drawn.y.tolist() == [5, 8]


@pytest.mark.parametrize(("every", "count"), [(0, 2), (2, 4)])
def test_panels_without_data_are_left_out(tmp_path, every, count):
    figure = draw(group_runs([read_run(write_run(tmp_path / "run", every=every))]))
    assert titles(figure) == [panel.title for panel in PANELS[:count]]
    rows, cols = figure.axes[0].get_subplotspec().get_gridspec().get_geometry()
    assert (rows, cols) == (count // 2, 2)
    # Only the lowest panels name the axis.
    assert [bool(axes.get_xlabel()) for axes in figure.axes] == [False] * (count - 2) + [True] * 2


def test_a_panel_is_drawn_where_one_group_has_data(tmp_path):
    with_eval = read_run(write_run(tmp_path / "a"))
    without = read_run(write_run(tmp_path / "b", policy="ppg", every=0))
    figure = draw(group_runs([with_eval, without]))
    assert len(lines(figure, 0)) == 2
    assert len(lines(figure, 2)) == 1


def test_one_seed_has_a_band_of_one_std_over_episodes(tmp_path):
    run = read_run(write_run(tmp_path / "run"))
    evaluation = curve([run], EVAL_RETURN)
    assert evaluation is not None
    np.testing.assert_array_equal(evaluation.band, [[22.5, 42.5], [27.5, 47.5]])
    for panel in (TRAIN_RETURN, TRAIN_LENGTH, EVAL_LENGTH):
        plain = curve([run], panel)
        assert plain is not None
        assert plain.band is None


def test_the_band_of_one_seed_stays_between_the_lowest_and_the_highest_return(tmp_path):
    folder = write_run(tmp_path / "run")
    header, *rows = (folder / "metrics.csv").read_text().splitlines()
    extremes = ["", "24,26", "", ","]  # of the evaluation at 2000 steps, 25 +- 2.5; unknown at 4000 steps
    lines = [f"{row},{pair or ','}" for row, pair in zip(rows, extremes, strict=True)]
    columns = f"{header},eval/episode_return_min,eval/episode_return_max"
    (folder / "metrics.csv").write_text("\n".join([columns, *lines, ""]))
    drawn = curve([read_run(folder)], EVAL_RETURN)
    assert drawn is not None
    np.testing.assert_array_equal(drawn.band, [[24, 42.5], [26, 47.5]])


def test_a_single_evaluation_is_a_point_with_a_bar(tmp_path):
    figure = draw(group_runs([read_run(write_run(tmp_path / "run", every=4))]))
    point = figure.axes[2].containers[0]
    assert point.has_yerr
    assert list(point.lines[0].get_ydata()) == [45]
    figure.draw_without_rendering()


# Several seeds


def test_two_seeds_are_drawn_beside_their_mean():
    drawn = curve(runs_at([0, 10], [1, 3], [3, 7]), TRAIN_RETURN)
    assert drawn is not None
    assert drawn.y.tolist() == [2, 5]
    assert [y.tolist() for _, y in drawn.seeds] == [[1, 3], [3, 7]]
    assert drawn.band is None
    figure = draw([Group(runs_at([0, 10], [1, 3], [3, 7]), "two")])
    assert len(lines(figure, 0)) == 3


def test_three_seeds_have_a_mean_and_a_band():
    drawn = curve(runs_at([0, 10], [1, 3], [3, 7], [5, 2]), TRAIN_RETURN)
    assert drawn is not None
    assert drawn.y.tolist() == [3, 4]
    assert not drawn.seeds
    figure = draw([Group(runs_at([0, 10], [1, 3], [3, 7], [5, 2]), "three")])
    assert len(lines(figure, 0)) == 1
    assert len(figure.axes[0].collections) == 1


def test_seeds_are_interpolated_on_the_range_they_share():
    first = Run(
        Path("a"), {"seed": 0}, np.array([0.0, 10, 20]), {TRAIN_RETURN.column: np.array([0.0, 10, 20])}
    )
    other = Run(
        Path("b"), {"seed": 1}, np.array([5.0, 15, 40]), {TRAIN_RETURN.column: np.array([5.0, 15, 40])}
    )
    drawn = curve([first, other], TRAIN_RETURN)
    assert drawn is not None
    assert drawn.x.tolist() == [5, 10, 15, 20]
    assert drawn.y.tolist() == [5, 10, 15, 20]
    assert drawn.cut


def test_the_grid_is_exact_for_equal_steps_and_bounded_for_many():
    steps = np.arange(0, 500, 7.0)
    np.testing.assert_array_equal(common_grid([steps, steps]), steps)
    grid = common_grid([np.arange(0, 9000, 3.0), np.arange(1, 9000, 2.0)])
    assert len(grid) == 1000
    assert (grid[0], grid[-1]) == (1, 8997)


def test_seeds_that_share_no_step_have_no_mean(tmp_path):
    # One evaluation each, at the end, and the ends differ: as with a stop_value.
    folders = [write_run(tmp_path / f"{seed}", seed=seed, every=4, step=1000 + seed) for seed in range(3)]
    runs = [read_run(folder) for folder in folders]
    drawn = curve(runs, EVAL_RETURN)
    assert drawn is not None
    assert drawn.x.size == 0
    assert [x.tolist() for x, _ in drawn.seeds] == [[4000], [4004], [4008]]
    figure = draw(group_runs(runs))
    assert len(lines(figure, 2)) == 3
    assert "No mean where seeds share no step." in figure.get_supxlabel()


def test_seeds_without_data_are_reported(tmp_path):
    folders = [write_run(tmp_path / f"{seed}", seed=seed, every=2 * (seed > 0)) for seed in range(4)]
    figure = draw(group_runs([read_run(folder) for folder in folders]))
    assert "Evaluation return: 3 of 4 seeds" in figure.get_supxlabel()
    assert "Training" not in figure.get_supxlabel()


# Panels, size, axes


def test_every_axis_says_what_it_is_and_has_round_ticks(tmp_path):
    run = read_run(write_run(tmp_path / "run", step=5060))
    figure = draw(group_runs([run]))
    assert [axes.get_ylabel() for axes in figure.axes] == ["Return", "Steps", "Return", "Steps"]
    figure.axes[0].set_xlim(0, 20_240)
    figure.draw_without_rendering()
    ticks = [text.get_text() for text in figure.axes[2].get_xticklabels()]
    assert {"5k", "10k", "15k", "20k"} <= set(ticks)
    assert not any("." in text for text in ticks)


def test_panels_are_chosen_by_name(tmp_path):
    run = read_run(write_run(tmp_path / "run"))
    chosen = draw(group_runs([run]), panels=["evaluation", "training"])
    assert titles(chosen) == [EVAL_RETURN.title, TRAIN_RETURN.title]
    assert titles(draw(group_runs([run]), panels=["collect/episode_return"])) == ["collect/episode_return"]
    folder = write_run(tmp_path / "blind", every=0)
    with pytest.raises(ConfigError, match="no run has data for the panels evaluation"):
        draw(group_runs([read_run(folder)]), panels=["evaluation"])
    with pytest.raises(ConfigError, match="no panel 'eval'; the panels are: training, training-length, ev"):
        plot_runs([folder], tmp_path / "a.png", panels=["eval"])
    with pytest.raises(ConfigError, match="expected 2 to 50 inches, got 0"):
        plot_runs([folder], tmp_path / "a.png", width=0.0)


@pytest.mark.parametrize(("width", "cols"), [(3.3, 1), (6.5, 2)])
def test_a_picture_is_as_wide_as_asked(tmp_path, width, cols):
    import matplotlib.image

    folders = [write_run(tmp_path / f"{n}", learn={"a_rather_long_name": n}) for n in (1, 2)]
    output = plot_runs(folders, tmp_path / "a.png", width=width, panels=["training", "evaluation"])
    assert matplotlib.image.imread(output).shape[1] == round(200 * width)
    groups = group_runs([read_run(folder) for folder in folders])
    figure = draw(groups, width=width)
    assert figure.axes[0].get_subplotspec().get_gridspec().ncols == cols
    figure.draw_without_rendering()
    for axes in figure.axes:
        for text in (axes.title, axes._left_title, axes.xaxis.label):
            assert text.get_window_extent().x1 <= figure.bbox.x1
    legend = figure.legends[0].get_window_extent()
    assert 0 <= legend.x0 < legend.x1 <= figure.bbox.x1


# Groups and labels


def test_the_title_is_what_the_groups_share(tmp_path):
    groups = group_runs([read_run(write_run(tmp_path / policy, policy=policy)) for policy in ("ppo", "ppg")])
    assert draw(groups).legends[0].get_title().get_text() == "CartPole-v1"
    figure = draw(groups, title="Two $policies_")
    assert figure.legends[0].get_title().get_text() == "Two $policies_"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["ppo, seed 0", "ppg, seed 0"]
    alone = draw(groups[:1]).legends[0]
    assert alone.get_title().get_text() == groups[0].label
    assert not alone.get_texts()


def test_different_environments_are_noted(tmp_path):
    envs = [{"env_id": None, "env": {"type": "my_worlds:Mine"}}, {"env_id": "Acrobot-v1"}]
    runs = [read_run(write_run(tmp_path / f"run{n}", **each)) for n, each in enumerate(envs)]
    note = "The environments differ, so the curves do not compare: my_worlds:Mine, Acrobot-v1."
    assert note in " ".join(draw(group_runs(runs)).get_supxlabel().split())
    assert "environments differ" not in draw(group_runs(runs[:1])).get_supxlabel()
    assert draw(group_runs(runs[:1])).legends[0].get_title().get_text() == "ppo, my_worlds:Mine, seed 0"


def test_groups_differ_in_colour_and_in_grey():
    groups = [Group(runs_at([0, 1], [index, 1]), str(index)) for index in range(9)]
    drawn = draw(groups).axes[0].get_lines()
    assert len({(line.get_color(), line.get_linestyle()) for line in drawn}) == 9
    assert len({line.get_color() for line in drawn[:7]}) == 7
    assert len({line.get_linestyle() for line in drawn[:4]}) == 4


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (500, "500"),
        (20_000, "20k"),
        (1_500_000, "1.5M"),
        (-2500, "\N{MINUS SIGN}2.5k"),
        (0.1 + 0.2, "0.3"),
    ],
)
def test_counts_are_in_thousands_and_millions(value, text):
    assert format_count(value) == text


# The file


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    ("name", "start"),
    [("a.png", b"\x89PNG\r\n\x1a\n"), ("a.pdf", b"%PDF-"), ("a.svg", b"<?xml"), ("A.PNG", b"\x89PNG")],
)
def test_the_file_is_an_image_of_its_suffix(tmp_path, name, start):
    folders = [write_run(tmp_path / f"_run${seed}", seed=seed) for seed in (0, 1, 2)]
    output = tmp_path / name
    assert plot_runs(folders, output) == output
    content = output.read_bytes()
    assert content.startswith(start)
    assert len(content) > 5_000
    if name == "a.png":
        import matplotlib.image

        pixels = matplotlib.image.imread(output)
        assert pixels.shape[0] > 800
        assert pixels.shape[1] > 1200
        assert pixels[..., :3].std() > 0.01
    if name == "a.svg":
        assert content.rstrip().endswith(b"</svg>")


def test_the_same_folder_twice_is_one_run(tmp_path, monkeypatch):
    folder = write_run(tmp_path / "run")
    seen: list[Group] = []
    monkeypatch.setattr("ding_lite.tools.plot.draw", lambda groups, **_: seen.extend(groups) or draw(groups))
    plot_runs([folder, folder / ".." / "run"], tmp_path / "a.png")
    assert [len(group.runs) for group in seen] == [1]


def test_nothing_global_is_used(tmp_path):
    folder = write_run(tmp_path / "run")
    code = (
        "import sys, ding_lite.tools.plot as p; from pathlib import Path\n"
        "assert 'matplotlib' not in sys.modules\n"
        "p.plot_runs([Path(sys.argv[1])], Path(sys.argv[2]))\n"
        "assert 'matplotlib.pyplot' not in sys.modules and 'torch' not in sys.modules\n"
    )
    root = Path(__file__).resolve().parents[2]
    arguments = [sys.executable, "-c", code, str(folder), str(tmp_path / "a.png")]
    subprocess.run(arguments, check=True, timeout=120, cwd=root)


@pytest.mark.slow
def test_threads_can_plot_at_once(tmp_path):
    folder = write_run(tmp_path / "run")
    outputs = [tmp_path / f"{index}.png" for index in range(4)]
    threads = [threading.Thread(target=plot_runs, args=([folder], output)) for output in outputs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({output.read_bytes() for output in outputs}) == 1


# Errors


def test_folders_that_are_no_runs(tmp_path):
    with pytest.raises(ConfigError, match="no run folder .*nowhere"):
        plot_runs([tmp_path / "nowhere"], tmp_path / "a.png")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="empty is not a run folder and has none in it"):
        plot_runs([tmp_path / "empty"], tmp_path / "a.png")
    with pytest.raises(ConfigError, match="at least one run folder"):
        plot_runs([], tmp_path / "a.png")


@pytest.mark.parametrize(
    "text",
    [
        "env_step,iteration\n1,2\n",
        "env_step,collect/episode_return\n",
        "env_step,collect/episode_return\n1,\n,2\n",
    ],
)
def test_nothing_to_draw(tmp_path, text):
    folder = write_run(tmp_path / "run")
    (folder / "metrics.csv").write_text(text)
    with pytest.raises(ConfigError, match=r"run.metrics\.csv has nothing to draw"):
        plot_runs([folder], tmp_path / "a.png")
    assert not (tmp_path / "a.png").exists()


def test_an_axis_that_is_not_there(tmp_path):
    folder = write_run(tmp_path / "run")
    (folder / "metrics.csv").write_text("frames,iteration\n1,0\n")
    with pytest.raises(
        ConfigError, match=r"metrics\.csv has no column 'env_step'; it has: frames, iteration"
    ):
        read_run(folder)
    (folder / "metrics.csv").write_text("")
    with pytest.raises(ConfigError, match="no column 'env_step'; it has: none"):
        read_run(folder)


def test_outputs_that_cannot_be_written(tmp_path):
    folder = write_run(tmp_path / "run")
    for name in ("a.gif", "a", "png"):
        with pytest.raises(ConfigError, match=r"must end in one of \.png, \.pdf, \.svg"):
            plot_runs([folder], tmp_path / name)
    with pytest.raises(ConfigError, match="there is no folder .*missing"):
        plot_runs([folder], tmp_path / "missing" / "a.png")
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(ConfigError, match="cannot write .*folder.png"):
        plot_runs([folder], tmp_path / "folder.png")


def test_without_matplotlib_the_install_line_is_given(tmp_path, monkeypatch):
    folder = write_run(tmp_path / "run")
    for name in ("matplotlib", "matplotlib.figure", "matplotlib.backends.backend_agg"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=r'pip install "ding_lite\[plot\]"'):
        plot_runs([folder], tmp_path / "a.png")


def test_reading_needs_no_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert isinstance(curve([read_run(write_run(tmp_path / "run"))], EVAL_RETURN), Curve)


def test_runs_without_a_row_are_left_out_of_a_picture_of_others(tmp_path):
    write_run(tmp_path / "good")
    (write_run(tmp_path / "failed", seed=1) / "metrics.csv").write_text("env_step,collect/episode_return\n")
    (write_run(tmp_path / "torn", seed=2) / "config.json").write_text("{")
    notes = []
    plot_runs([tmp_path], tmp_path / "a.png", note=notes.append)
    assert (tmp_path / "a.png").exists()
    assert {note.partition(":")[0] for note in notes} == {"left out", "left out, since it cannot be read"}


def test_a_panel_that_was_asked_for_and_has_no_data_is_named(tmp_path):
    folder = write_run(tmp_path / "run")
    with pytest.raises(ConfigError, match="no run has data for the panels learn/nope"):
        plot_runs([folder], tmp_path / "a.png", panels=["collect/episode_return", "learn/nope"])


def test_a_run_without_a_return_is_drawn_by_the_column_that_it_has(tmp_path):
    folder = write_run(tmp_path / "run")
    (folder / "metrics.csv").write_text("env_step,learn/approx_kl\n1,0.5\n2,0.25\n")
    notes = []
    plot_runs([folder], tmp_path / "a.png", panels=["learn/approx_kl"], note=notes.append)
    assert notes == []
    other = write_run(tmp_path / "other", seed=1)
    plot_runs([folder, other], tmp_path / "a.png", panels=["learn/approx_kl"], note=notes.append)
    assert notes == [
        f"left out: {other / 'metrics.csv'} has nothing to draw: no row has env_step and learn/approx_kl"
    ]
