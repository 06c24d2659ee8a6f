"""``ding-lite runs``: lists the runs in a folder."""

from __future__ import annotations

import argparse
import json
import shutil
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
differs  the keys of the config in which the runs of its policy and environment differ, seeds
         and limits aside; in a terminal, as far as its width allows
"""
EXAMPLES = """\
examples:
  ding-lite runs                        the runs in runs/
  ding-lite runs sweeps --sort score    those in another folder, the best first
  ding-lite runs --all                  with all that differs
  ding-lite runs --json                 for programs
"""
ORDERS = ("started", "score", "steps", "name")
NARROWEST = 20  # characters of the column "differs" in a narrow terminal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``ding-lite runs``."""
    parser.add_argument(
        "folder", nargs="?", default="runs", metavar="FOLDER", help="a folder (default: runs)"
    )
    parser.add_argument(
        "--sort", choices=ORDERS, default="started", help="the order (default: started, the newest first)"
    )
    parser.add_argument("--all", action="store_true", help="show all that differs, wider than the terminal")
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
        # Not in a file or a pipe, whose width is 0.
        width = 0 if args.all else shutil.get_terminal_size((0, 0)).columns
        print("\n".join(_table(runs, Path(args.folder), width)))
    return 0


def _table(runs: list[ListedRun], folder: Path, width: int) -> list[str]:
    """Returns the lines of the table, at most as wide as the terminal if it has a ``width``."""
    from ding_lite.run.display import score_text
    from ding_lite.tools.runs import short_names
    from ding_lite.tools.table import aligned

    rows = [["run", "status", "score", "best", "env steps", "started", "policy", "env", "seed", "differs"]]
    errors = []
    for run in runs:
        name = str(run.folder.relative_to(folder)) if run.folder != folder else str(folder)
        limit = "" if run.max_env_step is None else f" / {run.max_env_step:,}"
        rows.append(
            [
                name,
                run.status,
                score_text(run.score, run.score_std),
                score_text(run.best_score),
                f"{run.env_step:,}{limit}",
                (run.started or "-")[:16],
                run.policy or "-",
                run.env_id or "-",
                "-" if run.seed is None else str(run.seed),
                ", ".join(f"{name}={run.differs[key]}" for key, name in short_names(run.differs).items()),
            ]
        )
        if run.error and run.status in ("failed", "unreadable"):
            errors.append(f"{name}: {run.error}")
    table = aligned(rows, right=(2, 3, 4))
    room = max(width, table[0].index("differs") + NARROWEST)
    if width and any(len(line) > room for line in table):
        table = [line if len(line) <= room else f"{line[: room - 3]}..." for line in table]
        table += ["", f"the column differs is cut to {room} characters a line: --all shows all of it"]
    return [*table, *([""] if errors else []), *errors]
