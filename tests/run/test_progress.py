"""Scores and metrics by hand, the time left, and the lines of a display."""

import io
import types

import pytest

from ding_lite.data.episodes import Evaluation
from ding_lite.run.display import Display, LiveDisplay, SeedsDisplay, clock, score_text
from ding_lite.run.progress import Progress, evaluation_metrics, merged_metrics


def test_metrics_of_an_evaluation_are_those_counted_by_hand():
    metrics = evaluation_metrics(
        Evaluation((1.0, 3.0), (10, 30), infos=({"is_success": 1.0, "episode_return_mean": 9.0}, {}))
    )
    assert metrics == {
        "eval/episode_return_mean": 2.0,
        "eval/episode_return_std": 1.0,
        "eval/episode_return_min": 1.0,
        "eval/episode_return_max": 3.0,
        "eval/episode_length_mean": 20.0,
        "eval/episode_length_max": 30.0,
        "eval/is_success": 0.5,
    }


@pytest.mark.parametrize("mean", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_never_the_best(mean):
    progress = Progress(evaluation=Evaluation((mean,), (1,)))
    assert not progress.update_best()
    progress.evaluation = Evaluation((-1e9,), (1,))
    assert progress.update_best()
    assert progress.best_eval_value == -1e9


def test_metrics_of_ranks_are_means_maxima_and_sums():
    merged = merged_metrics(
        [
            {
                "learn/loss": 1.0,
                "collect/episode_count": 2.0,
                "collect/episode_length_max": 5.0,
                "time/env_s": 1.0,
            },
            {
                "learn/loss": 2.0,
                "collect/episode_count": 3.0,
                "collect/episode_length_max": 4.0,
                "time/env_s": 3.0,
            },
        ]
    )
    assert merged == {
        "learn/loss": 1.5,
        "collect/episode_count": 5.0,
        "collect/episode_length_max": 5.0,
        "time/env_s": 3.0,
    }


def test_a_live_display_shows_the_phase_of_the_first_iteration_and_disappears():
    stream = io.StringIO()
    display = LiveDisplay(stream)
    pipeline = types.SimpleNamespace(
        progress=Progress(),
        cfg=types.SimpleNamespace(max_env_step=10**6),
        policy=types.SimpleNamespace(timer=types.SimpleNamespace(phase="env")),
        summary=lambda: "finished",
    )
    display.before_run(pipeline)
    assert display._last_line() == "        0/1,000,000 steps  0%  left ?  env"
    pipeline.progress.metrics = {
        **dict.fromkeys(("collect/episode_return", "collect/episode_length"), 20.5),
        **{"collect/episode_length_max": 30.0, "learn/cur_lr": 1e-3, "time/env_steps_per_second": 4000.0},
    }
    speed = "lr 0.001  4,000 steps/s"
    whole = f"        0/1,000,000 steps  0%  left ?  return 20.5  length 20 (max 30)  {speed}"
    for width, gone in ((95, ""), (90, " (max 30)"), (80, "  length 20 (max 30)")):
        assert display.line(pipeline, width) == whole.replace(gone, "")
    assert display.line(pipeline, 61) == f"        0 steps  left ?  return 20.5  {speed}"
    display.after_run(pipeline)
    assert stream.getvalue().endswith("finished\n")


def test_a_line_below_those_of_several_runs_has_the_time_left_for_all(monkeypatch):
    seconds = iter([100.0, 110.0, 110.0])
    monkeypatch.setattr("ding_lite.run.display.time.monotonic", lambda: next(seconds))
    display = SeedsDisplay(io.StringIO(), ["seed 0", "seed 1", "seed 2"], 40_000)
    assert display._last_line() == "3 seeds  0%  left ? for all"
    for line in (
        "seed 0:     1,000/40,000 steps  2%  ",
        "seed 1: env x",
        "seed 1:    21,000 steps  evaluation 1.0",
    ):
        display.write(line)  # the second one is resumed
    display.write("seed 0:     3,000 steps  7%  ")
    assert display._last_line() == "3 seeds  20%  left 8:00 for all"  # 96,000 steps, at 200 a second
    display.write("seed 0: solved after 3,000 env steps and 10.0 s")
    assert display._last_line() == "3 seeds  51%  left 4:55 for all"


def test_the_time_left_is_that_at_the_mean_speed_without_the_first_iteration(monkeypatch):
    seconds = iter([100.0, 110.0])
    monkeypatch.setattr("time.monotonic", lambda: next(seconds))
    display, cfg = Display(io.StringIO()), types.SimpleNamespace(max_env_step=40_000)
    metrics = {"learn/cur_lr": 1.0}
    for step in (1000, 2000):
        progress = Progress(env_step=step, metrics=metrics)
        display.after_iter(types.SimpleNamespace(progress=progress, cfg=cfg))
    assert "left 6:20" in display.stream.getvalue().splitlines()[-1]
    assert clock(4000) == "1:06:40"
    assert score_text(None) == "-"
    assert score_text(0.1234, 10.0) == "0.1 ± 10.0"
