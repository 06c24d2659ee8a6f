"""The workers of one vector environment. Every wait has a deadline, every failure has a type.

A worker that dies, hangs or whose environment raises is listed in ``failed``, to be replaced, as long as the
restart budget allows it. After that, and at any other error, the whole pool is closed, and every later
request raises an error with the reason.
"""

from __future__ import annotations

import contextlib
import pickle
import select
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import gymnasium as gym

from ding_lite import errors
from ding_lite.envs.vector import CLOSED
from ding_lite.envs.workers import messages
from ding_lite.envs.workers.launcher import Launcher, Worker
from ding_lite.errors import CheckpointError, DingLiteError, EnvError, EnvWorkerError

POLL_SECONDS = 0.5  # between looks for dead workers: a child of a dead worker may hold its socket open
FAILURE_GRACE = 1.0  # seconds for the other workers to close after one has failed


class RestartBudget:
    """Allows ``max_restarts`` replaced workers within any ``window`` steps of the vector.

    It counts steps, not seconds: an environment that hangs until the deadline each time would never use up a
    budget per hour.
    """

    def __init__(self, max_restarts: int = 0, window: int = 1) -> None:
        self.max_restarts = max_restarts
        self.window = window
        self.step = 0  # incremented by the owner
        self._restart_steps: deque[int] = deque()

    @property
    def left(self) -> int:
        """Number of workers that may still be replaced."""
        while self._restart_steps and self._restart_steps[0] <= self.step - self.window:
            self._restart_steps.popleft()
        return self.max_restarts - len(self._restart_steps)

    def take(self, failure: EnvWorkerError) -> None:
        """Takes one restart; raises ``failure`` if none is left."""
        if self.left <= 0:
            if self.max_restarts:
                failure.args = (
                    f"{failure}. It is not replaced: {self.max_restarts} were replaced within the last "
                    f"{self.window:,} steps, as many as env.manager.max_restarts and restart_window allow",
                )
            raise failure
        self._restart_steps.append(self.step)


class Exchange(NamedTuple):
    """One request that was sent to some workers and not yet answered."""

    seq: int
    workers: list[Worker]
    deadline: float
    # Seconds to read the answers, at least, even if the deadline has passed when the parent begins to wait.
    grace: float
    limit: str  # the deadline for messages, such as "within step_timeout=300 s"


