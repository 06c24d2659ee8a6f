"""Compares backends, in each autoreset mode, with a rollout by gymnasium's API, bit for bit.

The reference rollout calls ``reset`` and ``step`` of single environments. It uses nothing of the library
except the rule of its seeds: game k of environment i begins with
``reset(seed=integer_seed(seed, stream, i, k))``.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from ding_lite.envs.make import make_vector_env
from ding_lite.envs.vector import Transition, VectorEnv
from ding_lite.errors import DingLiteError
from ding_lite.rl.seeding import integer_seed, numpy_generator
from ding_lite.tools.env_check.finding import FAIL, OK, WARN, Finding
from ding_lite.tools.env_check.playing import Budget, games_of, is_set, make_bare, reset_env, step_env
from ding_lite.tools.env_check.trees import draw_legal, first_difference, row_of, stack, stored
from ding_lite.trees import Tree

STREAM = "check"
AUTORESET = ("same_step",)
NUM_ENVS = 4
WORKERS = 2
BACKENDS = (
    "base",
    "subprocess",
)  # by default; "ray" has the workers of "subprocess", and takes seconds to start


class Row(NamedTuple):
    """One transition of a single environment.

    Attributes:
        episode: its number, from 0.
        step: its number in the episode, from 1.
        obs, action, reward, terminated, truncated, next_obs: the transition. ``truncated`` is False if
            ``terminated`` is True.
        episode_return: sum of the episode's rewards so far, undiscounted.
    """

    episode: int
    step: int
    obs: Tree
    action: Any
    reward: np.float32
    terminated: bool
    truncated: bool
    next_obs: Tree
    episode_return: float


def reference(env_cfg: Mapping[str, Any], seed: int, steps: int) -> list[list[Row]]:
    """Returns ``steps`` transitions of each of ``NUM_ENVS`` environments, by environment.

    Raises:
        Fault: if an environment breaks gymnasium's API.
    """
    played = []
    for i in range(NUM_ENVS):
        env = make_bare(env_cfg)
        try:
            played.append(_play_one(env, i, seed, steps))
        finally:
            env.close()
    return played


def _play_one(env: Any, index: int, seed: int, steps: int) -> list[Row]:
    rng = numpy_generator(seed, STREAM, "backends", index)
    rows: list[Row] = []
    episode = -1
    over = True
    raw: Any = None  # the observation, as the environment returned it
    while len(rows) < steps:
        if over:
            games = games_of(env)
            step = 0
            episode_return = 0.0
            raw, _ = reset_env(env, integer_seed(seed, STREAM, index, episode + 1))
            episode += games_of(env) > games
        obs = stored(env.observation_space, raw)
        action = draw_legal(env.action_space, raw, rng)
        raw, raw_reward, raw_terminated, raw_truncated, _ = step_env(env, action)
        reward = float(np.asarray(raw_reward, np.float64).reshape(()))
        terminated = is_set(raw_terminated)
        truncated = is_set(raw_truncated)
        step += 1
        episode_return += reward
        rows.append(
            Row(
                episode=episode,
                step=step,
                obs=obs,
                action=action,
                reward=np.float32(reward),
                terminated=terminated,
                truncated=truncated and not terminated,
                next_obs=stored(env.observation_space, raw),
                episode_return=episode_return,
            )
        )
        over = terminated or truncated
    return rows


class BackendPlay:
    """Steps a backend with the actions of the reference, and compares each row with it.

    Args:
        envs: the backend.
        rows: the reference, by environment.
        next_step: whether the autoreset mode is "next_step": a filler row follows the end of an episode.
        episodes: whether to compare the recorded episodes; wrappers may change them.

    Attributes:
        at: for each environment, the index of its next row.
        filler: for each environment, whether its next row is a filler.
        compared, ends, cuts: numbers of rows compared, of terminated and of truncated ones.
    """

    def __init__(self, envs: VectorEnv, rows: list[list[Row]], next_step: bool, episodes: bool) -> None:
        self.envs = envs
        self.rows = rows
        self.next_step = next_step
        self.episodes = episodes
        self.at = [0] * len(rows)
        self.filler = [False] * len(rows)
        self.compared = 0
        self.ends = 0
        self.cuts = 0

    def first_difference(self) -> str:
        """Plays to the end of the reference, or to the first difference, and returns it as text, or ""."""
        steps = len(self.rows[0])
        obs = self.envs.reset(STREAM)
        while max(self.at) < steps:
            before = [row_of(obs, i) for i in range(len(self.rows))]
            actions = [rows[at].action for rows, at in zip(self.rows, self.at, strict=True)]
            transition = self.envs.step(stack(self.envs.action_space, actions))
            for i, obs_before in enumerate(before):
                difference = self._compare(i, obs_before, transition)
                if difference:
                    return difference
            obs = transition.obs
        return ""

    def _compare(self, i: int, before: Tree, got: Transition) -> str:
        """Compares one row of environment ``i``, whose observation before the step was ``before``."""
        row = self.rows[i][self.at[i]]
        where = f"env {i}, episode {row.episode}, step {row.step}, "
        if bool(got.valid[i]) == self.filler[i]:
            return f"{where}valid: got {bool(got.valid[i])}, expected {not self.filler[i]}"
        if self.filler[i]:
            self.filler[i] = False
            marks = (float(got.reward[i]), bool(got.terminated[i]), bool(got.truncated[i]))
            return "" if marks == (0.0, False, False) else f"{where}filler row before it: got {marks}"
        difference = self._compare_valid(i, row, before, got)
        self.at[i] += 1
        self.compared += 1
        self.ends += row.terminated
        self.cuts += row.truncated
        self.filler[i] = self.next_step and (row.terminated or row.truncated)
        return f"{where}{difference}" if difference else ""

    def _compare_valid(self, i: int, row: Row, before: Tree, got: Transition) -> str:
        pairs: list[tuple[str, Any, Any]] = [
            ("observation", before, row.obs),
            ("reward", got.reward[i], row.reward),
            ("terminated", got.terminated[i], np.bool_(row.terminated)),
            ("truncated", got.truncated[i], np.bool_(row.truncated)),
        ]
        if row.truncated and i in got.final_env:
            final = row_of(got.final_obs, int(np.flatnonzero(got.final_env == i)[0]))
            pairs.append(("final observation", final, row.next_obs))
        if self.next_step and (row.terminated or row.truncated):
            pairs.append(("last observation", row_of(got.obs, i), row.next_obs))
        for name, value, expected in pairs:
            difference = first_difference(value, expected, name)
            if difference:
                return difference
        has_final = i in got.final_env
        if has_final != row.truncated:
            return f"final observation: got {_one_or_none(has_final)}, expected {_one_or_none(row.truncated)}"
        return self._compare_episode(i, row, got)

    def _compare_episode(self, i: int, row: Row, got: Transition) -> str:
        if not self.episodes:
            return ""
        recorded = [(episode.episode_return, episode.length) for episode in got.episodes if episode.env == i]
        expected = [(row.episode_return, row.step)] if row.terminated or row.truncated else []
        if not first_difference(np.array(recorded, float), np.array(expected, float), ""):
            return ""
        return f"finished episode (return, length): got {recorded}, expected {expected}"


def _one_or_none(present: bool) -> str:
    return "one" if present else "none"


def backend_findings(
    env_cfg: Mapping[str, Any],
    seed: int,
    steps: int,
    kinds: tuple[str, ...],
    deterministic: bool,
    budget: Budget,
) -> Iterator[Finding]:
    """Yields one finding for each backend and autoreset mode.

    Raises:
        Fault: if the reference cannot be played.
    """
    rows: list[list[Row]] | None = None
    for kind in kinds:
        for mode in AUTORESET:
            if not budget.left:
                seen = f"not compared: the {budget.seconds:g} s are over"
                yield Finding(f"{kind} {mode}", WARN, seen, "Give more time: --seconds N.")
                continue
            rows = rows or reference(env_cfg, seed, steps)
            yield _one_backend(env_cfg, seed, rows, kind, mode, deterministic)


def _one_backend(
    env_cfg: Mapping[str, Any], seed: int, rows: list[list[Row]], kind: str, mode: str, deterministic: bool
) -> Finding:
    name = f"{kind} {mode}"
    keys = {"type": kind, "worker_num": WORKERS, "max_restarts": 0}
    manager = {**env_cfg["manager"], **keys}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # other checks report the same
            envs = make_vector_env({**env_cfg, "manager": manager}, NUM_ENVS, seed)
            with contextlib.closing(envs):
                play = BackendPlay(envs, rows, mode == "next_step", not env_cfg["wrappers"])
                difference = play.first_difference()
    except (DingLiteError, OSError) as error:
        return Finding(name, FAIL, str(error), _advice_for_an_error(kind))
    if not difference:
        marks = f"{play.ends} terminated, {play.cuts} truncated"
        if play.ends + play.cuts == 0:
            marks = "no episode ended in them: --steps should be larger"
        return Finding(name, OK, f"{play.compared:,} transitions equal the reference ({marks})")
    if not deterministic:
        advice = "The environment is not reproducible, so this is expected: see 'same seed'."
        return Finding(name, WARN, f"cannot be compared: {difference}", advice)
    advice = (
        "Something in the environment depends on which process it is in, or on its neighbours: class "
        "attributes, module variables, global random generators. If not, report this as a bug of ding_lite."
    )
    return Finding(name, FAIL, difference, advice)


def _advice_for_an_error(kind: str) -> str:
    if kind != "base":
        return (
            "If env.manager.type=base works, use it; a worker process must be able to import the environment."
        )
    return "Correct the fault that the message names."
