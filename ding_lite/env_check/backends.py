"""Every backend and autoreset mode against a plain rollout by gymnasium's own API, bit for bit.

The reference below uses ``reset`` and ``step`` of single environments and nothing of the library but the
rule of its seeds: game k of environment i begins with ``reset(seed=integer_seed(seed, stream, i, k))``.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from ding_lite.env_check.finding import FAIL, OK, WARN, Finding
from ding_lite.env_check.playing import games_of, is_set, make_bare, reset_env, step_env
from ding_lite.env_check.trees import draw_legal, first_difference, row_of, stack, stored
from ding_lite.envs.in_process import AUTORESET
from ding_lite.envs.make import make_vector_env
from ding_lite.envs.vector import VectorEnv
from ding_lite.errors import DingLiteError
from ding_lite.seeding import integer_seed, numpy_generator
from ding_lite.types import Transition, Tree

STREAM = "check"
NUM_ENVS, WORKERS = 4, 2
BACKENDS = ("base", "subprocess")


class Row(NamedTuple):
    """One transition of one environment, as the single environment gave it."""

    episode: int
    step: int  # counted from 1
    obs: Tree
    action: Any
    reward: np.float32
    terminated: bool
    truncated: bool
    next_obs: Tree
    episode_return: float  # so far, undiscounted


def reference(env_cfg: Mapping[str, Any], seed: int, steps: int) -> list[list[Row]]:
    """Returns ``steps`` transitions of each environment, one environment after the other.

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
    episode, over = -1, True
    raw: Any = None
    while len(rows) < steps:
        if over:
            games, step, total = games_of(env), 0, 0.0
            raw, _ = reset_env(env, integer_seed(seed, STREAM, index, episode + 1))
            episode += games_of(env) > games
        before = stored(env.observation_space, raw)
        action = draw_legal(env.action_space, raw, rng)
        raw, reward, terminated, truncated, _ = step_env(env, action)
        value = float(np.asarray(reward, np.float64).reshape(()))
        step, total = step + 1, total + value
        after = stored(env.observation_space, raw)
        ended, cut = is_set(terminated), is_set(truncated)
        # Where both are set the task has ended: there is nothing to bootstrap from.
        row = Row(episode, step, before, action, np.float32(value), ended, cut and not ended, after, total)
        rows.append(row)
        over = ended or cut
    return rows


class Comparison:
    """Steps a backend with the actions of the reference, and holds each row against it.

    Args:
        envs: the backend.
        rows: of the reference, by environment.
        next_step: whether a row after an end is a filler.
        episodes: whether recorded episodes can be compared: not where wrappers change them.
    """

    def __init__(self, envs: VectorEnv, rows: list[list[Row]], next_step: bool, episodes: bool) -> None:
        self.envs, self.rows, self.next_step, self.episodes = envs, rows, next_step, episodes
        self.at = [0] * len(rows)  # how many of its rows each environment has played
        self.filler = [False] * len(rows)
        self.compared = self.ends = self.cuts = 0

    def first_difference(self) -> str:
        """Plays to the end of the reference; returns the first difference, or nothing."""
        steps = len(self.rows[0])
        obs = self.envs.reset(STREAM)
        while max(self.at) < steps:
            before = [row_of(obs, i) for i in range(len(self.rows))]
            actions = [rows[at].action for rows, at in zip(self.rows, self.at, strict=True)]
            transition = self.envs.step(stack(self.envs.action_space, actions))
            for i, seen in enumerate(before):
                found = self._compare(i, seen, transition)
                if found:
                    return found
            obs = transition.obs
        return ""

    def _compare(self, i: int, before: Tree, got: Transition) -> str:
        row = self.rows[i][self.at[i]]
        where = f"env {i}, episode {row.episode}, step {row.step}, "
        if bool(got.valid[i]) == self.filler[i]:
            return f"{where}valid: got {bool(got.valid[i])}, expected {not self.filler[i]}"
        if self.filler[i]:
            self.filler[i] = False
            marks = (float(got.reward[i]), bool(got.terminated[i]), bool(got.truncated[i]))
            return "" if marks == (0.0, False, False) else f"{where}filler row before it: got {marks}"
        found = self._compare_valid(i, row, before, got)
        self.at[i] += 1
        self.compared += 1
        self.ends += row.terminated
        self.cuts += row.truncated
        self.filler[i] = self.next_step and (row.terminated or row.truncated)
        return f"{where}{found}" if found else ""

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
        found = next((text for name, a, b in pairs if (text := first_difference(a, b, name))), "")
        if not found and (i in got.final_env) != row.truncated:
            found = f"final observation: got {'one' if i in got.final_env else 'none'}, expected the other"
        return found or self._compare_episode(i, row, got)

    def _compare_episode(self, i: int, row: Row, got: Transition) -> str:
        if not self.episodes:
            return ""
        recorded = [(one.episode_return, one.length) for one in got.episodes if one.env == i]
        expected = [(row.episode_return, row.step)] if row.terminated or row.truncated else []
        found = first_difference(np.array(recorded, float), np.array(expected, float), "")
        return f"finished episode (return, length): got {recorded}, expected {expected}" if found else ""


def backend_findings(
    env_cfg: Mapping[str, Any], seed: int, steps: int, kinds: tuple[str, ...], deterministic: bool
) -> Iterator[Finding]:
    """Yields one finding for each backend and autoreset mode.

    Raises:
        Fault: if the reference cannot be played.
    """
    if not kinds:
        return
    rows = reference(env_cfg, seed, steps)
    for kind in kinds:
        for mode in AUTORESET:
            yield _one_backend(env_cfg, seed, rows, kind, mode, deterministic)


def _one_backend(
    env_cfg: Mapping[str, Any], seed: int, rows: list[list[Row]], kind: str, mode: str, deterministic: bool
) -> Finding:
    name = f"{kind} {mode}"
    ours = {"type": kind, "autoreset": mode, "worker_num": WORKERS, "max_restarts": 0}
    manager = {**env_cfg["manager"], **ours}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what they would say is in the table already
            envs = make_vector_env({**env_cfg, "manager": manager}, NUM_ENVS, seed)
            with contextlib.closing(envs):
                comparison = Comparison(envs, rows, mode == "next_step", not env_cfg["wrappers"])
                found = comparison.first_difference()
    except (DingLiteError, OSError) as error:
        return Finding(name, FAIL, str(error), _advice_for_an_error(kind))
    if not found:
        marks = f"{comparison.ends} terminated, {comparison.cuts} truncated"
        if comparison.ends + comparison.cuts == 0:
            marks = "no episode ended in them: --steps should be larger"
        return Finding(name, OK, f"{comparison.compared:,} transitions equal the reference ({marks})")
    if not deterministic:
        advice = "The environment does not repeat itself, so this was to be expected: see 'same seed'."
        return Finding(name, WARN, f"cannot be compared: {found}", advice)
    advice = (
        "Something in the environment depends on which process it is in, or on its neighbours: class "
        "attributes, module variables, global random generators. If not, report this as a bug of ours."
    )
    return Finding(name, FAIL, found, advice)


def _advice_for_an_error(kind: str) -> str:
    if kind == "subprocess":
        return "If env.manager.type=base works, use that; a worker must be able to import the environment."
    return "Correct what the message names."
