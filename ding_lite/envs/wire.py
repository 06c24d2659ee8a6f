"""What a worker process and its parent share: the messages, and the arrays that both see.

A request and its answer carry one sequence number. Batches travel in :class:`SharedArrays`; what is
rare (final observations, finished episodes, states, errors) travels in the messages.
"""

from __future__ import annotations

import math
import mmap
import select
import socket
import struct
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import cloudpickle  # type: ignore[import-untyped]
import gymnasium as gym
import numpy as np

from ding_lite.envs.spaces import ObservationBuffer, children, tree_map
from ding_lite.errors import EnvError
from ding_lite.types import Tree

# Requests, and the two kinds of answers.
START, RESET, STEP, STATE, LOAD = range(5)
OK, ERROR = range(2)
HEADER = struct.Struct("<QII")  # sequence number, kind, bytes of payload
IDLE = -1  # in SharedArrays.busy
ALIGNMENT = 64  # bytes: a cache line


class Message(NamedTuple):
    """One request or one answer."""

    seq: int
    kind: int
    payload: bytes


class Job(NamedTuple):
    """What the first message tells a worker, pickled by cloudpickle."""

    make: Callable[[int], gym.Env]
    number: int  # of the worker
    num_workers: int
    rows: range  # numbers of its environments
    num_envs: int  # of the whole vector
    seed: int
    autoreset: str
    final_of_terminated: bool
    on_bad_value: str

    def dumps(self) -> bytes:
        """Returns it pickled; raises an EnvError if it cannot be."""
        try:
            pickled: bytes = cloudpickle.dumps(self)
        except Exception as error:
            raise EnvError(
                f"the factory of the environments cannot be sent to a worker process: {error}. "
                "Let it be a module's function of plain arguments, or set env.manager.type='base'"
            ) from error
        return pickled


class ChannelClosed(Exception):
    """Raised when the other side of a channel is gone."""


class ChannelTimeout(Exception):
    """Raised when the other side of a channel takes or sends nothing for too long."""


class Channel:
    """Messages over a socket, blocking or not, with deadlines on ``time.monotonic``.

    Attributes:
        in_message: True inside of a transfer; left so by an exception, the stream is useless.
        early: what came while something was being sent, and is to be received next. Where both sides send
            more than the socket holds, each would wait for the other to take it.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock, self.in_message, self.early = sock, False, b""

    def send(self, seq: int, kind: int, payload: bytes = b"", deadline: float = math.inf) -> None:
        """Sends one message.

        Raises:
            ChannelTimeout: if the other side does not take it before the deadline.
            ChannelClosed: if the other side is gone.
        """
        self.in_message = True
        rest = memoryview(HEADER.pack(seq, kind, len(payload)) + payload)
        while rest:
            try:
                rest = rest[self.sock.send(rest) :]
            except BlockingIOError:
                if self._wait(select.POLLOUT | select.POLLIN, deadline) & select.POLLIN:
                    self.early += self._take(1 << 20)
            except ConnectionError as error:
                raise ChannelClosed from error
        self.in_message = False

    def receive(self, deadline: float = math.inf) -> Message:
        """Returns the next message.

        Raises:
            ChannelTimeout: if it is not complete at the deadline.
            ChannelClosed: if the other side is gone.
        """
        self.in_message = True
        seq, kind, size = HEADER.unpack(self._read(HEADER.size, deadline))
        message = Message(seq, kind, self._read(size, deadline) if size else b"")
        self.in_message = False
        return message

    def _read(self, size: int, deadline: float) -> bytes:
        parts, self.early = [self.early[:size]], self.early[size:]
        size -= len(parts[0])
        while size:
            try:
                part = self._take(min(size, 1 << 20))
            except BlockingIOError:
                self._wait(select.POLLIN, deadline)
                continue
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _take(self, most: int) -> bytes:
        """Returns what is there to be read, at least one byte."""
        try:
            part = self.sock.recv(most)
        except ConnectionError as error:
            raise ChannelClosed from error
        if not part:
            raise ChannelClosed
        return part

    def _wait(self, events: int, deadline: float) -> int:
        """Waits for one of the events and returns those that are there."""
        poller = select.poll()
        poller.register(self.sock, events)
        left = max(0.0, deadline - time.monotonic())
        if not (found := poller.poll(None if left == math.inf else left * 1000)):
            raise ChannelTimeout
        return found[0][1]


class SharedArrays:
    """The arrays that the parent and all its workers see, cut from one block of memory.

    Attributes:
        obs: tree of (B, ...), as the observation buffer of any vector environment.
        action: tree of (B, ...) in the dtypes of the action space; ``None`` where it has no arrays.
        reward, terminated, truncated, valid: (B,), of the last step.
        episode_return, length: (B,), of the open episodes, below every wrapper.
        episode, step: (B,), number of the open episode and of its actions.
        busy: (workers,), the environment that a worker is calling now, or ``IDLE``.
        size: bytes of the block.
    """

    def __init__(
        self,
        memory: mmap.mmap | None,
        spaces: tuple[gym.Space, gym.Space],
        num_envs: int,
        num_workers: int,
    ) -> None:
        """Lays the arrays over ``memory``; ``None`` only measures."""
        self._memory, self.size = memory, 0
        model = ObservationBuffer(spaces[0], 0).tree  # knows the dtypes that are stored
        self.obs = tree_map(lambda leaf: self._take((num_envs, *leaf.shape[1:]), leaf.dtype), model)
        self.action = self._take_actions(spaces[1], num_envs) if _has_arrays(spaces[1]) else None
        self.reward = self._take((num_envs,), np.float32)
        self.terminated, self.truncated, self.valid = (self._take((num_envs,), bool) for _ in range(3))
        self.episode_return = self._take((num_envs,), np.float64)
        self.length, self.episode, self.step = (self._take((num_envs,), np.int64) for _ in range(3))
        self.busy = self._take((num_workers,), np.int64)

    def _take(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        start = self.size
        used = math.prod(shape) * np.dtype(dtype).itemsize
        self.size += -(-max(used, 1) // ALIGNMENT) * ALIGNMENT
        if self._memory is None:
            return np.empty(0, dtype)
        return np.ndarray(shape, dtype, self._memory, start)

    def _take_actions(self, space: gym.Space, num_envs: int) -> Tree:
        branches = children(space)
        if branches is None:
            return self._take((num_envs, *(space.shape or ())), space.dtype)
        return {name: self._take_actions(child, num_envs) for name, child in branches.items()}


def _has_arrays(space: gym.Space) -> bool:
    branches = children(space)
    if branches is None:
        return space.shape is not None and space.dtype is not None
    return all(_has_arrays(child) for child in branches.values())
