"""Videos of training runs: when they are made, and that they change nothing."""

import importlib.util
import os
import sys

import pytest
from worlds import MatchEnv, digest, small_config

from ding_lite import SerialPipeline, Tracker, compile_config
from ding_lite.errors import ConfigError, EnvError
from ding_lite.run.checkpoint import load_checkpoint
from ding_lite.run.video import recording_env

needs_video = pytest.mark.skipif(importlib.util.find_spec("moviepy") is None, reason="needs the extra video")


class Album(Tracker):
    """Keeps the videos that it receives."""

    received: list = []

    def video(self, env_step, name, file):
        self.received.append((env_step, name, file.name, file.stat().st_size > 1000))


def train(folder, world="CartPole-v1", **logger):
    config = small_config(world, env={"manager": "base"}, logger=logger, max_env_step=1024)
    pipeline = SerialPipeline(config, folder=folder)
    for _ in pipeline:
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
def test_environment_that_renders_nothing_costs_one_warning(tmp_path):
    train(tmp_path / "run", MatchEnv, video_freq=256)
    log = (tmp_path / "run" / "log.txt").read_text()
    assert log.count("no more videos are recorded") == 1
    assert not list((tmp_path / "run" / "videos").iterdir())


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
