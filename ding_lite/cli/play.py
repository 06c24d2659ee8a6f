"""``ding-lite play``: shows a trained policy in a window."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from ding_lite.cli.common import (
    add_player_options,
    player_options,
    trusted_modules,
)
from ding_lite.errors import ConfigError

SUMMARY = "watch a trained policy in a window"
DESCRIPTION = """\
Plays episodes with a trained policy in a window, and prints their returns. Ctrl-C ends it.

The environment must have the render mode "human". Without a display, record videos instead:
ding-lite eval RUN --video videos
"""
EXAMPLES = """\
examples:
  ding-lite play runs/cartpole_ppo                     5 episodes with the best checkpoint
  ding-lite play runs/cartpole_ppo/ckpt/last -n 1      1 episode with the last checkpoint
  ding-lite play runs/cartpole_ppo --fps 10            slowly
  ding-lite play runs/cartpole_ppo --stochastic -s 3   with sampled actions, from other start states
"""
PRELOAD = ("ding_lite.tools.evaluate",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``ding-lite play``."""
    add_player_options(parser, episodes=5)
    parser.add_argument(
        "--fps", type=float, metavar="N", help="steps a second (default: the environment's own)"
    )


def run(args: argparse.Namespace) -> int:
    """Plays the episodes and prints a line for each."""
    from ding_lite.config.compile import parse_overrides
    from ding_lite.tools.evaluate import play_checkpoint

    if args.fps is not None and not 0 < args.fps <= 1000:
        raise ConfigError(f"--fps: expected a number above 0 and at most 1000, got {args.fps}")
    checkpoint, evaluation = play_checkpoint(
        Path(args.run),
        episodes=args.episodes,
        seed=args.seed,
        stochastic=args.stochastic,
        fps=args.fps,
        changes=parse_overrides(args.overrides),
        trust=trusted_modules(args),
        video_command=shlex.join(["ding-lite", "eval", *player_options(args), "--video", "videos"]),
        on_episode=lambda episode: print(
            f"return {episode.episode_return:>10.2f}   length {episode.length}", flush=True
        ),
    )
    print(f"{evaluation.mean:.2f} ± {evaluation.std:.2f} (std) over {args.episodes} episodes of {checkpoint}")
    return 0
