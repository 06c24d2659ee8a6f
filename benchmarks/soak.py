"""Trains for a long time while workers die, and checks that nothing is lost, mixed up or left behind.

    python benchmarks/soak.py           30 minutes
    python benchmarks/soak.py 3         3 minutes

CartPole in worker processes, with environments that crash, hang and kill their process, in training and in
evaluations. Workers are also killed and stopped from outside. Exit code 1 if a check fails. Needs /proc.
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import gymnasium as gym

CONFIG: dict[str, Any] = dict(
    max_env_step=10**9,
    env=dict(
        env_id="CartPole-v1",
        wrappers=[dict(type="soak:FaultyEnv", crash=1e-4, kill=1e-4, hang=1e-5)],
        collector_env_num=8,
        evaluator_env_num=4,
        n_evaluator_episode=8,
        manager=dict(type="subprocess", worker_num=4, restart_share=1e6, step_timeout=3.0, reset_timeout=3.0),
    ),
    policy=dict(
        type="ppo",
        model=dict(encoder_hidden_size_list=[64, 64], activation="tanh"),
        learn=dict(epoch_per_collect=4, batch_size=256, learning_rate=1e-3, entropy_weight=0.01),
        collect=dict(n_sample=1024),
        eval=dict(eval_freq=20_000),
    ),
)
EVERY = 10.0  # seconds between two looks, and between two kills from outside
GROWTH = 1.05  # allowed factor of memory, from the second quarter to the last, plus MARGIN
MARGIN = 16.0  # MB
LEARNED = 100.0  # return to reach; a random policy has 22


class FaultyEnv(gym.Wrapper):
    """Fails in a step with a probability: by an exception, by never returning, or by killing its process."""

    def __init__(self, env: gym.Env, crash: float, hang: float, kill: float) -> None:
        super().__init__(env)
        self.crash, self.hang, self.kill = crash, hang, kill

    def step(self, action: Any) -> Any:
        draw = random.random()
        if draw < self.crash:
            raise RuntimeError("a crash on purpose")
        if draw < self.crash + self.hang:
            time.sleep(1e9)
        if draw < self.crash + self.hang + self.kill:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.env.step(action)


def children() -> list[int]:
    """Returns the ids of this process's children."""
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return [pid for pid in pids if parent_of(pid) == os.getpid()]


def parent_of(pid: int) -> int:
    """Returns the id of a process's parent; 0 if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except OSError:
        return 0


def megabytes_of(pid: int) -> float:
    """Returns the resident memory of a process; 0 if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    except OSError:
        return 0.0


def descriptors() -> int:
    """Returns how many files are open, but for the checkpoint that a thread may be writing."""
    links = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    return sum(os.path.lexists(link) and "/ckpt" not in os.readlink(link) for link in links)


def left_behind() -> dict[str, Any]:
    """Returns the values that must be equal before and after the run."""
    return {
        "child processes": len(children()),
        "file descriptors": len(os.listdir("/proc/self/fd")),
        "blocks in /dev/shm": sorted(os.listdir("/dev/shm")),
    }


def soak(minutes: float, folder: Path) -> dict[str, bool]:
    """Trains, kills workers from outside, and returns which checks hold, by their words."""
    from ding_lite import SerialPipeline  # here, since workers import this module, and need no torch

    pipeline = SerialPipeline(CONFIG, folder=folder)
    looks: list[dict[str, float]] = []
    episodes = steps = counted = env_step = 0
    began = looked = time.monotonic()
    for progress in pipeline:
        episodes += len(pipeline.collector.episodes)
        steps += sum(episode.length for episode in pipeline.collector.episodes)
        envs, env_step = pipeline.collector.envs, progress.env_step
        # At the end of an iteration every worker is idle, and all steps are accounted for.
        counted = steps + int(envs.episode_lengths.sum()) + envs.cut_steps
        if time.monotonic() - looked >= EVERY:
            looked, pids = time.monotonic(), children()
            look = {
                "minutes": (looked - began) / 60,
                "env_step": env_step,
                "restarts": envs.restarts + pipeline.evaluator.envs.restarts,
                "MB": sum(map(megabytes_of, [os.getpid(), *pids])),
                "descriptors": descriptors(),
                "return": progress.metrics.get("collect/episode_return", 0.0),
            }
            looks.append(look)
            print("  ".join(f"{name} {value:,.0f}" for name, value in look.items()), flush=True)
            # Killed, or stopped, which looks like a hang.
            os.kill(random.choice(pids), random.choice([signal.SIGKILL, signal.SIGSTOP]))
        if time.monotonic() - began >= 60 * minutes:
            pipeline.request_stop("the soak is over")

    quarter, last = len(looks) // 4, looks[-1]
    early = median(look["MB"] for look in looks[quarter : 2 * quarter])
    late = median(look["MB"] for look in looks[-quarter:])
    restarts = [look["restarts"] for look in looks]
    died = all(a < b for a, b in zip(restarts[::3], restarts[3::3], strict=False))
    with (folder / "episodes.csv").open() as file:
        lengths = [int(row["length"]) for row in csv.DictReader(file)]
    all_stored = (len(lengths), sum(lengths)) == (episodes, steps)
    return {
        f"it learned: return {last['return']:.0f}": last["return"] >= LEARNED,
        f"workers died throughout: {last['restarts']:,.0f} restarts": died,
        f"memory is flat: {early:.0f} MB, then {late:.0f} MB": late <= GROWTH * early + MARGIN,
        "so are the open descriptors": len({look["descriptors"] for look in looks}) == 1,
        f"env_step {env_step:,} = finished + open + cut steps {counted:,}": env_step == counted,
        f"episodes.csv has all {episodes:,} episodes, {steps:,} steps": all_stored,
    }


def main() -> int:
    """Runs the soak and prints the checks."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("minutes", nargs="?", type=float, default=30.0)
    minutes, before = parser.parse_args().minutes, left_behind()
    with tempfile.TemporaryDirectory() as folder:
        checks = soak(minutes, Path(folder) / "run")
        after = left_behind()
    for name in before:
        checks[f"{name}: {after[name]} after, {before[name]} before"] = before[name] == after[name]
    for words, holds in checks.items():
        print(f"{'ok     ' if holds else 'FAILED '} {words}")
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
