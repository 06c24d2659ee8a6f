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
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import gymnasium as gym
import numpy as np

from ding_lite.envs.in_process import InProcessVectorEnv
from ding_lite.envs.spaces import ObservationBuffer
from ding_lite.envs.vector import ALL
from ding_lite.envs.workers.messages import (
    CALL,
    ERROR,
    IDLE,
    LOAD,
    OK,
    REPEAT_CALL,
    RESET,
    START,
    STATE,
    STEP,
    Channel,
    ChannelClosed,
    ErrorReport,
    Job,
    SharedArrays,
    StepReply,
)
from ding_lite.errors import EnvContractError, EnvError, error_text
from ding_lite.trees import map_tree

PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


class WorkerEnvs(InProcessVectorEnv):
    """A slice of the whole vector. The shared arrays show at any moment what it is doing."""

    def __init__(self, job: Job) -> None:
        self.stepped = ALL  # the environments that the last request was for
        self._unreported_bad_values: list[str] = []
        self._first_row = job.rows.start  # in the shared arrays
        self._busy: Any = [IDLE]  # until the shared one is attached
        super().__init__(
            job.make,
            len(job.rows),
            job.seed,
            autoreset=job.autoreset,
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
        elif kind == CALL:
            reply = self._answer_call(*pickle.loads(payload))
        elif kind == REPEAT_CALL:
            name, args = pickle.loads(payload)
            self.call(name, *args)
        else:
            raise ValueError(f"unknown request {kind}")
        for i, recorder in enumerate(self._recorders):
            self._shared_return[i], self._shared_length[i] = recorder.episode_return, recorder.length
        self._busy[0] = IDLE
        return reply

    def _answer_call(self, name: str, args: Sequence[Any]) -> bytes:
        """Returns the pickled results of a method, or an ErrorReport: the environments can go on after it."""
        try:
            return _pickled_results(name, self.call(name, *args))
        except EnvError as error:
            return pickle.dumps(report_of(error))

    def _step_shared(self, payload: bytes) -> bytes:
        """Steps a group, writes the results into the shared arrays, and returns a StepReply or b""."""
        rows, action = pickle.loads(payload) if payload else (ALL, None)
        if action is None:
            action = map_tree(lambda leaf: leaf[rows], self._shared_action)
        transition = self.step(action, rows)
        self.stepped = rows
        self._reward[rows] = transition.reward
        self._terminated[rows] = transition.terminated
        self._truncated[rows] = transition.truncated
        self._valid[rows] = transition.valid
        bad_values = self._take_bad_values()
        if transition.final_obs is None and not transition.episodes and not bad_values:
            return b""
        reply = StepReply(
            final_obs=transition.final_obs,
            final_env=transition.final_env,
            episodes=transition.episodes,
            bad_values=bad_values,
        )
        return pickle.dumps(reply, pickle.HIGHEST_PROTOCOL)


def _pickled_results(method: str, results: Sequence[Any]) -> bytes:
    try:
        pickled: bytes = cloudpickle.dumps(results)
    except Exception as error:
        raise EnvContractError(
            f"method {method}: its result cannot be sent from a worker: {error_text(error)}. Return numbers, "
            "text, arrays, or lists and dicts of them"
        ) from error
    return pickled


def report_of(error: Exception, busy: int = IDLE) -> ErrorReport:
    """Returns the report of an exception while it is handled; ``busy`` is the environment that raised it."""
    return ErrorReport(type(error).__name__, error_text(error), traceback.format_exc(), busy)


def _view(array: np.ndarray) -> Any:
    return memoryview(array)  # type: ignore[arg-type]


class Responder:
    """Answers the requests of the parent: the first one makes the environments, which carry out the others.

    Attributes:
        envs: None until they are made.
        arrays: that they write into, once they are attached.
    """

    def __init__(self) -> None:
        self.envs: WorkerEnvs | None = None
        self.arrays: SharedArrays
        self._job: Job

    def outcome(self, kind: int, payload: bytes) -> tuple[int, bytes]:
        """Returns the kind and the payload of the answer: the result, or the error that was raised."""
        try:
            return OK, self._make(payload) if self.envs is None else self.envs.answer(kind, payload)
        except Exception as error:
            return ERROR, pickle.dumps(report_of(error, IDLE if self.envs is None else self.envs.busy))

    def _make(self, payload: bytes) -> bytes:
        """Makes the environments and returns their spaces, pickled."""
        self._job = cloudpickle.loads(payload)
        self.envs = WorkerEnvs(self._job)
        spaces: bytes = cloudpickle.dumps(self.envs.spaces)
        return spaces

    def attach(self, fd: int) -> None:
        """Lets the environments write into the memory of a descriptor; -1: of this process alone."""
        assert self.envs is not None
        layout = self.envs.spaces, self._job.num_envs, self._job.num_workers
        memory = mmap.mmap(fd, SharedArrays(None, *layout).size)  # duplicates the descriptor
        self.arrays = SharedArrays(memory, *layout)
        self.envs.attach(self.arrays, self._job.number)

    def close(self) -> None:
        """Closes the environments."""
        if self.envs is not None:
            self.envs.close()


def main(fd: int, parent: int, grace: float) -> None:
    """Runs a worker until the parent closes its end of the socket, or the environments cannot be made.

    Args:
        fd: the worker's end of the socket.
        parent: the parent's process id if the kernel may tie this process to it, 0 otherwise.
        grace: seconds that the environments have to close.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    # A batch system sends these to all processes of a job. The parent then saves the run, with this worker.
    # They are not ignored, since programs that an environment starts would inherit that.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    sock = socket.socket(fileno=fd)
    _die_with_parent(sock, parent, grace)
    channel, responder = Channel(sock), Responder()
    try:
        while True:
            seq, kind, payload = channel.receive()
            result, answer = responder.outcome(kind, payload)
            channel.send(seq, result, answer)
            if kind == START:
                if result == ERROR:
                    break
                _attach(responder, sock)
    except ChannelClosed:
        pass  # the parent has closed the connection or is dead
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(math.ceil(grace))  # ends this process if an environment hangs below
        with contextlib.suppress(Exception):
            responder.close()
        sock.close()


def _attach(responder: Responder, sock: socket.socket) -> None:
    """Attaches the shared memory, whose descriptor the parent sends next."""
    try:
        _, fds, _, _ = socket.recv_fds(sock, 1, 1)
    except ConnectionError as error:
        raise ChannelClosed from error
    if not fds:
        raise ChannelClosed
    responder.attach(fds[0])
    os.close(fds[0])


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


class WorkerActor(Responder):
    """A worker as a Ray actor. It shares no memory, so each answer has the rows that it wrote."""

    def __init__(self) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
        super().__init__()

    def _make(self, payload: bytes) -> bytes:
        spaces = super()._make(payload)
        self.attach(-1)  # only the pages of this worker's rows are ever written, and take memory
        return spaces

    def answer(self, kind: int, payload: bytes) -> tuple[int, bytes, bytes]:
        """Carries out one request.

        Returns:
            Kind and payload of the answer; pickled (rows, ``SharedArrays.results`` of them), or b"".
        """
        outcome = self.outcome(kind, payload)
        if self.envs is None or kind == START:
            return *outcome, b""
        rows = self.envs.stepped_rows
        return *outcome, pickle.dumps((rows, self.arrays.results(rows)), pickle.HIGHEST_PROTOCOL)
