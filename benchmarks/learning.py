"""Learning results of the shipped configs: train by the command line, evaluate, write RESULTS.md.

    python benchmarks/learning.py                 every row of the table that is not measured yet
    python benchmarks/learning.py ROW ...         only these rows; a comparison is all of its arms
    python benchmarks/learning.py --check         exit 1 if a row misses its bar
    python benchmarks/learning.py --write         measure nothing: the tables and pictures of what is stored
    python benchmarks/learning.py ROW --device cuda --jobs 8

Each seed is a process of its own; two run at a time, of one row or of several. The final checkpoint plays 100
greedy episodes from start states that training never used. A stopped measurement continues: finished seeds
are in learning.csv (delete their lines, and those in curves.csv, to measure them again), and an unfinished
seed is resumed. learning.toml has the rows and the comparisons.
"""

from __future__ import annotations

import csv
import json
import sys
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from statistics import fmean
from threading import Lock
from typing import Any

import harness
import numpy as np
from rows import COMPARISONS, EVERY_ROW, GROUPS, ROWS, Row
from tables import Points, Seeds, comparison_table, draw, rows_table, short_table

from ding_lite.config.compile import load_config

STORE = harness.HERE / "learning.csv"  # a line for each seed
POINTS = harness.HERE / "curves.csv"  # a line for each evaluation of the rows that are drawn
PICTURES = harness.HERE / "curves"
RUNS = Path("runs") / "learning"
IN_README = (
    "lunarlander_ppo",
    "halfcheetah_ppo",
    "walker2d_ppo",
    "bipedalwalker_ppo",
    "minatar_space_invaders_ppo",
)
MOST_POINTS = 50  # of the returns in training
DRAWN = {*ROWS, *(name for each in COMPARISONS.values() if each.games for name in each.arms)}
FIRST_SEED = 600  # no key was chosen on this seed or a later one
LOCKS: dict[Path, Lock] = defaultdict(Lock)  # several arms may train on from one run


def train(name: str, seed: int, device: str) -> Path:
    """Trains one seed of a row, or continues its training; returns the folder of its run."""
    row, folder = EVERY_ROW[name], RUNS / f"{name}_{seed}"
    with LOCKS[folder]:
        if _is_complete(folder):
            return folder
        if (folder / "ckpt").is_dir():
            how = ["--resume", str(folder), *_imports(row)]
        else:
            start = str(train(row.init, seed, device)) if row.init else ""
            how = ["-c", row.config, "-s", str(seed), "--exp-name", str(folder)]
            how += [*(["--init-from", start] if start else []), *row.keys.replace("{init}", start).split()]
        harness.python(["-m", "ding_lite", "train", "-q", *how, f"policy.device={device}"])
    return folder


def _is_complete(folder: Path) -> bool:
    file = folder / "result.json"
    return file.exists() and json.loads(file.read_text())["status"] in ("finished", "solved")


def _imports(row: Row) -> list[str]:
    """Returns the modules of a config as options: a checkpoint imports only what the command names."""
    if row.config.endswith(".py"):
        return ["--import", row.config]
    return [word for module in load_config(row.config).trusted for word in ("--import", module)]


