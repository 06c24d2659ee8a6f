"""One worker process as its parent sees it: started, talked to, described when dead, and ended.

Also the memory that is shared with it. Nothing here outlives the parent: see ``ding_lite.envs.worker``.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence

from ding_lite.envs.wire import Channel
from ding_lite.errors import EnvError

BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from ding_lite.envs.worker import main; main(int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))"
)
# Each worker is one of many: a thread pool in each would fight over the cores.
ONE_THREAD = dict.fromkeys(
    (
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "MKL_NUM_THREADS",
        "NUMEXPR_NUM_THREADS",
        "VECLIB_MAXIMUM_THREADS",
    ),
    "1",
)
KILL_SECONDS = 1.0  # for the kernel to end a killed process


def cores() -> int:
    """Returns how many CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def default_workers(double_buffer: bool) -> int:
    """Returns one worker process for each core; half as many where they step while the policy acts."""
    return max(1, cores() // 2) if double_buffer else cores()


class WorkerProcess:
    """A worker process and the parent's end of its channel.

    Args:
        number: of the worker.
        rows: numbers of its environments.
        grace: seconds that its environments have to close.

    Attributes:
        attached: whether it has its environments and the shared memory.

    Raises:
        EnvError: if the machine allows no more processes or open files.
    """

    def __init__(self, number: int, rows: range, grace: float) -> None:
        self.number, self.rows, self.attached, self._ended = number, rows, False, False
        span = f"env {rows[0]}" if len(rows) == 1 else f"envs {rows[0]}-{rows[-1]}"
        self.name = f"worker {number} ({span})"
        # The kernel ties a child to the thread that made it, and only the main one lasts.
        tied = threading.current_thread() is threading.main_thread()
        try:
            ours, theirs = socket.socketpair()
            with theirs:
                try:
                    self.process = self._spawn(theirs.fileno(), os.getpid() if tied else 0, grace)
                except BaseException:
                    ours.close()
                    raise
        except OSError as error:
            raise EnvError(f"{self.name} cannot be started: {error}.{_limit(error)}") from error
        ours.setblocking(False)
        self.channel = Channel(ours)

    @staticmethod
    def _spawn(fd: int, parent: int, grace: float) -> subprocess.Popen[bytes]:
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        paths = json.dumps([path for path in sys.path if isinstance(path, str)])
        return subprocess.Popen(
            [sys.executable, *flags, "-c", BOOT, paths, str(fd), str(parent), str(grace)],
            pass_fds=[fd],
            stdin=subprocess.DEVNULL,
            env={**os.environ, **ONE_THREAD},
            start_new_session=True,  # a group of its own: what its environments start can be killed too
        )

    @property
    def slice(self) -> slice:
        """Its rows in a batch of all environments."""
        return slice(self.rows.start, self.rows.stop)

    def has_died(self) -> bool:
        return self.process.poll() is not None

    def cause_of_death(self) -> str:
        """Returns what is known about the end of a worker whose connection is closed."""
        try:
            code = self.process.wait(KILL_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            return "closed its connection and went on running (it has been killed)"
        return f"died, exit code {code} ({_meaning(code)})"

    def kill(self) -> None:
        """Ends the process now, and all that it has started."""
        if self._ended:  # its number may be another process's by now
            return
        self._ended = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)  # the group may outlive its leader
        if self.process.poll() is None:
            self.process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(KILL_SECONDS)


def shut_down(workers: Sequence[WorkerProcess], descriptors: list[int], grace: float, owner: int) -> None:
    """Ends all workers: asks, waits at most ``grace`` seconds for all together, then kills.

    Does nothing in any process but ``owner``: a fork of it inherits this object, not the workers.

    Args:
        descriptors: closed, and taken out of the list.
    """
    if os.getpid() != owner:
        return
    deadline = time.monotonic() + grace
    try:
        while descriptors:
            os.close(descriptors.pop())
        for worker in workers:
            worker.channel.sock.close()  # the worker sees EOF, closes its environments and ends
        for worker in workers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.process.wait(max(0.0, deadline - time.monotonic()))
            worker.kill()
    finally:
        for worker in workers:
            worker.kill()


def shared_memory(size: int) -> int:
    """Returns a descriptor of ``size`` bytes of memory that have no name and end with their users.

    Raises:
        EnvError: if there is not as much, naming the limit.
    """
    try:
        if hasattr(os, "memfd_create"):  # Linux; not bounded by the size of /dev/shm
            fd = os.memfd_create("ding_lite")
        else:
            with tempfile.TemporaryFile() as file:
                fd = os.dup(file.fileno())
        try:
            # Really taken now: writing to memory that turns out missing would kill the process.
            os.posix_fallocate(fd, 0, size) if hasattr(os, "posix_fallocate") else os.ftruncate(fd, size)
        except BaseException:
            os.close(fd)
            raise
    except OSError as error:
        raise EnvError(
            f"cannot share {size / 1e6:.3g} MB of memory with the workers: {error}.{_limit(error)} "
            "Or step the environments in this process: env.manager.type='base'"
        ) from error
    return fd


def _limit(error: OSError) -> str:
    """Returns which limit of the machine ``error`` speaks of, and how to raise it."""
    import resource  # not on Windows

    def now(kind: int) -> str:
        value = resource.getrlimit(kind)[0]
        return "unlimited" if value == resource.RLIM_INFINITY else str(value)

    if error.errno in (errno.EMFILE, errno.ENFILE):
        return (
            f" The limit of open files is {now(resource.RLIMIT_NOFILE)} (ulimit -n), and every worker needs "
            "one here. Raise it or use fewer workers."
        )
    if error.errno == errno.EAGAIN:
        return (
            f" The limit of processes is {now(resource.RLIMIT_NPROC)} (ulimit -u; a container has one of its "
            "own, pids.max). Raise it or use fewer workers."
        )
    if error.errno == errno.EFBIG:
        return f" The limit of a file's size is {now(resource.RLIMIT_FSIZE)} bytes (ulimit -f). Raise it."
    if error.errno in (errno.ENOSPC, errno.ENOMEM):
        return " The memory of this machine or container is used up. Use fewer environments or smaller ones."
    return ""


def _meaning(code: int) -> str:
    if code >= 0:
        return "the environment ended its process" if code == 0 else "its own words are on stderr"
    if -code == signal.SIGKILL:
        return "killed: out of memory?"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
