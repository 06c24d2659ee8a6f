"""``base``: environments stepped one after the other in this process.

Every episode has a seed of its own, from (run seed, stream, env, episode). An open episode is thus
saved as its number and its actions, and brought back by playing them again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from ding_lite.envs.spaces import ObservationBuffer, action_splitter, tree_leaves, tree_map
from ding_lite.envs.vector import NO_ENVS, VectorEnv
from ding_lite.errors import CheckpointError, DingLiteError, EnvContractError, EnvError
from ding_lite.seeding import integer_seed
from ding_lite.types import Episode, Transition, Tree

AUTORESET = ("same_step", "next_step", "disabled")


class EpisodeRecorder(gym.Wrapper):
    """The innermost wrapper: raw return and length of each full game, whatever wrappers make of it."""

    def __init__(self, env: gym.Env, info_keys: tuple[str, ...] = ()) -> None:
        super().__init__(env)
        self.info_keys = info_keys
        self.episode_return, self.length, self.ended = 0.0, 0, False
        self.finished: list[tuple[float, int, dict[str, float]]] = []

    def reset(self, **kwargs: Any) -> Any:
        if self.length and not self.ended:  # a wrapper above cut the game short
            self.finished.append((self.episode_return, self.length, {}))
        self.episode_return, self.length, self.ended = 0.0, 0, False
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        if len(result) != 5:
            raise EnvContractError(
                f"step returned {len(result)} values: this is the old gym API; gymnasium's returns "
                "(obs, reward, terminated, truncated, info). Wrap it with `shimmy` (pip install shimmy)"
            )
        _, reward, terminated, truncated, info = result
        self.episode_return += as_float(reward)
        self.length += 1
        if terminated or truncated:
            self.ended = True
            chosen = {k: float(info[k]) for k in self.info_keys if k in info}
            self.finished.append((self.episode_return, self.length, chosen))
        return result


def as_float(reward: Any) -> float:
    """Returns a reward as a float: scalars and arrays of one element.

    Raises:
        EnvContractError: for anything else.
    """
    if type(reward) is float:
        return reward
    try:
        if np.size(reward) == 1:
            return float(np.asarray(reward, np.float64).reshape(()))
    except (TypeError, ValueError):
        pass
    raise EnvContractError(f"reward must be a number, got {reward!r:.100} ({type(reward).__name__})")


def as_bool(flag: Any, name: str) -> bool:
    """Returns ``terminated`` or ``truncated`` as a bool: bools, NumPy bools, 0 and 1."""
    if flag is True or flag is False:
        return flag
    if np.size(flag) == 1 and np.asarray(flag).dtype.kind in "biu" and int(np.asarray(flag)) in (0, 1):
        return bool(flag)
    raise EnvContractError(f"{name} must be a bool, got {flag!r:.100} ({type(flag).__name__})")


class InProcessVectorEnv(VectorEnv):
    """Steps B environments in a loop.

    Args:
        make: builds environment number i, an :class:`EpisodeRecorder` somewhere inside it.
        num_envs: B.
        seed: the run's.
        autoreset: ``"next_step"`` spends a row on each reset, as gymnasium's default does; the
            other two reset at once.
        index_offset: number of the first environment where these are a part of a larger vector:
            ``make``, seeds and messages count from it, rows do not.
    """

    def __init__(
        self,
        make: Callable[[int], gym.Env],
        num_envs: int,
        seed: int = 0,
        autoreset: str = "same_step",
        index_offset: int = 0,
    ) -> None:
        if autoreset not in AUTORESET:
            raise ValueError(f"autoreset is one of {', '.join(AUTORESET)}, got {autoreset!r}")
        self.num_envs, self.seed, self.autoreset = num_envs, seed, autoreset
        self.index_offset = index_offset
        self.backend = f"{num_envs} environments in this process"
        self.envs: list[gym.Env] = []
        try:
            for i in range(num_envs):
                self.envs.append(make(index_offset + i))
            self._check_same_spaces()
        except BaseException:
            self.close()
            raise
        self.obs_space = self.envs[0].observation_space
        self.action_space = self.envs[0].action_space
        self._recorders = [_find_recorder(env) for env in self.envs]
        self._buffer = ObservationBuffer(self.obs_space, num_envs)
        self._split = action_splitter(self.action_space)
        self._stream: tuple[str | int, ...] = ()
        self._episode = [0] * num_envs  # number of the open episode
        self._actions: list[list[Any]] = [[] for _ in range(num_envs)]
        self._pending_reset = np.zeros(num_envs, bool)  # NEXT_STEP: ended in the last row

    def _check_same_spaces(self) -> None:
        first, start = self.envs[0], self.index_offset
        for i, env in enumerate(self.envs, start):
            for name in ("observation_space", "action_space"):
                if getattr(env, name) != getattr(first, name):
                    raise EnvError(
                        f"env {i} has the {name} {getattr(env, name)}, env {start} {getattr(first, name)}; "
                        "all environments of a run must have the same"
                    )

    @property
    def episode_returns(self) -> np.ndarray:  # type: ignore[override]
        return np.array([recorder.episode_return for recorder in self._recorders])

    @property
    def episode_lengths(self) -> np.ndarray:  # type: ignore[override]
        return np.array([recorder.length for recorder in self._recorders])

    def reset(self, *stream: str | int) -> Tree:
        self._stream = stream
        self._pending_reset[:] = False
        for i in range(self.num_envs):
            self._begin(i, episode=0)
            self._recorders[i].finished.clear()
        return self._buffer.tree

    def _begin(self, i: int, episode: int) -> None:
        self._episode[i] = episode
        self._actions[i] = []
        with self._blame(i):
            result = self.envs[i].reset(seed=self._episode_seed(i))
            if not (isinstance(result, tuple) and len(result) == 2):
                raise EnvContractError(
                    "reset must return (obs, info); this is the old gym API. Wrap it with `shimmy`"
                )
            self._buffer.write(i, result[0])

    def _episode_seed(self, i: int) -> int:
        return integer_seed(self.seed, *self._stream, self.index_offset + i, self._episode[i])

    def step(self, action: Tree) -> Transition:
        num_envs = self.num_envs
        reward = np.zeros(num_envs, np.float32)
        terminated, truncated = np.zeros(num_envs, bool), np.zeros(num_envs, bool)
        valid = ~self._pending_reset
        cut: list[int] = []
        final_rows: list[Tree] = []
        episodes: list[Episode] = []
        for i, one in enumerate(self._split(action)):
            if valid[i]:
                reward[i], terminated[i], cut_here = self._step_one(i, one)
                if cut_here and not terminated[i]:
                    truncated[i] = True
                    cut.append(i)
                    final_rows.append(self._buffer.rows(slice(i, i + 1)))
                ended = bool(terminated[i] or truncated[i])
                self._pending_reset[i] = ended and self.autoreset == "next_step"
                if ended and not self._pending_reset[i]:
                    self._begin(i, self._episode[i] + 1)
            else:
                self._pending_reset[i] = False
                self._begin(i, self._episode[i] + 1)
            if self._recorders[i].finished:
                episodes += [Episode(i, *one) for one in self._recorders[i].finished]
                self._recorders[i].finished.clear()
        final_obs = tree_map(lambda *rows: np.concatenate(rows), *final_rows) if cut else None
        return Transition(
            obs=self._buffer.tree,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            valid=valid,
            final_obs=final_obs,
            final_env=np.array(cut) if cut else NO_ENVS,
            episodes=episodes,
        )

    def _step_one(self, i: int, action: Any) -> tuple[float, bool, bool]:
        self._actions[i].append(action)
        try:
            obs, reward, terminated, truncated, _ = self.envs[i].step(action)
            self._buffer.write(i, obs)
            return (
                as_float(reward),
                as_bool(terminated, "terminated"),
                as_bool(truncated, "truncated"),
            )
        except Exception as error:
            raise self._blamed(i, error) from error

    def _blame(self, i: int) -> _Blame:
        return _Blame(self, i)

    def _blamed(self, i: int, error: Exception) -> EnvError:
        action = self._actions[i][-1] if self._actions[i] else "none, at reset"
        kind = type(error) if isinstance(error, EnvError) else EnvError
        said = str(error) if isinstance(error, DingLiteError) else f"{type(error).__name__}: {error}"
        return kind(f"{self.describe(i)}, action {action!r:.100}: {said}")

    def describe(self, env: int) -> str:
        return (
            f"env {self.index_offset + env} (seed {self._episode_seed(env)}, episode {self._episode[env]}, "
            f"step {len(self._actions[env])})"
        )

    def state_dict(self) -> dict[str, Any]:
        return {
            "stream": list(self._stream),
            "pending_reset": self._pending_reset.copy(),
            "obs": tree_map(np.copy, self._buffer.tree),
            "envs": [
                {"episode": episode, "actions": _stack(actions)}
                for episode, actions in zip(self._episode, self._actions, strict=True)
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> Tree:
        self._stream = tuple(state["stream"])
        self._pending_reset = np.array(state["pending_reset"], bool)
        for i, saved in enumerate(state["envs"]):
            self._begin(i, int(saved["episode"]))
            if saved["actions"] is not None:
                for action in self._split(saved["actions"]):
                    self._step_one(i, action)
            self._recorders[i].finished.clear()
        same = tree_map(np.array_equal, state["obs"], self._buffer.tree)
        if not all(tree_leaves(same)):
            raise CheckpointError(
                "the open episodes could not be brought back: played again from the same seeds and "
                "actions, the environments gave other observations. They are not deterministic"
            )
        return self._buffer.tree

    def close(self) -> None:
        for env in self.envs:
            env.close()
        self.envs = []


class _Blame:
    """Turns an exception of one environment into an EnvError that says which one, and when."""

    def __init__(self, envs: InProcessVectorEnv, index: int) -> None:
        self.envs, self.index = envs, index

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, Exception):
            raise self.envs._blamed(self.index, error) from error


def _find_recorder(env: gym.Env) -> EpisodeRecorder:
    while isinstance(env, gym.Wrapper):
        if isinstance(env, EpisodeRecorder):
            return env
        env = env.env
    raise ValueError("an environment of a vector needs an EpisodeRecorder inside")


def _stack(actions: list[Any]) -> Tree:
    """Returns single actions as one batch (n, ...); a tuple's branches are called "0", "1", ..."""
    if not actions:
        return None
    if isinstance(actions[0], dict):
        return {name: _stack([action[name] for action in actions]) for name in actions[0]}
    if isinstance(actions[0], tuple):
        return {str(k): _stack([a[k] for a in actions]) for k in range(len(actions[0]))}
    return np.array(actions)
