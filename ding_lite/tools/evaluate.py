"""Plays episodes with the policy of a checkpoint, and records them as videos if asked."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym

from ding_lite.data.evaluation import Evaluation
from ding_lite.data.evaluator import Evaluator
from ding_lite.envs.in_process import InProcessVectorEnv
from ding_lite.envs.make import make_env, make_vector_env, missing_extra
from ding_lite.errors import EnvError
from ding_lite.policies.base import Policy
from ding_lite.run.checkpoint import load_of_run
from ding_lite.run.load import policy_from_state
from ding_lite.run.resume import config_of_checkpoint


class Opened(NamedTuple):
    """What a checkpoint has to play with.

    Attributes:
        folder: of the checkpoint.
        config: complete config of the run.
        policy: on the CPU.
        env_step: of the run, when it was saved.
    """

    folder: Path
    config: Any
    policy: Policy
    env_step: int


def open_checkpoint(run: Path, trust: Sequence[str] = ()) -> Opened:
    """Loads a policy, and the config of its run.

    Args:
        run: a run's folder, whose best checkpoint is used, or a checkpoint.
        trust: modules that the checkpoint's config may import.

    Raises:
        CheckpointError: if there is no checkpoint, or its config names a module that is not trusted.
    """
    folder, state, saved = load_of_run(run, "best")
    config = config_of_checkpoint(folder, saved, list(trust)).values
    policy = policy_from_state(folder, state, saved, device="cpu", trust=trust)
    return Opened(folder, config, policy, int(state["progress"]["env_step"]))


def evaluate_checkpoint(
    run: Path,
    *,
    episodes: int = 16,
    seed: int = 0,
    stochastic: bool = False,
    video: Path | None = None,
    trust: Sequence[str] = (),
) -> tuple[Path, Evaluation]:
    """Plays episodes with a trained policy, on the CPU, in the environments of its run.

    Args:
        run: a run's folder, whose best checkpoint is used, or a checkpoint.
        episodes: to play.
        seed: of the start states.
        stochastic: sample the actions; otherwise take the most likely ones.
        video: folder for one mp4 file per episode; the episodes are then played one after the other.
        trust: modules that the checkpoint's config may import.

    Returns:
        the folder of the checkpoint, and the returns and lengths of the episodes.

    Raises:
        CheckpointError: if there is no checkpoint, or its config names a module that is not trusted.
        EnvError: if the environments cannot be made, or cannot be recorded.
    """
    folder, config, policy, _ = open_checkpoint(run, trust)
    env_cfg = config["env"]
    mode = policy.eval_mode
    if stochastic:
        mode = mode._replace(forward=policy.collect_mode.forward)
    envs = _envs(env_cfg, episodes, seed, video)
    try:
        return folder, Evaluator(envs, mode, episodes, env_cfg["max_eval_steps"]).evaluate("command")
    finally:
        envs.close()


def _envs(env_cfg: dict[str, Any], episodes: int, seed: int, video: Path | None) -> Any:
    if video is None:
        num_envs = min(env_cfg["evaluator_env_num"], episodes)
        return make_vector_env(env_cfg, num_envs, seed, evaluate=True)
    make = functools.partial(_recording_env, env_cfg, video, episodes)
    return InProcessVectorEnv(make, 1, seed, on_bad_value=env_cfg["on_bad_value"])


def _recording_env(env_cfg: Mapping[str, Any], folder: Path, episodes: int, index: int) -> gym.Env:
    """Makes an environment that records its first ``episodes`` episodes; it needs no screen.

    Args:
        index: of the environment; unused, there is only one.
    """
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    env = make_env(env_cfg, evaluate=True, render_mode="rgb_array")
    env = gym.wrappers.TimeLimit(env, env_cfg["max_eval_steps"])
    try:
        return gym.wrappers.RecordVideo(
            env, str(folder), episode_trigger=lambda number: number < episodes, disable_logger=True
        )
    except gym.error.DependencyNotInstalled as error:
        raise EnvError(f"--video: {error}.{missing_extra(error)}") from error
