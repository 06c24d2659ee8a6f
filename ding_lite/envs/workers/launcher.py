"""The interfaces of a worker and of what starts it: start, messages, end.

Worker processes of this machine are in ``process``, Ray actors in ``ray_actors``.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

import gymnasium as gym

from ding_lite.envs.workers.messages import Message, SharedArrays


class WorkerChannel(Protocol):
    """The parent's end of the messages to one worker; see :class:`messages.Channel` for the errors.

    Attributes:
        in_message: True if an exception left a message transferred in part.
        received_early: not empty if a message can be received although ``fileno`` is not readable.
    """

    in_message: bool
    received_early: bytes

    def fileno(self) -> int:
        """Returns a descriptor that is readable when a message has arrived."""

    def send(self, seq: int, kind: int, payload: bytes, deadline: float) -> None:
        """Sends a request."""

    def receive(self, deadline: float) -> Message:
        """Returns the next answer."""


class Worker(ABC):
    """One worker, as its parent sees it.

    Args:
        number: of the worker.
        rows: its environments' rows in the vector.
        index_offset: number of the first row's environment in the messages, where ranks share a vector.

    Attributes:
        attached: whether it has made its environments, and their results reach the shared arrays.
    """

    channel: WorkerChannel

    def __init__(self, number: int, rows: range, index_offset: int) -> None:
        self.number = number
        self.rows = rows
        self.attached = False
        first, last = rows[0] + index_offset, rows[-1] + index_offset
        span = f"env {first}" if len(rows) == 1 else f"envs {first}-{last}"
        self.name = f"worker {number} ({span})"

    @property
    def slice(self) -> slice:
        """The worker's rows in a batch of all environments."""
        return slice(self.rows.start, self.rows.stop)

    @property
    def advice_when_late(self) -> str:
        """What to do if the worker has not answered in time, for messages."""
        return "raise that limit if the environment may take longer"

    @abstractmethod
    def has_died(self) -> bool:
        """Returns whether the worker has ended without closing its channel."""

    @abstractmethod
    def cause_of_death(self) -> str:
        """Returns why the channel of this worker is closed; kills the worker if it still runs."""

    @abstractmethod
    def hang_up(self) -> None:
        """Closes the channel, at which the worker closes its environments and ends; does not wait."""

    @abstractmethod
    def wait(self, seconds: float) -> None:
        """Waits at most ``seconds`` for a worker to end after :meth:`hang_up`."""

    @abstractmethod
    def kill(self) -> None:
        """Ends the worker now, and all processes that it has started."""


class Launcher(ABC):
    """Starts and ends the workers of one vector environment, and allocates the arrays that they fill.

    Attributes:
        unit: what a worker is called, in the singular and in the plural.
    """

    unit: tuple[str, str]

    def __init__(self) -> None:
        self._owner = os.getpid()

    @abstractmethod
    def default_workers(self, double_buffer: bool) -> int:
        """Returns the number of workers where the config gives none."""

    @abstractmethod
    def busy_cores(self, num_workers: int) -> int:
        """Returns how many cores of this machine so many workers keep busy."""

    @abstractmethod
    def start(self, number: int, rows: range, grace: float, index_offset: int) -> Worker:
        """Starts a worker without waiting for it.

        Args:
            number, rows, index_offset: of the worker.
            grace: seconds that its environments have to close.

        Raises:
            EnvError: if it cannot be started.
        """

    @abstractmethod
    def share(self, spaces: tuple[gym.Space, gym.Space], num_envs: int, num_workers: int) -> SharedArrays:
        """Returns the arrays of the vector; this object owns their memory."""

    @abstractmethod
    def attach(self, worker: Worker) -> None:
        """Lets the results of a worker that has made its environments reach the shared arrays.

        Raises:
            ChannelClosed: if the worker has died.
        """

    def end(self, workers: Sequence[Worker], grace: float) -> None:
        """Ends workers: hangs up, waits ``grace`` seconds for all together, then kills those that still run.

        In any other process than the one that started them this does nothing: a fork inherits the pool but
        must not end its workers.
        """
        if os.getpid() != self._owner:
            return
        deadline = time.monotonic() + grace
        try:
            for worker in workers:
                worker.hang_up()
            for worker in workers:
                worker.wait(max(0.0, deadline - time.monotonic()))
                worker.kill()
        finally:
            for worker in workers:
                worker.kill()

    @abstractmethod
    def close(self, workers: Sequence[Worker], grace: float) -> None:
        """Ends all workers and frees the memory; as :meth:`end`, only in the process that started them."""
