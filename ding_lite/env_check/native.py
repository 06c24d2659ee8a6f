"""A native vector environment: flags and fillers against its contract, moves against a single one's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

from ding_lite.env_check.backends import NUM_ENVS, STREAM
from ding_lite.env_check.finding import FAIL, OK, Finding
from ding_lite.env_check.playing import declared_limit, make_bare
from ding_lite.env_check.trees import draw_legal, first_difference, row_of, stack, stored
from ding_lite.envs.make import make_vector_env
from ding_lite.envs.native import NativeVectorEnv
from ding_lite.errors import DingLiteError
from ding_lite.seeding import numpy_generator
from ding_lite.types import Transition, Tree

NAME = "native vector"
TOLERANCE = (1e-4, 1e-5)  # rtol, atol: the stored float32 observation begins each step compared


def only_native(env_cfg: Mapping[str, Any]) -> bool:
    """Returns whether a config names what has no single environments: EnvPool's, or a vector of one's own."""
    kind = env_cfg["manager"]["type"]
    return bool(kind == "env_pool" or (kind == "vector" and env_cfg["type"] != "gymnasium"))


def has_native(env_cfg: Mapping[str, Any]) -> bool:
    """Returns whether there is a native vector environment, and the config lets it be used."""
    if only_native(env_cfg):
        return True
    spec = gym.registry.get(env_cfg["env_id"]) if env_cfg["type"] == "gymnasium" else None
    return bool(spec is not None and spec.vector_entry_point and not env_cfg["wrappers"])


def native_findings(env_cfg: Mapping[str, Any], seed: int, steps: int) -> Iterator[Finding]:
    """Yields one finding, if there is a native vector environment."""
    if not has_native(env_cfg):
        return
    kind = "env_pool" if env_cfg["manager"]["type"] == "env_pool" else "vector"
    cfg = {**env_cfg, "manager": {**env_cfg["manager"], "type": kind}}
    try:
        with _Dynamics(env_cfg) as dynamics:
            run = NativeRun(cfg, seed, dynamics)
            fault = run.fault(steps) or _second_run(cfg, seed, min(steps, 200))
    except (DingLiteError, OSError) as error:
        yield Finding(NAME, FAIL, str(error), "Use env.manager.type=base until this works.")
        return
    if fault:
        yield Finding(NAME, FAIL, fault, "Use env.manager.type=base, and report this to who wrote it.")
        return
    seen = f"{run.compared:,} transitions: flags, fillers and final observations are consistent; "
    seen += (
        f"all agree with the single environment's dynamics, {run.ends} terminated, {run.cuts} truncated"
        if dynamics.possible
        else "its dynamics cannot be compared (the single one has no `state` that is its observation)"
    )
    yield Finding(NAME, OK, seen)


class NativeRun:
    """Plays a native vector environment at random, and looks at every row."""

    def __init__(self, cfg: Mapping[str, Any], seed: int, dynamics: _Dynamics) -> None:
        self.cfg, self.seed, self.dynamics = cfg, seed, dynamics
        self.lengths, self.returns = np.zeros(NUM_ENVS, np.int64), np.zeros(NUM_ENVS)
        self.compared = self.ends = self.cuts = 0

    def fault(self, steps: int) -> str:
        """Returns the first thing that is wrong within ``steps`` rows, or nothing."""
        with contextlib.closing(make_vector_env(self.cfg, NUM_ENVS, self.seed)) as envs:
            mode = envs.mode if isinstance(envs, NativeVectorEnv) else AutoresetMode.NEXT_STEP
            ended = np.zeros(NUM_ENVS, bool)
            for t, before, action, got in _rows(envs, self.seed, steps):
                expected = ~ended if mode is AutoresetMode.NEXT_STEP else np.ones(NUM_ENVS, bool)
                found = self._flags(got, expected) or self._moves(before, action, got, mode, envs)
                if found:
                    return f"row {t}: {found}"
                ended = got.terminated | got.truncated
        return ""

    def _flags(self, got: Transition, expected: np.ndarray) -> str:
        filler = ~got.valid
        if (got.valid != expected).any():
            return f"valid: got {got.valid.tolist()}, expected {expected.tolist()}"
        if (got.terminated & got.truncated).any():
            return "terminated and truncated are both set"
        if (filler & ((got.reward != 0) | got.terminated | got.truncated)).any():
            return "a filler row has a reward or a flag"
        if got.final_env.tolist() != np.flatnonzero(got.truncated).tolist():
            return f"final observations of the envs {got.final_env.tolist()}, truncated are others"
        self.lengths += got.valid
        self.returns += np.where(got.valid, got.reward, 0)
        return self._episodes(got)

    def _episodes(self, got: Transition) -> str:
        ended = np.flatnonzero(got.terminated | got.truncated)
        if [one.env for one in got.episodes] != ended.tolist():
            return (
                f"finished episodes of the envs {[one.env for one in got.episodes]}, ended {ended.tolist()}"
            )
        for one in got.episodes:
            if one.length != self.lengths[one.env]:
                return f"env {one.env}: an episode of {one.length} steps, counted {self.lengths[one.env]}"
        limit = self.dynamics.limit
        for i in ended if limit is not None else ():
            if got.truncated[i] and self.lengths[i] != limit:
                return f"env {i}: truncated after {self.lengths[i]} steps, the time limit is {limit}"
        if limit is not None and (self.lengths > limit).any():
            return f"an episode is longer than the time limit of {limit} steps"
        self.compared += int(got.valid.sum())
        self.ends += int(got.terminated.sum())
        self.cuts += int(got.truncated.sum())
        self.lengths[ended], self.returns[ended] = 0, 0
        return ""

    def _moves(
        self, before: list[Tree], action: list[Any], got: Transition, mode: AutoresetMode, envs: Any
    ) -> str:
        if not self.dynamics.possible:
            return ""
        for i in np.flatnonzero(got.valid).tolist():
            after: Tree | None = row_of(got.obs, i)
            if got.truncated[i]:
                after = row_of(got.final_obs, int(np.flatnonzero(got.final_env == i)[0]))
            elif got.terminated[i] and mode is not AutoresetMode.NEXT_STEP:
                after = None  # shows the next episode already
            found = self.dynamics.difference(before[i], action[i], after, got.reward[i], got.terminated[i])
            if found:
                return f"env {i}: {found} (the other is the single environment's)"
        return ""


def _rows(envs: Any, seed: int, steps: int) -> Iterator[tuple[int, list[Tree], list[Any], Transition]]:
    rng = numpy_generator(seed, STREAM, "native")
    obs = envs.reset(STREAM)
    for t in range(steps):
        before = [row_of(obs, i) for i in range(envs.num_envs)]
        action = [draw_legal(envs.action_space, one, rng) for one in before]
        transition = envs.step(stack(envs.action_space, action))
        yield t, before, action, transition
        obs = transition.obs


def _second_run(cfg: Mapping[str, Any], seed: int, steps: int) -> str:
    """Returns the first difference between two runs of one seed."""
    with (
        contextlib.closing(make_vector_env(cfg, NUM_ENVS, seed)) as one,
        contextlib.closing(make_vector_env(cfg, NUM_ENVS, seed)) as other,
    ):
        for (t, a, _, x), (_, b, _, y) in zip(
            _rows(one, seed, steps), _rows(other, seed, steps), strict=True
        ):
            pairs = [("observation", p, q) for p, q in zip(a, b, strict=True)]
            for name, p, q in [*pairs, ("reward", x.reward, y.reward), ("valid", x.valid, y.valid)]:
                found = first_difference(p, q, name)
                if found:
                    return f"two runs of one seed differ at row {t}: {found}"
    return ""


class _Dynamics:
    """A single environment that is put into any state: where its ``state`` is what it shows."""

    def __init__(self, env_cfg: Mapping[str, Any]) -> None:
        self.env: gym.Env | None = None
        self.possible, self.limit = False, None
        if only_native(env_cfg):
            return
        self.env = make_bare(env_cfg)
        self.limit = declared_limit(self.env)
        self.raw: Any = self.env.unwrapped
        obs, _ = self.raw.reset(seed=0)
        state, shown = getattr(self.raw, "state", None), np.asarray(obs)
        if shown.dtype.kind == "f" and isinstance(state, (np.ndarray, tuple, list)):
            values = np.asarray(state)
            self.possible = values.shape == shown.shape and bool(np.allclose(values, shown, *TOLERANCE))

    def difference(self, before: Tree, action: Any, after: Tree | None, reward: Any, terminated: Any) -> str:
        """Returns how a transition differs from what the single environment does from its state."""
        self.raw.reset(seed=0)
        self.raw.state = before.astype(np.float64)
        obs, own_reward, own_terminated, _, _ = self.raw.step(action)
        if bool(own_terminated) != bool(terminated):
            return f"terminated: got {bool(terminated)}, expected {bool(own_terminated)}"
        if not np.allclose(float(own_reward), reward, *TOLERANCE):
            return f"reward: got {reward}, expected {own_reward}"
        expected = stored(self.raw.observation_space, obs)
        if after is not None and not np.allclose(after, expected, *TOLERANCE):
            return first_difference(after, expected, "observation")
        return ""

    def __enter__(self) -> _Dynamics:
        return self

    def __exit__(self, *_: object) -> None:
        if self.env is not None:
            self.env.close()
