"""The worker's side of ``subprocess`` and ``ray``: steps a slice of the environments.

A worker is a fresh interpreter (see :func:`main`) or a Ray actor (see :class:`WorkerActor`). It makes its
environments, answers with their spaces, and then answers one request after the other. A process writes
results into memory that it shares with the parent; an actor sends them with its answers.

Every worker imports this module: it must not import torch.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import mmap
import os
import pickle
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import gymnasium as gym
import numpy as np

from ding_lite.envs.in_process import InProcessVectorEnv
from ding_lite.envs.spaces import ObservationBuffer
from ding_lite.envs.vector import ALL
from ding_lite.envs.workers.messages import (
    ERROR,
    IDLE,
    LOAD,
    OK,
    RESET,
    STATE,
    STEP,
    Channel,
    ChannelClosed,
    ErrorReport,
    Job,
    SharedArrays,
    StepReply,
)
from ding_lite.errors import error_text
from ding_lite.trees import map_tree

PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


class WorkerEnvs(InProcessVectorEnv):
    """A slice of the whole vector. The shared arrays show at any moment what it is doing."""

    def __init__(self, job: Job) -> None:
        self.stepped = ALL  # the environments that the last request was for
        self._unreported_bad_values: list[str] = []
        self._first_row = job.rows.start  # in the shared arrays
        super().__init__(
            job.make,
            len(job.rows),
            job.seed,
            autoreset=job.autoreset,
            final_of_terminated=job.final_of_terminated,
            index_offset=job.index_offset + job.rows.start,
            on_bad_value=job.on_bad_value,
        )

    @property
    def spaces(self) -> tuple[gym.Space, gym.Space]:
        """Observation space and action space of one environment."""
        return self.obs_space, self.action_space

    def _count_bad_values(self, messages: Sequence[str]) -> None:
        self._unreported_bad_values += messages

    def _take_bad_values(self) -> list[str]:
        """Returns the bad values since the last call. The parent counts and reports them."""
        messages, self._unreported_bad_values = self._unreported_bad_values, []
        return messages

    @property
    def stepped_rows(self) -> slice:
        """The rows of the vector that the last request was for."""
        rows = range(self._first_row, self._first_row + self.num_envs)[self.stepped]
        return slice(rows.start, rows.stop, rows.step)

    def attach(self, shared: SharedArrays, number: int) -> None:
        """Moves the batches of this slice into the shared arrays; ``number`` is the worker's."""
        rows = slice(self._first_row, self._first_row + self.num_envs)
        arrays = map_tree(lambda leaf: leaf[rows], shared.obs)
        self._buffer = ObservationBuffer(self.obs_space, self.num_envs, arrays)
        self._shared_action = None
        if shared.action is not None:
            self._shared_action = map_tree(lambda leaf: leaf[rows], shared.action)
        self._reward = shared.reward[rows]
        self._terminated = shared.terminated[rows]
        self._truncated = shared.truncated[rows]
        self._valid = shared.valid[rows]
        # Memoryviews write single numbers three times as fast as arrays.
        self._shared_return = _view(shared.episode_return[rows])
        self._shared_length = _view(shared.length[rows])
        self._shared_episode = _view(shared.episode[rows])
        self._shared_step = _view(shared.step[rows])
        self._busy = _view(shared.busy[number : number + 1])

    @property
    def busy(self) -> int:
        """The row of the environment that is being called, or whose call raised."""
        return int(self._busy[0])

    def _reset_one(self, i: int, episode: int) -> None:
        self._busy[0] = self._first_row + i
        self._shared_episode[i], self._shared_step[i] = episode, 0
        super()._reset_one(i, episode)
        game = self._games[i]
        self._shared_episode[i], self._shared_step[i] = game.episode, len(game.actions)

    def _step_one(self, i: int, action: Any) -> tuple[float, bool, bool]:
        self._busy[0] = self._first_row + i
        self._shared_step[i] += 1
        return super()._step_one(i, action)

    def answer(self, kind: int, payload: bytes) -> bytes:
        """Carries out one request and returns the payload of its answer."""
        reply = b""
        self.stepped = ALL
        if kind == STEP:
            reply = self._step_shared(payload)
        elif kind == RESET:
            self.begin(*pickle.loads(payload))
            bad_values = self._take_bad_values()
            reply = pickle.dumps(bad_values) if bad_values else b""
        elif kind == STATE:
            reply = pickle.dumps(self.state_dict(), pickle.HIGHEST_PROTOCOL)
        elif kind == LOAD:
            self.load_state_dict(pickle.loads(payload))
        else:
            raise ValueError(f"unknown request {kind}")
        for i, recorder in enumerate(self._recorders):
            self._shared_return[i], self._shared_length[i] = recorder.episode_return, recorder.length
        self._busy[0] = IDLE
        return reply

    def _step_shared(self, payload: bytes) -> bytes:
        """Steps a group, writes the results into the shared arrays, and returns a StepReply or b""."""
        group, action = pickle.loads(payload) if payload else (ALL, None)
        if action is None:
            action = map_tree(lambda leaf: leaf[group], self._shared_action)
        transition = self.step(action, group)
        self.stepped = group
        self._reward[group] = transition.reward
        self._terminated[group] = transition.terminated
        self._truncated[group] = transition.truncated
        self._valid[group] = transition.valid
        bad_values = self._take_bad_values()
        if transition.final_obs is None and not transition.episodes and not bad_values:
            return b""
        reply = StepReply(
            final_obs=transition.final_obs,
            final_env=transition.final_env,
            episodes=transition.episodes,
            spoiled=transition.spoiled,
            bad_values=bad_values,
        )
        return pickle.dumps(reply, pickle.HIGHEST_PROTOCOL)


