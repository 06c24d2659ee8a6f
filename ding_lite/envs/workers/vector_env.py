"""``subprocess`` and ``ray``: environments stepped by workers, which are processes or Ray actors.

    with contextlib.closing(SubprocessVectorEnv(make, num_envs=8, num_workers=2)) as envs:
        obs = envs.reset("collect")
        transition = envs.step(action)

The transitions are bit for bit those of :class:`InProcessVectorEnv`, for any number of workers.

* A worker is a fresh interpreter, not a fork. It inherits no CUDA context and no lock. It does not import the
  main script again, so the script needs no ``if __name__ == "__main__"``. It receives this process's
  ``sys.path``, and ``make`` by cloudpickle.
* Every wait has a deadline. A worker that dies, hangs or whose environment raises is replaced: the steps
  of the failed call are lost, its open episodes end before them, and new episodes begin. Beyond
  ``restart_share`` the failure is an error that names the worker's environments. The whole worker is
  replaced, since the state that an exception leaves is unknown; the failed episode is not repeated, since it
  may fail again.
* An exception during a call, such as KeyboardInterrupt, may leave answers unread. It therefore ends all
  workers; the next ``reset`` or ``load_state_dict`` starts new ones.
* Nothing is left behind. The memory has no name in any file system. The workers end with this process, also
  if it is killed. Worker processes need POSIX.

Shapes: B environments, W workers, G environments in a group.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, NamedTuple

import cloudpickle  # type: ignore[import-untyped]
import gymnasium as gym
import numpy as np

from ding_lite.envs.vector import ALL, NO_ENVS, NOTES, Episode, Transition, VectorEnv, common_spaces
from ding_lite.envs.workers.process import KILL_SECONDS, Processes
from ding_lite.envs.workers.shared import CLOSE_SECONDS, shared_arrays
from ding_lite.errors import EnvError, EnvWorkerError, counted
from ding_lite.trees import Tree, leading_size, map_tree

if TYPE_CHECKING:
    from ding_lite.envs.workers.process import WorkerProcess
    from ding_lite.envs.workers.ray_actors import RayActors, RayWorker

    Worker = WorkerProcess | RayWorker  # with the same six methods
    Starter = Processes | RayActors
    StepReply = tuple[Tree | None, np.ndarray, list[Episode]]  # last observations, their rows, episodes

LEAST_RESTARTS = 3  # least limit of a run; most of one worker without a step in between
START_SECONDS = 300.0  # lowest limit for making the environments of a worker; a reset may be quicker
POLL_SECONDS = 0.5  # between checks for dead workers: a dead worker's child may keep its socket open
FAILURE_GRACE = 1.0  # seconds that environments have to close after a failure


class Exchange(NamedTuple):
    """Requests that were sent and not yet answered."""

    workers: dict[int, Worker]
    deadline: float
    limit: str  # the deadline for messages, such as "within step_timeout=300 s"


class Group(NamedTuple):
    """Environments that step together: all, or every second row, so that workers have some of both halves."""

    rows: slice
    # By number of the worker: the slice of its environments, and the rows of the group that they are. Workers
    # that have no environment of the group are left out.
    shares: dict[int, tuple[slice, slice]]

    def of(self, tree: Tree) -> Tree:
        """Returns views of this group's rows of the arrays (B, ...) of a tree."""
        return map_tree(lambda leaf: leaf[self.rows], tree)


