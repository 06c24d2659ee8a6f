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
from typing import Any, cast

import gymnasium as gym
import report
from gymnasium.envs.classic_control import CartPoleEnv

from ding_lite import load_policy

RUNS = Path("runs") / "fine_tuning"
STORE = Path(__file__).parent / "learning" / "fine_tuning.json"
SEEDS = range(5)
WEIGHTS = (0.0, 0.1, 0.3, 1.0)
LENGTHS = (0.5, 0.05)  # half of the pole's length: of gymnasium, and of cartpole_pole_ppo


def score(checkpoint: Path, length: float) -> float:
    """Returns the mean return of 100 greedy episodes with a pole of half-length ``length``."""
    policy = load_policy(checkpoint, trust=["pole_env"])
    env = gym.make("CartPole-v1")
    pole = cast(CartPoleEnv, env.unwrapped)
    pole.length, pole.polemass_length = length, pole.masspole * length
    returns = []
    for seed in range(1000, 1100):
        obs, _ = env.reset(seed=seed)
        returns.append(0.0)
        done = False
        while not done:
            obs, reward, terminated, truncated, _ = env.step(policy.act(obs))
            returns[-1] += float(reward)
            done = terminated or truncated
    return fmean(returns)


def train(config: str, folder: Path, seed: int, *options: str) -> None:
    """Trains a run that is not there yet."""
    if not (folder / "result.json").exists():
        command = [sys.executable, "-m", "ding_lite", "train", "-q", "-c", config, "-s", str(seed)]
        one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run([*command, "--exp-name", str(folder), *options], check=True, env=one_thread)


def measure(seed: int) -> dict[str, Any]:
    """Returns the two returns of the base policy and of each weight, for one seed."""
    base = RUNS / f"base_{seed}"
    train("cartpole_ppo", base, seed)
    found: dict[str, Any] = {"seed": seed}
    folders = {"before": base}
    for weight in WEIGHTS:
        folder = folders[f"{weight:g}"] = RUNS / f"weight_{weight:g}_{seed}"
        options = ["--init-from", str(base / "ckpt" / "last.safetensors")]
        if weight:
            options += [
                f"policy.learn.kl_beta={weight}",
                f"policy.learn.pretrained_model_path={base / 'ckpt' / 'last'}",
            ]
        train("cartpole_pole_ppo", folder, seed, *options)
    for name, folder in folders.items():
        found[name] = [score(folder / "ckpt" / "last.safetensors", length) for length in LENGTHS]
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
    sys.path.append(str(Path(__file__).parents[1] / "configs"))  # of pole_env, which the runs name
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
