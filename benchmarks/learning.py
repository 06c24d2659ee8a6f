"""Learning results of the shipped configs: train by the command line, evaluate, write RESULTS.md.

    python benchmarks/learning.py                 every row with a bar that is not measured yet
    python benchmarks/learning.py ROW ...         only these rows; a comparison is all of its arms
    python benchmarks/learning.py --check         exit 1 if a row misses its bar

Each seed is a process of its own; two run at a time. The final checkpoint plays 100 greedy episodes from
start states that training never used. A stopped measurement continues: finished seeds are in
learning/ROW.json (remove the file to measure again), and an unfinished seed is resumed. rows.py has the rows
and the comparisons.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean
from typing import Any

import report
from comparison import comparison_lines, draw_curves
from rows import COMPARISONS, ROWS, Row

HERE = Path(__file__).parent
STORE = HERE / "learning"
RUNS = Path("runs") / "learning"
CURVES = HERE / "curves"
EVERY_ROW = ROWS | {name: row for each in COMPARISONS.values() for name, row in each.arms.items()}


def run_seed(name: str, row: Row, seed: int) -> dict[str, Any]:
    """Trains and evaluates one seed; returns the results to store."""
    folder = RUNS / f"{name}_{seed}"
    cli = [sys.executable, "-m", "ding_lite"]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    start = ["-c", row.config, "-s", str(seed), "--exp-name", str(folder), *row.overrides]
    resume = ["-c", row.config, "--resume", str(folder)]
    subprocess.run(
        [*cli, "train", "-q", *(resume if (folder / "ckpt").is_dir() else start)], check=True, env=one_thread
    )
    command = [
        *cli,
        "eval",
        "-c",
        row.config,
        str(folder / "ckpt" / row.checkpoint),
        "-n",
        "100",
        "-s",
        str(1000 + seed),
        "--json",
    ]
    process = subprocess.run(command, check=True, capture_output=True, text=True, env=one_thread)
    evaluation, result = json.loads(process.stdout), json.loads((folder / "result.json").read_text())
    return {
        "seed": seed,
        "mean": evaluation["mean"],
        "std": evaluation["std"],
        "best_eval": result["best_eval_value"],
        "env_step": result["env_step"],
        "wall_time_s": result["wall_time_s"],
        "status": result["status"],
        "curve": evaluations(folder),
    }


def evaluations(folder: Path) -> list[list[float]]:
    """Returns ``[env_step, mean return]`` of each evaluation of a run."""
    with (folder / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["eval/episode_return_mean"]]
    return [[float(row["env_step"]), round(float(row["eval/episode_return_mean"]), 3)] for row in rows]


def run_row(name: str) -> None:
    """Runs the missing seeds of a row and stores each when it ends."""
    row, file = EVERY_ROW[name], STORE / f"{name}.json"
    stored = json.loads(file.read_text()) if file.exists() else {"seeds": []}
    done = {result["seed"] for result in stored["seeds"]}
    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(run_seed, name, row, seed) for seed in range(row.seeds) if seed not in done]
        for job in jobs:
            result = job.result()
            stored["seeds"] = sorted([*stored["seeds"], result], key=lambda s: s["seed"])
            report.store(file, stored)
            print(f"{name} seed {result['seed']}: {result['mean']:.1f} ± {result['std']:.1f}", flush=True)
    write_table()


def misses(name: str) -> str:
    """Returns why a stored row misses its bar, or an empty text."""
    row, seeds = ROWS[name], json.loads((STORE / f"{name}.json").read_text())["seeds"]
    means = [seed["mean"] for seed in seeds]
    if len(means) < row.seeds:
        return f"{name}: {len(means)} of {row.seeds} seeds"
    if fmean(means) < row.mean or min(means) < row.worst:
        return f"{name}: mean {fmean(means):.1f} (bar {row.mean}), worst {min(means):.1f} (bar {row.worst})"
    return ""


def write_table() -> None:
    """Writes the stored results between the markers of RESULTS.md."""
    lines = [
        "| config | seeds | env steps | return of each seed | mean | bar | s a run | commit |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, row in ROWS.items():
        file = STORE / f"{name}.json"
        if not file.exists():
            continue
        stored = json.loads(file.read_text())
        seeds = stored["seeds"]
        each = ", ".join(f"{seed['mean']:.1f}" for seed in seeds)
        steps = f"{min(s['env_step'] for s in seeds):,} to {max(s['env_step'] for s in seeds):,}"
        title = name if row.checkpoint == "last" else f"{name} ({row.checkpoint} checkpoint)"
        mean, took = (fmean(seed[key] for seed in seeds) for key in ("mean", "wall_time_s"))
        lines.append(
            f"| {title} | {len(seeds)} | {steps} | {each} | **{mean:.1f}** | {row.mean:g} | {took:.0f} | "
            f"{stored['commit']} |"
        )
    report.put("learning", lines)
    for title, comparison in COMPARISONS.items():
        seeds_of = {name: _stored(name) for name in comparison.arms}
        if any(seeds_of.values()):
            report.put(title, comparison_lines(comparison, seeds_of))
            draw_curves(comparison, seeds_of, CURVES / f"{title}.png")


def _stored(name: str) -> list[dict[str, Any]]:
    file = STORE / f"{name}.json"
    seeds: list[dict[str, Any]] = json.loads(file.read_text())["seeds"] if file.exists() else []
    return seeds


def main() -> int:
    """Measures rows; with --check compares them with their bars."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join([*ROWS, *COMPARISONS])}")
    parser.add_argument("--check", action="store_true", help="compare with the bars at the end")
    args = parser.parse_args()
    unknown = [name for name in args.rows if name not in EVERY_ROW and name not in COMPARISONS]
    if unknown:
        parser.error(f"unknown row {unknown[0]!r}; there are {', '.join([*ROWS, *COMPARISONS])}")
    for name in args.rows or ROWS:
        for row in COMPARISONS[name].arms if name in COMPARISONS else [name]:
            run_row(row)
    missed = (
        [text for text in map(misses, ROWS if not args.rows else set(args.rows) & set(ROWS)) if text]
        if args.check
        else []
    )
    print("\n".join(missed) or "every row is measured" + (" and reaches its bar" if args.check else ""))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
