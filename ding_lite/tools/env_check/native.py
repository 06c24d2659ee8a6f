"""Checks a native vector environment: its flags, its filler rows, and its dynamics."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

from ding_lite.envs.make import make_vector_env, native_entry_point
from ding_lite.envs.native import NativeVectorEnv
from ding_lite.envs.vector import Transition
from ding_lite.errors import DingLiteError
from ding_lite.rl.seeding import numpy_generator
from ding_lite.tools.env_check.backends import NUM_ENVS, STREAM
from ding_lite.tools.env_check.finding import FAIL, OK, Finding
from ding_lite.tools.env_check.playing import declared_limit, make_bare
from ding_lite.tools.env_check.trees import draw_legal, first_difference, row_of, stack, stored
from ding_lite.trees import Tree

NAME = "native vector"
TOLERANCE = (1e-4, 1e-5)  # rtol, atol; each compared step starts from the observation in float32


def only_native(env_cfg: Mapping[str, Any]) -> bool:
    """Returns whether there is no single environment: for EnvPool, and for a custom vector environment."""
    kind = env_cfg["manager"]["type"]
    return bool(kind == "env_pool" or (kind == "vector" and env_cfg["type"] != "gymnasium"))


def native_findings(env_cfg: Mapping[str, Any], seed: int, steps: int) -> Iterator[Finding]:
    """Yields one finding, if there is a native vector environment."""
    if not (only_native(env_cfg) or native_entry_point(env_cfg)):
        return
    kind = "env_pool" if env_cfg["manager"]["type"] == "env_pool" else "vector"
    cfg = {**env_cfg, "manager": {**env_cfg["manager"], "type": kind}}
    try:
        with _Dynamics(env_cfg) as dynamics:
            run = NativeRun(cfg, seed, dynamics)
            fault = run.first_fault(steps) or _seed_fault(cfg, seed, min(steps, 200))
    except (DingLiteError, OSError) as error:
        yield Finding(NAME, FAIL, str(error), "Use env.manager.type=base until this works.")
        return
    if fault:
        yield Finding(
            NAME,
            FAIL,
            fault,
            "Use env.manager.type=base, and report this to the author of the vector environment.",
        )
        return
    if dynamics.possible:
        compared = (
            f"all agree with the single environment's dynamics, {run.ends} terminated, {run.cuts} truncated"
        )
    else:
        compared = "its dynamics cannot be compared (no single environment whose `state` is its observation)"
    seen = f"{run.compared:,} transitions: flags, fillers and final observations are consistent; {compared}"
    yield Finding(NAME, OK, seen)


class NativeRun:
    """Plays a native vector environment with random actions, and checks every row.

    Attributes:
        lengths: of the open episode of each environment.
        compared, ends, cuts: numbers of valid rows, of terminated and of truncated ones.
    """

    def __init__(self, cfg: Mapping[str, Any], seed: int, dynamics: _Dynamics) -> None:
        self.cfg = cfg
        self.seed = seed
        self.dynamics = dynamics
        self.lengths = np.zeros(NUM_ENVS, np.int64)
        self.compared = 0
        self.ends = 0
        self.cuts = 0

    def first_fault(self, steps: int) -> str:
        """Plays ``steps`` rows and returns the first fault as text, or ""."""
        with contextlib.closing(make_vector_env(self.cfg, NUM_ENVS, self.seed)) as envs:
            mode = envs.mode if isinstance(envs, NativeVectorEnv) else AutoresetMode.NEXT_STEP
            ended = np.zeros(NUM_ENVS, bool)
            for t, before, action, got in _rows(envs, self.seed, steps):
                expected = ~ended if mode is AutoresetMode.NEXT_STEP else np.ones(NUM_ENVS, bool)
                fault = self._flag_fault(got, expected) or self._dynamics_fault(before, action, got, mode)
                if fault:
                    return f"row {t}: {fault}"
                ended = got.terminated | got.truncated
        return ""

    def _flag_fault(self, got: Transition, expected: np.ndarray) -> str:
        """Checks the flags of one row; ``expected`` are the expected values of ``valid``."""
        filler = ~got.valid
        if (got.valid != expected).any():
            return f"valid: got {got.valid.tolist()}, expected {expected.tolist()}"
        if (got.terminated & got.truncated).any():
            return "terminated and truncated are both set"
        if (filler & ((got.reward != 0) | got.terminated | got.truncated)).any():
            return "a filler row has a reward or a flag"
        if got.final_env.tolist() != np.flatnonzero(got.truncated).tolist():
            truncated = np.flatnonzero(got.truncated).tolist()
            return f"final observations of the envs {got.final_env.tolist()}, truncated are {truncated}"
        self.lengths += got.valid
        return self._episode_fault(got)

    def _episode_fault(self, got: Transition) -> str:
        """Checks the finished episodes of one row, and the time limit."""
        ended = np.flatnonzero(got.terminated | got.truncated)
        finished = [episode.env for episode in got.episodes]
        if finished != ended.tolist():
            return f"finished episodes of the envs {finished}, ended are {ended.tolist()}"
        for episode in got.episodes:
            counted = self.lengths[episode.env]
            if episode.length != counted:
                return f"env {episode.env}: an episode of {episode.length} steps, counted {counted}"
        limit = self.dynamics.limit
        for i in ended if limit is not None else ():
            if got.truncated[i] and self.lengths[i] != limit:
                return f"env {i}: truncated after {self.lengths[i]} steps, the time limit is {limit}"
        if limit is not None and (self.lengths > limit).any():
            return f"an episode is longer than the time limit of {limit} steps"
        self.compared += int(got.valid.sum())
        self.ends += int(got.terminated.sum())
        self.cuts += int(got.truncated.sum())
        self.lengths[ended] = 0
        return ""

    def _dynamics_fault(
        self, before: list[Tree], action: list[Any], got: Transition, mode: AutoresetMode
    ) -> str:
        """Compares the valid transitions of one row with the single environment's dynamics."""
        if not self.dynamics.possible:
            return ""
        for i in np.flatnonzero(got.valid).tolist():
            after: Tree | None = row_of(got.obs, i)
            if got.truncated[i]:
                after = row_of(got.final_obs, int(np.flatnonzero(got.final_env == i)[0]))
            elif got.terminated[i] and mode is not AutoresetMode.NEXT_STEP:
                after = None  # the observation is that of the next episode
            fault = self.dynamics.difference(before[i], action[i], after, got.reward[i], got.terminated[i])
            if fault:
                return f"env {i}: {fault} (expected: the single environment's)"
        return ""


