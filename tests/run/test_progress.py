"""Scores and metrics by hand, the time left, and the lines of a display."""

import io
import types

import pytest

from ding_lite.data.episodes import Evaluation
from ding_lite.run.display import Display, LiveDisplay, score_text
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
    names = "learn/loss", "collect/episode_count", "collect/episode_length_max", "time/env_s"
    of_ranks = [dict(zip(names, row, strict=True)) for row in ((1.0, 2.0, 5.0, 1.0), (2.0, 3.0, 4.0, 3.0))]
    assert merged_metrics(of_ranks) == dict(zip(names, (1.5, 5.0, 5.0, 3.0), strict=True))
    had_episodes = {"collect/episode_return": 1.0}
    rates = merged_metrics([{**had_episodes, "collect/is_success": 0.5}, had_episodes, {}])
    assert rates["collect/is_success"] == 0.25, "a rank without a success counts in the rate of all"


def test_a_live_display_shows_the_phase_of_the_first_iteration_and_disappears():
    stream = io.StringIO()
    display = LiveDisplay(stream)
    pipeline = types.SimpleNamespace(
        progress=Progress(),
        cfg=types.SimpleNamespace(max_env_step=10**6, max_train_iter=None),
        policy=types.SimpleNamespace(timer=types.SimpleNamespace(phase="env")),
    )
    display.before_run(pipeline)
    assert display.line(pipeline) == "        0/1,000,000 steps  0%  left ?  env"
    pipeline.progress.metrics = {
        **dict.fromkeys(("collect/episode_return", "collect/episode_length"), 20.5),
        **{"collect/episode_length_max": 30.0, "learn/cur_lr": 1e-3, "time/env_steps_per_second": 4000.0},
    }
    metrics = "return 20.5  4,000 steps/s  length 20 (max 30)  lr 0.001"
    assert display.line(pipeline) == f"        0/1,000,000 steps  0%  left ?  {metrics}"
    display.after_run(pipeline)
    display.say("finished")
    assert stream.getvalue().endswith("finished\n")


@pytest.mark.parametrize(("updates", "left"), [(None, "5%  left 0:06:20"), (99, "50/99 updates  51%  left")])
def test_the_time_left_is_that_at_the_mean_speed_until_the_first_limit(updates, left):
    cfg = types.SimpleNamespace(max_env_step=40_000, max_train_iter=updates)
    progress = Progress(env_step=2_000, train_iter=50, wall_time=20.0, metrics={"learn/cur_lr": 1.0})
    Display(stream := io.StringIO()).after_iter(types.SimpleNamespace(progress=progress, cfg=cfg))
    assert left in stream.getvalue()
    assert (score_text(None), score_text(0.1234, 10.0)) == ("-", "0.1 ± 10.0")
