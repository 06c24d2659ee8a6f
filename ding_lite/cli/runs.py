"""``ding-lite runs``: lists the runs in a folder."""

from __future__ import annotations

from pathlib import Path

import click

from ding_lite.cli import options


@options.command()
@click.argument("folder", type=options.PATH, default="runs", help="a folder (default: runs)")
@options.json_option
def run(folder: Path, json: bool) -> None:
    """Lists runs: status, score, steps, what differs.

    All runs in a folder, at any depth, the newest first.

    status   solved, finished, interrupted, failed: how the run ended
             running: a process of this machine trains it
             killed: it ended without writing a result
             unreadable: a file is damaged; the reason is below the table
    score    mean return of the last evaluation
    config   the policy, the environment, and the keys that differ among the runs with the same two,
             except seeds and limits
    """
    from ding_lite.run.display import score_text
    from ding_lite.tools.runs import list_runs, short_names

    runs = list_runs(folder)
    if json:
        options.print_json({"runs": [{**run._asdict(), "folder": str(run.folder)} for run in runs]})
        return
    rows, errors = [], []
    for run in runs:
        name = str(run.folder.relative_to(folder) if run.folder != folder else folder)
        differs = [f"{short}={run.differs[key]}" for key, short in short_names(run.differs).items()]
        config = ", ".join(filter(None, [run.policy, run.env_id, *differs]))
        seed = "-" if run.seed is None else str(run.seed)
        rows.append([name, run.status, score_text(run.score), f"{run.env_step:,}", seed, config])
        if run.error and run.status in ("failed", "unreadable"):
            errors.append(f"{name}: {run.error}")
    header = ["run", "status", "score", "env steps", "seed", "config"]
    options.print_table(header, rows, right=(2, 3, 4))
    if errors:
        print(options.shown("\n".join(["", *errors])))
