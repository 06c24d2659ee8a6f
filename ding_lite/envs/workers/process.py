"""The parent's side of one worker process: starts it, explains its death, ends it; allocates shared memory.

Neither the process nor the memory outlives the parent: see ``envs.workers.worker``.
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

from ding_lite.envs.workers.messages import Channel
from ding_lite.errors import EnvError

BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from ding_lite.envs.workers.worker import main; "
    "main(int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))"
)
# A worker computes in one thread: thread pools in many workers would compete for the cores.
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
KILL_SECONDS = 1.0  # that the kernel has to end a killed process


class WorkerProcess:
    """A worker process and the parent's end of its channel.

    Args:
        number: of the worker.
        rows: numbers of its environments.
        grace: seconds that its environments have to close.
        index_offset: number of the first environment in the messages, which differs from its row where ranks
            share a vector.

    Attributes:
        attached: whether it has made its environments and received the shared memory.

    Raises:
        EnvError: if the machine allows no more processes or open files.
    """

    def __init__(self, number: int, rows: range, grace: float, index_offset: int = 0) -> None:
        self.number = number
        self.rows = rows
        self.attached = False
        self._killed = False
        first, last = rows[0] + index_offset, rows[-1] + index_offset
        span = f"env {first}" if len(rows) == 1 else f"envs {first}-{last}"
        self.name = f"worker {number} ({span})"
        # The kernel ends a tied child with the thread that started it: only the main thread lives on.
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
            start_new_session=True,  # a new process group: kill() also ends what the environments start
        )

    @property
    def slice(self) -> slice:
        """The worker's rows in a batch of all environments."""
        return slice(self.rows.start, self.rows.stop)

    def has_died(self) -> bool:
        """Returns whether the process has ended."""
        return self.process.poll() is not None

    def cause_of_death(self) -> str:
        """Returns why the connection of this worker is closed; kills the process if it still runs."""
        try:
            code = self.process.wait(KILL_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            return "closed its connection but did not end (it has been killed)"
        return f"died, exit code {code} ({_meaning(code)})"

    def kill(self) -> None:
        """Ends the process now, and all processes that it has started."""
        if self._killed:  # the process id may belong to another process by now
            return
        self._killed = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)  # the group may outlive its leader
        if self.process.poll() is None:
            self.process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(KILL_SECONDS)


def shut_down(workers: Sequence[WorkerProcess], descriptors: list[int], grace: float, owner: int) -> None:
    """Ends all workers: closes their connections, waits, then kills those that still run.

    Args:
        workers: to end.
        descriptors: files to close; the list is emptied.
        grace: seconds to wait for all workers together.
        owner: id of the process that started the workers. In any other process this does nothing: a fork
            inherits the pool but must not end its workers.
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
    """Returns a descriptor of ``size`` bytes of memory, freed when its last user closes it.

    The memory has no name in any file system.

    Raises:
        EnvError: if so much memory is not available; the message names the limit.
    """
    try:
        if hasattr(os, "memfd_create"):  # Linux; not limited by the size of /dev/shm
            fd = os.memfd_create("ding_lite")
        else:
            with tempfile.TemporaryFile() as file:
                fd = os.dup(file.fileno())
        try:
            # Reserves the memory now: a later write to missing memory would kill the process.
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
    """Returns which limit of the machine caused ``error``, and how to raise it; "" for other errors."""
    import resource  # here, because Windows does not have it

    def current(kind: int) -> str:
        value = resource.getrlimit(kind)[0]
        return "unlimited" if value == resource.RLIM_INFINITY else str(value)

    if error.errno in (errno.EMFILE, errno.ENFILE):
        return (
            f" The limit of open files is {current(resource.RLIMIT_NOFILE)} (ulimit -n), and every worker "
            "needs one. Raise it or use fewer workers."
        )
    if error.errno == errno.EAGAIN:
        return (
            f" The limit of processes is {current(resource.RLIMIT_NPROC)} (ulimit -u; a container has its "
            "own limit, pids.max). Raise it or use fewer workers."
        )
    if error.errno == errno.EFBIG:
        return f" The limit of a file's size is {current(resource.RLIMIT_FSIZE)} bytes (ulimit -f). Raise it."
    if error.errno in (errno.ENOSPC, errno.ENOMEM):
        return " The memory of this machine or container is used up. Use fewer environments or smaller ones."
    return ""


def _meaning(code: int) -> str:
    """Returns what an exit code says about the cause of a worker's end."""
    if code >= 0:
        return "the environment ended its process" if code == 0 else "its messages are on stderr"
    if -code == signal.SIGKILL:
        return "killed: out of memory?"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
