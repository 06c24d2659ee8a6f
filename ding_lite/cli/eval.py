"""``ding-lite eval``: plays episodes with a trained policy, and prints their returns or records videos."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ding_lite.cli.common import (
    Once,
    add_json,
    add_player_options,
    path_text,
    trusted_modules,
)
from ding_lite.cli.process import stdout_to_stderr

if TYPE_CHECKING:
    from ding_lite.data.episodes import Evaluation
    from ding_lite.envs.transition import Episode

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
  ding-lite eval runs/cartpole_ppo --video videos      record 3 episodes as videos/*.mp4
  ding-lite eval runs/cartpole_ppo --episodes-csv e.csv  one row per episode
  ding-lite eval runs/pendulum_ppo env.kwargs.g=15     in an environment with other arguments
  ding-lite eval runs/my_run --import my_policies      a run whose policy is in my_policies.py
"""
EPISODES, FILMED = 16, 3  # episodes by default; with --video, since drawing and encoding them takes long
PRELOAD = ("ding_lite.tools.evaluate",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``ding-lite eval``."""
    add_player_options(parser, episodes=EPISODES)
    parser.set_defaults(episodes=None)
    parser.add_argument(
        "--video",
        action=Once,
        type=path_text,
        metavar="DIR",
        help=f"record the episodes as DIR/episode_*.mp4; without -n, these are {FILMED} episodes",
    )
    parser.add_argument(
        "--episodes-csv",
        action=Once,
        type=path_text,
        metavar="FILE",
        help="write one row per episode: seed, env, episode, return, length, cut, and env.info_keys",
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Plays the episodes and prints the result."""
    from ding_lite.config.compile import parse_overrides
    from ding_lite.data.episodes import SUCCESS, means_of
    from ding_lite.tools.evaluate import evaluate_checkpoint

    if args.episodes is None:
        args.episodes = FILMED if args.video else EPISODES
    videos: list[Path] = []
    is_shown = sys.stdout.isatty() and not args.json
    with stdout_to_stderr(args.json), _progress(args.episodes, is_shown) as show:
        checkpoint, evaluation = evaluate_checkpoint(
            Path(args.run),
            episodes=args.episodes,
            seed=args.seed,
            stochastic=args.stochastic,
            video=Path(args.video) if args.video else None,
            episodes_csv=Path(args.episodes_csv) if args.episodes_csv else None,
            changes=parse_overrides(args.overrides),
            trust=trusted_modules(args),
            on_episode=show,
            on_video=videos.append,
        )
    if checkpoint.stem == "last" and Path(args.run).is_dir():
        print(f"{args.run} has no checkpoint best; this is last", file=sys.stderr)
    report: dict[str, Any] = {
        "episodes": len(evaluation.returns),
        "mean": evaluation.mean,
        "std": evaluation.std,
        "returns": list(evaluation.returns),
        "lengths": list(evaluation.lengths),
        "cut_short": evaluation.cut_short,
        "checkpoint": str(checkpoint),
        "seed": args.seed,
    }
    means = means_of(evaluation.infos)
    if SUCCESS in means:
        report["success"] = means.pop(SUCCESS)
    if means:
        report["info"] = means
    if args.video:
        report["videos"] = [str(file) for file in videos]
    print(json.dumps(report) if args.json else _table(report, evaluation))
    if args.video and not args.json:
        print(f"videos: {args.video} ({len(videos)} {'file' if len(videos) == 1 else 'files'})")
    return 0


@contextlib.contextmanager
def _progress(episodes: int, shown: bool) -> Iterator[Callable[[Episode], None]]:
    """Yields a function of each episode, which shows their number on the terminal if ``shown``."""
    if not shown:
        yield lambda episode: None
        return
    from rich.console import Console

    done = itertools.count(1)
    with Console().status(f"0 of {episodes} episodes") as status:
        yield lambda episode: status.update(f"{next(done)} of {episodes} episodes")


def _table(report: dict[str, Any], evaluation: Evaluation) -> str:
    import numpy as np

    from ding_lite.data.episodes import SUCCESS
    from ding_lite.run.display import score_digits

    quartiles = np.percentile(evaluation.returns, (0, 25, 50, 75, 100))
    names = ("min", "25%", "50%", "75%", "max")
    digits = score_digits(*quartiles)
    spread = "  ".join(f"{name} {x:.{digits}f}" for name, x in zip(names, quartiles, strict=True))
    digits = max(2, digits)
    lines = [
        f"checkpoint  {report['checkpoint']}",
        f"episodes    {report['episodes']} (seed {report['seed']})",
        f"return      {evaluation.mean:.{digits}f} ± {evaluation.std:.{digits}f} (std)   {spread}",
        f"length      {np.mean(evaluation.lengths):.1f}   max {max(evaluation.lengths)}",
    ]
    if "success" in report:
        lines.append(f"success     {report['success']:.1%} of the episodes ({SUCCESS})")
    if "info" in report:
        lines.append("info        " + "   ".join(f"{name} {x:.4g}" for name, x in report["info"].items()))
    if evaluation.cut_short:
        lines.append(
            f"            {evaluation.cut_short} were cut short, at env.max_eval_steps or by a wrapper"
        )
    return "\n".join(lines)