def run_seed(name: str, seed: int, device: str) -> tuple[dict[str, Any], list[list[float]]]:
    """Trains and evaluates one seed; returns its line of learning.csv, and its curve."""
    here, row, folder = harness.measured_here(), EVERY_ROW[name], train(name, seed, device)

    def play(keys: str = "") -> float:
        how = ["-n", "100", "-s", str(1000 + seed), "--json", *(["--stochastic"] if row.sampled else [])]
        words = [*_imports(row), str(folder / "ckpt" / row.checkpoint), *how, *keys.split()]
        return float(json.loads(harness.python(["-m", "ding_lite", "eval", *words]).output)["mean"])

    result = json.loads((folder / "result.json").read_text())
    trained = curve_of(folder, "collect/episode_return")
    line = {
        "row": name,
        "seed": seed,
        **here,
        "env_step": result["env_step"],
        "return": play(),
        "elsewhere": play(row.elsewhere) if row.elsewhere else None,
        "train_return": trained[-1][1] if row.sampled else None,
        "wall_time_s": round(result["wall_time_s"], 2),
    }
    if row.sampled:
        return line, trained[:: -(-len(trained) // MOST_POINTS)]
    return line, curve_of(folder, "eval/episode_return_mean")


def curve_of(folder: Path, column: str) -> list[list[float]]:
    """Returns ``[env_step, value]`` of each row of metrics.csv that has a value in a column."""
    with (folder / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row.get(column)]
    return [[int(row["env_step"]), round(float(row[column]), 3)] for row in rows]


def missing_seeds(name: str) -> list[int]:
    """Returns the seeds of a row that are not measured; older rows have others, on which keys were chosen."""
    measured, number = {line["seed"] for line in stored().get(name, [])}, EVERY_ROW[name].seeds
    fresh = [seed for seed in range(FIRST_SEED, FIRST_SEED + number) if seed not in measured]
    return fresh[: max(0, number - len(measured))]


def run_rows(names: Iterable[str], device: str, jobs: int) -> None:
    """Runs the missing seeds of rows, in their order, and stores each when it ends."""
    with ThreadPoolExecutor(jobs) as pool:
        tasks = [pool.submit(run_seed, name, seed, device) for name in names for seed in missing_seeds(name)]
        for task in as_completed(tasks):
            if task.exception() is not None:
                pool.shutdown(cancel_futures=True)  # those that run are waited for
            line, curve = task.result()
            harness.append(STORE, [line])
            if line["row"] in DRAWN:
                place = {"row": line["row"], "seed": line["seed"]}
                harness.append(POINTS, ({**place, "env_step": x, "return": y} for x, y in curve))
            print(f"{line['row']} seed {line['seed']}: {line['return']:.1f}", flush=True)
            harness.put(sections())
    write()


def stored() -> Seeds:
    """Returns the results of each row's seeds, in their order."""
    seeds_of: Seeds = {}
    for line in sorted(harness.read(STORE), key=lambda line: line["seed"]):
        seeds_of.setdefault(line["row"], []).append(line)
    return seeds_of


def stored_curves() -> dict[str, list[Points]]:
    """Returns the curves of each row's seeds, in their order."""
    curves: dict[str, dict[float, list[tuple[float, float]]]] = {}
    for line in sorted(harness.read(POINTS), key=lambda line: line["seed"]):
        seeds = curves.setdefault(line["row"], {})
        seeds.setdefault(line["seed"], []).append((line["env_step"], line["return"]))
    return {name: [tuple(np.array(curve).T) for curve in seeds.values()] for name, seeds in curves.items()}


def misses(name: str, seeds_of: Seeds) -> str:
    """Returns why a row misses its bar, or an empty text."""
    row, returns = ROWS[name], [seed["return"] for seed in seeds_of.get(name, [])]
    if len(returns) < row.seeds:
        return f"{name}: {len(returns)} of {row.seeds} seeds"
    if fmean(returns) < row.mean or min(returns) < row.worst:
        means = f"mean {fmean(returns):.4g} (bar {row.mean:g})"
        return f"{name}: {means}, worst {min(returns):.4g} (bar {row.worst:g})"
    return ""


def sections() -> dict[str, list[str]]:
    """Returns the generated lines of the documents."""
    seeds_of = stored()
    found = {
        "learning": rows_table(ROWS, seeds_of),
        "readme-learning": short_table(
            {name: ROWS[name] for name in IN_README if name in seeds_of}, seeds_of
        ),
    }
    for name, comparison in COMPARISONS.items():
        if not seeds_of.keys().isdisjoint(comparison.arms):
            found[name] = comparison_table(comparison, seeds_of)
    return found


def write() -> None:
    """Writes the tables, and draws the curves."""
    harness.put(sections())
    points_of = stored_curves()
    for group, rows in GROUPS.items():
        panels = {name: {"": points_of[name]} for name in rows if name in points_of}
        draw(panels, PICTURES / f"{group}.png", {name: row.published for name, row in rows.items()})
    for section, comparison in COMPARISONS.items():
        arms: dict[str, dict[str, list[Points]]] = {}
        for name in comparison.arms:
            if name in points_of:
                group, _, arm = name.partition(".")
                arms.setdefault(group, {})[arm] = points_of[name]
        draw(arms, PICTURES / f"{section}.png")


def main() -> int:
    """Measures rows; with --check compares them with their bars."""
    parser = harness.parser(__doc__, [*ROWS, *COMPARISONS], EVERY_ROW)
    parser.add_argument("--check", action="store_true", help="compare with the bars at the end")
    parser.add_argument("--device", default="cpu", help="policy.device of the trainings (default cpu)")
    parser.add_argument("--jobs", type=int, default=2, help="seeds that run at a time (default 2)")
    args = parser.parse_args()
    if args.write:
        write()
        return 0
    names = [
        name
        for given in args.rows or ROWS
        for name in (COMPARISONS[given].arms if given in COMPARISONS else [given])
    ]
    run_rows(names, args.device, args.jobs)
    missed = [text for name in names if name in ROWS and (text := misses(name, stored()))]
    if args.check:
        print("\n".join(missed) or "every row reaches its bar")
    return 1 if args.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
