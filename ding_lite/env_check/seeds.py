"""Checks of randomness: what a seed fixes, what it changes, and whether other generators are touched."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from ding_lite.env_check.finding import FAIL, OK, WARN, Finding
from ding_lite.env_check.playing import begin_game, is_set, step_env
from ding_lite.env_check.trees import draw_legal, first_difference, stored
from ding_lite.seeding import integer_seed, numpy_generator
from ding_lite.types import Tree

SEEDS = 4  # that are held against each other
LOST = (
    "Draw only from self.np_random, after super().reset(seed=seed), and begin every episode anew. Until then "
    "runs cannot be repeated, and a resumed run refuses the open episodes of its checkpoint."
)


class Moment(NamedTuple):
    """What a player saw at one step."""

    obs: Tree
    reward: np.ndarray
    terminated: bool
    truncated: bool


def trajectory(env: gym.Env, seed: int, actions: int, steps: int) -> list[Moment]:
    """Plays one episode of at most ``steps``; the actions follow from the seed ``actions`` and masks."""
    rng = numpy_generator(actions, "check", "seeds")
    obs = begin_game(env, seed)
    moments = [Moment(stored(env.observation_space, obs), np.zeros(()), False, False)]
    for _ in range(steps):
        action = draw_legal(env.action_space, obs, rng)
        obs, reward, terminated, truncated, _ = step_env(env, action, f" (seed {seed})")
        kept = np.array(reward, np.float64)
        moments.append(
            Moment(stored(env.observation_space, obs), kept, is_set(terminated), is_set(truncated))
        )
        if moments[-1].terminated or moments[-1].truncated:
            break
    return moments


def difference(got: list[Moment], expected: list[Moment]) -> str:
    """Returns the first difference between two trajectories in words, or nothing."""
    for step, (a, b) in enumerate(zip(got, expected, strict=False)):
        for name in Moment._fields:
            found = first_difference(getattr(a, name), getattr(b, name), name)
            if found:
                return f"step {step}, {found}"
    return "" if len(got) == len(expected) else f"lengths {len(got) - 1} and {len(expected) - 1}"


def seed_findings(make: Callable[[], gym.Env], seed: int, steps: int) -> Iterator[Finding]:
    """Yields the findings "same seed" and "other seeds"; they play two new environments."""
    seeds = [integer_seed(seed, "check", "seeds", k) for k in range(SEEDS)]
    first, second = make(), make()
    try:
        played = [trajectory(first, one, seed, steps) for one in seeds]
        twin = difference(trajectory(second, seeds[0], seed, steps), played[0])
        again = difference(trajectory(first, seeds[0], seed, steps), played[0])
    finally:
        first.close()
        second.close()
    if twin:
        seen = f"two environments, reset(seed={seeds[0]}) and the same actions: {twin}"
        yield Finding("same seed", FAIL, seen, LOST)
    elif again:
        seen = f"reset(seed={seeds[0]}) after other episodes is not what it was on a new environment: {again}"
        yield Finding("same seed", FAIL, seen, LOST)
    else:
        yield Finding("same seed", OK, "one seed and the same actions give one trajectory, bit for bit")
    if not twin and not any(difference(one, played[0]) for one in played[1:]):
        seen = f"{SEEDS} seeds with the same actions give one and the same trajectory"
        advice = "If starts or moves are meant to be random, draw them from self.np_random."
        yield Finding("other seeds", WARN, seen, advice)
    else:
        yield Finding("other seeds", OK, "give other trajectories")


def mark_global_state(seed: int) -> Mapping[str, Any]:
    """Puts these generators into a state that no environment would seed them to, and returns it.

    They may be in that of the environment by now: one that seeds them anew each time would change nothing.
    """
    mark = integer_seed(seed, "check", "global")
    np.random.seed(mark)
    random.seed(mark)
    return global_state()


def global_state() -> dict[str, Any]:
    """Returns the state of the generators that a whole process shares."""
    return {"np.random": np.random.get_state(legacy=False), "random": random.getstate()}


@contextmanager
def global_state_kept() -> Iterator[None]:
    """Leaves the generators that a whole process shares as they were."""
    before = global_state()
    try:
        yield
    finally:
        np.random.set_state(before["np.random"])
        random.setstate(before["random"])


def global_randomness(before: Mapping[str, Any]) -> Finding:
    """Whether the process's own generators are as they were before the environment was played."""
    after = global_state()
    changed = [name for name in after if repr_of(after[name]) != repr_of(before[name])]
    if changed:
        seen = f"reset or step draws from or seeds the global generator of {' and '.join(changed)}"
        advice = "Draw from self.np_random: environments of one process disturb each other through it."
        return Finding("global randomness", WARN, seen, advice)
    return Finding("global randomness", OK, "the generators of np.random and random are left alone")


def repr_of(state: Any) -> str:
    """Returns a generator's state as text, whole arrays included."""
    if isinstance(state, Mapping):
        return str({name: repr_of(value) for name, value in state.items()})
    return str(state.tolist()) if isinstance(state, np.ndarray) else str(state)
