"""``ding-lite eval``: plays a trained policy: prints the returns, records videos, or shows a window."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ding_lite.cli import options
from ding_lite.errors import ConfigError, counted

EPISODES, SHOWN = 16, 3  # default episodes; fewer with --video or --human, which take long


@options.command()
@options.run_argument
@options.option("-n --episodes N", f"(default: {EPISODES}; --video, --human: {SHOWN})", options.POSITIVE)
@options.option("-s --seed SEED", "(default: 0)", options.NUMBER, default=0)
@options.option("--stochastic", "sample the actions; without it, take the most likely ones")
@options.option("--video DIR", "record episodes as DIR/eval-episode-*.mp4; replaces files", options.PATH)
@options.option("--human", "play in a window; the environment needs the render mode human")
@options.trust_option
@options.json_option
@options.words(
    "overrides", "[env.key=value]...", "play in another environment than the run's, such as env.kwargs.g=15"
)
def run(
    run: Path,
    episodes: int | None,
    seed: int,
    stochastic: bool,
    video: Path | None,
    human: bool,
    imports: tuple[str, ...],
    json: bool,
    overrides: tuple[str, ...],
) -> None:
    """Plays episodes with a trained policy.

    Prints the distribution of their returns. The policy and its environment are the run's; words
    env.key=value change the environment. Nothing in the run's folder changes.
    """
    import numpy as np

    from ding_lite.config.compile import parse_overrides
    from ding_lite.data.episodes import means_of
    from ding_lite.tools.evaluate import evaluate_checkpoint

    if human and video:
        raise ConfigError("--human shows episodes in a window: it excludes --video")
    checkpoint, evaluation = evaluate_checkpoint(
        run,
        episodes=episodes or (SHOWN if video or human else EPISODES),
        seed=seed,
        stochastic=stochastic,
        video=video,
        human=human,
        changes=parse_overrides(overrides),
        trust=options.import_modules(imports),
    )
    report: dict[str, Any] = {
        "episodes": len(evaluation.returns),
        "mean": evaluation.mean,
        "std": evaluation.std,
        "returns": evaluation.returns,
        "lengths": evaluation.lengths,
        "cut_short": evaluation.cut_short,
        "info": means_of(evaluation.infos),
        "checkpoint": str(checkpoint),
        "seed": seed,
        "stochastic": stochastic,
    }
    if json:
        options.print_json(report)
        return
    rows = []
    for name, values in (("return", evaluation.returns), ("length", evaluation.lengths)):
        numbers = [np.mean(values), np.std(values), *np.percentile(values, (0, 25, 50, 75, 100))]
        rows.append([name, *(f"{number:.2f}" for number in numbers)])
    actions = ", sampled actions" if stochastic else ""
    print(f"{counted(report['episodes'], 'episode')} of {checkpoint}, seed {seed}{actions}")
    options.print_table(["", "mean", "std", "min", "25%", "50%", "75%", "max"], rows, right=range(1, 8))
    for name, value in report["info"].items():
        print(f"{name} {value:.4g}")
    if evaluation.cut_short:
        print(f"{evaluation.cut_short} were cut short, at env.max_eval_steps or by a wrapper")
