"""The worker processes of one vector environment: every wait bounded, every failure typed and final.

A worker that dies, hangs or reports an error ends the whole pool; each later request says why.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import time
import weakref
from collections.abc import Callable, Collection, Sequence

from ding_lite import errors
from ding_lite.envs import wire
from ding_lite.envs.worker_process import WorkerProcess, shut_down
from ding_lite.errors import CheckpointError, DingLiteError, EnvError, EnvWorkerError

SLICE_SECONDS = 0.5  # a worker's end is also seen where a child of its own holds its socket open
FAILURE_GRACE = 1.0  # seconds for the workers that are well, when another one has failed


class WorkerPool:
    """Starts one worker for each slice and talks to all of them at once.

    Args:
        slices: the numbers of each worker's environments.
        close_timeout: seconds that the environments have to close, all together.
        locate: returns the environment that a worker is calling now (or ``wire.IDLE``), and words for it.

    Attributes:
        closed: why the pool is closed; empty while it is open.
    """

    def __init__(
        self,
        slices: Sequence[range],
        close_timeout: float,
        locate: Callable[[WorkerProcess], tuple[int, str]],
    ) -> None:
        self.close_timeout, self.closed = close_timeout, ""
        self._locate = weakref.WeakMethod(locate)  # the pool does not keep its owner alive
        self.workers: list[WorkerProcess] = []
        self._by_fd: dict[int, WorkerProcess] = {}
        self._poller = select.poll()
        self._seq = 0
        # Runs once: from close(), when the pool is collected, or when the interpreter ends.
        self._end = weakref.finalize(self, shut_down, self.workers, close_timeout, os.getpid())
        try:
            for number, rows in enumerate(slices):  # all of them boot at the same time
                worker = WorkerProcess(number, rows, close_timeout)
                self.workers.append(worker)
                self._by_fd[worker.channel.sock.fileno()] = worker
                self._poller.register(worker.channel.sock, select.POLLIN)
        except BaseException as error:
            self.fail(error)
            raise

    def request(self, kind: int, payloads: Sequence[bytes], timeout: float, limit: str) -> list[bytes]:
        """Sends one message to every worker and returns the payloads of their answers, in their order.

        Args:
            kind: of the request, from ``wire``.
            payloads: one for each worker.
            timeout: seconds for all of it.
            limit: the setting that this timeout comes from, for the message.

        Raises:
            EnvError: if the pool is closed.
            EnvWorkerError: or another error of the library; the pool is then closed.
            CheckpointError: as a worker reports it; the pool stays open.
        """
        if self.closed:
            raise EnvError(self.closed)
        self._seq += 1
        deadline = time.monotonic() + timeout
        said = f"within {limit}={timeout:g} s"
        try:
            return self._exchange(kind, payloads, deadline, said)
        except wire.ChannelClosed:
            failure = self._dead(self._current)
            self.fail(failure)  # restarting the one worker, within a budget, would be done here
            raise failure from None
        except wire.ChannelTimeout:
            failure = self._hanging([self._current], said)
            self.fail(failure)
            raise failure from None
        except BaseException as error:
            failed = isinstance(error, DingLiteError) and not isinstance(error, CheckpointError)
            # Interrupted (KeyboardInterrupt), the pool is still good unless a message was cut in two.
            if failed or any(worker.channel.in_message for worker in self.workers):
                self.fail(error)
            raise

    def _exchange(self, kind: int, payloads: Sequence[bytes], deadline: float, said: str) -> list[bytes]:
        for worker, payload in zip(self.workers, payloads, strict=True):
            self._current = worker
            worker.channel.send(self._seq, kind, payload, deadline)
        replies = [b""] * len(self.workers)
        pending = {worker.number for worker in self.workers}
        refused: DingLiteError | None = None
        while pending:
            left = min(SLICE_SECONDS, deadline - time.monotonic())
            events = self._poller.poll(max(0.0, left) * 1000)
            for fd, _ in events:
                self._current = worker = self._by_fd[fd]
                seq, answer, payload = worker.channel.receive(deadline)
                if seq != self._seq:
                    continue  # the late answer to a request that was interrupted
                pending.discard(worker.number)
                replies[worker.number] = payload
                if answer == wire.ERROR:
                    refused = self._reported(worker, payload)
                    if not isinstance(refused, CheckpointError):
                        raise refused
            if not events:
                self._look_after(pending, deadline, said)
        if refused is not None:  # all workers are well and have been heard
            raise refused
        return replies

    def _look_after(self, pending: Collection[int], deadline: float, said: str) -> None:
        late = [self.workers[number] for number in sorted(pending)]
        for worker in late:
            if worker.has_died():
                raise self._dead(worker)
        if time.monotonic() >= deadline:
            raise self._hanging(late, said)

    def _dead(self, worker: WorkerProcess) -> EnvWorkerError:
        cause = worker.cause_of_death()
        return EnvWorkerError(
            f"{worker.name} {cause}{self._where(worker)}", worker.number, tuple(worker.rows)
        )

    def _hanging(self, late: Sequence[WorkerProcess], said: str) -> EnvWorkerError:
        shown = "; ".join(f"{worker.name} did not answer {said}{self._where(worker)}" for worker in late)
        for worker in late:
            worker.kill()
        rows = tuple(env for worker in late for env in worker.rows)
        return EnvWorkerError(
            f"{shown}. Killed; raise that limit if the environment may take longer", late[0].number, rows
        )

    def _where(self, worker: WorkerProcess) -> str:
        locate = self._locate()
        words = locate(worker)[1] if locate else ""
        return f", in {words}" if words else ""

    def _reported(self, worker: WorkerProcess, payload: bytes) -> DingLiteError:
        """Returns the error that a worker reports, in its own kind where the library has it."""
        name, said, text = pickle.loads(payload)
        kind = getattr(errors, name, None)
        error: DingLiteError
        if kind is None or issubclass(EnvWorkerError, kind):
            locate = self._locate()
            busy = locate(worker)[0] if locate else wire.IDLE
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
            shut_down(self.workers, min(FAILURE_GRACE, self.close_timeout), os.getpid())

    def close(self) -> None:
        """Ends all workers in bounded time; never raises, and a second call does nothing."""
        self.closed = self.closed or "these environments have been closed; make them anew"
        with contextlib.suppress(Exception):
            self._end()


class WorkerTraceback(Exception):
    """The cause of an error that a worker reported: the worker's own traceback, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"
