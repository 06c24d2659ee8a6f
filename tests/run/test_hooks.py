"""The library's own hooks, and faults of a user's hooks."""

import importlib.util
import json
import os

import numpy as np
import pytest
from worlds import digest, finished, small_config, until

from ding_lite import Hook, SerialPipeline, Tracker, compile_config
from ding_lite.data.episodes import Evaluation
from ding_lite.errors import ConfigError, ContractError
from ding_lite.run.video import Pictures
from ding_lite.testing import MatchEnv

BASE = {"manager": {"type": "base"}}


def train(folder, **others):
    return finished(SerialPipeline(small_config(**{"env": BASE, **others}), folder=folder))


@pytest.mark.parametrize("value", ["text", np.zeros(2), None])
def test_a_metric_that_is_no_number_is_named(value, tmp_path):
    class Says(Hook):
        def after_iter(self, pipeline):
            pipeline.progress.metrics["mine"] = value

    with pytest.raises(ContractError, match="metric 'mine': expected a number, got "):
        train(tmp_path / "run", hooks=[Says])
    assert json.loads((tmp_path / "run" / "result.json").read_text())["status"] == "failed"


def test_an_argument_that_a_hook_does_not_have_is_named(tmp_path):
    with pytest.raises(ConfigError, match="hook ding_lite.run.hooks:EarlyStopping: unknown key"):
        train(tmp_path / "run", hooks=[{"type": "ding_lite.run.hooks:EarlyStopping", "patiense": 2}])


def test_early_stopping_says_that_it_has_no_effect_without_evaluations(tmp_path):
    train(tmp_path / "run", hooks=["early_stopping"], env={**BASE, "evaluator_env_num": 0})
    assert "early_stopping: no effect" in (tmp_path / "run" / "log.txt").read_text()


def test_early_stopping_ends_a_run_without_improvement_and_counts_on_after_a_resume(tmp_path, monkeypatch):
    means = iter([1.0, 3.0, 3.0, 2.0, 9.0, 1.0, 1.0, 1.0, 1.0])
    monkeypatch.setattr(
        "ding_lite.data.episodes.Evaluator.evaluate", lambda *_, **__: Evaluation((next(means),), (1,))
    )
    config = small_config(
        max_env_step=10**6,
        env=BASE,
        policy={"eval": {"eval_freq": 1}},
        hooks=[{"type": "early_stopping", "patience": 2}],
    )
    until(SerialPipeline(config, folder=tmp_path / "run"), 3)
    pipeline = SerialPipeline.resume(tmp_path / "run")
    assert [progress.iteration for progress in pipeline] == [4]
    assert pipeline.stop_reason == "no evaluation above 3 in the last 2"
    assert [p.iteration for p in SerialPipeline.resume(tmp_path / "run")] == [5, 6, 7], "it counts on"


# ---------------------------------------------------------------------- videos

needs_video = pytest.mark.skipif(importlib.util.find_spec("moviepy") is None, reason="needs the extra plot")
VIDEO = {"type": "video", "freq": 512}


class Album(Tracker):
    """Keeps the videos that it receives."""

    received: list = []

    def video(self, env_step, name, file):
        self.received.append((env_step, name, file.name, os.path.getsize(file) > 1000))


class Blind(MatchEnv):
    """Says that it draws, and draws nothing."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, render_mode=None):
        super().__init__()
        self.render_mode = render_mode

    def render(self):
        return None


@pytest.mark.slow
@needs_video
def test_videos_are_made_at_the_interval_sent_to_the_trackers_and_change_nothing(tmp_path):
    Album.received.clear()
    states = []
    for hooks in ([], [VIDEO]):
        pipeline = train(
            tmp_path / f"run_{len(hooks)}", hooks=hooks, logger={"trackers": [Album]}, max_env_step=1024
        )
        states.append(digest(pipeline.policy.state_dict()))
    assert states[0] == states[1]
    files = {step: f"step_{step}-episode-0.mp4" for step in (512, 1024)}
    assert {file.name for file in (tmp_path / "run_1" / "videos").iterdir()} == {*files.values()}
    assert Album.received == [(step, "eval/episode", file, True) for step, file in files.items()]


@needs_video
def test_an_environment_that_draws_nothing_costs_one_warning(tmp_path):
    pipeline = train(tmp_path / "run", world=Blind, hooks=[VIDEO])
    assert pipeline.status == "finished"
    assert (tmp_path / "run" / "log.txt").read_text().count("WARNING") == 1


@pytest.mark.parametrize(
    ("shape", "dtype", "value", "shown"), [((4, 5), "uint8", 200, 200), ((4, 5, 3), "float64", 0.8, 204)]
)
def test_grey_and_float_pictures_become_colours(shape, dtype, value, shown):
    env = Blind("rgb_array")
    env.render = lambda: np.full(shape, value, dtype)
    picture = Pictures(env).render()
    assert (picture.shape, picture.dtype) == ((4, 5, 3), "uint8")
    assert (picture == shown).all()


def test_a_missing_package_is_refused(tmp_path, monkeypatch):
    config = compile_config(small_config(Blind, hooks=[VIDEO]))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"ding_lite\[plot\]"):
        SerialPipeline(config, folder=tmp_path / "run")