def _rows(envs: Any, seed: int, steps: int) -> Iterator[tuple[int, list[Tree], list[Any], Transition]]:
    """Plays random actions and yields ``(row, observations before, actions, transition)``."""
    rng = numpy_generator(seed, STREAM, "native")
    obs = envs.reset(STREAM)
    for t in range(steps):
        before = [row_of(obs, i) for i in range(envs.num_envs)]
        action = [draw_legal(envs.action_space, obs_of_env, rng) for obs_of_env in before]
        transition = envs.step(stack(envs.action_space, action))
        yield t, before, action, transition
        obs = transition.obs


def _seed_fault(cfg: Mapping[str, Any], seed: int, steps: int) -> str:
    """Returns the first difference between two runs with the same seed as text, or ""."""
    with (
        contextlib.closing(make_vector_env(cfg, NUM_ENVS, seed)) as one,
        contextlib.closing(make_vector_env(cfg, NUM_ENVS, seed)) as other,
    ):
        rows = zip(_rows(one, seed, steps), _rows(other, seed, steps), strict=True)
        for (t, obs, _, transition), (_, other_obs, _, other_transition) in rows:
            pairs: list[tuple[str, Any, Any]] = [
                *(("observation", a, b) for a, b in zip(obs, other_obs, strict=True)),
                ("reward", transition.reward, other_transition.reward),
                ("valid", transition.valid, other_transition.valid),
            ]
            for name, a, b in pairs:
                fault = first_difference(a, b, name)
                if fault:
                    return f"two runs of one seed differ at row {t}: {fault}"
    return ""


class _Dynamics:
    """The dynamics of a single environment, from any state.

    Attributes:
        possible: whether its attribute ``state`` equals its observation, so that it can be set.
        limit: its time limit; None if it has none.
    """

    def __init__(self, env_cfg: Mapping[str, Any]) -> None:
        self.env: gym.Env | None = None
        self.possible = False
        self.limit: int | None = None
        if only_native(env_cfg):
            return
        self.env = make_bare(env_cfg)
        self.limit = declared_limit(self.env)
        self.raw: Any = self.env.unwrapped
        obs, _ = self.raw.reset(seed=0)
        shown = np.asarray(obs)
        state = getattr(self.raw, "state", None)
        if shown.dtype.kind == "f" and isinstance(state, (np.ndarray, tuple, list)):
            values = np.asarray(state)
            self.possible = values.shape == shown.shape and bool(np.allclose(values, shown, *TOLERANCE))

    def difference(self, before: Tree, action: Any, after: Tree | None, reward: Any, terminated: Any) -> str:
        """Returns how a transition differs from that of the single environment from the same state, or "".

        Args:
            before: observation before the step, which is the state.
            action: of the step.
            after: observation after the step; None: not compared.
            reward, terminated: of the step.
        """
        self.raw.reset(seed=0)
        self.raw.state = before.astype(np.float64)
        obs, expected_reward, expected_terminated, _, _ = self.raw.step(action)
        if bool(expected_terminated) != bool(terminated):
            return f"terminated: got {bool(terminated)}, expected {bool(expected_terminated)}"
        if not np.allclose(float(expected_reward), reward, *TOLERANCE):
            return f"reward: got {reward}, expected {expected_reward}"
        expected = stored(self.raw.observation_space, obs)
        if after is not None and not np.allclose(after, expected, *TOLERANCE):
            return first_difference(after, expected, "observation")
        return ""

    def __enter__(self) -> _Dynamics:
        return self

    def __exit__(self, *_: object) -> None:
        if self.env is not None:
            self.env.close()
