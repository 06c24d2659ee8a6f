"""Videos of evaluation episodes."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from ding_lite.config.registry import HOOK_REGISTRY
from ding_lite.data.episodes import Evaluator
from ding_lite.envs.in_process import InProcessVectorEnv
from ding_lite.envs.make import make_env
from ding_lite.envs.packages import missing_extra
from ding_lite.errors import FOREIGN, EnvError, error_text, require
from ding_lite.run.hooks import Hook


def recording_env(
    env_cfg: Mapping[str, Any], folder: Path, episodes: int, seed: int, name: str = "eval"
) -> InProcessVectorEnv:
    """Returns a vector of one environment that records its first episodes; it needs no screen.

    Args:
        env_cfg: the complete section ``env``.
        folder: for one file per episode, ``<name>-episode-<number>.mp4``; the last is written on closing.
        episodes: number of episodes to record.
        seed: of the start states.
        name: prefix of the file names.

    Raises:
        EnvError: if the environment cannot be made, or cannot be recorded.
    """

    def make(index: int) -> gym.Env:
        env = Pictures(make_env(env_cfg, evaluate=True, render_mode="rgb_array"))
        try:
            with warnings.catch_warnings():  # files of the same names are replaced
                warnings.filterwarnings("ignore", ".*Overwriting existing videos")
                return gym.wrappers.RecordVideo(
                    env, str(folder), episode_trigger=lambda number: number < episodes, name_prefix=name
                )
        except FOREIGN as error:
            raise EnvError(f"no video can be recorded: {error_text(error)}{missing_extra(error)}") from error

    return InProcessVectorEnv(make, 1, seed)


class Pictures(gym.Wrapper):
    """Renders pictures with three channels from 0 to 255, as video files need them."""

    def render(self) -> Any:
        picture = super().render()
        if isinstance(picture, np.ndarray):
            if picture.dtype.kind == "f" and 0 <= picture.min() <= picture.max() <= 1:
                picture = np.rint(255 * picture).astype(np.uint8)
            if picture.shape[2:] in ((), (1,)):
                picture = np.repeat(picture.reshape(*picture.shape[:2], 1), 3, axis=2)
        return picture


@HOOK_REGISTRY.register("video")
class RecordVideo(Hook):
    """Records an evaluation episode as `videos/step_*-episode-0.mp4`, and sends it to the trackers.

    The training is not affected. After a failure no more videos are recorded.

    Args:
        freq: env steps between videos.
    """

    def __init__(self, freq: int) -> None:
        require("moviepy", "a video", "plot")
        self.freq = freq

    def after_iter(self, pipeline: Any) -> None:
        progress = pipeline.progress
        if not (pipeline.ranks.is_first and progress.crossed(self.freq)):
            return
        folder, env, name = pipeline.folder / "videos", pipeline.cfg.env, f"step_{progress.env_step}"
        try:
            with contextlib.closing(recording_env(env, folder, 1, pipeline.cfg.seed, name)) as envs:
                evaluator = Evaluator(envs, pipeline.policy, 1, env.max_eval_steps)
                evaluator.evaluate("video", progress.iteration)
            if not (folder / f"{name}-episode-0.mp4").exists():
                raise EnvError("no picture was drawn: render() of the environment returned no array")
        except FOREIGN as error:
            self.freq = 0
            pipeline.say(f"WARNING: {error_text(error)}; no more videos are recorded")
