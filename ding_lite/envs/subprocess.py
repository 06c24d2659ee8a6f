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
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import gymnasium as gym
import numpy as np

from ding_lite.envs import wire
from ding_lite.envs.finite import RAISE
from ding_lite.envs.in_process import AUTORESET
from ding_lite.envs.spaces import fits, tree_leaves, tree_map
from ding_lite.envs.vector import NO_ENVS, VectorEnv
from ding_lite.envs.worker_pool import RestartBudget, WorkerPool
from ding_lite.envs.worker_process import WorkerProcess, cores
from ding_lite.errors import CheckpointError, EnvError
from ding_lite.seeding import integer_seed
from ding_lite.types import Episode, Transition, Tree


class SubprocessVectorEnv(VectorEnv):
    """Steps B environments in W processes, a contiguous slice in each.

    Args:
        make: builds environment number i, an ``EpisodeRecorder`` somewhere inside it. It is called in a
            worker: modules that register what it looks up by name must be imported by it.
        num_envs: B.
        seed: the run's.
        autoreset, final_of_terminated, on_bad_value: as in :class:`InProcessVectorEnv`.
        num_workers: W, at most B; by default as many as there are cores for this process.
        step_timeout, reset_timeout, start_timeout: seconds after which a worker counts as hanging.
        close_timeout: seconds that the environments have to close, all together.
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
    ) -> None:
        if autoreset not in AUTORESET:
            raise ValueError(f"autoreset is one of {', '.join(AUTORESET)}, got {autoreset!r}")
        if num_envs < 1 or (num_workers is not None and num_workers < 1):
            raise ValueError(f"expected at least 1 environment and worker, got {num_envs} and {num_workers}")
        if not hasattr(socket, "send_fds"):
            raise EnvError("worker processes need POSIX (Linux, macOS); set env.manager.type='base'")
        self.num_envs, self.seed, self.autoreset = num_envs, seed, autoreset
        self.final_of_terminated, self.on_bad_value = final_of_terminated, on_bad_value
        self.step_timeout, self.reset_timeout, self.start_timeout = step_timeout, reset_timeout, start_timeout
        self.close_timeout = close_timeout
        num_workers = min(num_envs, num_workers or cores())
        plural = "es" if num_workers > 1 else ""
        self.backend = f"{num_envs} environments in {num_workers} worker process{plural}"
        self._stream: tuple[str | int, ...] = ()
        self._lacking = "these environments have not been reset yet"  # why step cannot be called; or ""
        self._shared: wire.SharedArrays | None = None
        self._no_payloads = dict.fromkeys(range(num_workers), b"")
        bounds = [num_envs * k // num_workers for k in range(num_workers + 1)]
        slices = [range(*pair) for pair in itertools.pairwise(bounds)]
        # Pickled before anything is started: this is what fails most often.
        self._jobs = {k: self._job(make, k, num_workers, rows) for k, rows in enumerate(slices)}
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

    def _job(self, make: Callable[[int], gym.Env], number: int, num_workers: int, rows: range) -> bytes:
        modes = (self.autoreset, self.final_of_terminated, self.on_bad_value)
        job = wire.Job(make, number, num_workers, rows, self.num_envs, self.seed, *modes)
        try:
            return cloudpickle.dumps(job)
        except Exception as error:
            raise EnvError(
                f"the factory of the environments cannot be sent to a worker process: {error}. "
                "Let it be a module's function of plain arguments, or set env.manager.type='base'"
            ) from error

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
        shared = self._open()
        self._check_ready()
        payloads = self._hand_over(action, shared)
        self._pool.budget.step += 1
        replies = self._request(wire.STEP, payloads, self.step_timeout, "step_timeout")
        if len(replies) < len(payloads):
            self._leave_out([w.rows for w in self._pool.workers if w.number not in replies])
        final_obs, final_env, episodes, spoiled = self._rare(replies)
        return Transition(
            obs=shared.obs,
            reward=shared.reward.copy(),
            terminated=shared.terminated.copy(),
            truncated=shared.truncated.copy(),
            valid=shared.valid.copy(),
            final_obs=final_obs,
            final_env=final_env,
            episodes=episodes,
            spoiled=spoiled,
        )

    def _hand_over(self, action: Tree, shared: wire.SharedArrays) -> Mapping[int, bytes]:
        """Puts a batch of actions where the workers look, or, if it does not fit, into the messages.

        Environments get exactly what they would get in this process: a batch of another dtype than the
        action space's is not cast.
        """
        if shared.action is not None and fits(action, shared.action):
            tree_map(np.copyto, shared.action, action)
            return self._no_payloads
        action = tree_map(np.asarray, action)
        counts = {len(leaf) if leaf.ndim else 0 for leaf in tree_leaves(action)}
        if counts != {self.num_envs}:
            raise EnvError(f"step got {sorted(counts)} actions for {self.num_envs} environments")
        parts = {w.number: tree_map(lambda leaf, w=w: leaf[w.slice], action) for w in self._pool.workers}
        return {number: pickle.dumps(part, pickle.HIGHEST_PROTOCOL) for number, part in parts.items()}

    def _rare(self, replies: Mapping[int, bytes]) -> tuple[Tree | None, np.ndarray, list[Episode], list[int]]:
        """Returns final_obs, final_env, episodes and spoiled, out of the few answers that have any."""
        rows: list[Tree] = []
        envs: list[np.ndarray] = []
        episodes: list[Episode] = []
        spoiled: list[int] = []
        for worker in self._pool.workers:
            if reply := replies.get(worker.number):
                final_obs, final_env, ended, spoiled_there, bad = pickle.loads(reply)
                start = worker.rows.start
                episodes += [one._replace(env=one.env + start) for one in ended]
                spoiled += [env + start for env in spoiled_there]
                self._count_bad(bad)
                if final_obs is not None:
                    rows.append(final_obs)
                    envs.append(final_env + start)
        if not rows:
            return None, NO_ENVS, episodes, spoiled
        return tree_map(lambda *parts: np.concatenate(parts), *rows), np.concatenate(envs), episodes, spoiled

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
        shared = self._open()
        self._check_ready()
        replies = self._request(wire.STATE, self._no_payloads, self.reset_timeout, "reset_timeout")
        parts = [pickle.loads(replies[worker.number]) for worker in self._pool.workers]
        return {
            "stream": list(self._stream),
            "pending_reset": np.concatenate([part["pending_reset"] for part in parts]),
            "obs": tree_map(np.copy, shared.obs),
            "envs": [one for part in parts for one in part["envs"]],
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

    def _check_ready(self) -> None:
        if self._lacking:
            raise EnvError(f"{self._lacking}: reset() or load_state_dict() must be called first")

    def _request(
        self, kind: int, payloads: Mapping[int, bytes], timeout: float, limit: str
    ) -> dict[int, bytes]:
        """Asks all workers; those that fail are replaced, and the new ones asked, except for a step."""
        if kind != wire.STATE:  # which changes nothing, so that it may be interrupted
            self._lacking = "the last call failed or was interrupted: what it changed is lost"
        replies = self._pool.request(kind, payloads, timeout, limit)
        try:
            while self._pool.failed:
                new = self._replace()
                if kind != wire.LOAD:  # which says itself where to begin
                    new = self._begin_next(new)
                if kind in (wire.LOAD, wire.STATE):
                    replies |= self._pool.request(kind, {k: payloads[k] for k in new}, timeout, limit)
        except BaseException as error:  # a new worker may not even have been told what to make
            self._pool.fail(error)
            raise
        self._lacking = ""
        return replies

    def _replace(self) -> list[int]:
        """Puts new workers in the places of those that failed, and returns the numbers of the sound ones."""
        shared = self._open()
        failed = self._pool.replace()
        for number, failure in failed.items():
            worker = self._pool.workers[number]
            # Where the last row ended an episode, none was open.
            ended = (shared.terminated | shared.truncated)[worker.slice]
            cut = int(np.where(ended, 0, shared.length[worker.slice]).sum())
            shared.length[worker.slice] = shared.episode_return[worker.slice] = 0
            shared.busy[number] = wire.IDLE
            self.restarts += 1
            self.cut_steps += cut
            self.say(
                f"{failure}. {worker.name} is replaced, and its open episodes are cut ({cut} steps). "
                f"{self._pool.budget.left} of {self._pool.budget.most} restarts left"
            )
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

    def _leave_out(self, lost: list[range]) -> None:
        """Marks the rows of workers that were lost in this step."""
        shared = self._open()
        for rows in lost:
            own = slice(rows.start, rows.stop)
            shared.reward[own] = 0
            shared.terminated[own] = shared.truncated[own] = shared.valid[own] = False

    def _locate(self, worker: WorkerProcess) -> tuple[int, str]:
        """Returns the environment that a worker is calling now, for messages."""
        if self._shared is None or not worker.attached:
            return wire.IDLE, "the making of its environments"
        env = int(self._shared.busy[worker.number])
        return env, "" if env == wire.IDLE else self.describe(env)
