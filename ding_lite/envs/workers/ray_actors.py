"""The parent's side of ``ray``: environments in Ray actors, on any machine of a cluster (package ``ray``).

A request is one call of an actor, for all of its environments together, because a call takes milliseconds.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
import sys
from collections import deque
from concurrent.futures import Future
from typing import Any

from ding_lite.envs.vector import signals_kept
from ding_lite.envs.workers import cores
from ding_lite.envs.workers.process import ONE_THREAD
from ding_lite.envs.workers.worker import Responder
from ding_lite.errors import EnvError, error_text

KNOCK_SECONDS = 10.0  # to connect to a cluster


def connect(num_workers: int = 1) -> Any:
    """Connects this process to Ray, unless it is connected, and returns the module ``ray``.

    The connection, and a Ray that was started here, end with this process.

    The environment variable RAY_ADDRESS names a running cluster; without it Ray is started on this machine,
    with room for ``num_workers``.

    Raises:
        EnvError: if Ray is not installed, cannot be started, or cannot be reached.
    """
    try:
        import ray
    except ImportError as error:
        raise EnvError(f"{error}. Install it: pip install ray") from error
    if ray.is_initialized():
        return ray
    address = os.environ.get("RAY_ADDRESS", "")
    options: dict[str, Any] = {"address": address or "local"}
    if not address:
        options |= {"include_dashboard": False, "num_cpus": max(cores.cores(), num_workers)}
        # By default Ray's workers have a low priority. Worker processes have the priority of this process.
        options["_system_config"] = {"worker_niceness": 0}
    try:
        knock(address)
        with signals_kept():
            ray.init(**options, log_to_driver=False, logging_level="ERROR")
    except Exception as error:
        problem = f"no cluster at {address} can be reached" if address else "it cannot be started"
        raise EnvError(f"Ray: {problem}: {error_text(error)}") from error
    return ray


def knock(address: str) -> None:
    """Raises an OSError if no process listens at an address; Ray itself tries for minutes."""
    host, _, port = address.rpartition("/")[2].rpartition(":")
    if port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), KNOCK_SECONDS).close()


class RayWorker:
    """An actor, as its parent sees it; see :class:`~process.WorkerProcess` for the methods.

    Each request is a call. Its future makes ``fileno`` readable, so that one poll waits for all actors.
    """

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray, self._actor = ray, actor
        self._calls: deque[Future[bytes]] = deque()  # in the order of sending
        self._ours, self._theirs = socket.socketpair()
        self._fault: Exception | None = None  # why the actor has died
        self._closing: Any = None  # the call that closes the environments

    def fileno(self) -> int:
        return self._ours.fileno()

    def send(self, request: bytes) -> None:
        future = self._actor.respond.remote(request).future()
        self._calls.append(future)
        future.add_done_callback(self._wake)

    def _wake(self, future: Future[Any]) -> None:
        with contextlib.suppress(OSError):  # closed
            self._theirs.send(b"a")

    def recv(self) -> bytes:
        self._ours.recv(1)
        try:
            return self._calls.popleft().result()
        except self._ray.exceptions.RayError as error:
            self._fault = error
            raise EOFError from error

    def death(self, seconds: float = 0.0) -> str:
        if self._fault is None:
            return ""
        return f"died or cannot be reached: {' '.join(str(self._fault).split())}"

    def hang_up(self) -> None:
        self._calls.clear()
        self._ours.close()
        self._theirs.close()
        if self._closing is None and self._ray.is_initialized():  # all actors end with the connection
            self._closing = self._actor.close.remote()

    def end(self, seconds: float = 0.0) -> None:
        self.hang_up()
        if self._ray.is_initialized():
            if seconds:
                self._ray.wait([self._closing], timeout=seconds)
            self._ray.kill(self._actor)


class RayActors:
    """Starts Ray actors. Each has a process of its own, on a machine that Ray selects.

    Args:
        num_workers: number of workers to come; None: ``default_workers``.
        reserve: reserve a core for each worker. Workers that step only while others wait need none.

    Raises:
        EnvError: if Ray is not installed, or cannot be reached.
    """

    unit = "Ray actor"
    advice = (
        "raise that limit if the environment may take longer, or lower env.manager.worker_num if the Ray "
        "cluster has fewer free CPUs than that"
    )

    def __init__(self, num_workers: int | None = None, reserve: bool = True) -> None:
        self._ray = connect(num_workers or 1)
        self._cpus = int(reserve)

    def default_workers(self, groups: int) -> int:
        free = int(self._ray.available_resources().get("CPU", 0))
        return max(1, free // int(os.environ.get("WORLD_SIZE", "1")))

    def start(self) -> RayWorker:
        paths = [path or os.getcwd() for path in sys.path if isinstance(path, str)]
        actor = self._ray.remote(Responder).options(
            num_cpus=self._cpus,
            scheduling_strategy="SPREAD",
            runtime_env={"env_vars": {**ONE_THREAD, "PYTHONPATH": os.pathsep.join(paths)}},
        )
        return RayWorker(self._ray, actor.remote(-1))

    def allocate(self, size: int) -> mmap.mmap:
        return mmap.mmap(-1, size)

    def close(self) -> None:
        """There is nothing to free."""
