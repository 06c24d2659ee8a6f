"""The parent's side of ``ray``: environments in Ray actors, on any machine of a cluster (extra ``ray``).

A request is one call of an actor, for all of its environments together, because a call takes milliseconds.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import pickle
import re
import signal
import socket
import sys
import time
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import gymnasium as gym
import numpy as np

from ding_lite.envs.workers import cores
from ding_lite.envs.workers.launcher import Launcher, Worker
from ding_lite.envs.workers.messages import IDLE, ChannelClosed, ChannelTimeout, Message, SharedArrays
from ding_lite.envs.workers.process import ONE_THREAD
from ding_lite.envs.workers.worker import WorkerActor
from ding_lite.errors import EnvError, error_text
from ding_lite.trees import map_tree

NEEDS_RAY = 'env.manager.type="ray"'
# In Ray's messages about a dead actor, which have many lines.
REASON = re.compile(r" is (?:dead because|unavailable:) (.*?)(?:\. Some common causes|\. The task may|$)")
KNOCK_SECONDS = 10.0  # to connect to a cluster


class Cluster:
    """The connection of this process to Ray, which all of its vectors use.

    Attributes:
        started: whether Ray was started for this process, on this machine alone.
    """

    def __init__(self) -> None:
        self.started = False
        self._connected = False  # by this object, and not by the user's own code
        self._users = 0

    def enter(self, address: str | None, num_workers: int) -> Any:
        """Connects this process, unless it is connected, and returns the module ``ray``.

        Args:
            address: of a running cluster; None: that in RAY_ADDRESS, or else Ray is started on this machine.
            num_workers: that a Ray which is started has room for.

        Raises:
            EnvError: if Ray is not installed, cannot be started, or cannot be reached.
        """
        try:
            import ray
        except ImportError as error:
            raise EnvError(f'{NEEDS_RAY}: {error}. Install it: pip install "ding_lite[ray]"') from error
        if not ray.is_initialized():
            address = address or os.environ.get("RAY_ADDRESS")
            options: dict[str, Any] = {"address": address}
            if not address:
                num_cpus = max(cores.cores(), num_workers)
                options = {"address": "local", "include_dashboard": False, "num_cpus": num_cpus}
                # Ray gives its workers a low priority by default; worker processes have that of this process.
                options["_system_config"] = {"worker_niceness": 0}
            try:
                if address:
                    knock(address)
                with signals_kept():
                    ray.init(**options, log_to_driver=False, logging_level="ERROR")
            except Exception as error:
                problem = f"no cluster at {address} can be reached" if address else "Ray cannot be started"
                raise EnvError(f"{NEEDS_RAY}: {problem}: {error_text(error)}") from error
            # Ray prints each death of an actor on stdout; the pool reports it.
            ray._private.worker._worker_logs_enabled = False
            self._connected, self.started = True, not address
        self._users += 1
        return ray

    def leave(self) -> None:
        """Disconnects this process after its last vector; this ends a Ray that was started for it."""
        self._users -= 1
        if self._connected and not self._users:
            import ray

            self._connected = self.started = False
            ray._private.worker._worker_logs_enabled = True
            ray.shutdown()


CLUSTER = Cluster()


def knock(address: str) -> None:
    """Raises an OSError if no process listens at an address; Ray itself tries for minutes."""
    host, _, port = address.rpartition("/")[2].rpartition(":")
    if port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), KNOCK_SECONDS).close()


@contextlib.contextmanager
def signals_kept() -> Iterator[None]:
    """Keeps the handlers of SIGINT and SIGTERM, with which a run saves its state; Ray sets its own."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            # In a thread other than the main one neither Ray nor this line may set one.
            with contextlib.suppress(ValueError, TypeError):
                signal.signal(number, handler)


class RayChannel:
    """Messages to one actor.

    Each request is a call. Its future makes ``fileno`` readable, so that one poll waits for all actors.

    Attributes:
        arrays: into which the rows of answers are written; None before the worker is attached.
        fault: why the channel is closed, once the actor has died.
        answered: whether the actor has ever answered.
    """

    in_message = False  # Ray transfers messages as a whole
    received_early = b""

    def __init__(self, actor: Any) -> None:
        self.arrays: SharedArrays | None = None
        self.fault: Exception | None = None
        self.answered = False
        self._actor = actor
        self._calls: deque[tuple[int, Future[tuple[int, bytes, bytes]]]] = deque()  # in the order of sending
        self._ours, self._theirs = socket.socketpair()

    def fileno(self) -> int:
        """Returns a descriptor with one byte to read for each call that has ended."""
        return self._ours.fileno()

    def send(self, seq: int, kind: int, payload: bytes = b"", deadline: float = math.inf) -> None:
        """Calls the actor; does not wait, so that no deadline can be missed."""
        future = self._actor.answer.remote(kind, payload).future()
        self._calls.append((seq, future))
        future.add_done_callback(self._wake)

    def _wake(self, future: Future[Any]) -> None:
        with contextlib.suppress(OSError):  # closed
            self._theirs.send(b"a")

    def receive(self, deadline: float = math.inf) -> Message:
        """Returns the answer to the first call, and writes the rows that came with it into the arrays.

        Raises:
            ChannelTimeout: if the call has not ended at the deadline.
            ChannelClosed: if the actor has died.
        """
        import ray

        seq, future = self._calls[0]
        left = max(0.0, deadline - time.monotonic())
        try:
            kind, payload, results = future.result(None if left == math.inf else left)
        except TimeoutError as error:
            raise ChannelTimeout from error
        except ray.exceptions.RayError as error:
            self.fault = error
            raise ChannelClosed from error
        self._calls.popleft()
        self._ours.recv(1)
        self.answered = True
        if results and self.arrays is not None:
            rows, values = pickle.loads(results)
            map_tree(np.copyto, self.arrays.results(rows), values)
        return Message(seq, kind, payload)

    def close(self) -> None:
        """Drops the answers that have not been received."""
        self._calls.clear()
        self._ours.close()
        self._theirs.close()


