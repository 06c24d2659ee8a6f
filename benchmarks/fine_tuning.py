"""How much a policy forgets when it is trained further: with and without a penalty to the policy it was.

    python benchmarks/fine_tuning.py

A policy of cartpole_ppo is trained further by cartpole_pole_ppo, with several weights of the penalty. Each
final policy then plays 100 greedy episodes with the long pole and with the short one. Runs that are finished
are not repeated; the table goes to RESULTS.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

import report

RUNS = Path("runs") / "fine_tuning"
STORE = Path(__file__).parent / "learning" / "fine_tuning.json"
SEEDS = range(5)
WEIGHTS = (0.0, 0.1, 0.3, 1.0)
CLI = [sys.executable, "-m", "ding_lite"]


def run(*arguments: str) -> str:
    """Runs a command of ding_lite and returns its output."""
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*CLI, *arguments], check=True, stdout=subprocess.PIPE, text=True, env=one_thread
    ).stdout


def score(folder: Path, config: str) -> float:
    """Returns the mean return of 100 greedy episodes in the environment of a config."""
    mean: float = json.loads(
        run("eval", "-c", config, str(folder / "ckpt" / "last"), "-n", "100", "-s", "1000", "--json")
    )["mean"]
    return mean


def train(config: str, folder: Path, seed: int, *options: str) -> None:
    """Trains a run that is not there yet."""
    if not (folder / "result.json").exists():
        run("train", "-q", "-c", config, "-s", str(seed), "--exp-name", str(folder), *options)


def measure(seed: int) -> dict[str, Any]:
    """Returns the two returns of the base policy and of each weight, for one seed."""
    base = RUNS / f"base_{seed}"
    train("cartpole_ppo", base, seed)
    found: dict[str, Any] = {"seed": seed}
    folders = {"before": base}
    for weight in WEIGHTS:
        folder = folders[f"{weight:g}"] = RUNS / f"weight_{weight:g}_{seed}"
        options = ["--init-from", str(base / "ckpt" / "last")]
        if weight:
            options += [
                f"policy.learn.kl_beta={weight}",
                f"policy.learn.pretrained_model_path={base / 'ckpt' / 'last'}",
            ]
        train("cartpole_pole_ppo", folder, seed, *options)
    for name, folder in folders.items():
        found[name] = [score(folder, config) for config in ("cartpole_ppo", "cartpole_pole_ppo")]
    return found


def table(seeds: list[dict[str, Any]]) -> list[str]:
    """Returns the lines of the table."""
    lines = [
        "| `kl_beta` | long pole: each seed | mean | short pole: each seed | mean |",
        "|---|---|---|---|---|",
    ]
    for name in ("before", *(f"{weight:g}" for weight in WEIGHTS)):
        old, new = ([seed[name][k] for seed in seeds] for k in (0, 1))
        cells = (
            cell
            for means in (old, new)
            for cell in (", ".join(f"{mean:.0f}" for mean in means), f"**{fmean(means):.0f}**")
        )
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Measures the seeds that are missing, and writes the table."""
    stored = json.loads(STORE.read_text()) if STORE.exists() else {"seeds": []}
    done = {seed["seed"] for seed in stored["seeds"]}
    for seed in SEEDS:
        if seed not in done:
            stored["seeds"].append(measure(seed))
            report.store(STORE, stored)
            print(stored["seeds"][-1], flush=True)
    report.put("fine_tuning", table(stored["seeds"]))


if __name__ == "__main__":
    main()
