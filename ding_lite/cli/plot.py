"""``ding-lite plot``: draws the learning curves of runs."""

from __future__ import annotations

import sys
from pathlib import Path

from ding_lite.cli import options


@options.command()
@options.words(
    "runs",
    "RUN...",
    "runs, folders with runs in them, or quoted patterns of such; NAME=RUN names a curve",
    required=True,
)
@options.option(
    "-o --output FILE",
    "a .png, .pdf or .svg file (default: curves.png)",
    options.file_of(*options.PICTURES),
    default="curves.png",
)
@options.title_option
@options.option(
    "--panels NAME,...",
    "draw these plots: training, evaluation, or columns of metrics.csv (default: training,evaluation)",
    default="",
)
def run(runs: tuple[str, ...], output: Path, title: str | None, panels: str) -> None:
    """Draws learning curves of runs.

    They show returns in training and evaluation. Runs whose configs differ only in the seed, the name, the
    limits, checkpoints or logs are drawn as one curve: their interquartile mean, and from three seeds on its
    95 % bootstrap interval. Needs matplotlib: pip install "ding_lite[plot]".

    ding-lite plot runs/ppo_* runs/ppg_* --title "PPO against PPG"
    ding-lite plot 'before=old/run_*' 'after=new/run_*' -o curves.pdf
    ding-lite plot runs/ppo_0 --panels learn/approx_kl,learn/clipfrac
    """
    from ding_lite.tools.plot import draw_runs, save

    names = [name.strip() for name in panels.split(",") if name]
    figure, notes = draw_runs(runs, title=title, panels=names)
    for note in notes:
        print(options.shown(note), file=sys.stderr)
    save(figure, output)
    print(output)
