"""The messages between a worker and its parent, and the arrays that the workers fill.

A request and its answer have the same sequence number. Batches are in :class:`SharedArrays`; rare data (final
observations, finished episodes, states, errors) is in the messages.
"""

from __future__ import annotations

import math
import mmap
import select
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import cloudpickle  # type: ignore[import-untyped]
import gymnasium as gym
import numpy as np

from ding_lite.envs.transition import Episode
from ding_lite.errors import EnvError
from ding_lite.trees import Tree, map_space, map_tree, space_leaves, stored_dtype

# Kinds of requests. An error of CALL is an answer; one of REPEAT_CALL is a failure of the new worker.
START, RESET, STEP, STATE, LOAD, CALL, REPEAT_CALL = range(7)
OK, ERROR = range(2)  # kinds of answers
HEADER = struct.Struct("<QII")  # sequence number, kind, bytes of payload
# The SharedArrays that a worker writes for its environments.
RESULTS = (
    *("obs", "reward", "terminated", "truncated", "valid"),
    *("episode_return", "length", "episode", "step"),
)
IDLE = -1  # in SharedArrays.busy: the worker calls no environment
ALIGNMENT = 64  # bytes: a cache line
MAX_READ = 1 << 20  # bytes of one read


class Message(NamedTuple):
    """One request or one answer."""

    seq: int
    kind: int
    payload: bytes


class Job(NamedTuple):
    """The payload of the first request to a worker, pickled by cloudpickle."""

    make: Callable[[int], gym.Env]
    number: int  # of the worker
    num_workers: int
    rows: range  # numbers of the worker's environments
    num_envs: int  # in the whole vector
    index_offset: int  # number of the vector's first environment
    seed: int
    autoreset: str
    on_bad_value: str

    def dumps(self) -> bytes:
        """Returns the pickled job.

        Raises:
            EnvError: if ``make`` cannot be pickled.
        """
        try:
            pickled: bytes = cloudpickle.dumps(self)
        except Exception as error:
            raise EnvError(
                f"the function that makes the environments cannot be sent to a worker process: {error}. "
                "Define it at the top of a module, with plain arguments, or set env.manager.type='base'"
            ) from error
        return pickled


class StepReply(NamedTuple):
    """The rare results of a step; rows count within the worker's share of the group."""

    final_obs: Tree | None  # (K, ...)
    final_env: np.ndarray  # (K,)
    episodes: list[Episode]
    bad_values: Sequence[str]  # a message for each


class ErrorReport(NamedTuple):
    """An exception in a worker."""

    kind: str  # name of its class
    message: str
    traceback: str
    busy: int  # number of the environment that raised, or IDLE


class ChannelClosed(Exception):
    """Raised when the other end of a channel is closed."""


class ChannelTimeout(Exception):
    """Raised when the other end of a channel does not read or write before the deadline."""


