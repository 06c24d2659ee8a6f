"""What a run shows of itself: the few numbers of a line, and when there is one."""

import io

from ding_lite.display import Lines, facts, left
from ding_lite.types import Progress

METRICS = {
    "collect/episode_return": 17.96,
    "collect/episode_length": 18.4,
    "collect/episode_length_max": 43.0,
    "learn/cur_lr": 3e-4,
    "time/env_steps_per_second": 6904.2,
}


def test_facts_are_the_return_and_both_lengths_the_rate_and_the_speed():
    assert facts(METRICS) == ["return 18.0", "length 18 (max 43)", "lr 0.0003", "6,904 steps/s"]


def test_facts_of_a_run_without_a_finished_episode_leave_its_numbers_out():
    assert facts({"learn/cur_lr": 1e-3}) == ["lr 0.001"]
    assert facts({}) == []


def test_line_is_told_once_in_a_while():
    stream = io.StringIO()
    lines, progress = Lines(stream), Progress(env_step=3096, metrics=METRICS)
    lines.show(progress, 20_000)
    lines.show(progress, 20_000)
    assert stream.getvalue() == (
        "    3,096/20,000 steps  return 18.0  length 18 (max 43)  lr 0.0003  6,904 steps/s  left 0:02\n"
    )


def test_time_left_is_that_to_the_limit_at_this_speed():
    metrics = {"time/env_steps_per_second": 10.0}
    assert left(Progress(metrics=metrics), 36_610) == "1:01:01"
    assert left(Progress(env_step=50, metrics=metrics), 20) == "0:00"
    assert left(Progress(), 20) == "?"
