"""Videos of evaluation episodes."""

from __future__ import annotations

import contextlib
import importlib.util
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym

from ding_lite.data.episodes import Evaluator
from ding_lite.data.modes import EvalMode
from ding_lite.envs.in_process import InProcessVectorEnv
from ding_lite.envs.make import make_env, missing_extra
from ding_lite.envs.recorder import find_recorder
from ding_lite.errors import FOREIGN, ConfigError, EnvError, error_text
from ding_lite.run.progress import Progress

NEEDS_MOVIEPY = 'needs the package moviepy, which is not installed: pip install "ding_lite[video]"'


def recording_env(
    env_cfg: Mapping[str, Any],
    folder: Path,
    episodes: int,
    seed: int,
    on_video: Callable[[Path], Any] | None = None,
) -> InProcessVectorEnv:
    """Returns a vector of one environment that records its first episodes; it needs no screen.

    Args:
        env_cfg: the complete section ``env``.
        folder: for one file per episode, ``episode_<number>_return_<return>.mp4``.
        episodes: to record.
        seed: of the start states.
        on_video: called with each file that is written; the last one when the vector is closed.

    Raises:
        EnvError: if the environment cannot be made, or cannot be recorded.
    """
    if not has_moviepy():
        raise EnvError(f"a video {NEEDS_MOVIEPY}")

    def make(index: int) -> gym.Env:
        env = make_env(env_cfg, evaluate=True, render_mode="rgb_array")
        env = gym.wrappers.TimeLimit(env, env_cfg["max_eval_steps"])
        try:
            return Recording(env, folder, episodes, on_video)
        except FOREIGN as error:
            raise EnvError(f"no video can be recorded: {error_text(error)}.{missing_extra(error)}") from error

    return InProcessVectorEnv(make, 1, seed, on_bad_value=env_cfg["on_bad_value"])


def has_moviepy() -> bool:
    """Returns whether the package is installed that writes videos."""
    return importlib.util.find_spec("moviepy") is not None


class Recording(gym.wrappers.RecordVideo):
    """Records episodes, and names each file by the number and the return of its episode."""

    def __init__(
        self, env: gym.Env, folder: Path, episodes: int, on_video: Callable[[Path], Any] | None
    ) -> None:
        with warnings.catch_warnings():  # files of the same names are replaced
            warnings.filterwarnings("ignore", ".*Overwriting existing videos")
            super().__init__(env, str(folder), episode_trigger=lambda number: number < episodes)
        self._folder = folder
        self._on_video = on_video
        self._videos = 0
        self._name = ""
        self._return = 0.0

    def start_recording(self, video_name: str) -> None:
        super().start_recording(video_name)
        self._name = video_name

    def step(self, action: Any) -> Any:
        result = super().step(action)
        self._return = find_recorder(self.env).game.episode_return
        return result

    def stop_recording(self) -> None:
        super().stop_recording()
        written = self._folder / f"{self._name}.mp4"
        if written.exists():
            named = self._folder / f"episode_{self._videos}_return_{round(self._return, 2):g}.mp4"
            written.replace(named)
            self._videos += 1
            if self._on_video is not None:
                self._on_video(named)


class Camera:
    """Records one evaluation episode at intervals of a training run, which it never changes or ends.

    Args:
        cfg: the complete config.
        own_envs: whether the environments of the run are those of the config.

    Raises:
        ConfigError: if videos are asked for and cannot be made.
    """

    def __init__(self, cfg: Any, own_envs: bool) -> None:
        self._env_cfg = cfg.env
        self._seed = cfg.seed
        self._has_failed = False
        if not cfg.logger.video_freq:
            return
        if not own_envs:
            raise ConfigError(
                "logger.video_freq: environments from env_setting cannot be recorded: set the key to 0, or "
                "describe the environment in the config"
            )
        if not has_moviepy():
            raise ConfigError(f"logger.video_freq {NEEDS_MOVIEPY}")

    def film(
        self, folder: Path, progress: Progress, mode: EvalMode, say: Callable[[str], None]
    ) -> Path | None:
        """Records an episode as an mp4 file; the first failure is the last try.

        Args:
            folder: of the videos.
            progress: of the run.
            mode: eval mode of the policy.
            say: writes a warning to the log and shows it.

        Returns:
            the file, or None if it could not be made.
        """
        if self._has_failed:
            return None
        file = folder / f"step_{progress.env_step}.mp4"
        try:
            folder.mkdir(exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder) as temporary:
                new = Path(temporary) / "episode"  # gymnasium warns of folders that exist
                envs = recording_env(self._env_cfg, new, 1, self._seed)
                with contextlib.closing(envs):
                    Evaluator(envs, mode, 1, self._env_cfg.max_eval_steps).evaluate(
                        "video", progress.iteration
                    )
                drawn = list(new.glob("*.mp4"))
                if not drawn:
                    raise EnvError("no picture was drawn: render() of the environment returned no array")
                drawn[0].rename(file)
        except FOREIGN as error:
            self._has_failed = True
            is_missing = isinstance(error.__cause__, NotImplementedError)
            hint = " (its render() must return an image for render_mode='rgb_array')" if is_missing else ""
            say(f"WARNING: {error_text(error)}{hint}; no more videos are recorded")
            return None
        return file
