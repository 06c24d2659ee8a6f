"""The worker's side of ``subprocess`` and ``ray``: steps a slice of the environments.

A worker is a fresh interpreter (see :func:`main`) or a Ray actor (see :class:`WorkerActor`). It makes its
environments, answers with their spaces, and then answers one request after the other. A process writes
results into memory that it shares with the parent; an actor sends them with its answers.

Every worker imports this module: it must not import torch.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import gymnasium as gym
import numpy as np

from ding_lite.envs.in_process import InProcessVectorEnv
from ding_lite.envs.spaces import ObservationBuffer
from ding_lite.envs.vector import ALL, Transition
from ding_lite.envs.workers.shared import IDLE, ErrorReport, Job, SharedArrays, StepReply
from ding_lite.errors import error_text
from ding_lite.trees import Tree

PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


class WorkerEnvs(InProcessVectorEnv):
    """A slice of the whole vector. The shared arrays show at any moment what it is doing."""

    advice = ""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.stepped = ALL  # the environments that the last request was for
        self._busy: Any = [IDLE]  # until the shared one is attached
        first = job.index_offset + job.rows.start
        super().__init__(job.make, len(job.rows), job.seed, first, job.seed_every)

    def attach(self, memory: int) -> SharedArrays:
        """Moves the batches of this slice into the memory of a descriptor; -1: of this process alone."""
        job = self.job
        sizes = self.obs_space, job.num_envs, job.num_workers
        shared = SharedArrays(lambda size: mmap.mmap(memory, size), *sizes)
        own = shared.results(slice(job.rows.start, job.rows.stop))
        self._buffer = ObservationBuffer(self.obs_space, self.num_envs, own["obs"])
        self._results = [own[name] for name in Transition._fields[1:5]]
        self._shared_return = own["episode_return"]
        # Memoryviews write single numbers three times as fast as arrays.
        self._shared_episode, self._shared_step = _view(own["episode"]), _view(own["step"])
        self._busy = _view(shared.busy[job.number : job.number + 1])
        return shared

    def _reset_one(self, i: int, episode: int, seeded: bool = True) -> None:
        self._busy[0] = self.job.rows[i]
        self._shared_episode[i], self._shared_step[i] = episode, 0
        super()._reset_one(i, episode, seeded)
        game = self._recorders[i].game
        self._shared_episode[i], self._shared_step[i] = game.number, game.length

    def _step_one(self, i: int, action: Any) -> tuple[float, bool, bool]:
        self._busy[0] = self.job.rows[i]
        self._shared_step[i] += 1
        return super()._step_one(i, action)

    def answer(self, method: str, arguments: Sequence[Any]) -> Any:
        """Carries out one request, a method, and returns its result; observations stay in the memory."""
        self.stepped = ALL
        result = getattr(self, method)(*arguments)
        result = None if method in ("begin", "load_state_dict") else result
        self._shared_return[:] = self.episode_returns
        self._busy[0] = IDLE
        return result

    def step_shared(self, rows: slice, action: Tree) -> StepReply | None:
        """Steps some environments, and writes into the shared arrays."""
        self.stepped = rows
        transition = self.step(action, rows)
        for array, values in zip(self._results, transition[1:5], strict=True):
            array[rows] = values
        if transition.final_obs is None and not transition.episodes:
            return None
        return StepReply(transition.final_obs, transition.final_env, transition.episodes)


def _view(array: np.ndarray) -> Any:
    return memoryview(array)  # type: ignore[arg-type]


class Responder:
    """Answers requests: the first one makes the environments, the second one attaches them to the memory.

    Args:
        memory: descriptor of the shared memory; -1: of this process alone.
    """

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self.envs: WorkerEnvs | None = None

    def respond(self, request: bytes) -> bytes:
        """Returns the answer to a request: (True, its result), or (False, an ErrorReport)."""
        try:
            method, arguments = pickle.loads(request)
            if self.envs is None or method == "attach":
                result = getattr(self, method)(*arguments)
            else:
                result = self.envs.answer(method, arguments)
            # Results of methods, and spaces, may be of classes that pickle cannot find by their names.
            dumps = cloudpickle.dumps if method in ("make", "call") else pickle.dumps
            answer: bytes = dumps((True, result))
            return answer
        except Exception as error:
            report = ErrorReport(type(error).__name__, error_text(error), traceback.format_exc())
            return pickle.dumps((False, report))

    def make(self, job: Job) -> tuple[tuple[gym.Space, gym.Space], Sequence[Any]]:
        """Makes the environments and returns the spaces and the action maps of one."""
        self.envs = WorkerEnvs(job)
        return (self.envs.obs_space, self.envs.action_space), self.envs.action_maps

    def attach(self) -> None:
        """Lets the environments write into the memory, which the parent has laid out now."""
        assert self.envs is not None
        self.shared = self.envs.attach(self._memory)

    def close(self) -> None:
        """Closes the environments."""
        if self.envs is not None:
            self.envs.close()


def main(fd: int, memory: int, parent: int, grace: float) -> None:
    """Runs a worker until the parent closes its end of the connection.

    Args:
        fd: the worker's end of the connection.
        memory: descriptor of the shared memory.
        parent: the parent's process id if the kernel may tie this process to it, 0 otherwise.
        grace: seconds that the environments have to close.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    # A batch system sends these to all processes of a job. The parent then saves the run, with this worker.
    # They are not ignored, since programs that an environment starts would inherit that.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    if parent and sys.platform == "linux":
        # Ends this process with its parent even while an environment hangs; an idle worker sees EOF anyway.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent died before the line above
            os._exit(1)
    for inherited in (fd, memory):  # programs that an environment starts must not hold them
        os.set_inheritable(inherited, False)
    connection, responder = Connection(fd), Responder(memory)
    try:
        while True:
            connection.send_bytes(responder.respond(connection.recv_bytes()))
    except (EOFError, OSError):
        pass  # the parent has closed the connection or is dead
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(math.ceil(grace))  # ends this process if an environment hangs below
        with contextlib.suppress(Exception):
            responder.close()


class WorkerActor(Responder):
    """A worker as a Ray actor. It shares no memory, so each answer has the rows that it wrote."""

    def __init__(self) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
        super().__init__(-1)  # only the pages of this worker's rows are ever written, and take memory

    def answer(self, request: bytes) -> tuple[bytes, Any]:
        """Returns the answer to a request, and the rows that it wrote with their ``results``, if any."""
        answer = self.respond(request)
        if not hasattr(self, "shared") or self.envs is None:
            return answer, None
        numbers = self.envs.job.rows[self.envs.stepped]
        rows = slice(numbers.start, numbers.stop, numbers.step)
        return answer, (rows, self.shared.results(rows))
