"""Learning results of the shipped configs: train by the command line, evaluate, write RESULTS.md.

    python benchmarks/learning.py                 every row of the table that is not measured yet
    python benchmarks/learning.py ROW ...         only these rows; a comparison is all of its arms
    python benchmarks/learning.py --check         exit 1 if a row misses its bar
    python benchmarks/learning.py --write         measure nothing: the tables and pictures of what is stored
    python benchmarks/learning.py ROW --device cuda --jobs 8

Each seed is a process of its own; two run at a time, of one row or of several. The final checkpoint plays 100
greedy episodes from start states that training never used. A stopped measurement continues: finished seeds
are in learning/ROW.json (remove the file to measure again), and an unfinished seed is resumed. rows.py has
the rows and the comparisons.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import report
from comparison import ELSEWHERE, comparison_lines, draw_curves, draw_rows, middle_and_interval
from rows import COMPARISONS, FAST, GROUPS, ROWS, Row

from ding_lite.config.compile import load_config

HERE = Path(__file__).parent
STORE = HERE / "learning"
RUNS = Path("runs") / "learning"
CURVES = HERE / "curves"
POINTS = 50  # of a curve of training
EVERY_ROW = ROWS | {name: row for each in COMPARISONS.values() for name, row in each.arms.items()}


def run_seed(name: str, row: Row, seed: int, device: str) -> dict[str, Any]:
    """Trains and evaluates one seed on a device; returns the results to store."""
    folder, commit = RUNS / f"{name}_{seed}", report.commit()
    cli = [sys.executable, "-m", "ding_lite"]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    start = ["-c", row.config, "-s", str(seed), "--exp-name", str(folder), *row.overrides]
    # A checkpoint imports only what the command names.
    trusted = [word for module in load_config(row.config).trusted for word in ("--import", module)]
    resume = ["--resume", str(folder), *trusted]
    if not _is_complete(folder):
        how = resume if (folder / "ckpt").is_dir() else start
        command = [*cli, "train", "-q", *how, f"policy.device={device}"]
        subprocess.run(command, check=True, env=one_thread)

    def play(overrides: tuple[str, ...] = ()) -> dict[str, Any]:
        checkpoint = str(folder / "ckpt" / row.checkpoint)
        how = ["-n", "100", "-s", str(1000 + seed), "--json", *overrides]
        how += ["--stochastic"] if row.sampled else []
        command = [*cli, "eval", *trusted, checkpoint, *how]
        process = subprocess.run(command, check=True, capture_output=True, text=True, env=one_thread)
        evaluation: dict[str, Any] = json.loads(process.stdout)
        return evaluation

    evaluation, result = play(), json.loads((folder / "result.json").read_text())
    trained = curve_of(folder, "collect/episode_return")
    elsewhere = {ELSEWHERE: play(row.elsewhere)["mean"]} if row.elsewhere else {}
    return {
        "seed": seed,
        "mean": evaluation["mean"],
        "std": evaluation["std"],
        **elsewhere,
        "best_eval": result["best_eval_value"],
        "env_step": result["env_step"],
        "wall_time_s": result["wall_time_s"],
        "status": result["status"],
        "commit": commit,
        "device": device,
        "train_return": trained[-1][1],
        "curve": trained[:: -(-len(trained) // POINTS)] if row.sampled else evaluations(folder),
    }


def _is_complete(folder: Path) -> bool:
    file = folder / "result.json"
    return file.exists() and json.loads(file.read_text())["status"] in ("finished", "solved")


def evaluations(folder: Path) -> list[list[float]]:
    """Returns ``[env_step, mean return]`` of each evaluation of a run."""
    return curve_of(folder, "eval/episode_return_mean")


def curve_of(folder: Path, column: str) -> list[list[float]]:
    """Returns ``[env_step, value]`` of each row of metrics.csv that has a value in a column."""
    with (folder / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row[column]]
    return [[float(row["env_step"]), round(float(row[column]), 3)] for row in rows]


def run_rows(names: Iterable[str], device: str, jobs: int) -> None:
    """Runs the missing seeds of rows, in their order, and stores each when it ends."""
    with ThreadPoolExecutor(jobs) as pool:
        row_of = {
            pool.submit(run_seed, name, EVERY_ROW[name], seed, device): name
            for name in names
            for seed in range(EVERY_ROW[name].seeds)
            if seed not in {result["seed"] for result in _stored(name)}
        }
        for job in as_completed(row_of):
            if job.exception() is not None:
                pool.shutdown(cancel_futures=True)  # those that run are waited for
            name, result = row_of[job], job.result()
            seeds = sorted([*_stored(name), result], key=lambda each: int(each["seed"]))
            report.store(STORE / f"{name}.json", {"seeds": seeds})
            print(f"{name} seed {result['seed']}: {result['mean']:.1f} ± {result['std']:.1f}", flush=True)
            write()


def misses(name: str) -> str:
    """Returns why a stored row misses its bar, or an empty text."""
    row, means = ROWS[name], [seed["mean"] for seed in _stored(name)]
    if len(means) < row.seeds:
        return f"{name}: {len(means)} of {row.seeds} seeds"
    if fmean(means) < row.mean or min(means) < row.worst:
        worst = "" if min(means) >= row.worst else f", worst {min(means):.4g} (bar {row.worst:g})"
        return f"{name}: mean {fmean(means):.4g} (bar {row.mean:g}){worst}"
    return ""


def write() -> None:
    """Writes the stored results between the markers of RESULTS.md, and draws their curves."""
    drawn = [
        f"![Learning curves of the rows of {group}](curves/{group}.png)"
        for group, rows in GROUPS.items()
        if draw_rows(rows, {name: _stored(name) for name in rows}, CURVES / f"{group}.png")
    ]
    report.put("learning", [*summary(), "", *table(), "", *drawn])
    for section, comparison in COMPARISONS.items():
        seeds_of = {name: _stored(name) for name in comparison.arms}
        if any(seeds_of.values()):
            report.put(section, comparison_lines(comparison, seeds_of))
            draw_curves(comparison, seeds_of, CURVES / f"{section}.png")


def summary() -> list[str]:
    """Returns what misses its bar, and what is not measured, in the first lines of the table's section."""
    with_bars = [name for name, row in ROWS.items() if row.has_bar]
    measured = [name for name in with_bars if _stored(name)]
    missed = [text for text in map(misses, measured) if text]
    left = [name for name in ROWS if not _stored(name)]
    return [
        f"{len(measured) - len(missed)} of {len(with_bars)} rows reach their bars.",
        *(f"- Misses its bar: {text}." for text in missed),
        *([f"- Not measured: {', '.join(left)}."] if left else []),
    ]


