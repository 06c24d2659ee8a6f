"""Measures what several ranks cost and gain, and simulates up to 1,024 of them.

    python benchmarks/scaling.py            measure, write scaling.json and curves/scaling.png
    python benchmarks/scaling.py --plot     only the simulation, from the constants that are there
    python benchmarks/scaling.py --task N   measure the speed of one task again

Constants: the time of an all-reduce between two ranks of this machine (gloo), of acting for 1,024
environments, and of gradient steps of two sizes, for networks of CartPole. Speed: training on Humanoid-v5
with one and with two ranks, by turns.

The simulation: a rank with B/K environments collects T steps in T B/K (step + act); each of M minibatches
takes gradient(batch/K) and an all-reduce of P floats over a ring of K ranks:
2 (K - 1) latency + 8 P (K - 1) / (K bandwidth).
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
CONSTANTS = HERE / "scaling.json"
PLOT = HERE / "curves" / "scaling.png"
TASK = ["--env", "Humanoid-v5", "--max-env-step", "16384", "env.manager.type=base", "policy.eval.eval_freq=0"]
SLOW = "env.kwargs.frame_skip=25"  # 25 steps of the physics for each action, not 5
TASKS = {
    "Humanoid, minibatches of 64": ["policy.learn.batch_size=64"],
    "Humanoid, minibatches of 512": ["policy.learn.batch_size=512"],
    "slow Humanoid, minibatches of 512": ["policy.learn.batch_size=512", SLOW],
}
TURNS = 5
SIZES = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
RANKS = tuple(2**k for k in range(11))
# Seconds of a step of one environment: CartPole's, MuJoCo's, a slow simulator's.
ENVIRONMENTS = {"10 µs": 1e-5, "100 µs": 1e-4, "5 ms": 5e-3}


def torchrun(ranks: int, *arguments: str) -> list[str]:
    """Returns the command that starts ``arguments`` on several ranks."""
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"),
        *arguments,
    ]


def exchange() -> None:
    """Prints the seconds of an all-reduce by its number of floats; runs under torchrun."""
    from ding_lite.rl.ranks import joined

    torch.set_num_threads(1)
    with joined() as ranks:
        found = {}
        for size in SIZES:
            tensor, times = torch.zeros(size), []
            for _ in range(max(5, min(200, 20_000_000 // size))):
                began = time.perf_counter()
                ranks.sum(tensor)
                times.append(time.perf_counter() - began)
            found[size] = statistics.median(times)
        if ranks.is_first:
            print(json.dumps(found))


def speed(ranks: int, task: str, folder: Path) -> dict[str, float]:
    """Trains the task and returns its steps and the seconds of collecting and learning, a second each."""
    start = torchrun(ranks, "-m", "ding_lite") if ranks > 1 else [sys.executable, "-m", "ding_lite"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [*start, "train", *TASK, *TASKS[task], "-q", "--exp-name", str(folder)]
    subprocess.run(command, check=True, env=environment, capture_output=True)
    with (folder / "metrics.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))[2:]
    columns = ("env_steps_per_second", "collect_s", "learn_s")
    return {name: statistics.median(float(row[f"time/{name}"]) for row in rows) for name in columns}


def costs() -> dict[str, Any]:
    """Returns the seconds of acting and of gradient steps of CartPole's networks, and their parameters."""
    from ding_lite import POLICY_REGISTRY
    from ding_lite.config.compile import compile_config
    from ding_lite.data.collector import Collector
    from ding_lite.envs.make import make_vector_env

    torch.set_num_threads(1)
    env = {"env_id": "CartPole-v1", "collector_env_num": 1024}
    found: dict[str, Any] = {"gradient_s": {}}
    for size in (64, 2048):
        options = {"learn": {"batch_size": size}, "collect": {"n_sample": 16_384}}
        cfg = compile_config({"env": env, "policy": options}).values
        envs = make_vector_env(cfg.env, 1024, 0)
        policy: Any = POLICY_REGISTRY.get("ppo")(cfg.policy, envs.obs_space, envs.action_space)
        collector = Collector(envs, policy.collect_mode, 16_384)
        rollout = collector.collect()
        times = []
        with policy.optimizer.phase():
            for batch in policy.minibatches(rollout):
                began = time.perf_counter()
                policy.optimizer.step(policy.loss, batch)
                times.append(time.perf_counter() - began)
        found["gradient_s"][str(size)] = statistics.median(times)
        mode, times = policy.collect_mode.for_rollout(), []
        for _ in range(100):
            began = time.perf_counter()
            mode.forward(collector.obs[0])
            times.append(time.perf_counter() - began)
        found["act_s"] = statistics.median(times)
        found["parameters"] = sum(p.numel() for p in policy.model.parameters())
    return found