class RayWorker(Worker):
    """An actor and the parent's end of its channel."""

    channel: RayChannel

    def __init__(self, number: int, rows: range, index_offset: int, ray: Any, actor: Any) -> None:
        super().__init__(number, rows, index_offset)
        self.actor = actor
        self.channel = RayChannel(actor)
        self._ray = ray
        self._ended: Any = None  # the call that closes the environments
        self._killed = False

    @property
    def advice_when_late(self) -> str:
        if self.channel.answered or CLUSTER.started:
            return super().advice_when_late
        total, free = (
            int(of().get("CPU", 0)) for of in (self._ray.cluster_resources, self._ray.available_resources)
        )
        return (
            f"the Ray cluster has {free} free CPUs of {total}, and each worker needs one: lower "
            "env.manager.worker_num, or raise that limit"
        )

    def has_died(self) -> bool:
        return False  # then its calls fail at once

    def cause_of_death(self) -> str:
        self.kill()
        text = " ".join(str(self.channel.fault).split())
        reason = REASON.search(text)
        is_lost = isinstance(self.channel.fault, self._ray.exceptions.ActorUnavailableError)
        return f"{'cannot be reached' if is_lost else 'died'}: {reason[1] if reason else text}"

    def hang_up(self) -> None:
        self.channel.close()
        if self._ended is None and self._is_reachable():
            self._ended = self.actor.close.remote()

    def wait(self, seconds: float) -> None:
        if self._ended is not None and self._is_reachable():
            self._ray.wait([self._ended], timeout=seconds)

    def kill(self) -> None:
        if not self._killed and self._is_reachable():
            self._killed = True
            self._ray.kill(self.actor)

    def _is_reachable(self) -> bool:
        """Returns whether this process is still connected; all of its actors end with the connection."""
        return bool(self._ray.is_initialized())


class RayLauncher(Launcher):
    """Starts Ray actors. Each has a process of its own, on a machine that Ray selects.

    Args:
        address: of a running cluster, if this process is not connected to one yet; None: that in the
            environment variable RAY_ADDRESS, or else Ray is started on this machine.
        num_workers: that there will be; None: ``default_workers``.
        reserve: reserve a core for each worker, if the cluster was not started for this process. Workers that
            step only while others wait need none.

    Raises:
        EnvError: if Ray is not installed, or has too few cores.
    """

    unit = ("Ray actor", "Ray actors")

    def __init__(
        self, address: str | None = None, num_workers: int | None = None, reserve: bool = True
    ) -> None:
        super().__init__()
        self._ray = CLUSTER.enter(address, num_workers or 1)
        self._leave = weakref.finalize(self, CLUSTER.leave)
        # A Ray of our own has one machine: there is nothing to place, and as with processes more workers than
        # cores are allowed.
        self._cpus = 1 if reserve and not CLUSTER.started else 0
        self._arrays: SharedArrays | None = None
        total = int(self._ray.cluster_resources().get("CPU", 0))
        if self._cpus and (num_workers or 1) > total:
            raise EnvError(
                f"env.manager.worker_num: {num_workers or 1} workers need a CPU each, and the Ray cluster "
                f"has {total}; lower the number, or add machines"
            )

    def default_workers(self, double_buffer: bool) -> int:
        if CLUSTER.started:
            return cores.default_workers(double_buffer)
        free = int(self._ray.available_resources().get("CPU", 0))
        return max(1, free // int(os.environ.get("WORLD_SIZE", "1")))

    def busy_cores(self, num_workers: int) -> int:
        machines = sum(node["Alive"] and node["Resources"].get("CPU", 0) > 0 for node in self._ray.nodes())
        return math.ceil(num_workers / max(1, machines))  # Ray spreads them over its machines

    def start(self, number: int, rows: range, grace: float, index_offset: int) -> RayWorker:
        paths = [path or os.getcwd() for path in sys.path if isinstance(path, str)]
        actor = self._ray.remote(WorkerActor).options(
            num_cpus=self._cpus,
            scheduling_strategy="SPREAD",
            runtime_env={"env_vars": {**ONE_THREAD, "PYTHONPATH": os.pathsep.join(paths)}},
        )
        return RayWorker(number, rows, index_offset, self._ray, actor.remote())

    def share(self, spaces: tuple[gym.Space, gym.Space], num_envs: int, num_workers: int) -> SharedArrays:
        size = SharedArrays(None, spaces, num_envs, num_workers).size
        self._arrays = SharedArrays(mmap.mmap(-1, size), spaces, num_envs, num_workers)
        self._arrays.action = None  # actions travel in the requests
        self._arrays.busy[:] = IDLE  # an actor cannot show what it is doing, only report it in an answer
        return self._arrays

    def attach(self, worker: Worker) -> None:
        assert isinstance(worker, RayWorker)
        worker.channel.arrays = self._arrays

    def close(self, workers: Sequence[Worker], grace: float) -> None:
        if os.getpid() == self._owner:
            self.end(workers, grace)
            self._arrays = None
            self._leave()
