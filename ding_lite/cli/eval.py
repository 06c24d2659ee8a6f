"""``ding-lite eval``: episodes with a trained policy, as a table, as JSON, or on video."""

from __future__ import annotations

import argparse
import functools
import json
import os
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from ding_lite.checkpoint import find_checkpoint, load_checkpoint
from ding_lite.config import compile_config
from ding_lite.config_files import find_config, read_config
from ding_lite.envs.in_process import InProcessVectorEnv
from ding_lite.envs.make import make_env, make_vector_env, missing_extra
from ding_lite.errors import ConfigError, EnvError
from ding_lite.evaluator import Evaluator
from ding_lite.policies.load import policy_from_state
from ding_lite.resuming import config_of_checkpoint
from ding_lite.types import EvalMode, Evaluation


def run(args: argparse.Namespace) -> int:
    """Plays the episodes and prints what came out."""
    if args.episodes < 1:
        raise ConfigError(f"-n: expected at least 1 episode, got {args.episodes}")
    if args.seed < 0:
        raise ConfigError(f"-s: expected a seed of at least 0, got {args.seed}")
    trusted = list(args.imports)
    if args.config:
        trusted += compile_config(read_config(find_config(args.config)), origin=args.config).modules()
    folder = find_checkpoint(Path(args.run), "best")
    state, saved = load_checkpoint(folder)
    config = config_of_checkpoint(folder, saved, trusted)
    policy = policy_from_state(folder, state, saved, device="cpu", trust=trusted)
    mode = policy.eval_mode
    if args.stochastic:
        mode = EvalMode(policy.collect_mode.forward, mode.to_env, mode.reset)
    found = _play(config.values, mode, args)
    told = {
        "episodes": len(found.returns),
        "mean": found.mean,
        "std": found.std,
        "returns": list(found.returns),
        "lengths": list(found.lengths),
        "checkpoint": str(folder),
        "seed": args.seed,
    }
    print(json.dumps(told) if args.json else _table(told, found))
    return 0


def _play(config: Any, mode: EvalMode, args: argparse.Namespace) -> Evaluation:
    env_cfg = config["env"]
    if args.video:
        record = functools.partial(_recording_env, env_cfg, Path(args.video), args.episodes)
        envs: Any = InProcessVectorEnv(record, 1, args.seed, on_bad_value=env_cfg["on_bad_value"])
    else:
        num_envs = min(env_cfg["evaluator_env_num"], args.episodes)
        envs = make_vector_env(env_cfg, num_envs, args.seed, evaluate=True)
    try:
        return Evaluator(envs, mode, args.episodes, env_cfg["max_eval_steps"]).evaluate("command")
    finally:
        envs.close()


def _recording_env(env_cfg: dict[str, Any], folder: Path, episodes: int, index: int) -> gym.Env:
    """Makes one environment that records its first ``episodes``; no screen is needed."""
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    env = make_env(env_cfg, evaluate=True, render_mode="rgb_array")
    env = gym.wrappers.TimeLimit(env, env_cfg["max_eval_steps"])
    try:
        return gym.wrappers.RecordVideo(
            env, str(folder), episode_trigger=lambda number: number < episodes, disable_logger=True
        )
    except gym.error.DependencyNotInstalled as error:
        raise EnvError(f"--video: {error}.{missing_extra(error)}") from error


def _table(told: dict[str, Any], found: Evaluation) -> str:
    quartiles = np.percentile(found.returns, (0, 25, 50, 75, 100))
    lines = [
        f"checkpoint  {told['checkpoint']}",
        f"episodes    {told['episodes']} (seed {told['seed']})",
        f"return      {found.mean:.2f} ± {found.std:.2f}   "
        + "  ".join(
            f"{n} {q:.1f}" for n, q in zip(("min", "25%", "50%", "75%", "max"), quartiles, strict=True)
        ),
        f"length      {np.mean(found.lengths):.1f}   max {max(found.lengths)}",
    ]
    if found.cut_short:
        lines.append(f"            {found.cut_short} episodes were cut at env.max_eval_steps")
    return "\n".join(lines)