def table() -> list[str]:
    """Returns the table of all measured rows."""
    lines = [
        "| config | published | interquartile mean | 95 % interval | mean | bar | return of each seed "
        "| env steps | s a run | commit |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, row in ROWS.items():
        seeds = _stored(name)
        if not seeds:
            continue
        values = np.array([seed["mean"] for seed in seeds])
        digits = 1 if abs(values).max() > 1 else 3
        known = "" if row.published is None else f"{row.published.value:,g} ({row.published.source})"
        bar = f"{row.mean:,g}" if row.has_bar else ""
        each = ", ".join(f"{value:,.{digits}f}" for value in values)
        steps = " to ".join(f"{end(s['env_step'] for s in seeds):,}" for end in (min, max))
        took = fmean(seed["wall_time_s"] for seed in seeds)
        commits = ", ".join(dict.fromkeys(seed["commit"] for seed in seeds))
        lines.append(
            f"| {title(name)} | {known} | {middle_and_interval([values], digits)} "
            f"| {values.mean():,.{digits}f} | {bar} | {each} | {steps} | {took:.0f} | {commits} |"
        )
    return lines


def title(name: str) -> str:
    """Returns the name of a row in the table, with what it changes of its config."""
    row = ROWS[name]
    return ", ".join(
        [
            name if name == row.config else f"{name}: {row.config}",
            *(override for override in row.overrides if override not in FAST),
            *(["best checkpoint"] if row.checkpoint == "best" else []),
        ]
    )


def _stored(name: str) -> list[dict[str, Any]]:
    file = STORE / f"{name}.json"
    stored = json.loads(file.read_text()) if file.exists() else {"seeds": []}
    return [{"commit": stored["commit"], **seed} for seed in stored["seeds"]]


def main() -> int:
    """Measures rows; with --check compares them with their bars."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join([*ROWS, *COMPARISONS])}")
    parser.add_argument("--check", action="store_true", help="compare with the bars at the end")
    parser.add_argument("--device", default="cpu", help="policy.device of the trainings (default cpu)")
    parser.add_argument("--jobs", type=int, default=2, help="seeds that run at a time (default 2)")
    parser.add_argument("--write", action="store_true", help="only write and draw what is stored")
    args = parser.parse_args()
    unknown = [name for name in args.rows if name not in EVERY_ROW and name not in COMPARISONS]
    if unknown:
        parser.error(f"unknown row {unknown[0]!r}; there are {', '.join([*ROWS, *COMPARISONS])}")
    if args.write:
        write()
        return 0
    rows = [
        row
        for name in args.rows or ROWS
        for row in (COMPARISONS[name].arms if name in COMPARISONS else [name])
    ]
    run_rows(rows, args.device, args.jobs)
    missed = (
        [text for text in map(misses, ROWS if not args.rows else set(args.rows) & set(ROWS)) if text]
        if args.check
        else []
    )
    print("\n".join(missed) or "every row is measured" + (" and reaches its bar" if args.check else ""))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
