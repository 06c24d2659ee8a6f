"""``ding-lite runs``: lists the runs in a folder."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from ding_lite.cli.common import add_json

if TYPE_CHECKING:
    from ding_lite.tools.runs import ListedRun

SUMMARY = "list runs: status, score, steps, what differs"
DESCRIPTION = """\
Lists all runs in a folder, at any depth, the newest first.

status   solved, finished, interrupted, failed: how the run ended
         running: a process of this machine trains it
         killed: it ended without writing a result
         unreadable: a file is damaged; the reason is below the table
score    mean return of the last evaluation, and the standard deviation over its episodes
differs  the keys of the config that distinguish the run from others of its policy and
         environment, seeds and limits aside
"""
EXAMPLES = """\
examples:
  ding-lite runs                        the runs in runs/
  ding-lite runs sweeps --sort score    those in another folder, the best first
  ding-lite runs --json                 for programs
"""
ORDERS = ("started", "score", "steps", "name")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``ding-lite runs``."""
    parser.add_argument(
        "folder", nargs="?", default="runs", metavar="FOLDER", help="a folder (default: runs)"
    )
    parser.add_argument(
        "--sort", choices=ORDERS, default="started", help="the order (default: started, the newest first)"
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Prints the runs."""
    from ding_lite.tools.runs import list_runs

    runs = list_runs(Path(args.folder), args.sort)
    if args.json:
        print(json.dumps({"runs": [{**run._asdict(), "folder": str(run.folder)} for run in runs]}))
    elif not runs:
        print(f"no runs in {args.folder}")
    else:
        print("\n".join(_table(runs, Path(args.folder))))
    return 0


def _table(runs: list[ListedRun], folder: Path) -> list[str]:
    from ding_lite.tools.table import aligned

    rows = [["run", "status", "score", "best", "env steps", "started", "policy", "env", "seed", "differs"]]
    errors = []
    for run in runs:
        name = str(run.folder.relative_to(folder)) if run.folder != folder else str(folder)
        spread = "" if run.score_std is None else f" ± {run.score_std:.1f}"
        limit = "" if run.max_env_step is None else f" / {run.max_env_step:,}"
        rows.append(
            [
                name,
                run.status,
                "-" if run.score is None else f"{run.score:.1f}{spread}",
                "-" if run.best_score is None else f"{run.best_score:.1f}",
                f"{run.env_step:,}{limit}",
                (run.started or "-")[:16],
                run.policy or "-",
                run.env_id or "-",
                "-" if run.seed is None else str(run.seed),
                ", ".join(f"{key.rpartition('.')[2]}={value}" for key, value in run.differs.items()),
            ]
        )
        if run.error:
            errors.append(f"{name}: {run.error}")
    return [*aligned(rows, right=(2, 3, 4)), *([""] if errors else []), *errors]
