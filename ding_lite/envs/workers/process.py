"""The parent's side of worker processes: starts them, talks to them, ends them; allocates shared memory.

Neither the processes nor the memory outlive the parent: see ``envs.workers.worker``.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import threading
from multiprocessing.connection import Pipe

from ding_lite.envs.workers.cores import cores

BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from ding_lite.envs.workers.worker import main; "
    "main(*map(int, sys.argv[2:5]))"
)
# A worker computes in one thread: thread pools in many workers would compete for the cores.
ONE_THREAD = dict.fromkeys(["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"], "1")
KILL_SECONDS = 1.0  # time for the kernel to end a killed process


class WorkerProcess:
    """A worker process and the parent's end of its connection.

    Args:
        memory: descriptor of the shared memory, which the process inherits.
    """

    def __init__(self, memory: int) -> None:
        # The kernel kills a tied child when the thread that started it ends, so only the main thread ties.
        is_tied = threading.current_thread() is threading.main_thread()
        paths = json.dumps([path for path in sys.path if isinstance(path, str)])
        self._connection, theirs = Pipe()
        with theirs:
            numbers = theirs.fileno(), memory, os.getpid() if is_tied else 0
            self.process = subprocess.Popen(
                [sys.executable, "-c", BOOT, paths, *map(str, numbers)],
                pass_fds=[theirs.fileno(), memory],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **ONE_THREAD},
                start_new_session=True,  # a new process group: end() ends what the environments start
            )
        self._is_killed = False

    def fileno(self) -> int:
        """Returns a descriptor that is readable when an answer has arrived or the worker has died."""
        return self._connection.fileno()

    def send(self, request: bytes) -> None:
        """Sends a request; raises an OSError if the worker has died."""
        self._connection.send_bytes(request)

    def recv(self) -> bytes:
        """Returns the next answer; raises an OSError or an EOFError if the worker has died."""
        return self._connection.recv_bytes()

    def death(self, seconds: float = 0.0) -> str:
        """Returns how the worker has ended, or "" if it still runs after ``seconds``."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return ""
        if code == -signal.SIGKILL:
            return "died, exit code -9 (killed: out of memory?)"
        return f"died, exit code {code}" + (f" ({signal.Signals(-code).name})" if code < 0 else "")

    def hang_up(self) -> None:
        """Closes the connection, at which the worker closes its environments and ends; does not wait."""
        self._connection.close()

    def end(self, seconds: float = 0.0) -> None:
        """Hangs up, waits at most ``seconds``, then kills the worker and all processes that it started."""
        self.hang_up()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        if self._is_killed:  # the process id may belong to another process by now
            return
        self._is_killed = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)  # the group may outlive its leader
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(KILL_SECONDS)


class Processes:
    """Starts worker processes on this machine, which write into memory that they share with it.

    Attributes:
        unit: what a worker is called.
        advice: what to do if a worker does not answer in time.
    """

    unit = "worker"
    advice = "raise that limit if the environment may take longer"

    def __init__(self) -> None:
        # The memory has no name in any file system, and is freed when its last user closes it.
        if hasattr(os, "memfd_create"):  # Linux; not limited by the size of /dev/shm
            self._memory = os.memfd_create("ding_lite")
        else:
            with tempfile.TemporaryFile() as file:
                self._memory = os.dup(file.fileno())

    def default_workers(self, groups: int) -> int:
        """Returns the number of workers if the config sets none: of two groups, one steps at a time."""
        return max(1, cores() // groups)

    def start(self) -> WorkerProcess:
        """Starts a worker without waiting for it."""
        return WorkerProcess(self._memory)

    def allocate(self, size: int) -> mmap.mmap:
        """Returns the memory of all workers; raises an OSError if ``size`` bytes are not available."""
        # Reserves the memory now: a later write to missing memory would kill the process.
        reserve = getattr(os, "posix_fallocate", lambda fd, _, size: os.ftruncate(fd, size))
        reserve(self._memory, 0, size)
        return mmap.mmap(self._memory, size)

    def close(self) -> None:
        """Frees the memory, once the workers and the arrays are gone."""
        os.close(self._memory)
