"""``subprocess``: environments stepped by worker processes, over shared memory.

    with contextlib.closing(SubprocessVectorEnv(make, num_envs=8, num_workers=2)) as envs:
        obs = envs.reset("collect")
        transition = envs.step(action)

The transitions are bit for bit those of :class:`InProcessVectorEnv`, whatever the number of workers.

* A worker is a fresh interpreter, not a fork: no CUDA context or lock is inherited, and the main script
  is not imported again, so it needs no ``if __name__ == "__main__"``. It gets this process's
  ``sys.path`` and the factory by cloudpickle.
* Every wait is bounded. A worker that dies, hangs or whose environment raises is replaced: what its
  environments did since the last step is lost, their open episodes end before it, and new ones begin.
  Past ``max_restarts`` it ends the pool with an error that says which environments it had; every later
  call says that the pool is closed.
* Nothing is left behind. The memory has no name in any file system; the workers end when this process
  does, however it dies. It needs POSIX.
* A call broken by an exception (KeyboardInterrupt) leaves answers on their way: they are dropped by
  their sequence number, and ``reset`` or ``load_state_dict`` must come next.
"""

from __future__ import annotations

import itertools
import mmap
import pickle
import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import gymnasium as gym
import numpy as np

from ding_lite.envs import wire
from ding_lite.envs.finite import RAISE
from ding_lite.envs.group import Group
from ding_lite.envs.in_process import AUTORESET
from ding_lite.envs.spaces import tree_leaves, tree_map
from ding_lite.envs.vector import ALL, STEP_SENT, VectorEnv
from ding_lite.envs.worker_pool import Exchange, RestartBudget, WorkerPool
from ding_lite.envs.worker_process import WorkerProcess, default_workers
from ding_lite.errors import CheckpointError, EnvError
from ding_lite.seeding import integer_seed
from ding_lite.types import Transition, Tree

# Why step cannot be called, where a call was not ended.
BROKEN_OFF = "the last call failed or was interrupted: what it changed is lost"


