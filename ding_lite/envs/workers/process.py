"""The parent's side of worker processes: starts them, explains a death, ends them; allocates shared memory.

Neither the process nor the memory outlives the parent: see ``envs.workers.worker``.
"""

from __future__ import annotations

import contextlib
import errno
import json
import mmap
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence

import gymnasium as gym

from ding_lite.envs.workers import cores
from ding_lite.envs.workers.launcher import Launcher, Worker
from ding_lite.envs.workers.messages import IDLE, Channel, ChannelClosed, SharedArrays
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


class WorkerProcess(Worker):
    """A worker process and the parent's end of its channel.

    Args:
        number: of the worker.
        rows: numbers of its environments.
        grace: seconds that its environments have to close.
        index_offset: as for :class:`Worker`.

    Raises:
        EnvError: if the machine allows no more processes or open files.
    """

    channel: Channel

    def __init__(self, number: int, rows: range, grace: float, index_offset: int) -> None:
        super().__init__(number, rows, index_offset)
        self._killed = False
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

    def has_died(self) -> bool:
        return self.process.poll() is not None

    def cause_of_death(self) -> str:
        try:
            code = self.process.wait(KILL_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            return "closed its connection but did not end (it has been killed)"
        return f"died, exit code {code} ({_meaning(code)})"

    def hang_up(self) -> None:
        self.channel.sock.close()  # the worker sees EOF, closes its environments and ends

    def wait(self, seconds: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)

    def kill(self) -> None:
        if self._killed:  # the process id may belong to another process by now
            return
        self._killed = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)  # the group may outlive its leader
        if self.process.poll() is None:
            self.process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(KILL_SECONDS)


class ProcessLauncher(Launcher):
    """Starts worker processes on this machine, which write into memory that they share with it."""

    unit = ("worker process", "worker processes")

    def __init__(self) -> None:
        super().__init__()
        if not hasattr(socket, "send_fds"):
            raise EnvError("worker processes need POSIX (Linux, macOS); set env.manager.type='base'")
        self._memory: list[int] = []  # the descriptor of the shared memory, once there is one

    def default_workers(self, double_buffer: bool) -> int:
        return cores.default_workers(double_buffer)

    def busy_cores(self, num_workers: int) -> int:
        return num_workers

    def start(self, number: int, rows: range, grace: float, index_offset: int) -> WorkerProcess:
        return WorkerProcess(number, rows, grace, index_offset)

    def share(self, spaces: tuple[gym.Space, gym.Space], num_envs: int, num_workers: int) -> SharedArrays:
        size = SharedArrays(None, spaces, num_envs, num_workers).size
        self._memory.append(shared_memory(size))
        shared = SharedArrays(mmap.mmap(self._memory[0], size), spaces, num_envs, num_workers)
        shared.busy[:] = IDLE  # new memory is 0, the number of an environment
        return shared

    def attach(self, worker: Worker) -> None:
        assert isinstance(worker, WorkerProcess)
        try:
            socket.send_fds(worker.channel.sock, [b"m"], self._memory)
        except ConnectionError as error:
            raise ChannelClosed from error
        except OSError as error:
            raise EnvError(f"the shared memory cannot be sent to {worker.name}: {error}") from error

    def close(self, workers: Sequence[Worker], grace: float) -> None:
        if os.getpid() == self._owner:
            while self._memory:
                os.close(self._memory.pop())
        self.end(workers, grace)


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
