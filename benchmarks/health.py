"""Counts what the health check finds in finished runs: false alarms, if the runs have learned.

    python benchmarks/health.py runs/*

It reads each run's metrics.csv, applies the rules of this checkout, and prints a row of a Markdown table.
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

from ding_lite.envs.space_json import space_from_json
from ding_lite.run.checkpoint import load_checkpoint
from ding_lite.run.health import HealthCheck
from ding_lite.trees import box_size


def replayed(run: Path) -> tuple[HealthCheck, list[str]]:
    """Returns the health check after all iterations of a run, and when each finding appeared."""
    config = json.loads((run / "config.json").read_text())["config"]
    _, saved = load_checkpoint(run / "ckpt" / "last.safetensors")
    numbers = box_size(space_from_json(saved["spaces"]["action"]))
    check = HealthCheck(config["policy"], config["max_env_step"], numbers, config["env"]["stop_value"])
    moments = []
    with (run / "metrics.csv").open(newline="") as stream:
        for row in csv.DictReader(stream):
            metrics = {name: float(value) for name, value in row.items() if value}
            step = int(row["env_step"])
            for cause in check.check(metrics, step):
                moments.append(f"{cause} (at {step / config['max_env_step']:.0%})")
    return check, moments


def main() -> None:
    """Prints the table."""
    print("| run | ended | evaluation | findings |\n|---|---|---|---|")
    for run in map(Path, sys.argv[1:]):
        result = json.loads((run / "result.json").read_text())
        _, moments = replayed(run)
        evaluation = "" if result["eval_value"] is None else f"{result['eval_value']:.1f}"
        ended = f"{result['status']} after {result['env_step']:,} steps"
        print(f"| {run.name} | {ended} | {evaluation} | {'; '.join(moments)} |")


if __name__ == "__main__":
    main()
