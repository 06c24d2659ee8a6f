"""Several ``ding-lite`` processes at a time: the seeds of a config, the workers of a sweep.

Each process executes the single command, so its run is bit for bit the same, and a crash does not end other
runs. The name of a process precedes each line that it prints. The exit code of the process and result.json
tell how a run ended. ``tools.ray_runs`` has the same pool on a Ray cluster.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from ding_lite.config.compile import Config
from ding_lite.envs.workers.cores import cores
from ding_lite.run.folder import ENDED, read_result
from ding_lite.run.signals import ENDING
from ding_lite.tools import statistics

# The kernel sends SIGTERM to a process of the pool when its parent ends, so that it saves and ends, too.
BOOT = """\
import ctypes, os, signal, sys
parent = int(sys.argv.pop(1))
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
if os.getppid() != parent:
    sys.exit(143)
from ding_lite.__main__ import main
sys.exit(main())
"""
INTERRUPTED = (130, 143)  # exit codes of a run that a signal ended, after it was saved
LAST_LINES = 50  # of a process, in which its error is searched


class Job(NamedTuple):
    """A ``ding-lite`` process.

    Attributes:
        name: is printed before its lines, such as "seed 3"; "": nothing is.
        arguments: of ``ding-lite``, beginning with the command.
    """

    name: str
    arguments: Sequence[str]


class Outcome(NamedTuple):
    """How a process ended: its exit code (negative: the signal that killed it) and its error, or ""."""

    code: int
    error: str = ""


class Load(NamedTuple):
    """The resources of one training: CPU cores, and whether it uses a GPU, any one."""

    cores: int
    gpu: bool


def load_of(config: Config) -> Load:
    """Returns the load of a run; a number of threads that depends on the observations counts as 1."""
    env, device = config.values.env, str(config.values.policy.device)
    threads = config.values.num_threads if isinstance(config.values.num_threads, int) else 1
    workers = 1
    if env.manager.type == "subprocess":
        workers = min(env.manager.worker_num or cores(), env.collector_env_num)
    return Load(max(threads, workers), device == "cuda" or device == "auto" and torch.cuda.is_available())


class Pool:
    """Processes on this machine. If it has several GPUs, each process sees one GPU, in turn.

    Args:
        load: of one training.
        jobs: number of processes at a time; None: as many as there are cores for.
        say: called with each line that a process prints, in the thread of its job.

    Attributes:
        jobs: number of processes at a time.
        threads: number of threads; each starts one job at a time and waits for it.
        stopped_by: name of the signal that has ended the work; "" before one.
    """

    def __init__(self, load: Load, jobs: int | None, say: Callable[[str], Any]) -> None:
        self.jobs = self.threads = jobs or max(1, cores() // load.cores)
        self._say = say
        named = os.environ.get("CUDA_VISIBLE_DEVICES")
        gpus = named.split(",") if named else [str(number) for number in range(torch.cuda.device_count())]
        self._gpus = itertools.cycle(gpus if load.gpu and len(gpus) > 1 else [None])
        self._running: set[subprocess.Popen[str]] = set()
        self._variables: dict[str, str] = {}  # of the environment of each process
        self._lock = threading.Lock()  # no process starts during or after a stop
        self.stopped_by = ""

    def stop(self, name: str) -> None:
        """Makes all processes save and end after their iterations; safe in a handler of the main thread.

        Args:
            name: of the signal that they are sent, such as "SIGINT".
        """
        with self._lock:
            self.stopped_by = name
            for process in self._running:
                process.send_signal(signal.Signals[name])

    def run(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Runs all jobs, and returns how each ended; once the pool is stopped, no further job starts.

        Raises:
            KeyboardInterrupt: at a second Ctrl-C; all processes are killed.
        """
        each = max(1, cores() // min(self.jobs, len(jobs) or 1))  # torch's threads if a run has images
        self._variables = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(each))}
        executor = ThreadPoolExecutor(self.threads)
        try:
            return list(executor.map(self._run, jobs))
        except BaseException:
            self.stop("SIGKILL")
            raise
        finally:
            executor.shutdown(cancel_futures=True)

    def _run(self, job: Job) -> Outcome:
        with self._lock:
            if self.stopped_by:
                return Outcome(INTERRUPTED[0])
            gpu = next(self._gpus)
            visible = {} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}
            process = start(job, {**self._variables, **visible})
            self._running.add(process)
        outcome = follow(process, job, self._say)
        with self._lock:
            self._running.remove(process)
        return outcome


def start(job: Job, variables: dict[str, str]) -> subprocess.Popen[str]:
    """Starts the process of a job. It ends with the calling thread; Ctrl-C does not reach it."""
    width = shutil.get_terminal_size().columns - len(f"{job.name}: ")
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)  # signals wait until the process has handlers
    try:
        return subprocess.Popen(
            [sys.executable, "-c", BOOT, str(os.getpid()), *job.arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, "PYTHONPATH": python_path(), "COLUMNS": str(width), **variables},
            start_new_session=True,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def follow(process: subprocess.Popen[str], job: Job, say: Callable[[str], Any]) -> Outcome:
    """Passes the lines of a process to ``say`` until it ends, and returns how it ended."""
    last: deque[str] = deque(maxlen=LAST_LINES)
    with process:
        assert process.stdout is not None
        for line in process.stdout:
            last.append(line)
            say(f"{job.name}: {line.rstrip()}" if job.name else line.rstrip())
        code = process.wait()
    return Outcome(code, error_of("".join(last), code))


def python_path() -> str:
    """Returns the PYTHONPATH of a process that finds the same modules as this one."""
    return os.pathsep.join(path for path in sys.path if path)


def error_of(text: str, code: int) -> str:
    """Returns the error in the last lines of a command, by its exit code; "" if there is none."""
    if code in (0, *INTERRUPTED):
        return ""
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    return text.rpartition(": error: ")[2].strip() or f"ended with exit code {code}"


# ------------------------------------------------------------------ seeds


def seeds_report(folders: Mapping[int, Path], outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Returns how the run of each seed ended, and the mean of their scores, as JSON data.

    The score of a run that ended normally is the mean return of its last evaluation.
    """
    runs = []
    for (seed, folder), outcome in zip(folders.items(), outcomes, strict=True):
        result = read_result(folder)
        status = result.get("status", "not started") if outcome.code in (0, *INTERRUPTED) else "failed"
        has_score = status in ENDED or outcome.code == 0  # a hook may have ended the run
        runs.append(
            {
                "seed": seed,
                "status": status,
                "score": result.get("eval_value") if has_score else None,
                "env_step": result.get("env_step", 0),
                "wall_time_s": result.get("wall_time_s"),
                "folder": str(folder),
                "exit_code": outcome.code,
                "error": outcome.error or None,
            }
        )
    scores = [run["score"] for run in runs if run["score"] is not None]
    interval = statistics.interval(statistics.mean, [np.array(scores)]) if scores else None
    return {
        "n": len(scores),
        "mean": sum(scores) / len(scores) if scores else None,
        "interval": interval,
        "runs": runs,
    }


def exit_code_of(outcomes: Sequence[Outcome]) -> int:
    """Returns the exit code of the first run that failed, or 0; a killed run counts as 1."""
    failed = [outcome.code for outcome in outcomes if outcome.code not in (0, *INTERRUPTED)]
    return max(1, failed[0]) if failed else 0
