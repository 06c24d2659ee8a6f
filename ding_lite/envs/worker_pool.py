"""The worker processes of one vector environment: every wait bounded, every failure typed.

A worker that dies, hangs or whose environment raises is noted in ``failed``, to be replaced, as long as
the budget allows it; after that, and at any other error, the whole pool ends and each later request
says why.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import socket
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from ding_lite import errors
from ding_lite.envs import wire
from ding_lite.envs.vector import CLOSED
from ding_lite.envs.worker_process import WorkerProcess, shared_memory, shut_down
from ding_lite.errors import CheckpointError, DingLiteError, EnvError, EnvWorkerError

SLICE_SECONDS = 0.5  # a worker's end is also seen where a child of its own holds its socket open
FAILURE_GRACE = 1.0  # seconds for the workers that are well, when another one has failed


class RestartBudget:
    """How many workers may be replaced: ``most`` within any ``window`` steps of the vector.

    Steps, and not seconds: an environment that hangs until the deadline each time would never use up a
    budget of so many an hour.
    """

    def __init__(self, most: int = 0, window: int = 1) -> None:
        self.most, self.window = most, window
        self.step = 0  # counted by the owner
        self._taken: deque[int] = deque()  # at which steps

    @property
    def left(self) -> int:
        while self._taken and self._taken[0] <= self.step - self.window:
            self._taken.popleft()
        return self.most - len(self._taken)

    def take(self, failure: EnvWorkerError) -> None:
        """Takes one; raises ``failure`` if there is none left."""
        if self.left <= 0:
            if self.most:
                failure.args = (
                    f"{failure}. It is not replaced: {self.most} were within the last {self.window:,} steps, "
                    "as many as env.manager.max_restarts and restart_window allow",
                )
            raise failure
        self._taken.append(self.step)


class Exchange(NamedTuple):
    """One request on its way."""

    seq: int
    asked: list[WorkerProcess]
    deadline: float
    grace: float  # seconds for an answer to be read that nobody has listened for
    said: str  # about the deadline


class WorkerPool:
    """Starts one worker for each slice and talks to any of them at once.

    Args:
        slices: the numbers of each worker's environments.
        close_timeout: seconds that the environments have to close, all together.
        locate: returns the environment that a worker is calling now (or ``wire.IDLE``), and words for it.

    Attributes:
        closed: why the pool is closed; empty while it is open.
        budget: of replacements; none at first.
        failed: workers to ``replace`` before the next request, and why.
    """

    def __init__(
        self,
        slices: Sequence[range],
        close_timeout: float,
        locate: Callable[[WorkerProcess], tuple[int, str]],
    ) -> None:
        self.close_timeout, self.closed = close_timeout, ""
        self.budget = RestartBudget()
        self.failed: dict[int, EnvWorkerError] = {}
        self._locate = weakref.WeakMethod(locate)  # the pool does not keep its owner alive
        self.workers: list[WorkerProcess] = []
        self._memory: list[int] = []  # the descriptor, once there is one
        self._seq = 0
        # Runs once: from close(), when the pool is collected, or when the interpreter ends.
        self._end = weakref.finalize(self, shut_down, self.workers, self._memory, close_timeout, os.getpid())
        try:
            for number, rows in enumerate(slices):  # all of them boot at the same time
                self.workers.append(WorkerProcess(number, rows, close_timeout))
        except BaseException as error:
            self.fail(error)
            raise

    def replace(self) -> dict[int, EnvWorkerError]:
        """Ends the workers that failed, boots new ones in their places, and returns the failures."""
        failed, self.failed = self.failed, {}
        try:
            for number in failed:
                old = self.workers[number]
                # One that only raised can still close its environments.
                shut_down([old], [], min(FAILURE_GRACE, self.close_timeout), os.getpid())
                self.workers[number] = WorkerProcess(number, old.rows, self.close_timeout)
        except BaseException as error:
            self.fail(error)
            raise
        return failed

    def share(self, size: int) -> int:
        """Makes the memory that all workers will see, and returns its descriptor, which stays the pool's."""
        self._memory.append(shared_memory(size))
        return self._memory[0]

    def attach(self, numbers: Iterable[int]) -> None:
        """Hands the shared memory to workers that have made their environments."""
        for number in numbers:
            worker = self.workers[number]
            try:
                socket.send_fds(worker.channel.sock, [b"m"], self._memory)
            except ConnectionError:
                self._lose(worker, self._dead(worker))
            except OSError as error:
                raise EnvError(f"the shared memory cannot be handed to {worker.name}: {error}") from error
            else:
                worker.attached = True

    def request(
        self, kind: int, payloads: Mapping[int, bytes], timeout: float, limit: str
    ) -> dict[int, bytes]:
        """Sends one message to each of some workers and returns the payloads of their answers.

        A worker that fails has no answer: it is in ``failed``.

        Args:
            kind: of the request, from ``wire``.
            payloads: by number of the worker.
            timeout: seconds that each has.
            limit: the setting that this timeout comes from, for the message.

        Raises:
            EnvError: if the pool is closed.
            EnvWorkerError: if one failed and the budget is used up; the pool is then closed.
            DingLiteError: as a worker reports it, of another kind; the pool is then closed.
            CheckpointError: as a worker reports it; the pool stays open.
        """
        return self.answers(self.send(kind, payloads, timeout, limit))

    def send(self, kind: int, payloads: Mapping[int, bytes], timeout: float, limit: str) -> Exchange:
        """Sends the messages of a :meth:`request`; their answers can be waited for later."""
        if self.closed:
            raise EnvError(self.closed)
        self._seq += 1
        said = f"within {limit}={timeout:g} s"
        deadline = time.monotonic() + timeout
        try:
            for number in payloads.keys() - self.failed.keys():
                if not self._send(self.workers[number], kind, payloads[number], deadline, said):
                    deadline = time.monotonic() + timeout  # the others have not had their time
        except BaseException as error:
            self._fail_if_broken(error)
            raise
        grace = min(timeout, FAILURE_GRACE)
        return Exchange(self._seq, [self.workers[number] for number in payloads], deadline, grace, said)

    def answers(self, exchange: Exchange) -> dict[int, bytes]:
        """Waits for the answers to what was sent; of several exchanges, in the order of their sending."""
        if self.closed:
            raise EnvError(self.closed)
        try:
            return self._wait(exchange)
        except BaseException as error:
            self._fail_if_broken(error)
            raise

    def _fail_if_broken(self, error: BaseException) -> None:
        fatal = isinstance(error, DingLiteError) and not isinstance(error, CheckpointError)
        # Interrupted (KeyboardInterrupt), the pool is still good unless a message was cut in two.
        if fatal or self.failed or any(worker.channel.in_message for worker in self.workers):
            self.fail(error)

    def _wait(self, exchange: Exchange) -> dict[int, bytes]:
        # Those that answer still; nobody else is listened to: their end is no answer.
        waiting = {
            worker.channel.sock.fileno(): worker
            for worker in exchange.asked
            if worker is self.workers[worker.number] and worker.number not in self.failed
        }
        poller = select.poll()
        for fd in waiting:
            poller.register(fd, select.POLLIN)
        deadline = max(exchange.deadline, time.monotonic() + exchange.grace)
        replies: dict[int, bytes] = {}
        refused: CheckpointError | None = None
        while waiting:
            left = min(SLICE_SECONDS, deadline - time.monotonic())
            events = [fd for fd, worker in waiting.items() if worker.channel.early]
            events = events or [fd for fd, _ in poller.poll(max(0.0, left) * 1000)]
            for fd in events:
                worker = waiting[fd]
                message = self._receive(worker, deadline, exchange.said)
                if message is not None and message.seq != exchange.seq:
                    continue  # the late answer to a request that was interrupted
                del waiting[fd]
                poller.unregister(fd)
                if message is not None and message.kind == wire.OK:
                    replies[worker.number] = message.payload
                elif message is not None:
                    refused = self._heard(self._reported(worker, message.payload), worker) or refused
            if not events:
                self._look_after(waiting.values(), deadline, exchange.said)
                for fd in [fd for fd, worker in waiting.items() if worker.number in self.failed]:
                    del waiting[fd]
                    poller.unregister(fd)
        if refused is not None:  # all workers have been heard
            raise refused
        return replies

    def _send(self, worker: WorkerProcess, kind: int, payload: bytes, deadline: float, said: str) -> bool:
        try:
            worker.channel.send(self._seq, kind, payload, deadline)
            return True
        except wire.ChannelClosed:
            self._lose(worker, self._dead(worker))
        except wire.ChannelTimeout:
            self._lose(worker, self._hanging(worker, said))
        return False

    def _receive(self, worker: WorkerProcess, deadline: float, said: str) -> wire.Message | None:
        try:
            return worker.channel.receive(deadline)
        except wire.ChannelClosed:
            self._lose(worker, self._dead(worker))
        except wire.ChannelTimeout:
            self._lose(worker, self._hanging(worker, said))
        return None

    def _look_after(self, waiting: Collection[WorkerProcess], deadline: float, said: str) -> None:
        late = time.monotonic() >= deadline
        for worker in sorted(waiting, key=lambda worker: worker.number):
            if worker.has_died():
                self._lose(worker, self._dead(worker))
            elif late:
                self._lose(worker, self._hanging(worker, said))

    def _heard(self, error: DingLiteError, worker: WorkerProcess) -> CheckpointError | None:
        """Returns the reported error if the worker is well; raises it if no other worker would do better."""
        if isinstance(error, EnvWorkerError):
            self._lose(worker, error)
        elif isinstance(error, CheckpointError):
            return error
        else:
            raise error
        return None

    def _lose(self, worker: WorkerProcess, failure: EnvWorkerError) -> None:
        """Notes that a worker is to be replaced; raises its failure if that was too often."""
        self.budget.take(failure)
        self.failed[worker.number] = failure

    def _dead(self, worker: WorkerProcess) -> EnvWorkerError:
        cause = worker.cause_of_death()
        return EnvWorkerError(
            f"{worker.name} {cause}{self._where(worker)}", worker.number, tuple(worker.rows)
        )

    def _hanging(self, worker: WorkerProcess, said: str) -> EnvWorkerError:
        worker.kill()  # before anything else: what it shares with this process is not to change any more
        return EnvWorkerError(
            f"{worker.name} did not answer {said}{self._where(worker)}. Killed; raise that limit if the "
            "environment may take longer",
            worker.number,
            tuple(worker.rows),
        )

    def _where(self, worker: WorkerProcess) -> str:
        locate = self._locate()
        words = locate(worker)[1] if locate else ""
        return f", in {words}" if words else ""

    def _reported(self, worker: WorkerProcess, payload: bytes) -> DingLiteError:
        """Returns the error that a worker reports, in its own kind where the library has it."""
        name, said, text, busy = pickle.loads(payload)
        kind = getattr(errors, name, None)
        error: DingLiteError
        if kind is None or issubclass(EnvWorkerError, kind):
            envs = tuple(worker.rows) if busy == wire.IDLE else (busy,)
            said = said if kind else f"{worker.name}: {said}"
            error = EnvWorkerError(said, worker.number, envs, text)
        else:
            error = kind(said)
        error.__cause__ = WorkerTraceback(text)
        return error

    def fail(self, error: BaseException) -> None:
        """Ends all workers because of ``error``, sooner than ``close`` does."""
        first = (str(error).splitlines() or [""])[0] or type(error).__name__
        self.closed = f"these environments are closed after a failure: {first:.300}. Make them anew"
        if self._end.detach() is not None:
            shut_down(self.workers, self._memory, min(FAILURE_GRACE, self.close_timeout), os.getpid())

    def close(self) -> None:
        """Ends all workers in bounded time; never raises, and a second call does nothing."""
        self.closed = self.closed or CLOSED
        with contextlib.suppress(Exception):
            self._end()


class WorkerTraceback(Exception):
    """The cause of an error that a worker reported: the worker's own traceback, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"
