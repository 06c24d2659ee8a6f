"""``ding-lite runs``: lists the runs in a folder."""

from __future__ import annotations

from pathlib import Path

import click

from ding_lite.cli.options import PATH, command, json_option, option, print_json, print_table

STYLES = {"solved": "green", "failed": "red", "unreadable": "red", "running": "cyan"}


@command()
@click.argument("folder", type=PATH, default="runs", help="a folder (default: runs)")
@option(
    "--sort",
    type=click.Choice(["started", "score", "steps", "name"]),
    default="started",
    help="the order (default: started, the newest first)",
)
@json_option
def run(folder: str, sort: str, json: bool) -> None:
    """Lists runs: status, score, steps, what differs.

    All runs in a folder, at any depth, the newest first.

    status   solved, finished, interrupted, failed: how the run ended
             running: a process of this machine trains it
             killed: it ended without writing a result
             unreadable: a file is damaged; the reason is below the table
    score    mean return of the last evaluation, and the standard deviation over its episodes
    differs  the keys of the config in which the runs of its policy and environment differ, seeds and
             limits aside
    """
    from ding_lite.run.display import score_text
    from ding_lite.tools.runs import list_runs, short_names

    runs = list_runs(Path(folder), sort)
    if json:
        print_json({"runs": [{**run._asdict(), "folder": str(run.folder)} for run in runs]})
        return
    if not runs:
        print(f"no runs in {folder}")
        return
    rows, errors = [], []
    for run in runs:
        name = str(run.folder.relative_to(folder)) if run.folder != Path(folder) else folder
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
    header = ["run", "status", "score", "best", "env steps", "started", "policy", "env", "seed", "differs"]
    print_table(header, rows, right=(2, 3, 4), styles=STYLES)
    if errors:
        print("\n".join(["", *errors]))
