"""The worker's side of ``subprocess`` and ``ray``: steps a slice of the environments.

A worker is a fresh interpreter (see :func:`main`) or a Ray actor, whose class is :class:`Responder`. It makes
its environments, answers with their spaces, and then answers one request after the other. A process writes
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
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import gymnasium as gym

from ding_lite.envs.in_process import InProcessVectorEnv
from ding_lite.envs.spaces import ObservationBuffer
from ding_lite.envs.vector import Transition
from ding_lite.envs.workers.shared import CLOSE_SECONDS, shared_arrays
from ding_lite.errors import DingLiteError, EnvError, EnvWorkerError, error_text
from ding_lite.trees import Tree, map_tree

PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


class WorkerEnvs(InProcessVectorEnv):
    """A slice of the whole vector. The shared arrays show at any time which environment it is calling.

    Args:
        make, seed, seed_every: as in :class:`InProcessVectorEnv`.
        rows: rows of its environments in the vector.
        num_envs: number of environments in the whole vector.
        index_offset: number of the vector's first environment.

    Attributes:
        arrays: the rows of this slice of the ``shared_arrays``.
    """

    advice = ""

    def __init__(
        self,
        make: Callable[[int], gym.Env],
        rows: slice,
        num_envs: int,
        seed: int,
        index_offset: int,
        seed_every: bool,
    ) -> None:
        self._whole, self._rows = num_envs, rows
        self.arrays: dict[str, Tree] = {}
        super().__init__(make, rows.stop - rows.start, seed, index_offset + rows.start, seed_every)

    def attach(self, memory: int) -> None:
        """Moves the batches of this slice into the memory of a descriptor; -1: into private memory."""
        whole = shared_arrays(lambda size: mmap.mmap(memory, size), self.obs_space, self._whole)
        self.arrays = map_tree(lambda leaf: leaf[self._rows], whole)
        self._buffer = ObservationBuffer(self.obs_space, self.num_envs, self.arrays["obs"])
        # Memoryviews write single numbers three times as fast as arrays.
        self._episode, self._step, self._busy = (
            memoryview(self.arrays[name]) for name in ("episode", "step", "busy")
        )

    def _reset_one(self, i: int, episode: int, seeded: bool = True) -> None:
        self._busy[i] = True
        self._episode[i], self._step[i] = episode, 0
        super()._reset_one(i, episode, seeded)
        game = self._recorders[i].game
        self._episode[i], self._step[i] = game.number, game.length
        self._busy[i] = False

    def _step_one(self, i: int, action: Any) -> tuple[float, bool, bool]:
        self._busy[i] = True
        self._step[i] += 1
        result = super()._step_one(i, action)
        self._busy[i] = False
        return result

    def answer(self, method: str, arguments: Sequence[Any]) -> Any:
        """Calls the method of a request and returns its result; observations stay in the shared arrays."""
        result = getattr(self, method)(*arguments)
        self.arrays["episode_return"][:] = self.episode_returns
        return None if method in ("begin", "load_state_dict") else result

    def step_shared(self, rows: slice, action: Tree) -> tuple[Any, ...] | None:
        """Steps the environments ``rows``, fills the shared arrays, and returns the other results, if any."""
        transition = self.step(action, rows)
        for name in Transition._fields[1:5]:
            self.arrays[name][rows] = getattr(transition, name)
        has_others = transition.final_obs is not None or transition.episodes
        return transition[5:] if has_others else None


class Responder:
    """Answers requests: the first one makes the environments.

    Args:
        memory: descriptor of the shared memory; -1: private memory, so that each answer has the arrays.
    """

    def __init__(self, memory: int) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
        self._memory = memory
        self.envs: WorkerEnvs | None = None

    def respond(self, request: bytes) -> bytes:
        """Returns the answer to a request: (True, its result, arrays), or (False, the failure, None)."""
        try:
            method, arguments = pickle.loads(request)
            if self.envs is None:
                self.envs = WorkerEnvs(*arguments)
                result = (self.envs.obs_space, self.envs.action_space), self.envs.action_maps
            else:
                if not self.envs.arrays:  # the parent has allocated the memory after the first answer
                    self.envs.attach(self._memory)
                result = self.envs.answer(method, arguments)
            # Results of methods, and spaces, may be of classes that pickle cannot find by their names.
            dumps = cloudpickle.dumps if method in ("make", "call") else pickle.dumps
            return dumps((True, result, self.envs.arrays if self._memory < 0 else None))
        except Exception as error:
            # Errors of other kinds keep their kind: they would occur in a new worker, too.
            keeps_kind = isinstance(error, DingLiteError) and type(error) is not EnvError
            failure = (type(error) if keeps_kind else EnvWorkerError)(error_text(error))
            failure.add_note(traceback.format_exc())
            return cloudpickle.dumps((False, failure, None))

    def close(self) -> None:
        """Closes the environments."""
        if self.envs is not None:
            self.envs.close()


def main(fd: int, memory: int, parent: int) -> None:
    """Runs a worker until the parent closes its end of the connection.

    Args:
        fd: the worker's end of the connection.
        memory: descriptor of the shared memory.
        parent: the parent's process id if the kernel may tie this process to it, 0 otherwise.
    """
    # A batch system sends these to all processes of a job. The parent then saves the run, with this worker.
    # An empty handler, because programs that an environment starts would inherit SIG_IGN.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    if parent and sys.platform == "linux":
        # Ends this process with its parent even while an environment hangs; an idle worker sees EOF anyway.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent died before the line above
            os._exit(1)
    for inherited in (fd, memory):  # programs that an environment starts must not inherit them
        os.set_inheritable(inherited, False)
    connection, responder = Connection(fd), Responder(memory)
    try:
        while True:
            connection.send_bytes(responder.respond(connection.recv_bytes()))
    except (EOFError, OSError):
        pass  # the parent has closed the connection or is dead
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(math.ceil(CLOSE_SECONDS))  # ends this process if an environment hangs below
        with contextlib.suppress(Exception):
            responder.close()
