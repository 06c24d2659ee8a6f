"""``subprocess`` and ``ray``: environments stepped by workers, which are processes or Ray actors.

    with contextlib.closing(SubprocessVectorEnv(make, num_envs=8, num_workers=2)) as envs:
        obs = envs.reset("collect")
        transition = envs.step(action)

The transitions are bit for bit those of :class:`InProcessVectorEnv`, for any number of workers.

* A worker is a fresh interpreter, not a fork. It inherits no CUDA context and no lock. It does not import the
  main script again, so the script needs no ``if __name__ == "__main__"``. It receives this process's
  ``sys.path``, and ``make`` by cloudpickle.
* Every wait has a deadline. A worker that dies, hangs or whose environment raises is replaced: the steps
  since the last call are lost, its open episodes end before them, and new episodes begin. Beyond
  ``max_restarts`` the pool is closed with an error that names the worker's environments; every later call
  raises an error.
* Nothing is left behind. The memory has no name in any file system. The workers end with this process, also
  if it is killed. Worker processes need POSIX.
* An exception during a call (KeyboardInterrupt) may leave answers unread. Their sequence numbers identify
  them later, and they are dropped; ``reset`` or ``load_state_dict`` must be called next.
"""

from __future__ import annotations

import itertools
import pickle
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import gymnasium as gym
import numpy as np

from ding_lite.envs.bad_values import RAISE
from ding_lite.envs.in_process import AUTORESET
from ding_lite.envs.transition import Transition
from ding_lite.envs.vector import ALL, Status, VectorEnv, check_same_spaces
from ding_lite.envs.workers import messages
from ding_lite.envs.workers.group import Group
from ding_lite.envs.workers.launcher import Launcher, Worker
from ding_lite.envs.workers.pool import Exchange, RestartBudget, WorkerPool, error_of
from ding_lite.envs.workers.process import ProcessLauncher
from ding_lite.errors import CheckpointError, EnvError
from ding_lite.rl.seeding import integer_seed
from ding_lite.trees import Tree, leading_size, map_tree

OF_EACH_ENV = ("pending_reset", "rewards")  # arrays (B,) of the state


