"""Learning curves: the numbers that are drawn, the picture, and its errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from written_runs import write_run

from ding_lite.errors import ConfigError
from ding_lite.tools.plot import RETURNS, common_grid, curve, draw, plot_runs
from ding_lite.tools.runs import Run, seed_groups
from ding_lite.tools.runs import read_run as read

TRAIN_RETURN, EVAL_RETURN = RETURNS
LENGTH = "collect/episode_length_max"


def read_run(folder: Path) -> Run:
    return read(folder, {TRAIN_RETURN.column, EVAL_RETURN.column, LENGTH})


def lines(figure: Any, panel: int) -> list[tuple[list[float], list[float]]]:
    return [(list(line.get_xdata()), list(line.get_ydata())) for line in figure.axes[panel].get_lines()]


def runs_at(x: list[float], *ys: list[float]) -> list[Run]:
    columns = [{TRAIN_RETURN.column: np.array(y, dtype=float)} for y in ys]
    return [
        Run(Path(f"run{seed}"), {"seed": seed}, np.array(x, dtype=float), column)
        for seed, column in enumerate(columns)
    ]


# What is drawn


def test_the_lines_are_the_numbers_of_the_csv(tmp_path):
    names = ["training", LENGTH, "evaluation"]
    figure, _ = draw({"run": [read_run(write_run(tmp_path / "run"))]}, panels=names)
    steps = [1000, 2000, 3000, 4000]
    assert lines(figure, 0) == [(steps, [10, 20, 15, 40])]
    assert lines(figure, 1) == [(steps, [30, 60, 45, 120])]
    # Rows without an evaluation are missing, not zero.
    assert lines(figure, 2) == [([2000, 4000], [25, 45])]


def test_cells_that_are_empty_or_nan_are_missing(tmp_path):
    folder = write_run(tmp_path / "run")
    (folder / "metrics.csv").write_text("env_step,collect/episode_return\n1,5\n2,\n\n3,nan\n,9\n4,8\n")
    drawn = curve([read_run(folder)], TRAIN_RETURN)
    assert (drawn.x.tolist(), drawn.y.tolist()) == ([1, 4], [5, 8])


def test_two_seeds_are_drawn_beside_their_mean():
    two = runs_at([0, 10], [1, 3], [3, 7])
    drawn = curve(two, TRAIN_RETURN)
    assert drawn.y.tolist() == [2, 5]
    assert [y.tolist() for _, y in drawn.seeds] == [[1, 3], [3, 7]]
    assert drawn.band is None
    assert len(lines(draw({"two": two})[0], 0)) == 3


def test_three_seeds_have_an_interquartile_mean_and_a_band():
    three = runs_at([0, 10], [1, 3], [3, 7], [5, 2])
    assert curve(three, TRAIN_RETURN).y.tolist() == [3, 3.5]
    figure, _ = draw({"three": three})
    assert lines(figure, 0) == [([0, 10], [3, 3.5])]
    assert len(figure.axes[0].collections) == 1


def test_seeds_are_interpolated_on_the_range_they_share():
    first, other = runs_at([0, 10, 20], [0, 10, 20], [5, 15, 40])
    other = other._replace(x=np.array([5.0, 15, 40]))
    drawn = curve([first, other], TRAIN_RETURN)
    assert (drawn.x.tolist(), drawn.y.tolist()) == ([5, 10, 15, 20], [5, 10, 15, 20])


def test_the_grid_is_exact_for_equal_steps_and_bounded_for_many():
    steps = np.arange(0, 500, 7.0)
    np.testing.assert_array_equal(common_grid([steps, steps]), steps)
    grid = common_grid([np.arange(0, 9000, 3.0), np.arange(1, 9000, 2.0)])
    assert (len(grid), grid[0], grid[-1]) == (1000, 1, 8997)


def test_seeds_that_share_no_step_have_no_mean(tmp_path):
    # One evaluation each, at the end, and the ends differ: as with a stop_value.
    runs = [read_run(write_run(tmp_path / f"{n}", seed=n, every=4, step=1000 + n)) for n in range(3)]
    drawn = curve(runs, EVAL_RETURN)
    assert drawn.x.size == 0
    assert [x.tolist() for x, _ in drawn.seeds] == [[4000], [4004], [4008]]
    _, notes = draw({"runs": runs})
    assert any("Evaluation return: no mean" in note for note in notes)


# The picture


def test_panels_are_chosen_by_name(tmp_path):
    run = read_run(write_run(tmp_path / "run"))
    for names in (["evaluation", "training"], ["collect/episode_return"]):
        figure, _ = draw({"run": [run]}, panels=names)
        assert len(figure.axes) == len(names)
    with pytest.raises(ConfigError, match="no run has data for the panels eval"):
        draw({"run": [run]}, panels=["eval"])
    with pytest.raises(ConfigError, match="learn/nope"):
        draw({"run": [run]}, panels=["training", "learn/nope"])


def test_a_group_that_lacks_seeds_and_different_environments_are_noted(tmp_path):
    folders = [write_run(tmp_path / f"{seed}", seed=seed, every=2 * (seed > 0)) for seed in range(4)]
    folders.append(write_run(tmp_path / "other", env_id="Acrobot-v1"))
    groups = seed_groups([read_run(folder) for folder in folders])
    figure, notes = draw({str(place): group for place, group in enumerate(groups)}, width=3.3)
    assert figure.get_figwidth() == 3.3
    assert len({axes.get_subplotspec().colspan.start for axes in figure.axes}) == 1, "one below the other"
    assert any("Evaluation return: 3 of 4 seeds" in note for note in notes)
    assert any("CartPole-v1, Acrobot-v1" in note for note in notes)


# Errors


def test_runs_that_cannot_be_drawn_are_left_out_and_noted(tmp_path):
    write_run(tmp_path / "good")
    empty = write_run(tmp_path / "empty", seed=1)
    (empty / "metrics.csv").write_text("env_step,collect/episode_return\n")
    (write_run(tmp_path / "torn", seed=2) / "config.json").write_text("{")
    notes: list[str] = []
    plot_runs([f"mine={tmp_path}"], tmp_path / "a.svg", panels=["training"], note=notes.append)
    assert sum(note.startswith("Left out") for note in notes) == 2
    assert "<!-- mine (seed 0) -->" in (tmp_path / "a.svg").read_text()
    with pytest.raises(ConfigError, match="empty"):
        plot_runs([empty], tmp_path / "b.png")
    assert not (tmp_path / "b.png").exists()
