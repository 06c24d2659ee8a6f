"""Checks of randomness: equal seeds, different seeds, and use of global random generators."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from ding_lite.rl.seeding import integer_seed, numpy_generator
from ding_lite.tools.env_check.finding import FAIL, OK, WARN, Finding
from ding_lite.tools.env_check.playing import begin_game, is_set, step_env
from ding_lite.tools.env_check.trees import draw_legal, first_difference, stored
from ding_lite.trees import Tree

SEEDS = 4  # number of different seeds to compare
SEED_ADVICE = (
    "Draw only from self.np_random, after super().reset(seed=seed), and begin every episode anew. Until then "
    "runs cannot be repeated, and a resumed run refuses the open episodes of its checkpoint."
)


class Moment(NamedTuple):
    """The result of one ``reset`` or ``step``."""

    obs: Tree
    reward: np.ndarray
    terminated: bool
    truncated: bool


def trajectory(env: gym.Env, seed: int, actions: int, steps: int) -> list[Moment]:
    """Plays one episode of at most ``steps`` steps.

    Args:
        env: to play.
        seed: of the episode.
        actions: seed of the random actions.
        steps: maximum length.
    """
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
    """Returns the first difference between two trajectories as text, or ""."""
    for step, (a, b) in enumerate(zip(got, expected, strict=False)):
        for name in Moment._fields:
            text = first_difference(getattr(a, name), getattr(b, name), name)
            if text:
                return f"step {step}, {text}"
    return "" if len(got) == len(expected) else f"lengths {len(got) - 1} and {len(expected) - 1}"


def seed_findings(make: Callable[[], gym.Env], seed: int, steps: int) -> Iterator[Finding]:
    """Yields the findings "same seed" and "other seeds"; plays two new environments."""
    seeds = [integer_seed(seed, "check", "seeds", k) for k in range(SEEDS)]
    with contextlib.closing(make()) as first, contextlib.closing(make()) as second:
        played = [trajectory(first, episode_seed, seed, steps) for episode_seed in seeds]
        between_envs = difference(trajectory(second, seeds[0], seed, steps), played[0])
        after_others = difference(trajectory(first, seeds[0], seed, steps), played[0])
    if between_envs:
        seen = f"two environments, reset(seed={seeds[0]}) and the same actions: {between_envs}"
        yield Finding("same seed", FAIL, seen, SEED_ADVICE)
    elif after_others:
        seen = f"reset(seed={seeds[0]}) after other episodes differs from a new environment: {after_others}"
        yield Finding("same seed", FAIL, seen, SEED_ADVICE)
    else:
        yield Finding("same seed", OK, "the same seed and actions give the same trajectory, bit for bit")
    if not between_envs and not any(difference(other, played[0]) for other in played[1:]):
        seen = f"{SEEDS} seeds with the same actions give the same trajectory"
        advice = "If starts or transitions should be random, draw them from self.np_random."
        yield Finding("other seeds", WARN, seen, advice)
    else:
        yield Finding("other seeds", OK, "other seeds give other trajectories")


def mark_global_state(seed: int) -> Mapping[str, Any]:
    """Seeds the global generators with a value that no environment uses, and returns their state.

    Without it, an environment that seeds them with the same value in each call might change nothing.
    """
    mark = integer_seed(seed, "check", "global")
    np.random.seed(mark)
    random.seed(mark)
    return global_state()


def global_state() -> dict[str, Any]:
    """Returns the states of the global generators of this process."""
    return {"np.random": np.random.get_state(legacy=False), "random": random.getstate()}


@contextmanager
def global_state_kept() -> Iterator[None]:
    """Restores the states of the global generators at the end."""
    before = global_state()
    try:
        yield
    finally:
        np.random.set_state(before["np.random"])
        random.setstate(before["random"])


def global_randomness(before: Mapping[str, Any]) -> Finding:
    """Checks that the global generators still have the states ``before``."""
    after = global_state()
    changed = [name for name in after if repr_of(after[name]) != repr_of(before[name])]
    if changed:
        seen = f"reset or step draws from or seeds the global generator of {' and '.join(changed)}"
        advice = (
            "Draw from self.np_random: environments in one process affect each other by a global generator."
        )
        return Finding("global randomness", WARN, seen, advice)
    return Finding("global randomness", OK, "the global generators of np.random and random are not used")


def repr_of(state: Any) -> str:
    """Returns the state of a generator as text, with complete arrays."""
    if isinstance(state, Mapping):
        return str({name: repr_of(value) for name, value in state.items()})
    return str(state.tolist()) if isinstance(state, np.ndarray) else str(state)
