"""``ding-lite eval``: plays episodes with a trained policy, and prints their returns or records videos."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ding_lite.cli.common import (
    add_json,
    add_player_options,
    check_player_options,
    overrides_of,
    trusted_modules,
)

if TYPE_CHECKING:
    from ding_lite.data.evaluation import Evaluation

SUMMARY = "play episodes with a trained policy"
DESCRIPTION = """\
Plays episodes with a trained policy and prints the distribution of their returns.

The policy and its environment are those of the run; keys of env can be given other values.
Nothing in the run's folder changes.
"""
EXAMPLES = """\
examples:
  ding-lite eval runs/cartpole_ppo                     16 episodes with the best checkpoint
  ding-lite eval runs/cartpole_ppo/ckpt/last -n 100    100 episodes with the last checkpoint
  ding-lite eval runs/cartpole_ppo --video videos      record the episodes as videos/*.mp4
  ding-lite eval runs/cartpole_ppo --episodes-csv e.csv  one row per episode
  ding-lite eval runs/pendulum_ppo env.kwargs.g=15     in an environment with other arguments
  ding-lite eval runs/my_run --import my_policies      a run whose policy is in my_policies.py
"""
PRELOAD = ("ding_lite.tools.evaluate",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``ding-lite eval``."""
    add_player_options(parser, episodes=16)
    parser.add_argument("--video", metavar="DIR", help="record the episodes as mp4 files in this folder")
    parser.add_argument(
        "--episodes-csv",
        metavar="FILE",
        help="write one row per episode: seed, env, episode, return, length, cut, and env.info_keys",
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Plays the episodes and prints the result."""
    from ding_lite.tools.evaluate import evaluate_checkpoint

    check_player_options(args)
    checkpoint, evaluation = evaluate_checkpoint(
        Path(args.run),
        episodes=args.episodes,
        seed=args.seed,
        stochastic=args.stochastic,
        video=Path(args.video) if args.video else None,
        episodes_csv=Path(args.episodes_csv) if args.episodes_csv else None,
        changes=overrides_of(args, args.overrides),
        trust=trusted_modules(args),
    )
    report = {
        "episodes": len(evaluation.returns),
        "mean": evaluation.mean,
        "std": evaluation.std,
        "returns": list(evaluation.returns),
        "lengths": list(evaluation.lengths),
        "checkpoint": str(checkpoint),
        "seed": args.seed,
    }
    print(json.dumps(report) if args.json else _table(report, evaluation))
    return 0


def _table(report: dict[str, Any], evaluation: Evaluation) -> str:
    import numpy as np

    quartiles = np.percentile(evaluation.returns, (0, 25, 50, 75, 100))
    names = ("min", "25%", "50%", "75%", "max")
    spread = "  ".join(f"{name} {value:.1f}" for name, value in zip(names, quartiles, strict=True))
    lines = [
        f"checkpoint  {report['checkpoint']}",
        f"episodes    {report['episodes']} (seed {report['seed']})",
        f"return      {evaluation.mean:.2f} ± {evaluation.std:.2f}   {spread}",
        f"length      {np.mean(evaluation.lengths):.1f}   max {max(evaluation.lengths)}",
    ]
    if evaluation.cut_short:
        lines.append(f"            {evaluation.cut_short} episodes were cut at env.max_eval_steps")
    return "\n".join(lines)
