"""Learning curves: the numbers that are drawn, the picture, and its errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from written_runs import write_run

from ding_lite.errors import ConfigError
from ding_lite.tools.plot import common_grid, curve, draw_runs, save
from ding_lite.tools.runs import Run

LENGTH = "collect/episode_length_max"


def lines(figure: Any, panel: int) -> list[tuple[list[float], list[float]]]:
    return [(list(line.get_xdata()), list(line.get_ydata())) for line in figure.axes[panel].get_lines()]


def runs_at(*points: tuple[list[float], list[float]]) -> list[Run]:
    arrays = [(np.array(x, dtype=float), np.array(y, dtype=float)) for x, y in points]
    return [Run(Path("run"), {"seed": seed}, {"env_step": x, "it": y}) for seed, (x, y) in enumerate(arrays)]


def test_the_lines_are_the_numbers_of_the_csv(tmp_path):
    folder = write_run(tmp_path / "run")
    figure, _ = draw_runs([folder], panels=["training", LENGTH, "evaluation"])
    assert len(figure.axes) == 3, "those that are named, in their order"
    steps = [1000, 2000, 3000, 4000]
    assert lines(figure, 0) == [(steps, [10, 20, 15, 40])]
    assert lines(figure, 1) == [(steps, [30, 60, 45, 120])]
    assert lines(figure, 2) == [([2000, 4000], [25, 45])]  # rows without an evaluation are missing, not zero
    (folder / "metrics.csv").write_text("env_step,collect/episode_return\n1,5\n2,\n\n3,nan\n,9\n4,8\n")
    assert lines(draw_runs([folder])[0], 0) == [([1, 4], [5, 8])]


def test_seeds_are_drawn_beside_their_mean_or_as_an_interquartile_mean_with_a_band():
    two = runs_at(([0, 10], [1, 3]), ([0, 10], [3, 7]))
    drawn = curve(two, "it")
    assert (drawn.y.tolist(), drawn.band) == ([2, 5], None)
    assert [y.tolist() for _, y in drawn.seeds] == [[1, 3], [3, 7]]
    drawn = curve(two + runs_at(([0, 10], [5, 2])), "it")
    assert (drawn.y.tolist(), len(drawn.band), drawn.seeds) == ([3, 3.5], 2, ())


def test_seeds_are_interpolated_on_the_range_they_share():
    drawn = curve(runs_at(([0, 10, 20], [0, 10, 20]), ([5, 15, 40], [5, 15, 40])), "it")
    assert (drawn.x.tolist(), drawn.y.tolist()) == ([5, 10, 15, 20], [5, 10, 15, 20])
    steps = np.arange(0, 500, 7.0)
    np.testing.assert_array_equal(common_grid([steps, steps]), steps)
    grid = common_grid([np.arange(0, 9000, 3.0), np.arange(1, 9000, 2.0)])
    assert (len(grid), grid[0], grid[-1]) == (1000, 1, 8997)


def test_what_a_reader_must_know_is_noted(tmp_path):
    for seed in range(4):
        write_run(tmp_path / f"{seed}", seed=seed, every=2 * (seed > 0), step=(1000, 2000)[seed == 3])
        # One evaluation each, at the end, and the ends differ: as with a stop_value.
        write_run(tmp_path / f"x{seed}", seed=seed, every=4, step=1000 + seed, env_id="Acrobot-v1")
    figure, notes = draw_runs([tmp_path])
    for text in ("ends at 4,000 of 8,000", "3 of 4 seeds", "no mean", "CartPole-v1, Acrobot-v1"):
        assert any(text in note for note in notes), text
    assert [x for x, _ in lines(figure, 1)[1:5]] == [[4000], [4004], [4008], [4012]]


def test_runs_that_cannot_be_drawn_are_left_out_and_noted(tmp_path):
    write_run(tmp_path / "good")
    empty = write_run(tmp_path / "empty", seed=1)
    (empty / "metrics.csv").write_text("env_step,collect/episode_return\n")
    (write_run(tmp_path / "torn", seed=2) / "config.json").write_text("{")
    figure, notes = draw_runs([f"_$mine$={tmp_path}"], panels=["training"])
    assert sum(note.startswith("Left out") for note in notes) == 2
    save(figure, tmp_path / "a.svg")
    assert "<!-- _$mine$ (seed 0) -->" in (tmp_path / "a.svg").read_text()
    with pytest.raises(ConfigError, match="empty"):
        draw_runs([empty])
    with pytest.raises(ConfigError, match="no run has data for the panels learn/nope"):
        draw_runs([tmp_path / "good"], panels=["training", "learn/nope"])
