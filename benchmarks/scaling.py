"""Measures what ranks and Ray actors cost and gain, and simulates up to 1,024 of them.

    python benchmarks/scaling.py            measure, write scaling.json and curves/scaling.png
    python benchmarks/scaling.py --plot     only the simulation, from the constants that are there
    python benchmarks/scaling.py --task N   measure the speed of one task again
    python benchmarks/scaling.py --workers  measure worker processes and Ray actors again (extra ray)
    python benchmarks/scaling.py --sleeping measure what is missing of 1 to 64 worker processes

Constants: the time of an all-reduce between two ranks of this machine (gloo), of acting for 1,024
environments, and of gradient steps of two sizes, for networks of CartPole. Speed: training on Humanoid-v5
with one and with two ranks, by turns.

The simulation: a rank with B/K environments collects T steps in T B/K (step + act); each of M minibatches
takes gradient(batch/K) and an all-reduce of P floats over a ring of K ranks:
2 (K - 1) latency + 8 P (K - 1) / (K bandwidth).

Workers: the time of a step of one worker whose environment takes no time, what of it the parent computes, and
the steps a second of environments that sleep 5 ms, in worker processes and in Ray actors, by turns.
In the simulation, W actors step B environments in max(step B/W + message, W parent's part) + acting.

Sleeping: collecting from 64 environments that sleep 1, 5 or 20 ms in each step, in W worker processes. The
ideal is W steps in that time, and with an environment that sleeps ten times as long (a straggler) W in the
time of the worker that has it.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from ding_lite.envs.vector import VectorEnv

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
STEPS, ENVS = 64, 1024  # of the simulated rollout
KINDS = ("subprocess", "ray")
SLEEPERS = 64  # environments in 1 to 64 workers
SLEEPS = (1e-3, 5e-3, 20e-3)


class Sleeping(gym.Env):
    """An environment whose step takes seconds and no processor."""

    observation_space = gym.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> Any:
        if self.seconds:
            time.sleep(self.seconds)
        return np.zeros(4, np.float32), 0.0, False, False, {}


def straggle(env: gym.Env, *, index: int = 0) -> gym.Env:
    """Lets the steps of the first environment take ten times as long; a wrapper."""
    if index == 0:
        env.unwrapped.seconds *= 10  # type: ignore[attr-defined]
    return env


def torchrun(ranks: int, *arguments: str) -> list[str]:
    """Returns the command that starts ``arguments`` on several ranks."""
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"),
        *arguments,
    ]


def exchange() -> None:
    """Prints the seconds of an all-reduce by its number of floats; runs under torchrun."""
    from ding_lite.ranks import joined

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
    columns = {
        "env_steps_per_second": ["env_steps_per_second"],
        "collect_s": ["env_s", "act_s", "store_s", "advantages_s"],
        "learn_s": ["updates_s", "auxiliary_s"],
    }
    return {
        name: statistics.median(sum(float(row[f"time/{part}"] or 0) for part in parts) for row in rows)
        for name, parts in columns.items()
    }


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
        for batch in policy.minibatches(rollout).batches:
            began = time.perf_counter()
            policy.optimizer.steps(policy.objective, [batch])
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


def sleeping_vector(
    kind: str, seconds: float, envs: int, workers: int, double_buffer: bool = False, straggler: bool = False
) -> tuple[Any, VectorEnv]:
    """Returns the config and a vector of sleeping environments in workers."""
    from ding_lite.config.compile import compile_config
    from ding_lite.envs.make import make_vector_env

    manager = {"type": kind, "worker_num": workers, "double_buffer": double_buffer}
    env = {"type": Sleeping, "kwargs": {"seconds": seconds}, "collector_env_num": envs, "manager": manager}
    if straggler:
        env["wrappers"] = [{"type": straggle}]
    cfg = compile_config({"env": env, "policy": {"collect": {"n_sample": 64 * envs}}}).values
    return cfg, make_vector_env(cfg.env, envs, 0)


def message(kind: str) -> dict[str, float]:
    """Returns the seconds of a step of one worker, and the seconds that this process works for it."""
    _, envs = sleeping_vector(kind, 0.0, 1, 1)
    with contextlib.closing(envs):
        envs.reset("time")
        action, times = np.zeros(1, np.int64), []
        for _ in range(200):
            envs.step(action)
        worked = time.process_time()
        for _ in range(1000):
            began = time.perf_counter()
            envs.step(action)
            times.append(time.perf_counter() - began)
        worked = time.process_time() - worked
    return {"step_s": statistics.median(times), "parent_s": worked / len(times)}


def collecting_rate(vector: tuple[Any, VectorEnv], steps: int, rollouts: int = 1) -> float:
    """Returns the steps a second of collecting ``steps`` of each environment, the median of some rollouts.

    Args:
        vector: the config and the environments, which are closed.
        steps, rollouts: how much to collect.
    """
    from ding_lite import POLICY_REGISTRY
    from ding_lite.data.collector import Collector

    cfg, envs = vector
    rates = []
    with contextlib.closing(envs):
        policy: Any = POLICY_REGISTRY.get("ppo")(cfg.policy, envs.obs_space, envs.action_space)
        collector = Collector(envs, policy.collect_mode, steps * envs.num_envs)
        collector.collect()
        for _ in range(rollouts):
            began = time.perf_counter()
            collector.collect()
            rates.append(collector.n_sample / (time.perf_counter() - began))
    return statistics.median(rates)


def sleeping(rows: list[dict[str, Any]]) -> Iterator[None]:
    """Adds the rates of sleeping environments in 1 to 64 workers, beside those without any other cost.

    Yields after each row, so that it can be stored; rows that are there are not measured again.
    """
    torch.set_num_threads(1)
    for seconds in SLEEPS:
        for count in (1, 2, 4, 8, 16, 32, 64):
            for straggler in (False, True):
                place = {"seconds": seconds, "workers": count, "straggler": straggler}
                if any(row.items() >= place.items() for row in rows):
                    continue
                step = seconds * (SLEEPERS / count + 9 * straggler)  # of the slowest worker
                rates = {
                    name: collecting_rate(
                        sleeping_vector("subprocess", seconds, SLEEPERS, count, halves, straggler),
                        steps=max(2, min(64, int(1 / step))),
                        rollouts=3,
                    )
                    for name, halves in (("whole", False), ("double_buffer", True))
                }
                rows.append({**place, **rates, "ideal": SLEEPERS / step})
                print(rows[-1], flush=True)
                yield


def workers() -> dict[str, Any]:
    """Returns what a step costs in worker processes and in Ray actors, and the rates of slow environments."""
    from ding_lite.envs.workers.ray_actors import connect

    torch.set_num_threads(1)
    rates: dict[str, dict[str, list[float]]] = {}
    connect()  # so that Ray is started once
    for turn in range(TURNS):
        for halves in (False, True):
            for kind in KINDS:
                of = rates.setdefault("double_buffer" if halves else "whole", {})
                of.setdefault(kind, []).append(
                    collecting_rate(sleeping_vector(kind, 5e-3, 16, 2, halves), steps=64)
                )
                print(turn, kind, halves, of[kind][-1], flush=True)
    costs = {kind: [message(kind) for _ in range(TURNS)] for kind in KINDS}
    return {
        "rates": rates,
        "ratios": {
            name: statistics.median(r / s for s, r in zip(of["subprocess"], of["ray"], strict=True))
            for name, of in rates.items()
        },
        "message": {
            kind: {name: statistics.median(one[name] for one in found) for name in found[0]}
            for kind, found in costs.items()
        },
    }


def simulated_workers(constants: dict[str, Any], env_seconds: float, actors: int) -> float:
    """Returns the seconds of a rollout: 64 steps of 1,024 environments in so many Ray actors."""
    cost = constants["workers"]["message"]["ray"]
    stepping = ENVS / actors * env_seconds + cost["step_s"]
    return STEPS * (max(stepping, actors * cost["parent_s"]) + constants["act_s"])


def simulated(constants: dict[str, Any], env_seconds: float, parameters: int, ranks: int) -> float:
    """Returns the seconds of an iteration: 64 steps of 1,024 environments, 10 epochs of 32 minibatches."""
    all_reduce = {int(size): seconds for size, seconds in constants["all_reduce_s"].items()}
    latency = all_reduce[SIZES[0]] / 2
    bandwidth = 4 * SIZES[-1] / all_reduce[SIZES[-1]]  # of two ranks: each sends P floats in all
    minibatches, batch = 320, 2048
    small, large = constants["gradient_s"]["64"], constants["gradient_s"]["2048"]
    sample = (large - small) / (2048 - 64)
    own = ENVS / ranks
    collect = STEPS * own * (env_seconds + constants["act_s"] / ENVS)
    exchange_seconds = 0.0
    if ranks > 1:
        sent = 8 * parameters * (ranks - 1) / ranks
        exchange_seconds = 2 * (ranks - 1) * latency + sent / bandwidth
    return collect + minibatches * (small + (batch / ranks - 64) * sample + exchange_seconds)


def plot(constants: dict[str, Any]) -> None:
    """Draws the speedup over the number of ranks and of Ray actors, for environments of several speeds."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, (of_ranks, of_actors) = plt.subplots(1, 2, figsize=(12, 4.5), sharey=True)
    parameters = constants["parameters"]
    for name, seconds in ENVIRONMENTS.items():
        training = [simulated(constants, seconds, parameters, ranks) for ranks in RANKS]
        collecting = [simulated_workers(constants, seconds, actors) for actors in RANKS]
        for axes, times in ((of_ranks, training), (of_actors, collecting)):
            axes.plot(RANKS, [times[0] / t for t in times], marker="o", label=f"a step of {name}")
    for axes in (of_ranks, of_actors):
        axes.plot(RANKS, RANKS, color="gray", linestyle=":", label="one for each")
        axes.set(xscale="log", yscale="log")
        axes.legend()
    of_ranks.set(xlabel="ranks", ylabel="times the speed of one")
    of_ranks.set_title(f"Training, split over ranks ({parameters:,} parameters)")
    of_actors.set(xlabel="Ray actors, with one learner")
    of_actors.set_title("Collecting, split over Ray actors")
    figure.suptitle("Simulated: 1,024 environments")
    figure.tight_layout()
    figure.savefig(PLOT, dpi=120)


