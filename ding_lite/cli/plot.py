"""``ding-lite plot``: draws the learning curves of runs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ding_lite.cli.common import Once, add_picture_options, path_text

SUMMARY = "draw learning curves of runs"
DESCRIPTION = """\
Draws the learning curves of runs: return and episode length, in training and evaluation.

Runs whose configs differ only in the seed, the name, the limits, checkpoints or logs are drawn
as one curve: their mean, and from three seeds on its 95 % bootstrap interval.
Needs matplotlib: pip install "ding_lite[plot]".
"""
EXAMPLES = """\
examples:
  ding-lite plot runs/cartpole_ppo                     one run, to curves.png
  ding-lite plot runs/cartpole_ppo* -o cartpole.pdf    all seeds of a config, as one curve
  ding-lite plot runs/ppo_* runs/ppg_* --title "PPO against PPG"
  ding-lite plot runs/ppo_* --panels evaluation --width 3.3 -o column.pdf
                                                       one plot, as wide as a column of a paper
  ding-lite plot runs/ppo_0 --panels learn/approx_kl,learn/clipfrac
                                                       columns of metrics.csv
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``ding-lite plot``."""
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", help="runs, folders with runs in them, or quoted patterns of such"
    )
    parser.add_argument(
        "-o",
        "--output",
        action=Once,
        type=path_text,
        metavar="FILE",
        help="the picture: a .png, .pdf or .svg file (default: curves.png)",
    )
    parser.add_argument(
        "--iqm", action="store_true", help="draw the interquartile mean of the seeds instead of their mean"
    )
    parser.add_argument(
        "--title", metavar="TEXT", help="title of the figure (default: what the runs have in common)"
    )
    add_picture_options(
        parser, "training, training-length, evaluation, evaluation-length, or columns of metrics.csv"
    )


def run(args: argparse.Namespace) -> int:
    """Draws the runs and prints the path of the picture."""
    from ding_lite.tools.plot import plot_runs

    picture = plot_runs(
        args.runs,
        Path(args.output or "curves.png"),
        statistic="iqm" if args.iqm else "mean",
        title=args.title,
        panels=args.panels,
        width=args.width,
        note=lambda line: print(line, file=sys.stderr),
    )
    print(picture)
    return 0