def all_reduces() -> dict[str, float]:
    """Returns the seconds of an all-reduce between two ranks, by its number of floats."""
    command = torchrun(2, __file__, "--exchange")
    done = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found: dict[str, float] = json.loads(next(line for line in done.splitlines() if line.startswith("{")))
    return found


def by_turns(task: str) -> dict[str, Any]:
    """Returns the speeds of one and of two ranks on a task, and their ratios."""
    speeds: dict[str, list[dict[str, float]]] = {"1": [], "2": []}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(TURNS):
            for ranks in (1, 2):
                speeds[str(ranks)].append(speed(ranks, task, Path(folder) / f"{ranks}_{turn}"))
                print(task, turn, ranks, speeds[str(ranks)][-1], flush=True)
    ratios = [
        two["env_steps_per_second"] / one["env_steps_per_second"]
        for one, two in zip(speeds["1"], speeds["2"], strict=True)
    ]
    return {"ratio": statistics.median(ratios), "ratios": ratios, **speeds}


def simulated(constants: dict[str, Any], env_seconds: float, parameters: int, ranks: int) -> float:
    """Returns the seconds of an iteration: 64 steps of 1,024 environments, 10 epochs of 32 minibatches."""
    all_reduce = {int(size): seconds for size, seconds in constants["all_reduce_s"].items()}
    latency = all_reduce[SIZES[0]] / 2
    bandwidth = 4 * SIZES[-1] / all_reduce[SIZES[-1]]  # of two ranks: each sends P floats in all
    steps, envs, minibatches, batch = 64, 1024, 320, 2048
    small, large = constants["gradient_s"]["64"], constants["gradient_s"]["2048"]
    sample = (large - small) / (2048 - 64)
    own = envs / ranks
    collect = steps * own * (env_seconds + constants["act_s"] / envs)
    exchange_seconds = 0.0
    if ranks > 1:
        sent = 8 * parameters * (ranks - 1) / ranks
        exchange_seconds = 2 * (ranks - 1) * latency + sent / bandwidth
    return collect + minibatches * (small + (batch / ranks - 64) * sample + exchange_seconds)


def plot(constants: dict[str, Any]) -> None:
    """Draws the speedup over the number of ranks, for environments of several speeds."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.5))
    for name, seconds in ENVIRONMENTS.items():
        times = [simulated(constants, seconds, constants["parameters"], ranks) for ranks in RANKS]
        axes.plot(RANKS, [times[0] / t for t in times], marker="o", label=f"a step of {name}")
    axes.plot(RANKS, RANKS, color="gray", linestyle=":", label="one for each rank")
    axes.set(xscale="log", yscale="log", xlabel="ranks", ylabel="times the speed of one rank")
    axes.set_title(f"Simulated: 1,024 environments split over ranks, {constants['parameters']:,} parameters")
    axes.legend()
    figure.tight_layout()
    figure.savefig(PLOT, dpi=120)


def main() -> int:
    """Measures and draws."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--plot", action="store_true", help="only draw, from the constants that are there")
    parser.add_argument("--task", type=int, metavar="N", help="measure one task, by its number from 0")
    parser.add_argument("--exchange", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.exchange:
        exchange()
        return 0
    if not args.plot:
        constants = json.loads(CONSTANTS.read_text()) if CONSTANTS.exists() else {"speed": {}}
        if args.task is None:
            constants |= {**costs(), "all_reduce_s": all_reduces()}
        for task in TASKS if args.task is None else [list(TASKS)[args.task]]:
            constants["speed"][task] = by_turns(task)
        CONSTANTS.write_text(json.dumps(constants, indent=1) + "\n")
    plot(json.loads(CONSTANTS.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
