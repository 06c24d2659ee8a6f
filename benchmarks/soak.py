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
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ding_lite import SerialPipeline

FAULTS = dict(type="faulty:FaultyEnv", crash=1e-4, kill=1e-4, hang=1e-5)
CONFIG: dict[str, Any] = dict(
    exp_name="soak",
    max_env_step=10**9,
    env=dict(
        env_id="CartPole-v1",
        wrappers=[FAULTS],
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
EVERY = 10.0  # seconds between two lines, and between two kills from outside
GROWTH = 1.05  # allowed factor of memory, from the second quarter to the last, plus MARGIN
MARGIN = 16.0  # MB
LEARNED = 100.0  # return to reach; a random policy has 22


@dataclass
class Sample:
    """Observations at one moment."""

    env_step: int
    restarts: int
    megabytes: float  # of this process and its workers
    descriptors: int
    episode_return: float


def stat_of(pid: int) -> list[str]:
    """Returns the fields of /proc/PID/stat from the state on; ["X", "0"] if the process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return ["X", "0"]


def children() -> list[int]:
    """Returns the ids of this process's children."""
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return [pid for pid in pids if stat_of(pid)[1] == str(os.getpid())]


def megabytes_of(pid: int) -> float:
    """Returns the resident memory of a process."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    except OSError:
        return 0.0


def left_behind() -> dict[str, Any]:
    """Returns the values that must be equal before and after the run."""
    return {
        "child processes": len(children()),
        "file descriptors": len(os.listdir("/proc/self/fd")),
        "blocks in /dev/shm": sorted(os.listdir("/dev/shm")),
    }


class Soak:
    """One run and its samples.

    Args:
        minutes: duration of the training.
        folder: of the run.
    """

    def __init__(self, minutes: float, folder: Path) -> None:
        self.minutes, self.folder = minutes, folder
        self.samples: list[Sample] = []
        self.workers: set[int] = set()  # ids of all workers so far
        self.episodes = self.episode_steps = 0
        self.accounts: tuple[int, int] = (0, 0)

    def run(self) -> None:
        """Trains, kills workers, and takes samples."""
        pipeline = SerialPipeline(CONFIG, folder=self.folder)
        began = spoken = time.monotonic()
        for progress in pipeline:
            self.episodes += len(pipeline.collector.episodes)
            self.episode_steps += sum(episode.length for episode in pipeline.collector.episodes)
            # At the end of an iteration every worker is idle, and all steps are accounted for.
            envs = pipeline.collector.envs
            counted = self.episode_steps + int(envs.episode_lengths.sum()) + envs.cut_steps
            self.accounts = (progress.env_step, counted)
            now = time.monotonic()
            if now - spoken >= EVERY:
                spoken = now
                self._look(pipeline, now - began)
                self._strike()
            if now - began >= 60 * self.minutes:
                pipeline.request_stop("the soak is over")

    def _look(self, pipeline: SerialPipeline, seconds: float) -> None:
        pids = children()
        self.workers.update(pids)
        sample = Sample(
            pipeline.progress.env_step,
            pipeline.collector.envs.restarts + pipeline.evaluator.envs.restarts,
            sum(map(megabytes_of, [os.getpid(), *pids])),
            len(os.listdir("/proc/self/fd")),
            pipeline.progress.metrics.get("collect/episode_return", 0.0),
        )
        self.samples.append(sample)
        print(
            f"{seconds / 60:5.1f} min  {sample.env_step:>10,} steps  {self.episodes:>7,} episodes  "
            f"{sample.restarts:>5,} restarts  {len(pids)} workers  {sample.megabytes:6.0f} MB  "
            f"{sample.descriptors} descriptors  return {sample.episode_return:.0f}",
            flush=True,
        )

    def _strike(self) -> None:
        """Kills a random idle worker, or stops it, which looks like a hang."""
        os.kill(random.choice(children()), random.choice([signal.SIGKILL, signal.SIGSTOP]))

    def checks(self, before: dict[str, Any], after: dict[str, Any]) -> dict[str, bool]:
        """Returns each check, as text, with its result."""
        seen = self.samples
        quarter = len(seen) // 4
        early, late = (
            statistics.median(sample.megabytes for sample in part)
            for part in (seen[quarter : 2 * quarter], seen[-quarter:])
        )
        steps = [sample.env_step for sample in seen]
        with (self.folder / "episodes.csv").open() as file:
            recorded = [int(row["length"]) for row in csv.DictReader(file)]
        log = (self.folder / "log.txt").read_text()
        alive = [pid for pid in self.workers if is_worker(pid)]
        return {
            f"training went on: {steps[-1]:,} steps": all(
                a < b for a, b in zip(steps, steps[1:], strict=False)
            ),
            f"it learned: return {seen[-1].episode_return:.0f}": seen[-1].episode_return >= LEARNED,
            f"workers died throughout: {log.count(' is replaced, ')} restarts": all(
                a.restarts < b.restarts for a, b in zip(seen[::3], seen[3::3], strict=False)
            ),
            f"memory is flat: {early:.0f} MB, then {late:.0f} MB": late <= GROWTH * early + MARGIN,
            f"descriptors are: {seen[0].descriptors}, then {seen[-1].descriptors}": all(
                sample.descriptors == seen[0].descriptors for sample in seen
            ),
            "env_step {:,} = finished + open + cut steps {:,}".format(*self.accounts): (
                self.accounts[0] == self.accounts[1]
            ),
            f"episodes.csv has all {self.episodes:,} episodes, {self.episode_steps:,} steps": (
                (len(recorded), sum(recorded)) == (self.episodes, self.episode_steps)
            ),
            f"none of the {len(self.workers)} workers is left": not alive,
            **{
                f"{name}: {before[name]} before, {after[name]} after": before[name] == after[name]
                for name in before
            },
        }


def is_worker(pid: int) -> bool:
    """Returns whether a process is a live worker: the system reuses process ids."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return stat_of(pid)[0] not in "XZ" and b"ding_lite.envs.workers.worker" in command


def main() -> int:
    """Runs the soak and prints the checks."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("minutes", nargs="?", type=float, default=30.0)
    minutes = parser.parse_args().minutes
    if 60 * minutes < 8 * EVERY:
        parser.error(f"at least {8 * EVERY / 60:.1f} minutes are needed for two quarters to compare")
    before = left_behind()
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(minutes, Path(folder) / "run")
        soak.run()
        checks = soak.checks(before, left_behind())
    for words, holds in checks.items():
        print(f"{'ok     ' if holds else 'FAILED '} {words}")
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
