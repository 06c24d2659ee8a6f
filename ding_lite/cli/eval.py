"""``ding-lite eval``: plays episodes with a trained policy: their returns, videos of them, or a window."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ding_lite.cli.options import (
    PATH,
    POSITIVE,
    command,
    import_modules,
    json_option,
    option,
    print_json,
    print_table,
    run_argument,
    seed_option,
    trust_option,
)
from ding_lite.errors import ConfigError

if TYPE_CHECKING:
    from ding_lite.data.episodes import Evaluation

EPISODES, SHOWN = 16, 3  # episodes by default; with --video or --human, which take long
PLAY = "Episodes, such as: -n 100 -s 1"
SHOW = "Look at them, such as: --video videos"


@command(preload="ding_lite.tools.evaluate")
@run_argument
@option(
    *("-n", "--episodes"),
    type=POSITIVE,
    metavar="N",
    group=PLAY,
    help=f"(default: {EPISODES}; shown: {SHOWN})",
)
@seed_option(PLAY, default=0)
@option(
    "--stochastic", is_flag=True, group=PLAY, help="sample the actions; without it, take the most likely ones"
)
@option("--video", type=PATH, metavar="DIR", group=SHOW, help="record the episodes as DIR/episode_*.mp4")
@option(
    "--human", is_flag=True, group=SHOW, help="play in a window; the environment needs the render mode human"
)
@option(
    "--episodes-csv",
    type=PATH,
    metavar="FILE",
    group=SHOW,
    help="write one row per episode: seed, env, episode, return, length, cut, and env.info_keys",
)
@trust_option
@json_option
@click.argument(
    "overrides",
    nargs=-1,
    metavar="[env.key=value]...",
    help="play in another environment than the run's, such as env.kwargs.g=15",
)
def run(
    run: str,
    episodes: int | None,
    seed: int,
    stochastic: bool,
    video: str | None,
    human: bool,
    episodes_csv: str | None,
    imports: tuple[str, ...],
    json: bool,
    overrides: tuple[str, ...],
) -> None:
    """Plays episodes with a trained policy.

    Prints the distribution of their returns. The policy and its environment are those of the run; keys of
    env can be given other values. Nothing in the run's folder changes.
    """
    from rich.console import Console

    from ding_lite.config.compile import parse_overrides
    from ding_lite.tools.evaluate import evaluate_checkpoint

    if human and video:
        raise ConfigError("--human shows episodes in a window: it excludes --video")
    episodes = episodes or (SHOWN if video or human else EPISODES)
    ended = itertools.count(1)
    with Console(file=sys.stderr).status("loading the policy") as status:
        checkpoint, evaluation = evaluate_checkpoint(
            Path(run),
            episodes=episodes,
            seed=seed,
            stochastic=stochastic,
            video=Path(video) if video else None,
            human=human,
            episodes_csv=Path(episodes_csv) if episodes_csv else None,
            changes=parse_overrides(overrides),
            trust=import_modules(imports),
            on_episode=lambda episode: status.update(f"{next(ended)} of {episodes} episodes"),
        )
    if checkpoint.stem == "last" and Path(run).is_dir():
        print(f"{run} has no checkpoint best; this is last", file=sys.stderr)
    report = _report(evaluation, checkpoint, seed)
    if video:
        report["videos"] = [str(file) for file in sorted(Path(video).glob("eval-*.mp4"))]
    if json:
        print_json(report)
    else:
        _print(report)


def _report(evaluation: Evaluation, checkpoint: Path, seed: int) -> dict[str, Any]:
    from ding_lite.data.episodes import SUCCESS, means_of

    report: dict[str, Any] = {
        "episodes": len(evaluation.returns),
        "mean": evaluation.mean,
        "std": evaluation.std,
        "returns": list(evaluation.returns),
        "lengths": list(evaluation.lengths),
        "cut_short": evaluation.cut_short,
        "checkpoint": str(checkpoint),
        "seed": seed,
    }
    means = means_of(evaluation.infos)
    if SUCCESS in means:
        report["success"] = means.pop(SUCCESS)
    if means:
        report["info"] = means
    return report


def _print(report: dict[str, Any]) -> None:
    import numpy as np

    rows = []
    for name in ("returns", "lengths"):
        values = report[name]
        numbers = [np.mean(values), np.std(values), *np.percentile(values, (0, 25, 50, 75, 100))]
        rows.append([name.removesuffix("s"), *(f"{number:.2f}" for number in numbers)])
    print(f"{report['episodes']} episodes of {report['checkpoint']}, seed {report['seed']}")
    print_table(["", "mean", "std", "min", "25%", "50%", "75%", "max"], rows, right=range(1, 8))
    if "success" in report:
        print(f"success {report['success']:.1%} of the episodes")
    if "info" in report:
        print("  ".join(f"{name} {value:.4g}" for name, value in report["info"].items()))
    if report["cut_short"]:
        print(f"{report['cut_short']} were cut short, at env.max_eval_steps or by a wrapper")
    if "videos" in report:
        print(f"videos: {', '.join(report['videos'])}")
