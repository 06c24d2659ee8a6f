"""Learning results of the shipped configs: train by the command line, evaluate, write RESULTS.md.

    python benchmarks/learning.py                 every row that is not there yet
    python benchmarks/learning.py ROW ...         these rows only
    python benchmarks/learning.py --check         exit 1 if a row misses its bar

Each seed is a process of its own; two run at a time. What is measured is the final checkpoint on 100
greedy episodes with start states that training never used. Stopped, it goes on where it was: seeds that
are done are in learning/ROW.json (remove it to measure anew), an open one is resumed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

HERE = Path(__file__).parent
STORE = HERE / "learning"
RESULTS = HERE / "RESULTS.md"
RUNS = Path("runs") / "learning"
BEGIN, END = "<!-- learning: begin -->", "<!-- learning: end -->"


@dataclass(frozen=True)
class Row:
    """One line of the table: a config, and what its mean and its worst seed must reach."""

    config: str
    mean: float
    worst: float = float("-inf")
    seeds: int = 5
    checkpoint: str = "last"


ROWS = {
    "cartpole_ppo": Row("cartpole_ppo", mean=475, worst=475),
    "cartpole_37details_ppo": Row("cartpole_37details_ppo", mean=475),
    "cartpole_recompute_ppo": Row("cartpole_recompute_ppo", mean=475),
    "acrobot_ppo": Row("acrobot_ppo", mean=-90),
    "pendulum_ppo": Row("pendulum_ppo", mean=-200),
    "mountaincar_continuous_ppo": Row("mountaincar_continuous_ppo", mean=90),
    "lunarlander_ppo": Row("lunarlander_ppo", mean=230, worst=200),
    "inverted_double_pendulum_tuned_ppo": Row(
        "inverted_double_pendulum_tuned_ppo", mean=9200, worst=9200, seeds=3, checkpoint="best"
    ),
    "minatar_breakout_ppo": Row("minatar_breakout_ppo", mean=6),
}


def run_seed(name: str, row: Row, seed: int) -> dict[str, Any]:
    """Trains and evaluates one seed; returns what is stored of it."""
    folder = RUNS / f"{name}_{seed}"
    cli = [sys.executable, "-m", "ding_lite"]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    new = ["-c", row.config, "-s", str(seed), "--exp-name", str(folder)]
    goes_on = ["--resume", str(folder)]
    subprocess.run(
        [*cli, "train", "-q", *(goes_on if (folder / "ckpt").is_dir() else new)], check=True, env=one_thread
    )
    command = [
        *cli,
        "eval",
        str(folder / "ckpt" / row.checkpoint),
        "-n",
        "100",
        "-s",
        str(1000 + seed),
        "--json",
    ]
    told = subprocess.run(command, check=True, capture_output=True, text=True, env=one_thread)
    evaluation, result = json.loads(told.stdout), json.loads((folder / "result.json").read_text())
    return {
        "seed": seed,
        "mean": evaluation["mean"],
        "std": evaluation["std"],
        "best_eval": result["best_eval_value"],
        "env_step": result["env_step"],
        "wall_time_s": result["wall_time_s"],
        "status": result["status"],
    }


def run_row(name: str) -> None:
    """Runs the seeds of a row that are missing and stores them one by one."""
    row, file = ROWS[name], STORE / f"{name}.json"
    stored = json.loads(file.read_text()) if file.exists() else {"seeds": []}
    done = {one["seed"] for one in stored["seeds"]}
    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(run_seed, name, row, seed) for seed in range(row.seeds) if seed not in done]
        for job in jobs:
            one = job.result()
            stored["seeds"] = sorted([*stored["seeds"], one], key=lambda s: s["seed"])
            stored |= {"commit": _commit(), "machine": _machine(), "date": time.strftime("%Y-%m-%d")}
            file.parent.mkdir(exist_ok=True)
            file.write_text(json.dumps(stored, indent=1) + "\n")
            print(f"{name} seed {one['seed']}: {one['mean']:.1f} ± {one['std']:.1f}", flush=True)
    write_table()


def misses(name: str) -> str:
    """Returns what a stored row misses of its bar, or nothing."""
    row, seeds = ROWS[name], json.loads((STORE / f"{name}.json").read_text())["seeds"]
    means = [one["mean"] for one in seeds]
    if len(means) < row.seeds:
        return f"{name}: {len(means)} of {row.seeds} seeds"
    if fmean(means) < row.mean or min(means) < row.worst:
        return f"{name}: mean {fmean(means):.1f} (bar {row.mean}), worst {min(means):.1f} (bar {row.worst})"
    return ""


def write_table() -> None:
    """Writes the stored rows between the markers of RESULTS.md."""
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
        each = ", ".join(f"{one['mean']:.1f}" for one in seeds)
        steps = f"{min(s['env_step'] for s in seeds):,} to {max(s['env_step'] for s in seeds):,}"
        title = name if row.checkpoint == "last" else f"{name} ({row.checkpoint} checkpoint)"
        mean, took = (fmean(one[key] for one in seeds) for key in ("mean", "wall_time_s"))
        lines.append(
            f"| {title} | {len(seeds)} | {steps} | {each} | **{mean:.1f}** | {row.mean:g} | {took:.0f} | "
            f"{stored['commit']} |"
        )
    text = RESULTS.read_text()
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    RESULTS.write_text(f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{after}")


def _commit() -> str:
    return subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=HERE
    ).stdout.strip()


def _machine() -> str:
    return f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"


def main() -> int:
    """Runs rows, or checks them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(ROWS)}")
    parser.add_argument("--check", action="store_true", help="compare with the bars at the end")
    args = parser.parse_args()
    unknown = [name for name in args.rows if name not in ROWS]
    if unknown:
        parser.error(f"unknown row {unknown[0]!r}; there are {', '.join(ROWS)}")
    for name in args.rows or ROWS:
        run_row(name)
    missed = [text for text in map(misses, args.rows or ROWS) if text] if args.check else []
    print("\n".join(missed) or "every row is there" + (" and reaches its bar" if args.check else ""))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