class SubprocessVectorEnv(VectorEnv):
    """Steps B environments in W workers; each worker has a contiguous slice of them.

    Args:
        make: makes environment number i, with an ``EpisodeRecorder`` among its wrappers. Workers call it: it
            must import the modules that register the names it looks up.
        num_envs: B.
        seed: of the run.
        autoreset, on_bad_value: as in :class:`InProcessVectorEnv`.
        num_workers: W, at most B; by default one per core, or with ``double_buffer`` one per two cores.
        step_timeout, reset_timeout, start_timeout: seconds after which a worker counts as hung.
        close_timeout: seconds that all environments together have to close.
        double_buffer: make two ``groups``: one half of the environments steps while the policy acts on the
            other half.
        max_restarts, restart_window: workers that may be replaced within so many steps of the vector.
            Environments that cannot be made at the start, or break their contract, are an error at once.
        launcher: starts the workers, only for this object; None: processes of this machine.

    Raises:
        EnvWorkerError: from any call, if a worker died, hung, or reported an exception of an environment, and
            the restarts are used up. Errors of the library's other kinds (such as ``EnvContractError``) keep
            their kind. The pool is closed.
        EnvError: if the pool is closed, or ``step`` is called before ``reset``.
    """

    def __init__(
        self,
        make: Callable[[int], gym.Env],
        num_envs: int,
        seed: int = 0,
        autoreset: str = "same_step",
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
        index_offset: int = 0,
        launcher: Launcher | None = None,
    ) -> None:
        _check_arguments(num_envs, num_workers, autoreset)
        self.num_envs = num_envs
        self.seed = seed
        self.index_offset = index_offset
        self.autoreset = autoreset
        self.has_fillers = autoreset == "next_step"
        self.on_bad_value = on_bad_value
        self.step_timeout = step_timeout
        self.reset_timeout = reset_timeout
        self.start_timeout = start_timeout
        self.close_timeout = close_timeout
        double_buffer = double_buffer and num_envs > 1
        launcher = launcher or ProcessLauncher()
        num_workers = min(num_envs, num_workers or launcher.default_workers(double_buffer))
        self.backend = f"{num_envs} environments in {num_workers} {launcher.unit[num_workers > 1]}"
        if double_buffer:
            # Every second row, so that each worker has environments of both groups.
            self.groups = (slice(0, None, 2), slice(1, None, 2))
            self.busy_cores = launcher.busy_cores(num_workers)
            self.backend += ", one half stepping while the other is acted on"
        self._stream: tuple[str | int, ...] = ()
        self._shared: messages.SharedArrays | None = None
        self._returned_steps = np.zeros(num_envs, np.int64)  # of the open episodes, that step() has returned
        # Environments that were replaced with their worker since the last transition with their row.
        self._lost = np.zeros(num_envs, bool)
        bounds = [num_envs * k // num_workers for k in range(num_workers + 1)]
        slices = [range(*pair) for pair in itertools.pairwise(bounds)]
        self._whole = Group(ALL, slices)
        self._groups = [Group(rows, slices) for rows in self.groups]
        self._in_flight: deque[tuple[Group, Exchange]] = deque()  # steps that were sent and not received
        # Pickled before any worker is started, because pickling ``make`` is what fails most often.
        self._jobs = self._pickled_jobs(make, slices)
        self._pool = WorkerPool(slices, close_timeout, self._locate, launcher, self.index_offset)
        try:
            self._shared = self._start()
        except BaseException as error:
            self._pool.fail(error)
            raise
        self._pool.budget = RestartBudget(max_restarts, restart_window)

    def _pickled_jobs(self, make: Callable[[int], gym.Env], slices: Sequence[range]) -> dict[int, bytes]:
        return {
            number: messages.Job(
                make=make,
                number=number,
                num_workers=len(slices),
                rows=rows,
                num_envs=self.num_envs,
                index_offset=self.index_offset,
                seed=self.seed,
                autoreset=self.autoreset,
                on_bad_value=self.on_bad_value,
            ).dumps()
            for number, rows in enumerate(slices)
        }

    def _start(self) -> messages.SharedArrays:
        """Lets the workers make their environments, and shares the arrays with them."""
        replies = self._pool.request(messages.START, self._jobs, self.start_timeout, "start_timeout")
        self.obs_space, self.action_space = spaces = cloudpickle.loads(replies[0])
        self._check_spaces(replies)
        shared = self._pool.share(spaces, self.num_envs)
        self._pool.attach(replies)
        return shared

    def _check_spaces(self, replies: Mapping[int, bytes]) -> None:
        expected = self.obs_space, self.action_space
        for number, reply in sorted(replies.items()):
            env = self.index_offset + self._pool.workers[number].rows[0]
            check_same_spaces(env, cloudpickle.loads(reply), self.index_offset, expected)

    # ---- the interface of every vector environment

    @property
    def episode_returns(self) -> np.ndarray:  # type: ignore[override]
        return self._open().episode_return.copy()

    @property
    def episode_lengths(self) -> np.ndarray:  # type: ignore[override]
        return self._open().length.copy()

    def reset(self, *stream: str | int) -> Tree:
        shared = self._open()
        self._stream = stream
        payloads = {
            worker.number: pickle.dumps((stream, [0] * len(worker.rows))) for worker in self._pool.workers
        }
        replies = self._request(messages.RESET, payloads, self.reset_timeout, "reset_timeout")
        self._count_bad_resets(replies)
        return shared.obs

    def step(self, action: Tree) -> Transition:
        self._begin_step(self._idle(), self._whole, action)
        return self._end_step()

    def send(self, action: Tree, group: int = 0) -> None:
        shared = self._between_steps()
        if any(sent is self._groups[group] for sent, _ in self._in_flight):
            raise self._already_sent(group)
        self._begin_step(shared, self._groups[group], action)

    def receive(self, group: int = 0) -> Transition:
        self._between_steps()
        if not self._in_flight or self._in_flight[0][0] is not self._groups[group]:
            raise self._not_sent(group)
        return self._end_step()

    def _begin_step(self, shared: messages.SharedArrays, group: Group, action: Tree) -> None:
        requests = dict(group.requests(action, shared))
        lost = group.of(self._lost)
        for worker, share in group.shares.items():
            # A transition must report the loss before the new episodes are stepped.
            if lost[share.rows].any():
                lost[share.rows] = True
                del requests[worker]
        self._pool.budget.step += group.has_first
        self._status = Status.INTERRUPTED  # until the next lines have succeeded
        exchange = self._pool.send(messages.STEP, requests, self.step_timeout, "step_timeout")
        self._in_flight.append((group, exchange))
        self._status = Status.READY

    def _end_step(self) -> Transition:
        shared = self._open()
        self._status = Status.INTERRUPTED
        group, exchange = self._in_flight.popleft()
        replies = self._pool.answers(exchange)
        self._replace_failed(self._begin_next_episodes)
        transition, bad_values = group.transition(shared, replies, group.of(self._lost))
        group.of(self._lost)[:] = False
        self._count_bad_values(bad_values)
        ended = transition.terminated | transition.truncated
        group.of(self._returned_steps)[:] = np.where(ended, 0, group.of(shared.length))
        self._status = Status.READY
        return transition

    def _count_bad_resets(self, replies: Mapping[int, bytes]) -> None:
        """Counts the first observations that were not finite, from the answers to reset requests."""
        for reply in filter(None, replies.values()):
            self._count_bad_values(pickle.loads(reply))

    def describe(self, env: int) -> str:
        if self._shared is None:
            return f"env {env}"
        episode, step = int(self._shared.episode[env]), int(self._shared.step[env])
        env += self.index_offset
        seed = integer_seed(self.seed, *self._stream, env, episode)
        return f"env {env} (seed {seed}, episode {episode}, step {step})"

    def state_dict(self) -> dict[str, Any]:
        shared = self._idle()
        payloads = {worker.number: b"" for worker in self._pool.workers}
        replies = self._request(messages.STATE, payloads, self.reset_timeout, "reset_timeout")
        parts = [pickle.loads(replies[worker.number]) for worker in self._pool.workers]
        return {
            "stream": list(self._stream),
            **{name: np.concatenate([part[name] for part in parts]) for name in OF_EACH_ENV},
            "obs": map_tree(np.copy, shared.obs),
            "envs": [env for part in parts for env in part["envs"]],
            **({"lost": self._lost.copy()} if self._lost.any() else {}),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> Tree:
        shared = self._open()
        if len(state["envs"]) != self.num_envs:
            raise CheckpointError(
                f"the state has {len(state['envs'])} environments, this run {self.num_envs}; open episodes "
                "can only be restored into the same number of environments"
            )
        self._stream = tuple(state["stream"])
        payloads = {}
        for worker in self._pool.workers:
            rows = worker.slice
            part = {
                "stream": self._stream,
                **{name: np.asarray(state[name])[rows] for name in OF_EACH_ENV if name in state},
                "obs": map_tree(lambda leaf, rows=rows: np.asarray(leaf)[rows], state["obs"]),
                "envs": list(state["envs"])[rows],
            }
            payloads[worker.number] = pickle.dumps(part, pickle.HIGHEST_PROTOCOL)
        # Each worker plays every action of its open episodes again, one environment after the other.
        records = [env["actions"] for env in state["envs"] if env["actions"] is not None]
        num_actions = sum(leading_size(actions) for actions in records)
        timeout = self.num_envs * self.reset_timeout + num_actions * self.step_timeout
        self._request(messages.LOAD, payloads, timeout, "envs * reset_timeout + actions * step_timeout")
        self._lost[:] = state.get("lost", False)
        self._returned_steps[np.asarray(state["pending_reset"])] = 0  # an episode that has ended is not open
        return shared.obs

    def _call(self, name: str, args: Sequence[Any]) -> list[Any]:
        self._open()
        if self._in_flight:
            raise self._cannot_step()

        def request(workers: Sequence[int]) -> dict[int, bytes]:
            payloads = dict.fromkeys(workers, pickle.dumps((name, args)))
            return self._pool.request(messages.CALL, payloads, self.reset_timeout, "reset_timeout")

        replies = request([worker.number for worker in self._pool.workers])

        def repeat(new: Sequence[int]) -> None:
            if self._status is not Status.NOT_RESET:
                new = self._begin_next_episodes(new)
            replies.update(request(new))

        self._replace_failed(repeat)
        results: list[Any] = []
        for _, reply in sorted(replies.items()):
            answer = cloudpickle.loads(reply)
            if isinstance(answer, messages.ErrorReport):
                raise error_of(answer)
            results += answer
        return results

    def close(self) -> None:
        self._shared = None
        self._pool.close()

    def _open(self) -> messages.SharedArrays:
        """Returns the shared arrays; raises an EnvError if the pool is closed."""
        if self._pool.close_reason is not None or self._shared is None:
            self._shared = None  # frees the memory
            raise EnvError(self._pool.close_reason)
        return self._shared

    def _idle(self) -> messages.SharedArrays:
        """Returns the shared arrays; raises an EnvError unless all environments can be stepped now."""
        shared = self._open()
        if self._status is not Status.READY or self._in_flight:
            raise self._cannot_step()
        return shared

    def _between_steps(self) -> messages.SharedArrays:
        """Returns the shared arrays; raises an EnvError unless a group can be sent or received now."""
        shared = self._open()
        whole_in_flight = bool(self._in_flight) and self._in_flight[0][0] is self._whole
        if self._status is not Status.READY or whole_in_flight:
            raise self._cannot_step()
        return shared

    def _request(
        self, kind: int, payloads: Mapping[int, bytes], timeout: float, setting: str
    ) -> dict[int, bytes]:
        """Sends a request to all workers and returns their answers; replaces the workers that fail."""
        if kind != messages.STATE:  # a state request changes nothing, so an interrupt does no harm
            self._status = Status.INTERRUPTED
            self._in_flight.clear()
        replies = self._pool.request(kind, payloads, timeout, setting)

        def repeat(new: Sequence[int]) -> None:
            """Brings new workers to the point where the failed ones would be."""
            if kind != messages.LOAD:  # the payload of LOAD says which episodes to begin
                new = self._begin_next_episodes(new)
            if kind != messages.RESET:
                again = {number: payloads[number] for number in new}
                replies.update(self._pool.request(kind, again, timeout, setting))

        self._replace_failed(repeat)
        if kind != messages.STATE:
            self._lost[:] = False
            self._returned_steps[:] = self._open().length
        self._status = Status.READY
        return replies

    def _replace_failed(self, prepare: Callable[[Sequence[int]], object]) -> None:
        """Replaces the workers that failed until ``prepare(new_numbers)`` succeeds in all new workers."""
        try:
            while self._pool.failed:
                prepare(self._replace())
        except BaseException as error:  # a new worker may not have received its job yet
            self._pool.fail(error)
            raise

    def _replace(self) -> list[int]:
        """Replaces the workers that failed, and returns the numbers of the new workers that started."""
        shared = self._open()
        failed = self._pool.replace()
        for number, failure in failed.items():
            worker = self._pool.workers[number]
            rows = worker.slice
            cut = int(self._returned_steps[rows].sum())
            shared.length[rows] = 0
            shared.episode_return[rows] = 0
            shared.busy[number] = messages.IDLE
            self._returned_steps[rows] = 0
            self._lost[rows] = True
            self.restarts += 1
            self.cut_steps += cut
            budget = self._pool.budget
            self.say(
                f"{failure}. {worker.name} is replaced, and its open episodes are cut ({cut} steps). "
                f"{budget.left} of {budget.max_restarts} restarts left"
            )
            if failure.remote_traceback:
                self.explain(failure.remote_traceback)
        jobs = {number: self._jobs[number] for number in failed}
        replies = self._pool.request(messages.START, jobs, self.start_timeout, "start_timeout")
        self._check_spaces(replies)
        self._pool.attach(replies)
        for call in self.calls.items():
            started = [number for number in replies if number not in self._pool.failed]
            payloads = dict.fromkeys(started, pickle.dumps(call))
            self._pool.request(messages.REPEAT_CALL, payloads, self.reset_timeout, "reset_timeout")
        return [number for number in replies if number not in self._pool.failed]

    def _begin_next_episodes(self, numbers: Sequence[int]) -> list[int]:
        """Begins the episodes after the open ones in these workers, because the open ones may have failed.

        Returns:
            The numbers of the workers that succeeded.
        """
        payloads = {}
        for number in numbers:
            episodes = self._open().episode[self._pool.workers[number].slice]
            episodes += 1  # also here, because a worker that fails at once has not written the new numbers
            payloads[number] = pickle.dumps((self._stream, episodes.tolist()))
        replies = self._pool.request(messages.RESET, payloads, self.reset_timeout, "reset_timeout")
        self._count_bad_resets(replies)
        return list(replies)

    def _locate(self, worker: Worker) -> str:
        """Describes the environment that a worker is calling, for messages; "" if it calls none."""
        if self._shared is None or not worker.attached:
            return "the making of its environments"
        env = int(self._shared.busy[worker.number])
        return "" if env == messages.IDLE else self.describe(env)


def _check_arguments(num_envs: int, num_workers: int | None, autoreset: str) -> None:
    if autoreset not in AUTORESET:
        raise ValueError(f"autoreset is one of {', '.join(AUTORESET)}, got {autoreset!r}")
    if num_envs < 1 or (num_workers is not None and num_workers < 1):
        raise ValueError(f"expected at least 1 environment and worker, got {num_envs} and {num_workers}")
