"""``ding-lite plot``: learning curves of runs as a picture."""

from __future__ import annotations

import argparse
from pathlib import Path

from ding_lite.plotting import plot_runs


def run(args: argparse.Namespace) -> int:
    """Draws the runs and says where the picture is."""
    print(plot_runs([Path(run) for run in args.runs], Path(args.output), title=args.title))
    return 0
