"""Videos of training runs: when they are made, and that they change nothing."""

import importlib.util
import json
import os
import sys
from unittest import mock

import numpy as np
import pytest
from worlds import MatchEnv, digest, small_config

from ding_lite import SerialPipeline, Tracker, compile_config
from ding_lite.errors import ConfigError, EnvError
from ding_lite.run.checkpoint import load_checkpoint
from ding_lite.run.video import recording_env
from ding_lite.tools.evaluate import evaluate_checkpoint

needs_video = pytest.mark.skipif(importlib.util.find_spec("moviepy") is None, reason="needs the extra video")


class Album(Tracker):
    """Keeps the videos that it receives."""

    received: list = []

    def video(self, env_step, name, file):
        self.received.append((env_step, name, file.name, file.stat().st_size > 1000))


class Blind(MatchEnv):
    """Says that it draws, and draws nothing."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, render_mode=None):
        super().__init__()
        self.render_mode = render_mode

    def render(self):
        return None


class Growing(Blind):
    """Draws pictures of several sizes, of which no video can be made."""

    size = 16

    def render(self):
        self.size += 2
        return np.zeros((self.size, self.size, 3), np.uint8)


class Watching(Blind):
    """Notes which driver SDL would draw with."""

    drivers: set = set()

    def render(self):
        self.drivers.add(os.environ.get("SDL_VIDEODRIVER"))
        return np.zeros((16, 16, 3), np.uint8)


def pipeline_of(folder, world="CartPole-v1", **logger):
    config = small_config(world, env={"manager": "base"}, logger=logger, max_env_step=1024)
    return SerialPipeline(config, folder=folder)


def train(folder, world="CartPole-v1", **logger):
    for _ in pipeline_of(folder, world, **logger):
        pass
    return load_checkpoint(folder / "ckpt" / "last")[0]


@needs_video
@pytest.mark.slow
def test_videos_are_made_at_the_interval_and_change_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(Album, "received", [])
    monkeypatch.delenv("SDL_VIDEODRIVER", raising=False)
    filmed = train(tmp_path / "filmed", trackers=[Album], video_freq=500)
    plain = train(tmp_path / "plain")
    names = [f"step_{step}.mp4" for step in (512, 1024)]
    assert sorted(file.name for file in (tmp_path / "filmed" / "videos").iterdir()) == sorted(names)
    assert Album.received == [(int(name[5:-4]), "eval/episode", name, True) for name in names]
    assert "SDL_VIDEODRIVER" not in os.environ
    for part in ("policy", "collector", "progress", "scores"):
        assert digest(filmed[part]) == digest(plain[part])
    assert not (tmp_path / "plain" / "videos").exists()


@needs_video
def test_the_driver_of_sdl_is_that_of_the_user(tmp_path, monkeypatch):
    monkeypatch.delenv("SDL_VIDEODRIVER", raising=False)
    train(tmp_path / "run", Watching, video_freq=1024)
    assert Watching.drivers == {None}
    monkeypatch.setenv("SDL_VIDEODRIVER", "theirs")
    evaluate_checkpoint(tmp_path / "run", episodes=1, video=tmp_path / "videos", trust=[__name__])
    assert Watching.drivers == {None, "theirs"}


@needs_video
def test_environment_that_renders_nothing_costs_one_warning(tmp_path):
    train(tmp_path / "run", MatchEnv, video_freq=256)
    log = (tmp_path / "run" / "log.txt").read_text()
    assert log.count("no more videos are recorded") == 1
    assert not list((tmp_path / "run" / "videos").iterdir())


@needs_video
@pytest.mark.filterwarnings(
    "ignore:.*Recording stopped", "ignore:.*zero frames to save", "ignore:.*Unable to save last"
)
@pytest.mark.parametrize(
    ("world", "reason"),
    [(Blind, "no picture was drawn"), (Growing, "requires all images to be the same size")],
    ids=["none", "sizes"],
)
def test_picture_that_cannot_be_taken_ends_the_videos_and_not_the_run(world, reason, tmp_path):
    train(tmp_path / "run", world, video_freq=256)
    log = (tmp_path / "run" / "log.txt").read_text()
    (warning,) = [line for line in log.splitlines() if "no more videos are recorded" in line]
    assert reason in warning
    assert json.loads((tmp_path / "run" / "result.json").read_text())["status"] == "finished"


@needs_video
def test_ranks_exchange_the_same_after_a_failed_video_of_the_first(tmp_path, monkeypatch):
    """The others do not know that it has failed."""
    pipeline = pipeline_of(tmp_path / "run", MatchEnv, video_freq=256)
    recorder, exchanges = pipeline.recorder, []

    def film(progress):
        with mock.patch.object(recorder, "_ranks", mock.Mock(wraps=recorder._ranks)) as ranks:
            type(recorder).film(recorder, progress)
        exchanges.append(len(ranks.mock_calls))

    monkeypatch.setattr(recorder, "film", film)
    for _ in pipeline:
        pass
    assert exchanges == [1] * 4


def test_missing_package_is_named_with_one_line_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "moviepy", None)  # as if it were not installed
    env_cfg = compile_config(small_config()).values.env
    with pytest.raises(EnvError) as caught:
        recording_env(env_cfg, tmp_path / "videos", 1, seed=0)
    assert str(caught.value) == (
        'a video needs the package moviepy, which is not installed: pip install "ding_lite[video]"'
    )
    with pytest.raises(ConfigError, match="^logger.video_freq needs the package moviepy, which is not inst"):
        SerialPipeline(small_config(logger={"video_freq": 100}), folder=tmp_path / "run")


def test_environments_of_a_script_are_refused(tmp_path):
    import gymnasium as gym

    setting = (lambda cfg: gym.make("CartPole-v1"), [0] * 4, [0] * 2)
    config = small_config(logger={"video_freq": 100})
    with pytest.raises(ConfigError, match=r"logger\.video_freq: environments from env_setting"):
        SerialPipeline(config, env_setting=setting, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()