def main() -> int:
    """Measures and draws."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--plot", action="store_true", help="only draw, from the constants that are there")
    parser.add_argument("--task", type=int, metavar="N", help="measure one task, by its number from 0")
    parser.add_argument("--workers", action="store_true", help="measure processes and Ray actors")
    parser.add_argument("--sleeping", action="store_true", help="measure 1 to 64 worker processes")
    parser.add_argument("--exchange", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.exchange:
        exchange()
        return 0
    if not args.plot:
        constants = json.loads(CONSTANTS.read_text()) if CONSTANTS.exists() else {"speed": {}}
        tasks = list(TASKS)
        if args.task is not None:
            tasks = [tasks[args.task]]
        elif args.workers or args.sleeping:
            tasks = []
        else:
            constants |= {**costs(), "all_reduce_s": all_reduces()}
        if args.task is None and not args.sleeping:
            constants["workers"] = workers()
        if args.task is None and not args.workers:
            for _ in sleeping(constants.setdefault("sleeping", [])):
                CONSTANTS.write_text(json.dumps(constants, indent=1) + "\n")
        for task in tasks:
            constants["speed"][task] = by_turns(task)
        CONSTANTS.write_text(json.dumps(constants, indent=1) + "\n")
    plot(json.loads(CONSTANTS.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
