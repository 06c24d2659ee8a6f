"""The worker's side of ``subprocess``: a slice of the environments, stepped into shared memory.

A worker is a fresh interpreter (see :func:`main`). It makes its environments, answers with their
spaces, is handed the shared memory, and then answers one request after the other.

This module is imported by every worker: it must not import torch.
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
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import gymnasium as gym
import numpy as np

from ding_lite.envs.in_process import InProcessVectorEnv
from ding_lite.envs.spaces import ObservationBuffer, children, tree_leaves, tree_map
from ding_lite.envs.vector import ALL
from ding_lite.envs.wire import (
    ERROR,
    IDLE,
    LOAD,
    OK,
    RESET,
    STATE,
    STEP,
    Channel,
    ChannelClosed,
    Job,
    SharedArrays,
)
from ding_lite.errors import told
from ding_lite.types import Tree

PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


class SharedObservations(ObservationBuffer):
    """An observation buffer over given arrays, one for each leaf."""

    def __init__(self, space: gym.Space, num_envs: int, arrays: Iterator[np.ndarray]) -> None:
        self._arrays = arrays
        super().__init__(space, num_envs)

    def _build(self, space: gym.Space, num_envs: int, keys: tuple[str | int, ...], path: str) -> Tree:
        built = super()._build(space, num_envs, keys, path)
        if children(space) is not None:
            return built
        leaf = self._leaves[-1][1]
        leaf.array = next(self._arrays)
        return leaf.array


def _view(array: np.ndarray) -> Any:
    return memoryview(array)  # type: ignore[arg-type]


class WorkerEnvs(InProcessVectorEnv):
    """A slice of the whole vector; what it is doing shows in the shared arrays at any moment."""

    _found_bad: tuple[str, ...] = ()  # not told yet

    def _count_bad(self, found: Sequence[str]) -> None:
        self._found_bad += tuple(found)

    def _told_bad(self) -> tuple[str, ...]:
        """Returns what was found since it was last told: the parent counts, and speaks."""
        found, self._found_bad = self._found_bad, ()
        return found

    def attach(self, shared: SharedArrays, number: int) -> None:
        """Moves the batches of this slice into the shared arrays of worker ``number``."""
        rows = slice(self.index_offset, self.index_offset + self.num_envs)
        arrays = iter([leaf[rows] for leaf in tree_leaves(shared.obs)])
        self._buffer = SharedObservations(self.obs_space, self.num_envs, arrays)
        self._shared_action = None if shared.action is None else tree_map(lambda a: a[rows], shared.action)
        self._outputs = [a[rows] for a in (shared.reward, shared.terminated, shared.truncated, shared.valid)]
        # Single numbers are written through memoryviews: three times as fast as through arrays.
        self._shared_return, self._shared_length, self._shared_episode, self._shared_step = (
            _view(a[rows]) for a in (shared.episode_return, shared.length, shared.episode, shared.step)
        )
        self._busy = _view(shared.busy[number : number + 1])

    @property
    def busy(self) -> int:
        """The number of the environment that is being called, or was when it raised."""
        return int(self._busy[0])

    def _begin(self, i: int, episode: int) -> None:
        self._busy[0] = self.index_offset + i
        self._shared_episode[i], self._shared_step[i] = episode, 0
        super()._begin(i, episode)
        self._shared_episode[i], self._shared_step[i] = self._episode[i], len(self._actions[i])

    def _step_one(self, i: int, action: Any) -> tuple[float, bool, bool]:
        self._busy[0] = self.index_offset + i
        self._shared_step[i] += 1
        return super()._step_one(i, action)

    def answer(self, kind: int, payload: bytes) -> bytes:
        """Does what one request asks and returns the payload of its answer."""
        reply = b""
        if kind == STEP:
            reply = self._step_shared(payload)
        elif kind == RESET:
            self.begin(*pickle.loads(payload))
            reply = pickle.dumps(self._told_bad()) if self._found_bad else b""
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
        group, action = pickle.loads(payload) if payload else (ALL, None)
        if action is None:
            action = tree_map(lambda leaf: leaf[group], self._shared_action)
        transition = self.step(action, group)
        reward, terminated, truncated, valid = self._outputs
        reward[group], terminated[group] = transition.reward, transition.terminated
        truncated[group], valid[group] = transition.truncated, transition.valid
        if transition.final_obs is None and not transition.episodes and not self._found_bad:
            return b""
        bad = transition.spoiled, self._told_bad()
        rare = transition.final_obs, transition.final_env, transition.episodes, *bad
        return pickle.dumps(rare, pickle.HIGHEST_PROTOCOL)


def main(fd: int, parent: int, grace: float) -> None:
    """Runs a worker until the parent closes its end of the socket.

    Args:
        fd: the worker's end.
        parent: the parent's process id if the kernel may tie this process to it, 0 otherwise.
        grace: seconds that the environments have to close.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
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
        pass  # the parent closed us, or is dead: both end here
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(math.ceil(grace))  # whatever happens below, this process ends
        for envs in made:
            with contextlib.suppress(Exception):
                envs.close()
        sock.close()


def _die_with_parent(sock: socket.socket, parent: int, grace: float) -> None:
    """Makes sure that a hanging environment does not outlive the parent; an idle one sees EOF."""
    if parent and sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the line above
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
    """Makes the environments, answers with their spaces, and attaches the memory that comes back.

    Args:
        channel: to the parent.
        made: gets the environments as soon as there are any to close.

    Returns:
        False if they could not be made; the parent has been told.
    """
    request = channel.receive()
    job: Job | None = None

    def make_all() -> bytes:
        nonlocal job
        job = cloudpickle.loads(request.payload)
        modes = (job.autoreset, job.final_of_terminated, job.rows.start, job.on_bad_value)
        made.append(WorkerEnvs(job.make, len(job.rows), job.seed, *modes))
        return cloudpickle.dumps((made[0].obs_space, made[0].action_space))

    if not _answer(channel, request.seq, make_all) or job is None:
        return False
    _, fds, _, _ = socket.recv_fds(channel.sock, 1, 1)
    if not fds:
        raise ChannelClosed
    spaces = (made[0].obs_space, made[0].action_space)
    size = SharedArrays(None, spaces, job.num_envs, job.num_workers).size
    memory = mmap.mmap(fds[0], size)  # keeps a descriptor of its own
    os.close(fds[0])
    made[0].attach(SharedArrays(memory, spaces, job.num_envs, job.num_workers), job.number)
    return True


def _answer(channel: Channel, seq: int, work: Callable[[], bytes], envs: WorkerEnvs | None = None) -> bool:
    """Sends what ``work`` returns, or the error that it raises; tells whether there was none."""
    try:
        payload = work()
    except Exception as error:
        busy = IDLE if envs is None else envs.busy
        report = (type(error).__name__, told(error), traceback.format_exc(), busy)
        channel.send(seq, ERROR, pickle.dumps(report))
        return False
    channel.send(seq, OK, payload)
    return True