class WorkerPool:
    """Starts one worker for each slice of the environments, and exchanges messages with them.

    Args:
        slices: the numbers of each worker's environments.
        close_timeout: seconds that all environments together have to close.
        locate: describes the environment that a worker is calling, for messages; "" if it calls none.
        launcher: starts the workers.
        index_offset: number of the first environment in the messages.

    Attributes:
        close_reason: why the pool is closed; None while it is open.
        budget: of replacements; none at first.
        failed: the failures of workers that ``replace`` must replace before the next request, by number.
    """

    def __init__(
        self,
        slices: Sequence[range],
        close_timeout: float,
        locate: Callable[[Worker], str],
        launcher: Launcher,
        index_offset: int,
    ) -> None:
        self.close_timeout = close_timeout
        self.index_offset = index_offset
        self.close_reason: str | None = None
        self.budget = RestartBudget()
        self.failed: dict[int, EnvWorkerError] = {}
        self._locate = weakref.WeakMethod(locate)  # weak, so that the pool does not keep its owner alive
        self.workers: list[Worker] = []
        self._launcher = launcher
        self._seq = 0
        # Runs once: at close(), when the pool is garbage-collected, or when the interpreter exits.
        self._end = weakref.finalize(self, launcher.close, self.workers, close_timeout)
        try:
            for number, rows in enumerate(slices):  # does not wait: all workers start at the same time
                self.workers.append(launcher.start(number, rows, close_timeout, index_offset))
        except BaseException as error:
            self.fail(error)
            raise

    def replace(self) -> dict[int, EnvWorkerError]:
        """Ends the workers that failed, starts new ones in their places, and returns the failures."""
        failed, self.failed = self.failed, {}
        try:
            for number in failed:
                old = self.workers[number]
                # A worker whose environment raised can still close its environments.
                self._launcher.end([old], min(FAILURE_GRACE, self.close_timeout))
                self.workers[number] = self._launcher.start(
                    number, old.rows, self.close_timeout, self.index_offset
                )
        except BaseException as error:
            self.fail(error)
            raise
        return failed

    def share(self, spaces: tuple[gym.Space, gym.Space], num_envs: int) -> messages.SharedArrays:
        """Returns the arrays of the vector, whose memory the pool owns."""
        return self._launcher.share(spaces, num_envs, len(self.workers))

    def attach(self, numbers: Iterable[int]) -> None:
        """Lets the results of workers that have made their environments reach the shared arrays."""
        for number in numbers:
            worker = self.workers[number]
            try:
                self._launcher.attach(worker)
            except messages.ChannelClosed:
                self._lose_dead(worker)
            else:
                worker.attached = True

    def request(
        self, kind: int, payloads: Mapping[int, bytes], timeout: float, setting: str
    ) -> dict[int, bytes]:
        """Sends a request to some workers, waits, and returns the payloads of their answers.

        A worker that fails has no answer, and is in ``failed``.

        Args:
            kind: of the request, from ``messages``.
            payloads: by number of the worker.
            timeout: seconds that each worker has.
            setting: the name of the setting that the timeout comes from, for messages.

        Raises:
            EnvError: if the pool is closed.
            EnvWorkerError: if a worker failed and the budget is used up; the pool is then closed.
            CheckpointError: if a worker reports it; the pool stays open.
            DingLiteError: if a worker reports an error of another kind; the pool is then closed.
        """
        return self.answers(self.send(kind, payloads, timeout, setting))

    def send(self, kind: int, payloads: Mapping[int, bytes], timeout: float, setting: str) -> Exchange:
        """Sends a :meth:`request`; :meth:`answers` waits for the answers."""
        self._check_open()
        self._seq += 1
        limit = f"within {setting}={timeout:g} s"
        deadline = time.monotonic() + timeout
        try:
            for number in payloads.keys() - self.failed.keys():
                if not self._send(self.workers[number], kind, payloads[number], deadline, limit):
                    deadline = time.monotonic() + timeout  # the failed worker has used up the others' time
        except BaseException as error:
            self._fail_if_broken(error)
            raise
        return Exchange(
            seq=self._seq,
            workers=[self.workers[number] for number in payloads],
            deadline=deadline,
            grace=min(timeout, FAILURE_GRACE),
            limit=limit,
        )

    def answers(self, exchange: Exchange) -> dict[int, bytes]:
        """Waits for the answers to an exchange. Several exchanges are answered in the order of sending."""
        self._check_open()
        try:
            return self._wait(exchange)
        except BaseException as error:
            self._fail_if_broken(error)
            raise

    def _check_open(self) -> None:
        if self.close_reason is not None:
            raise EnvError(self.close_reason)

    def _fail_if_broken(self, error: BaseException) -> None:
        fatal = isinstance(error, DingLiteError) and not isinstance(error, CheckpointError)
        # After an interrupt (KeyboardInterrupt) the pool can go on, unless a message was transferred in part.
        if fatal or self.failed or any(worker.channel.in_message for worker in self.workers):
            self.fail(error)

    def _wait(self, exchange: Exchange) -> dict[int, bytes]:
        # Workers that have failed or were replaced since the request will not answer it.
        waiting = {
            worker.channel.fileno(): worker
            for worker in exchange.workers
            if worker is self.workers[worker.number] and worker.number not in self.failed
        }
        poller = select.poll()
        for fd in waiting:
            poller.register(fd, select.POLLIN)
        deadline = max(exchange.deadline, time.monotonic() + exchange.grace)
        replies: dict[int, bytes] = {}
        checkpoint_error: CheckpointError | None = None
        while waiting:
            left = min(POLL_SECONDS, deadline - time.monotonic())
            ready = [fd for fd, worker in waiting.items() if worker.channel.received_early]
            ready = ready or [fd for fd, _ in poller.poll(max(0.0, left) * 1000)]
            for fd in ready:
                worker = waiting[fd]
                message = self._receive(worker, deadline, exchange.limit)
                if message is not None and message.seq != exchange.seq:
                    continue  # the late answer to a request that was interrupted
                del waiting[fd]
                poller.unregister(fd)
                if message is not None and message.kind == messages.OK:
                    replies[worker.number] = message.payload
                elif message is not None:
                    checkpoint_error = self._handle_report(worker, message.payload) or checkpoint_error
            if not ready:
                self._lose_silent(waiting.values(), deadline, exchange.limit)
                for fd in [fd for fd, worker in waiting.items() if worker.number in self.failed]:
                    del waiting[fd]
                    poller.unregister(fd)
        if checkpoint_error is not None:  # raised late, so that no worker's answer is left in its socket
            raise checkpoint_error
        return replies

    def _send(self, worker: Worker, kind: int, payload: bytes, deadline: float, limit: str) -> bool:
        """Sends one message and returns whether the worker is alive."""
        try:
            worker.channel.send(self._seq, kind, payload, deadline)
            return True
        except messages.ChannelClosed:
            self._lose_dead(worker)
        except messages.ChannelTimeout:
            self._lose_late(worker, limit)
        return False

    def _receive(self, worker: Worker, deadline: float, limit: str) -> messages.Message | None:
        """Returns the next message of a worker, or None if the worker has failed."""
        try:
            return worker.channel.receive(deadline)
        except messages.ChannelClosed:
            self._lose_dead(worker)
        except messages.ChannelTimeout:
            self._lose_late(worker, limit)
        return None

    def _lose_silent(self, waiting: Collection[Worker], deadline: float, limit: str) -> None:
        """Loses the workers that have died, and after the deadline all that have not answered."""
        late = time.monotonic() >= deadline
        for worker in sorted(waiting, key=lambda worker: worker.number):
            if worker.has_died():
                self._lose_dead(worker)
            elif late:
                self._lose_late(worker, limit)

    def _handle_report(self, worker: Worker, payload: bytes) -> CheckpointError | None:
        """Handles the error that a worker reports.

        Returns:
            A CheckpointError, after which the worker can go on; None if the worker has to be replaced.

        Raises:
            DingLiteError: of any other kind, because a new worker would meet it again.
        """
        error = _reported_error(worker, payload)
        if isinstance(error, CheckpointError):
            return error
        if not isinstance(error, EnvWorkerError):
            raise error
        self._lose(worker, error)
        return None

    def _lose(self, worker: Worker, failure: EnvWorkerError) -> None:
        """Marks a worker as failed; raises its failure if the budget is used up."""
        self.budget.take(failure)
        self.failed[worker.number] = failure

    def _lose_dead(self, worker: Worker) -> None:
        message = f"{worker.name} {worker.cause_of_death()}{self._where(worker)}"
        self._lose(worker, EnvWorkerError(message, worker.number, tuple(worker.rows)))

    def _lose_late(self, worker: Worker, limit: str) -> None:
        advice = worker.advice_when_late
        worker.kill()  # first, so that it no longer writes to the shared memory
        message = f"{worker.name} did not answer {limit}{self._where(worker)}. Killed; {advice}"
        self._lose(worker, EnvWorkerError(message, worker.number, tuple(worker.rows)))

    def _where(self, worker: Worker) -> str:
        locate = self._locate()
        description = locate(worker) if locate else ""
        return f", in {description}" if description else ""

    def fail(self, error: BaseException) -> None:
        """Ends all workers because of ``error``, with less time to close than ``close`` gives them."""
        first = (str(error).splitlines() or [""])[0] or type(error).__name__
        self.close_reason = f"these environments are closed after a failure: {first:.300}. Make them anew"
        if self._end.detach() is not None:
            self._launcher.close(self.workers, min(FAILURE_GRACE, self.close_timeout))

    def close(self) -> None:
        """Ends all workers in bounded time; never raises, and a second call does nothing."""
        self.close_reason = self.close_reason or CLOSED
        with contextlib.suppress(Exception):
            self._end()


def _reported_error(worker: Worker, payload: bytes) -> DingLiteError:
    """Returns the error that a worker reports: of the same kind if the library defines it."""
    report: messages.ErrorReport = pickle.loads(payload)
    kind = getattr(errors, report.kind, None)
    if kind is not None and not issubclass(EnvWorkerError, kind):
        return error_of(report)
    envs = tuple(worker.rows) if report.busy == messages.IDLE else (report.busy,)
    message = report.message if kind else f"{worker.name}: {report.message}"
    failure = EnvWorkerError(message, worker.number, envs, report.traceback)
    failure.__cause__ = WorkerTraceback(report.traceback)
    return failure


def error_of(report: messages.ErrorReport) -> DingLiteError:
    """Returns the error in a report: of the same kind if the library defines it, else an EnvError."""
    error: DingLiteError = getattr(errors, report.kind, EnvError)(report.message)
    error.__cause__ = WorkerTraceback(report.traceback)
    return error


class WorkerTraceback(Exception):
    """The cause of an error that a worker reported: the worker's own traceback, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"
