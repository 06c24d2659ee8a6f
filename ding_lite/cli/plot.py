"""``ding-lite plot``: draws the learning curves of runs."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from ding_lite.cli.options import PATH, command, option, picture_options

PICTURE = "Picture, such as: --panels evaluation -o column.pdf"


@command()
@click.argument(
    "runs",
    nargs=-1,
    required=True,
    metavar="RUN...",
    help="runs, folders with runs in them, or quoted patterns of such",
)
@option(
    *("-o", "--output"),
    type=PATH,
    default="curves.png",
    metavar="FILE",
    group=PICTURE,
    help="a .png, .pdf or .svg file (default: curves.png)",
)
@option(
    "--iqm",
    is_flag=True,
    group=PICTURE,
    help="draw the interquartile mean of the seeds instead of their mean",
)
@picture_options(
    PICTURE, "training, training-length, evaluation, evaluation-length, or columns of metrics.csv"
)
def run(runs: tuple[str, ...], output: str, iqm: bool, title: str | None, panels: list[str]) -> None:
    """Draws learning curves of runs.

    Return and episode length, in training and evaluation. Runs whose configs differ only in the seed, the
    name, the limits, checkpoints or logs are drawn as one curve: their mean, and from three seeds on its
    95 % bootstrap interval. Needs matplotlib: pip install "ding_lite[plot]".

    ding-lite plot runs/ppo_* runs/ppg_* --title "PPO against PPG"
    ding-lite plot runs/ppo_0 --panels learn/approx_kl,learn/clipfrac
    """
    from ding_lite.tools.plot import plot_runs

    picture = plot_runs(
        runs,
        Path(output),
        statistic="iqm" if iqm else "mean",
        title=title,
        panels=panels,
        note=lambda line: print(line, file=sys.stderr),
    )
    print(picture)
