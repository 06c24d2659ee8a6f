"""Trainings in processes of their own: ``ding-lite train`` on this machine, several at a time.

A :class:`Place` starts trainings. :class:`Processes` is this machine; ``tools.ray_jobs`` has a Ray cluster.
Both write the run's folder on this machine, where its files tell how far the training is.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

from ding_lite.config.compile import Config
from ding_lite.envs.make import backend_of, make_env, make_vector_env
from ding_lite.envs.workers.cores import cores, default_workers
from ding_lite.run.resources import thread_count

# The kernel sends SIGTERM to a training when the process that started it ends, so that it saves and ends too.
BOOT = """\
import ctypes, os, signal, sys
parent = int(sys.argv.pop(1))
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
if os.getppid() != parent:
    sys.exit(143)
from ding_lite.cli import main
sys.exit(main())
"""
INTERRUPTED = (130, 143)  # exit codes of a training that a signal ended, after it was saved


class Needs(NamedTuple):
    """What one training keeps busy: CPU cores and GPUs; and whether its config names one GPU of several."""

    cores: int
    gpus: int
    names_gpu: bool = False


class Running(Protocol):
    """A training that a place has started."""

    def poll(self) -> int | None:
        """Returns the exit code, or None while it trains; negative: the signal that ended it."""

    def send(self, name: str) -> None:
        """Sends it a signal, such as "SIGINT"; does nothing if it has ended."""

    def error(self) -> str:
        """Returns its error message; "" if there is none. To be called once, when it has ended."""


class Place(Protocol):
    """Where trainings run."""

    def start(self, arguments: Sequence[str], folder: Path) -> Running:
        """Starts ``ding-lite train`` with these arguments, which write the run's folder ``folder``."""

    def slots(self) -> int:
        """Returns how many trainings may run at a time by default."""


class Processes:
    """This machine. Each training is a process that ends with the process that started it.

    Args:
        needs: of one training.
    """

    def __init__(self, needs: Needs) -> None:
        self._needs = needs
        # Of several GPUs, each training sees one, in turn; it does not need to have it.
        gpus = [] if needs.names_gpu else visible_gpus()
        self._gpus = itertools.cycle(gpus if len(gpus) > 1 else [None])

    def start(self, arguments: Sequence[str], folder: Path) -> Running:
        """Starts a training; must be called in the main thread."""
        return LocalTraining(arguments, gpu=next(self._gpus))

    def slots(self) -> int:
        """Returns as many trainings as there are cores for."""
        return max(1, cores() // self._needs.cores)


class LocalTraining:
    """A training in a process.

    Args:
        arguments: of ``ding-lite``, beginning with the command.
        cwd: its working directory; None: that of this process.
        gpu: the only GPU that it sees; None: all that this process sees.
    """

    def __init__(self, arguments: Sequence[str], cwd: Path | None = None, gpu: str | None = None) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in error
        self._process = subprocess.Popen(
            [sys.executable, "-c", BOOT, str(os.getpid()), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            cwd=cwd,
            env=environment() | ({} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}),
            start_new_session=True,  # Ctrl-C reaches this process alone, which passes it on
        )

    def poll(self) -> int | None:
        """Returns the exit code, or None while it trains."""
        return self._process.poll()

    def send(self, name: str) -> None:
        """Sends it a signal."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.Signals[name])

    def error(self) -> str:
        """Returns the error that it printed: its message, the last line of a traceback, or its signal.

        To be called once.
        """
        code = self._process.wait()
        with self._errors:
            self._errors.seek(0)
            return error_message(self._errors.read(), code)


def error_message(text: str, code: int, command: str = "train") -> str:
    """Returns the error in the standard error of a command that ended with an exit code; "" if none."""
    mark = f"ding-lite {command}: error: "
    if mark in text:
        return text.rpartition(mark)[2].strip()
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    lines = [line for line in text.splitlines() if line.strip()]
    return "" if code in (0, *INTERRUPTED) else lines[-1] if lines else f"ended with exit code {code}"


def environment() -> dict[str, str]:
    """Returns the environment of a process that finds the same modules as this one."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def visible_gpus() -> list[str]:
    """Returns the GPUs that this process sees, as the variable CUDA_VISIBLE_DEVICES names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    return named.split(",")[:count] if named else [str(number) for number in range(count)]


def needs_of(config: Config) -> Needs:
    """Returns what a run of a config keeps busy, by its threads, its worker processes and its device.

    One environment is made for it, so that a fault in it is reported before a run starts.

    Raises:
        EnvError: if the environment cannot be made.
    """
    env_cfg = config.values.env
    backend = backend_of(env_cfg)
    env: Any
    if backend in ("vector", "env_pool"):
        env = make_vector_env(env_cfg, 1, config.values.seed)
        space = env.obs_space
    else:
        env = make_env(env_cfg)
        space = env.observation_space
    env.close()
    threads = thread_count(config.values.num_threads, space)
    manager = env_cfg.manager
    workers = manager.worker_num or default_workers(manager.double_buffer)
    busy = max(threads, min(workers, env_cfg.collector_env_num) if backend == "subprocess" else 1)
    device, cuda = config.values.policy.device, config.values.policy.cuda
    uses_gpu = str(device).startswith("cuda") or bool(device == "auto" and cuda)
    return Needs(busy, gpus=int(uses_gpu), names_gpu=str(device).startswith("cuda:"))