class SubprocessVectorEnv(VectorEnv):
    """Steps B environments in W workers; each worker has a contiguous slice of them.

    Args:
        make: makes environment number i, with an ``EpisodeRecorder`` among its wrappers. Workers call it: it
            must import the modules that register the names it looks up.
        num_envs: B.
        seed: of the run.
        num_workers: W, at most B; by default one per core, or with ``double_buffer`` one per two cores.
        step_timeout, reset_timeout: seconds after which a worker counts as hung. For making its environments
            the limit is ``reset_timeout``, but at least ``START_SECONDS``.
        restart_share: limit of replaced workers, as a share of the episodes so far, and at least
            ``LEAST_RESTARTS``; 0: none. Environments that cannot be made at the start, or break their
            contract, raise at once.
        index_offset, seed_every: as in :class:`InProcessVectorEnv`.
        double_buffer: make two ``groups``: one half of the environments steps while the policy acts on the
            other half.
        starter: starts the workers of this object alone; None: processes of this machine.

    Raises:
        EnvWorkerError: from any call, if a worker died, hung, or reported an exception of an environment, and
            the restarts are used up. Errors of the library's other kinds (such as ``EnvContractError``) keep
            their kind.
    """

    def __init__(
        self,
        make: Callable[[int], gym.Env],
        num_envs: int,
        seed: int = 0,
        *,
        num_workers: int | None = None,
        step_timeout: float = 300.0,
        reset_timeout: float = 300.0,
        restart_share: float = 0.0,
        double_buffer: bool = False,
        index_offset: int = 0,
        seed_every: bool = True,
        starter: Starter | None = None,
    ) -> None:
        self.num_envs = num_envs
        self.seed = seed
        self.index_offset = index_offset
        self.seed_every = self.restorable = seed_every
        self._timeouts = dict(step_timeout=step_timeout, reset_timeout=reset_timeout)
        self.restart_share = restart_share
        self.episode_lengths = np.zeros(num_envs, np.int64)
        num_groups = 1 + (double_buffer and num_envs > 1)
        self._starter = starter or Processes()
        num_workers = min(num_envs, num_workers or self._starter.default_workers(num_groups))
        bounds = [num_envs * k // num_workers for k in range(num_workers + 1)]
        self._rows = [slice(*pair) for pair in itertools.pairwise(bounds)]  # of each worker
        self._groups = [_group(ALL, self._rows)]  # the last one is the whole vector
        self.backend = f"{num_envs} environments in {counted(num_workers, self._starter.unit)}"
        if num_groups > 1:
            self._groups[:0] = [_group(slice(first, None, 2), self._rows) for first in range(2)]
            self.busy_cores = num_workers if starter is None else 0  # actors may be on other machines
            self.backend += ", one half stepping while the other is acted on"
        self.groups = tuple(group.rows for group in self._groups[:num_groups])
        self._arrays: dict[str, Tree] = {}  # none before the first start
        self._workers: list[Worker] = []  # none before the start, and after an exchange that was interrupted
        self._failed: dict[int, EnvWorkerError] = {}  # of the workers to be replaced, by their numbers
        self._rows_lost = np.zeros(num_envs, bool)  # whose worker was replaced since their last transition
        self._in_flight: deque[tuple[Group, Exchange]] = deque()  # steps that were sent and not received
        self._episodes = 0  # number of episodes that have ended
        self._in_a_row = [0] * num_workers  # failures of each worker since its last step
        # Runs once: at close(), when this object is garbage-collected, or when the interpreter exits.
        self._finalize = weakref.finalize(self, _end_all, self._workers, self._starter, os.getpid())
        try:
            # Pickled before any worker is started, because pickling ``make`` is what fails most often.
            self._jobs = [
                cloudpickle.dumps(("make", (make, rows, num_envs, seed, index_offset, seed_every)))
                for rows in self._rows
            ]
            self._make_ready()
        except BaseException:
            self.close()
            raise

    # ---- the interface of every vector environment

    def notes(self) -> dict[str, str]:
        self._is_ready, self._stream = False, NOTES
        return self._request("notes", {0: ()})[0]

    def reset(self, *stream: str | int) -> Tree:
        self._stream = stream
        arguments = {n: (stream, [0] * (rows.stop - rows.start)) for n, rows in enumerate(self._rows)}
        self._request("begin", arguments)
        return self._begun()

    def step(self, action: Tree) -> Transition:
        self.send(action, -1)
        return self.receive()

    def send(self, action: Tree, group: int = 0) -> None:
        self._check_ready()
        action = map_tree(np.asarray, action)
        requests, sent = {}, self._groups[group]
        lost = sent.of(self._rows_lost)
        for number, (envs, rows) in sent.shares.items():
            # A transition must report the loss before the new episodes are stepped.
            if lost[rows].any():
                lost[rows] = True
            else:
                part = map_tree(lambda leaf, rows=rows: leaf[rows], action)
                requests[number] = _request("step_shared", envs, part)
        with self._ending_on_error():
            exchange = self._send(requests, "step_timeout")
        self._in_flight.append((sent, exchange))

    def receive(self) -> Transition:
        sent, exchange = self._in_flight.popleft()
        with self._ending_on_error():
            replies: dict[int, StepReply | None] = self._receive(exchange)
            while self._failed:
                self._replace()
        final_obs: list[Tree] = []
        final_env, episodes = [NO_ENVS], list[Episode]()
        for number, reply in sorted(replies.items()):
            self._in_a_row[number] = 0
            if reply is not None:
                last, envs, ended = reply
                first = sent.shares[number][1].start
                episodes += [episode._replace(env=episode.env + first) for episode in ended]
                final_env.append(envs + first)
                final_obs += [] if last is None else [last]
        self._episodes += len(episodes)
        lost = sent.of(self._rows_lost)
        rows = {name: sent.of(self._arrays[name]).copy() for name in Transition._fields[1:5]}
        for array in rows.values():
            array[lost] = 0
        lost[:] = False
        self.episode_lengths[sent.rows] = sent.of(self._arrays["step"])
        return Transition(
            obs=sent.of(self._arrays["obs"]),
            **rows,
            final_obs=map_tree(lambda *leaves: np.concatenate(leaves), *final_obs) if final_obs else None,
            final_env=np.concatenate(final_env),
            episodes=episodes,
        )

    def describe(self, env: int) -> str:
        return self._description(env, int(self._arrays["episode"][env]), int(self._arrays["step"][env]))

    def state_dict(self) -> dict[str, Any]:
        self._check_ready()
        parts = self._request("state_dict", dict.fromkeys(range(len(self._rows)), ()))
        return {
            "stream": list(self._stream),
            "returns": self.episode_returns.copy(),
            "obs": map_tree(np.copy, self._arrays["obs"]),
            "envs": [env for part in parts for env in part["envs"]],
            **({"lost": self._rows_lost.copy()} if self._rows_lost.any() else {}),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> Tree:
        self._stream = tuple(state["stream"])
        whole, arguments = {name: state[name] for name in ("obs", "returns", "envs")}, {}
        for number, rows in enumerate(self._rows):
            part = map_tree(lambda leaf, rows=rows: leaf[rows], whole)
            arguments[number] = ({"stream": self._stream, **part},)
        # Each worker plays every action of its open episodes again, one environment after the other.
        records = [env["actions"] for env in state["envs"] if env["actions"] is not None]
        step, reset = (self._timeouts[name] for name in ("step_timeout", "reset_timeout"))
        timeout = self.num_envs * reset + sum(map(leading_size, records)) * step
        self._request("load_state_dict", arguments, timeout)
        obs = self._begun()
        self._rows_lost[:] = state.get("lost", False)
        return obs

    def _call(self, name: str, args: Sequence[Any]) -> list[Any]:
        results = self._request("call", dict.fromkeys(range(len(self._rows)), (name, *args)))
        return list(itertools.chain(*results))

    def close(self) -> None:
        self._is_ready, self._arrays = False, {}
        self._finalize()

    # ---- helpers of the interface

    @property
    def episode_returns(self) -> np.ndarray:  # type: ignore[override]
        return self._arrays["episode_return"]

    def _begun(self) -> Tree:
        """Returns the current observations after all environments have begun or restored their episodes."""
        self._rows_lost[:] = False
        self.episode_lengths[:] = self._arrays["step"]
        self._is_ready = True
        return self._arrays["obs"]

    # ---- workers: start, exchange, replacement

    def _make_ready(self) -> None:
        """Starts the workers if there are none, or discards the steps that were sent."""
        if not self._finalize.alive:
            raise EnvError("these environments have been closed; make them anew")
        while self._in_flight:
            self.receive()
        if not self._workers:
            with self._ending_on_error():
                for _ in self._rows:  # does not wait: all workers start at the same time
                    self._workers.append(self._starter.start())
                self._prepare(range(len(self._rows)))
                while self._failed:
                    self._replace()

    def _prepare(self, numbers: Sequence[int]) -> None:
        """Lets new workers make their environments, and repeats ``self.calls`` in them."""
        jobs = {number: self._jobs[number] for number in numbers}
        timeout = max(START_SECONDS, self._timeouts["reset_timeout"])
        replies = self._receive(self._send(jobs, "reset_timeout", timeout))
        if not self._arrays:
            (self.obs_space, self.action_space), self.action_maps = replies[0]
        spaces = [(self.index_offset + self._rows[n].start, replies[n][0]) for n in sorted(replies)]
        common_spaces([(self.index_offset, (self.obs_space, self.action_space)), *spaces])
        if not self._arrays:
            self._arrays = shared_arrays(self._starter.allocate, self.obs_space, self.num_envs)
        for name, args in self.calls.items():
            request = _request("call", name, *args)
            self._receive(self._send(dict.fromkeys(numbers, request), "reset_timeout"))

    def _request(
        self, method: str, arguments: Mapping[int, tuple[Any, ...]], timeout: float | None = None
    ) -> list[Any]:
        """Lets workers call a method, and returns their results in order; replaces the workers that fail.

        The new workers begin new episodes, and then receive the request again unless it is ``begin``.
        """
        self._make_ready()
        requests = {number: _request(method, *args) for number, args in arguments.items()}
        replies: dict[int, Any] = {}
        with self._ending_on_error():
            while requests:
                replies |= self._receive(self._send(requests, "reset_timeout", timeout))
                replaced: set[int] = set()
                while self._failed:
                    replaced |= self._failed.keys()
                    self._replace()
                requests = {n: requests[n] for n in replaced if n in requests and method != "begin"}
        return [reply for _, reply in sorted(replies.items())]

    def _send(self, requests: Mapping[int, bytes], setting: str, timeout: float | None = None) -> Exchange:
        """Sends requests, by number of the worker; workers that have failed are left out.

        Args:
            requests: by number of the worker.
            setting: name of the timeout, for messages.
            timeout: seconds that each worker has; None: the value of the setting.
        """
        timeout = timeout or self._timeouts[setting]
        workers = {}
        for number in requests.keys() - self._failed.keys():
            worker = self._workers[number]
            try:
                worker.send(requests[number])
                workers[number] = worker
            except OSError:
                self._lose(number)
        return Exchange(workers, time.monotonic() + timeout, f"within {setting}={timeout:g} s")

    def _receive(self, exchange: Exchange) -> dict[int, Any]:
        """Waits for the answers to requests and returns their results; marks workers that fail.

        Raises:
            EnvWorkerError: if a worker failed and no restart is left.
            DingLiteError: if a worker reports an error that a new worker would meet again.
        """
        replies: dict[int, Any] = {}
        # Workers that have failed or were replaced since the request will not answer it.
        waiting: dict[Any, int] = {
            worker: number
            for number, worker in exchange.workers.items()
            if worker is self._workers[number] and number not in self._failed
        }
        # The parent may begin to wait after the deadline: answers that are there already count.
        deadline = max(exchange.deadline, time.monotonic() + POLL_SECONDS)
        while waiting:
            ready: list[Any] = wait(list(waiting), min(POLL_SECONDS, max(0.0, deadline - time.monotonic())))
            for worker in ready:
                number = waiting.pop(worker)
                try:
                    succeeded, reply, arrays = pickle.loads(worker.recv())
                except (EOFError, OSError):
                    self._lose(number)
                    continue
                if arrays and self._arrays:
                    rows = self._rows[number]
                    map_tree(lambda leaf, new, r=rows: np.copyto(leaf[r], new), self._arrays, arrays)
                if succeeded:
                    replies[number] = reply
                elif isinstance(reply, EnvWorkerError):
                    self._mark_failed(number, reply)
                else:
                    raise reply
            if not ready:
                is_late = time.monotonic() >= deadline
                for worker, number in list(waiting.items()):
                    if worker.death():
                        self._lose(number)
                    elif is_late:
                        worker.end()  # first, so that it no longer writes to the shared memory
                        advice = f". Killed; {self._starter.advice}"
                        self._lose(number, f"did not answer {exchange.limit}", advice)
                    else:
                        continue
                    del waiting[worker]
        return replies

    def _name(self, number: int) -> str:
        rows = self._rows[number]
        first, last = self.index_offset + rows.start, self.index_offset + rows.stop - 1
        return f"worker {number} ({f'env {first}' if first == last else f'envs {first}-{last}'})"

    def _lose(self, number: int, what: str = "", advice: str = "") -> None:
        """Marks a worker that died, or is late, as failed, with the environment that it was calling."""
        what = what or self._workers[number].death(KILL_SECONDS) or "closed its connection"
        where = "" if self._arrays else ", while making its environments"
        if self._arrays and (called := np.flatnonzero(self._arrays["busy"][self._rows[number]])).size:
            where = f", in {self.describe(self._rows[number].start + int(called[0]))}"
        self._mark_failed(number, EnvWorkerError(f"{self._name(number)} {what}{where}{advice}"))

    def _mark_failed(self, number: int, failure: EnvWorkerError) -> None:
        """Marks a worker as failed; raises its failure if no restart is left."""
        episodes = self._episodes + self.num_envs  # with the open ones
        allowed = max(LEAST_RESTARTS, self.restart_share * episodes) if self.restart_share else 0
        if not self._arrays or not allowed:
            raise failure
        self._in_a_row[number] += 1
        restarts = self.restarts + len(self._failed)
        if restarts >= allowed or self._in_a_row[number] > LEAST_RESTARTS:
            failure.args = (
                f"{failure}. It is not replaced: {restarts} restarts in {episodes:,} episodes, "
                f"{self._in_a_row[number] - 1} of this worker without a step in between; env.manager."
                f"restart_share={self.restart_share:g} allows that share, and at least {LEAST_RESTARTS}",
            )
            raise failure
        self._failed[number] = failure

    def _replace(self) -> None:
        """Replaces the workers that failed, and begins new episodes in place of the open ones.

        New workers that also fail are marked again.
        """
        failed, self._failed = self._failed, {}
        for number, failure in failed.items():
            self._workers[number].end(FAILURE_GRACE)
            self._workers[number] = self._starter.start()
            rows = self._rows[number]
            cut = int(self.episode_lengths[rows].sum())
            self.episode_lengths[rows] = 0
            for name in ("step", "episode_return", "busy"):
                self._arrays[name][rows] = 0
            self._rows_lost[rows] = True
            self.restarts += 1
            self.say(
                f"{failure}. {self._name(number)} is replaced, and its open episodes are cut ({cut} steps): "
                f"restart {self.restarts} in {self._episodes:,} episodes"
            )
            for traceback in getattr(failure, "__notes__", ()):
                self.explain(traceback)
        self._prepare(list(failed))
        requests = {}
        for number in failed:
            episodes = self._arrays["episode"][self._rows[number]]
            episodes += 1  # also here, because a worker that fails at once has not written the new numbers
            requests[number] = _request("begin", self._stream, episodes.tolist())
        self._receive(self._send(requests, "reset_timeout"))

    @contextlib.contextmanager
    def _ending_on_error(self) -> Iterator[None]:
        """Ends all workers if an exception interrupts an exchange, because answers may be unread."""
        try:
            yield
        except BaseException:
            self._is_ready = False
            self._in_flight.clear()
            self._failed.clear()
            _end_workers(self._workers, FAILURE_GRACE)
            raise


def _group(rows: slice, workers: Sequence[slice]) -> Group:
    """Returns the group with these rows of the vector; ``workers``: the rows of each worker."""
    numbers = range(workers[-1].stop)[rows]
    shares = {}
    for number, worker in enumerate(workers):
        envs = slice((numbers.start - worker.start) % numbers.step, None, numbers.step)
        if members := range(worker.start, worker.stop)[envs]:
            first = numbers.index(members[0])
            shares[number] = envs, slice(first, first + len(members))
    return Group(rows, shares)


def _request(method: str, *arguments: Any) -> bytes:
    return pickle.dumps((method, arguments), pickle.HIGHEST_PROTOCOL)


def _end_workers(workers: list[Worker], grace: float) -> None:
    """Ends all workers in bounded time: their environments together have ``grace`` seconds to close."""
    deadline = time.monotonic() + grace
    try:
        for worker in workers:
            worker.hang_up()
        for worker in workers:
            worker.end(max(0.0, deadline - time.monotonic()))
    finally:
        for worker in workers:
            worker.end()
        workers.clear()


def _end_all(workers: list[Worker], starter: Starter, owner: int) -> None:
    if os.getpid() == owner:  # a fork inherits this function, but must not end the workers
        _end_workers(workers, CLOSE_SECONDS)
        starter.close()