class SubprocessVectorEnv(VectorEnv):
    """Steps B environments in W processes, a contiguous slice in each.

    Args:
        make: builds environment number i, an ``EpisodeRecorder`` somewhere inside it. It is called in a
            worker: modules that register what it looks up by name must be imported by it.
        num_envs: B.
        seed: the run's.
        autoreset, final_of_terminated, on_bad_value: as in :class:`InProcessVectorEnv`.
        num_workers: W, at most B; by default one for each core, for every two with ``double_buffer``.
        step_timeout, reset_timeout, start_timeout: seconds after which a worker counts as hanging.
        close_timeout: seconds that the environments have to close, all together.
        double_buffer: step one half of the environments while the other half is acted on: two ``groups``.
        max_restarts, restart_window: how many workers are replaced within any so many steps. Environments
            that cannot be made at first, or break their contract, are an error at once.

    Raises:
        EnvWorkerError: from any call, if a worker died, hung or met an exception of an environment once too
            often. Errors of the library's own kinds (such as ``EnvContractError``) keep their kind. The pool
            is closed.
        EnvError: if the pool is closed, or ``step`` is called before ``reset``.
    """

    def __init__(
        self,
        make: Callable[[int], gym.Env],
        num_envs: int,
        seed: int = 0,
        autoreset: str = "same_step",
        final_of_terminated: bool = False,
        *,
        num_workers: int | None = None,
        step_timeout: float = 300.0,
        reset_timeout: float = 300.0,
        start_timeout: float = 300.0,
        close_timeout: float = 5.0,
        max_restarts: int = 0,
        restart_window: int = 100_000,
        on_bad_value: str = RAISE,
        double_buffer: bool = False,
    ) -> None:
        if autoreset not in AUTORESET:
            raise ValueError(f"autoreset is one of {', '.join(AUTORESET)}, got {autoreset!r}")
        if num_envs < 1 or (num_workers is not None and num_workers < 1):
            raise ValueError(f"expected at least 1 environment and worker, got {num_envs} and {num_workers}")
        if not hasattr(socket, "send_fds"):
            raise EnvError("worker processes need POSIX (Linux, macOS); set env.manager.type='base'")
        self.num_envs, self.seed = num_envs, seed
        self.autoreset, self.has_fillers = autoreset, autoreset == "next_step"
        self.final_of_terminated, self.on_bad_value = final_of_terminated, on_bad_value
        self.step_timeout, self.reset_timeout, self.start_timeout = step_timeout, reset_timeout, start_timeout
        self.close_timeout = close_timeout
        double_buffer = double_buffer and num_envs > 1
        num_workers = min(num_envs, num_workers or default_workers(double_buffer))
        plural = "es" if num_workers > 1 else ""
        self.backend = f"{num_envs} environments in {num_workers} worker process{plural}"
        if double_buffer:
            # Every second one, so that each worker has some of both.
            self.groups, self.busy_cores = (slice(0, None, 2), slice(1, None, 2)), num_workers
            self.backend += ", one half stepping while the other is acted on"
        self._stream: tuple[str | int, ...] = ()
        self._shared: wire.SharedArrays | None = None
        self._shown = np.zeros(num_envs, np.int64)  # steps of the open episodes that step() has returned
        self._lost = np.zeros(num_envs, bool)  # replaced with their worker, which step() has not said yet
        bounds = [num_envs * k // num_workers for k in range(num_workers + 1)]
        slices = [range(*pair) for pair in itertools.pairwise(bounds)]
        self._whole = Group(ALL, slices)
        self._groups = [Group(rows, slices) for rows in self.groups]
        self._in_flight: deque[tuple[Group, Exchange]] = deque()  # steps on their way
        # Pickled before anything is started: this is what fails most often.
        run = (num_envs, seed, autoreset, final_of_terminated, on_bad_value)
        self._jobs = {k: wire.Job(make, k, num_workers, rows, *run).dumps() for k, rows in enumerate(slices)}
        self._pool = WorkerPool(slices, close_timeout, self._locate)
        try:
            self._shared = self._start()
        except BaseException as error:
            self._pool.fail(error)
            raise
        self._pool.budget = RestartBudget(max_restarts, restart_window)

    def _start(self) -> wire.SharedArrays:
        replies = self._pool.request(wire.START, self._jobs, self.start_timeout, "start_timeout")
        self.obs_space, self.action_space = spaces = cloudpickle.loads(replies[0])
        self._check_spaces(replies)
        size = wire.SharedArrays(None, spaces, self.num_envs, len(replies)).size
        memory = mmap.mmap(self._pool.share(size), size)
        self._pool.attach(replies)
        return wire.SharedArrays(memory, spaces, self.num_envs, len(replies))

    def _check_spaces(self, replies: Mapping[int, bytes]) -> None:
        expected = {"observation_space": self.obs_space, "action_space": self.action_space}
        for number, reply in sorted(replies.items()):
            for (name, first), space in zip(expected.items(), cloudpickle.loads(reply), strict=True):
                if space != first:
                    raise EnvError(
                        f"env {self._pool.workers[number].rows[0]} has the {name} {space}, env 0 {first}; "
                        "all environments of a run must have the same"
                    )

    # ---- the face of every vector environment

    @property
    def episode_returns(self) -> np.ndarray:  # type: ignore[override]
        return self._open().episode_return.copy()

    @property
    def episode_lengths(self) -> np.ndarray:  # type: ignore[override]
        return self._open().length.copy()

    def reset(self, *stream: str | int) -> Tree:
        shared = self._open()
        self._stream = stream
        payloads = {w.number: pickle.dumps((stream, [0] * len(w.rows))) for w in self._pool.workers}
        self._count_in(self._request(wire.RESET, payloads, self.reset_timeout, "reset_timeout"))
        return shared.obs

    def step(self, action: Tree) -> Transition:
        self._begin_step(self._ready(), self._whole, action)
        return self._end_step()

    def send(self, action: Tree, group: int = 0) -> None:
        shared = self._ready(step_sent=True)
        if any(sent is self._groups[group] for sent, _ in self._in_flight):
            raise self._sent_already(group)
        self._begin_step(shared, self._groups[group], action)

    def receive(self, group: int = 0) -> Transition:
        self._ready(step_sent=True)
        if not self._in_flight or self._in_flight[0][0] is not self._groups[group]:
            raise self._sent_nothing(group)
        return self._end_step()

    def _begin_step(self, shared: wire.SharedArrays, group: Group, action: Tree) -> None:
        messages, lost = dict(group.messages(action, shared)), group.of(self._lost)
        for worker, (_, rows) in group.shares.items():
            if lost[rows].any():  # they show that they were lost first, and are not stepped before
                lost[rows] = True
                del messages[worker]
        self._pool.budget.step += group.is_first
        self._lacking = BROKEN_OFF
        exchange = self._pool.send(wire.STEP, messages, self.step_timeout, "step_timeout")
        self._in_flight.append((group, exchange))
        self._lacking = ""

    def _end_step(self) -> Transition:
        shared, self._lacking = self._open(), BROKEN_OFF
        group, exchange = self._in_flight.popleft()
        replies = self._pool.answers(exchange)
        self._replace_failed(self._begin_next)
        transition, found = group.transition(shared, replies, group.of(self._lost))
        group.of(self._lost)[:] = False
        self._count_bad(found)
        ended = transition.terminated | transition.truncated
        group.of(self._shown)[:] = np.where(ended, 0, group.of(shared.length))
        self._lacking = ""
        return transition

    def _count_in(self, resets: Mapping[int, bytes]) -> None:
        for reply in filter(None, resets.values()):
            self._count_bad(pickle.loads(reply))

    def describe(self, env: int) -> str:
        if self._shared is None:
            return f"env {env}"
        episode, step = int(self._shared.episode[env]), int(self._shared.step[env])
        seed = integer_seed(self.seed, *self._stream, env, episode)
        return f"env {env} (seed {seed}, episode {episode}, step {step})"

    def state_dict(self) -> dict[str, Any]:
        shared = self._ready()
        payloads = {worker.number: b"" for worker in self._pool.workers}
        replies = self._request(wire.STATE, payloads, self.reset_timeout, "reset_timeout")
        parts = [pickle.loads(replies[worker.number]) for worker in self._pool.workers]
        return {
            "stream": list(self._stream),
            "pending_reset": np.concatenate([part["pending_reset"] for part in parts]),
            "obs": tree_map(np.copy, shared.obs),
            "envs": [one for part in parts for one in part["envs"]],
            **({"lost": self._lost.copy()} if self._lost.any() else {}),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> Tree:
        shared = self._open()
        if len(state["envs"]) != self.num_envs:
            raise CheckpointError(
                f"the state is of {len(state['envs'])} environments, these are {self.num_envs}; "
                "open episodes can only be brought back into as many"
            )
        self._stream = tuple(state["stream"])
        payloads = {}
        for worker in self._pool.workers:
            rows = worker.slice
            part = {
                "stream": self._stream,
                "pending_reset": np.asarray(state["pending_reset"])[rows],
                "obs": tree_map(lambda leaf, rows=rows: np.asarray(leaf)[rows], state["obs"]),
                "envs": list(state["envs"])[rows],
            }
            payloads[worker.number] = pickle.dumps(part, pickle.HIGHEST_PROTOCOL)
        # Every action of the open episodes is played again, in each worker one env after the other.
        records = [one["actions"] for one in state["envs"] if one["actions"] is not None]
        played = sum(len(tree_leaves(actions)[0]) for actions in records)
        allowed = self.num_envs * self.reset_timeout + played * self.step_timeout
        self._request(wire.LOAD, payloads, allowed, "envs * reset_timeout + actions * step_timeout")
        self._lost[:] = state.get("lost", False)
        self._shown[np.asarray(state["pending_reset"])] = 0  # an episode that has ended is not open
        return shared.obs

    def close(self) -> None:
        self._shared = None
        self._pool.close()

    def _open(self) -> wire.SharedArrays:
        """Returns the shared arrays; raises if the pool is closed."""
        if self._pool.closed or self._shared is None:
            self._shared = None  # frees the memory
            raise EnvError(self._pool.closed)
        return self._shared

    def _ready(self, *, step_sent: bool = False) -> wire.SharedArrays:
        """Returns the shared arrays; raises if nothing can be stepped, or, but for ``step_sent``, is now."""
        shared, lacking = self._open(), self._lacking
        if self._in_flight and (not step_sent or self._in_flight[0][0] is self._whole):
            lacking = lacking or STEP_SENT
        if lacking:
            raise self._cannot_step(lacking)
        return shared

    def _request(
        self, kind: int, payloads: Mapping[int, bytes], timeout: float, limit: str
    ) -> dict[int, bytes]:
        """Asks all workers; those that fail are replaced, and the new ones asked."""
        if kind != wire.STATE:  # which changes nothing, so that it may be interrupted
            self._lacking = BROKEN_OFF
            self._in_flight.clear()
        replies = self._pool.request(kind, payloads, timeout, limit)

        def ask(new: Sequence[int]) -> None:
            if kind != wire.LOAD:  # which says itself where to begin
                new = self._begin_next(new)
            if kind != wire.RESET:
                again = {number: payloads[number] for number in new}
                replies.update(self._pool.request(kind, again, timeout, limit))

        self._replace_failed(ask)
        if kind != wire.STATE:
            self._lost[:] = False
            self._shown[:] = self._open().length
        self._lacking = ""
        return replies

    def _replace_failed(self, ask: Callable[[Sequence[int]], object]) -> None:
        """Puts new workers in the places of those that failed, until ``ask`` has found them all well."""
        try:
            while self._pool.failed:
                ask(self._replace())
        except BaseException as error:  # a new worker may not even have been told what to make
            self._pool.fail(error)
            raise

    def _replace(self) -> list[int]:
        """Puts new workers in the places of those that failed, and returns the numbers of the sound ones."""
        shared = self._open()
        failed = self._pool.replace()
        for number, failure in failed.items():
            worker = self._pool.workers[number]
            cut = int(self._shown[worker.slice].sum())
            shared.length[worker.slice] = shared.episode_return[worker.slice] = 0
            self._shown[worker.slice] = 0
            shared.busy[number] = wire.IDLE
            self._lost[worker.slice] = True
            self.restarts += 1
            self.cut_steps += cut
            self.say(
                f"{failure}. {worker.name} is replaced, and its open episodes are cut ({cut} steps). "
                f"{self._pool.budget.left} of {self._pool.budget.most} restarts left"
            )
            self.explain(failure.remote_traceback)
        jobs = {number: self._jobs[number] for number in failed}
        replies = self._pool.request(wire.START, jobs, self.start_timeout, "start_timeout")
        self._check_spaces(replies)
        self._pool.attach(replies)
        return [number for number in replies if number not in self._pool.failed]

    def _begin_next(self, numbers: Sequence[int]) -> list[int]:
        """Begins new episodes in these workers, never the ones that failed; returns where it did."""
        episodes = {k: self._open().episode[self._pool.workers[k].slice] + 1 for k in numbers}
        payloads = {k: pickle.dumps((self._stream, own.tolist())) for k, own in episodes.items()}
        replies = self._pool.request(wire.RESET, payloads, self.reset_timeout, "reset_timeout")
        self._count_in(replies)
        return list(replies)

    def _locate(self, worker: WorkerProcess) -> tuple[int, str]:
        """Returns the environment that a worker is calling now, for messages."""
        if self._shared is None or not worker.attached:
            return wire.IDLE, "the making of its environments"
        env = int(self._shared.busy[worker.number])
        return env, "" if env == wire.IDLE else self.describe(env)