class Channel:
    """Messages over a blocking or non-blocking socket, with deadlines on ``time.monotonic``.

    Attributes:
        in_message: True during a transfer. If an exception leaves it True, the stream cannot be used further.
        received_early: bytes that arrived during a ``send``; ``receive`` returns them first. Reading while
            sending avoids a deadlock if both ends send more than the socket holds.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.in_message = False
        self.received_early = b""

    def fileno(self) -> int:
        """Returns the socket's descriptor."""
        return self.sock.fileno()

    def send(self, seq: int, kind: int, payload: bytes = b"", deadline: float = math.inf) -> None:
        """Sends one message.

        Raises:
            ChannelTimeout: if the other end does not read it before the deadline.
            ChannelClosed: if the other end is closed.
        """
        self.in_message = True
        rest = memoryview(HEADER.pack(seq, kind, len(payload)) + payload)
        while rest:
            try:
                rest = rest[self.sock.send(rest) :]
            except BlockingIOError:
                if self._wait(select.POLLOUT | select.POLLIN, deadline) & select.POLLIN:
                    self.received_early += self._take(MAX_READ)
            except ConnectionError as error:
                raise ChannelClosed from error
        self.in_message = False

    def receive(self, deadline: float = math.inf) -> Message:
        """Returns the next message.

        Raises:
            ChannelTimeout: if it is not complete at the deadline.
            ChannelClosed: if the other end is closed.
        """
        self.in_message = True
        seq, kind, size = HEADER.unpack(self._read(HEADER.size, deadline))
        message = Message(seq, kind, self._read(size, deadline) if size else b"")
        self.in_message = False
        return message

    def _read(self, size: int, deadline: float) -> bytes:
        parts = [self.received_early[:size]]
        self.received_early = self.received_early[size:]
        size -= len(parts[0])
        while size:
            try:
                part = self._take(min(size, MAX_READ))
            except BlockingIOError:
                self._wait(select.POLLIN, deadline)
                continue
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _take(self, max_bytes: int) -> bytes:
        """Returns the bytes that have arrived, at least one."""
        try:
            part = self.sock.recv(max_bytes)
        except ConnectionError as error:
            raise ChannelClosed from error
        if not part:
            raise ChannelClosed
        return part

    def _wait(self, events: int, deadline: float) -> int:
        """Waits for one of the events and returns the events that occurred."""
        poller = select.poll()
        poller.register(self.sock, events)
        left = max(0.0, deadline - time.monotonic())
        ready = poller.poll(None if left == math.inf else left * 1000)
        if not ready:
            raise ChannelTimeout
        return ready[0][1]


class SharedArrays:
    """The arrays of a whole vector, laid out in one block of memory, which processes of one machine share.

    Where memory cannot be shared, a worker has arrays of its own, and sends the ``results`` that it wrote.

    Args:
        memory: the block; None computes ``size`` only.
        spaces: observation space and action space of one environment.
        num_envs: B.
        num_workers: W.

    Attributes:
        obs: tree of (B, ...), in the layout of an ``ObservationBuffer``.
        action: tree of (B, ...) in the dtypes of the action space; None if a leaf has no shape or dtype.
        reward, terminated, truncated, valid: (B,), of the last step.
        episode_return, length: (B,), of the open episodes, recorded below every wrapper.
        episode, step: (B,), number of the open episode, and of its actions so far.
        busy: (W,), number of the environment that a worker is calling, or ``IDLE``.
        size: bytes of the block.
    """

    def __init__(
        self,
        memory: mmap.mmap | None,
        spaces: tuple[gym.Space, gym.Space],
        num_envs: int,
        num_workers: int,
    ) -> None:
        self._memory = memory
        self.size = 0
        obs_space, action_space = spaces
        self.obs: Tree = map_space(
            lambda leaf: self._take((num_envs, *leaf.shape), stored_dtype(leaf.dtype)), obs_space
        )
        self.action: Tree | None = None
        if all(leaf.shape is not None and leaf.dtype is not None for _, leaf in space_leaves(action_space)):
            self.action = map_space(
                lambda leaf: self._take((num_envs, *leaf.shape), leaf.dtype), action_space
            )
        self.reward = self._take((num_envs,), np.float32)
        self.terminated = self._take((num_envs,), bool)
        self.truncated = self._take((num_envs,), bool)
        self.valid = self._take((num_envs,), bool)
        self.episode_return = self._take((num_envs,), np.float64)
        self.length = self._take((num_envs,), np.int64)
        self.episode = self._take((num_envs,), np.int64)
        self.step = self._take((num_envs,), np.int64)
        self.busy = self._take((num_workers,), np.int64)

    def _take(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Returns an array over the next bytes of the block."""
        start = self.size
        used = math.prod(shape) * np.dtype(dtype).itemsize
        self.size += -(-max(used, 1) // ALIGNMENT) * ALIGNMENT
        if self._memory is None:
            return np.empty(0, dtype)
        return np.ndarray(shape, dtype, self._memory, start)

    def results(self, rows: slice) -> dict[str, Tree]:
        """Returns views of these rows of all arrays that a worker writes for its environments."""
        return {name: map_tree(lambda leaf: leaf[rows], getattr(self, name)) for name in RESULTS}