def _view(array: np.ndarray) -> Any:
    return memoryview(array)  # type: ignore[arg-type]


def main(fd: int, parent: int, grace: float) -> None:
    """Runs a worker until the parent closes its end of the socket.

    Args:
        fd: the worker's end of the socket.
        parent: the parent's process id if the kernel may tie this process to it, 0 otherwise.
        grace: seconds that the environments have to close.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    sock = socket.socket(fileno=fd)
    _die_with_parent(sock, parent, grace)
    channel = Channel(sock)
    made: list[WorkerEnvs] = []
    try:
        if _start(channel, made):
            while True:
                seq, kind, payload = channel.receive()
                _answer(channel, seq, functools.partial(made[0].answer, kind, payload), made[0])
    except ChannelClosed:
        pass  # the parent has closed the connection or is dead
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(math.ceil(grace))  # ends this process if an environment hangs below
        for envs in made:
            with contextlib.suppress(Exception):
                envs.close()
        sock.close()


def _die_with_parent(sock: socket.socket, parent: int, grace: float) -> None:
    """Ends this process with its parent even while an environment hangs; an idle worker sees EOF anyway."""
    if parent and sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent died before the line above
            os._exit(1)
        return

    def watch() -> None:
        poller = select.poll()
        poller.register(sock, 0)  # only a hang-up
        poller.poll()
        time.sleep(grace)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _start(channel: Channel, made: list[WorkerEnvs]) -> bool:
    """Makes the environments, answers with their spaces, and attaches the shared memory.

    Args:
        channel: to the parent.
        made: receives the environments as soon as they exist, so that the caller can close them.

    Returns:
        False if they could not be made; the parent has received the error.
    """
    request = channel.receive()
    job: Job | None = None

    def make_all() -> bytes:
        nonlocal job
        job = cloudpickle.loads(request.payload)
        made.append(WorkerEnvs(job))
        return cloudpickle.dumps(made[0].spaces)

    if not _answer(channel, request.seq, make_all) or job is None:
        return False
    _, fds, _, _ = socket.recv_fds(channel.sock, 1, 1)
    if not fds:
        raise ChannelClosed
    envs = made[0]
    size = SharedArrays(None, envs.spaces, job.num_envs, job.num_workers).size
    memory = mmap.mmap(fds[0], size)  # duplicates the descriptor
    os.close(fds[0])
    envs.attach(SharedArrays(memory, envs.spaces, job.num_envs, job.num_workers), job.number)
    return True


def _answer(channel: Channel, seq: int, work: Callable[[], bytes], envs: WorkerEnvs | None = None) -> bool:
    """Sends what ``work`` returns, or the error that it raises; returns whether it succeeded."""
    kind, payload = _outcome(work, envs)
    channel.send(seq, kind, payload)
    return kind == OK


def _outcome(work: Callable[[], bytes], envs: WorkerEnvs | None) -> tuple[int, bytes]:
    """Returns the kind and the payload of an answer: what ``work`` returns, or the error that it raises."""
    try:
        return OK, work()
    except Exception as error:
        report = ErrorReport(
            kind=type(error).__name__,
            message=error_text(error),
            traceback=traceback.format_exc(),
            busy=IDLE if envs is None else envs.busy,
        )
        return ERROR, pickle.dumps(report)


class WorkerActor:
    """A worker as a Ray actor. It shares no memory, so each answer has the rows that it wrote."""

    def __init__(self) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
        self._envs: WorkerEnvs | None = None
        self._arrays: SharedArrays

    def answer(self, kind: int, payload: bytes) -> tuple[int, bytes, bytes]:
        """Carries out one request.

        Returns:
            Kind and payload of the answer; pickled (rows, ``SharedArrays.results`` of them), or b"".
        """
        if self._envs is None:
            return *_outcome(functools.partial(self._make, payload), None), b""
        outcome = _outcome(functools.partial(self._envs.answer, kind, payload), self._envs)
        rows = self._envs.stepped_rows
        return *outcome, pickle.dumps((rows, self._arrays.results(rows)), pickle.HIGHEST_PROTOCOL)

    def _make(self, payload: bytes) -> bytes:
        job: Job = cloudpickle.loads(payload)
        envs = WorkerEnvs(job)
        size = SharedArrays(None, envs.spaces, job.num_envs, job.num_workers).size
        # Only the pages of this worker's rows are ever written, and take memory.
        self._arrays = SharedArrays(mmap.mmap(-1, size), envs.spaces, job.num_envs, job.num_workers)
        envs.attach(self._arrays, job.number)
        self._envs = envs
        spaces: bytes = cloudpickle.dumps(envs.spaces)
        return spaces

    def close(self) -> None:
        """Closes the environments."""
        if self._envs is not None:
            self._envs.close()
