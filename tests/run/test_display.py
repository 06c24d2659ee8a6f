"""The lines that a run shows: their metrics, and when they are written."""

import io

from ding_lite.run.display import Lines, TimeLeft, key_metrics
from ding_lite.run.progress import Progress

METRICS = {
    "collect/episode_return": 17.96,
    "collect/episode_length": 18.4,
    "collect/episode_length_max": 43.0,
    "learn/cur_lr": 3e-4,
    "time/env_steps_per_second": 6904.2,
}


def test_key_metrics_are_return_lengths_learning_rate_and_speed():
    assert key_metrics(METRICS) == ["return 18.0", "length 18 (max 43)", "lr 0.0003", "6,904 steps/s"]


def test_key_metrics_that_are_missing_are_left_out():
    assert key_metrics({"learn/cur_lr": 1e-3}) == ["lr 0.001"]
    assert key_metrics({}) == []


def test_lines_come_at_intervals():
    stream = io.StringIO()
    lines, progress = Lines(stream), Progress(env_step=3096, metrics=METRICS)
    lines.show(progress, 20_000)
    lines.show(progress, 20_000)
    assert stream.getvalue() == (
        "    3,096/20,000 steps  return 18.0  length 18 (max 43)  lr 0.0003  6,904 steps/s  left ?\n"
    )


def test_time_left_is_the_time_to_the_limit_without_the_first_iteration_which_compiles():
    now = iter([100.0, 101.0, 102.0])  # the first iteration of 10 steps took 100 s
    left = TimeLeft(lambda: next(now))
    assert left.after(Progress(env_step=10), 36_630) == "?"
    assert left.after(Progress(env_step=20), 36_630) == "1:01:01"
    assert left.after(Progress(env_step=30), 20) == "0:00"


def test_time_left_is_that_at_the_mean_speed_of_whole_phases():
    seconds = [1.0, 1.0, 1.0, 17.0]  # every fourth iteration of 10 steps has an auxiliary phase
    now = iter(sum(seconds[i % 4] for i in range(n)) for n in range(100))
    left = TimeLeft(lambda: next(now))
    texts = [left.after(Progress(env_step=10 * n), 10 * n + 40) for n in range(80)]
    assert set(texts[40:]) == {"0:20"}
