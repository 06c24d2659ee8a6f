"""Environments that record all of their resets and steps, and the rollouts that result."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

SPACES = gym.spaces
MASK = "action_mask"
OBS_SIZE = 3

ACTION_SPACES = {
    "discrete": SPACES.Discrete(3, start=2),
    "multi_discrete": SPACES.MultiDiscrete([2, 3]),
    "multi_binary": SPACES.MultiBinary(3),
    "box": SPACES.Box(np.float32([-1.0, 0.0]), np.float32([1.0, 3.0])),
    "dict": SPACES.Dict(
        push=SPACES.Box(-1.0, 1.0, (1,), np.float32), move=SPACES.Discrete(3), bits=SPACES.MultiBinary(2)
    ),
    "tuple": SPACES.Tuple([SPACES.MultiDiscrete([2, 2]), SPACES.Discrete(3)]),
}


class Mismatch(AssertionError):
    """The library and the reference disagree."""


def branches(space: gym.Space) -> dict[str, gym.Space] | None:
    """Returns the named parts of a Dict or a Tuple space, or None for a leaf."""
    if isinstance(space, SPACES.Dict):
        return dict(space.spaces)
    if isinstance(space, SPACES.Tuple):
        return {str(i): part for i, part in enumerate(space.spaces)}
    return None


def map_tree(function: Any, tree: Any, *others: Any) -> Any:
    """Returns ``function`` of the leaves of nested dicts with the same structure."""
    if isinstance(tree, dict):
        return {name: map_tree(function, tree[name], *(other[name] for other in others)) for name in tree}
    return function(tree, *others)


def mask_shapes(space: gym.Space) -> Any:
    """Returns the shape of the mask of each leaf that has one; an empty dict for none."""
    parts = branches(space)
    if parts is not None:
        found = {name: mask_shapes(part) for name, part in parts.items()}
        return {name: shape for name, shape in found.items() if shape}
    if isinstance(space, SPACES.Discrete):
        return (int(space.n),)
    if isinstance(space, SPACES.MultiDiscrete):
        return (int(space.nvec.sum()),)
    return tuple(space.shape) if isinstance(space, SPACES.MultiBinary) else {}


def random_mask(space: gym.Space, rng: np.random.Generator) -> Any:
    """Returns a random mask with at least one legal action in each part that needs one."""
    parts = branches(space)
    if parts is not None:
        masked = mask_shapes(space)
        return {name: random_mask(part, rng) for name, part in parts.items() if name in masked}
    sizes = [int(n) for n in space.nvec] if isinstance(space, SPACES.MultiDiscrete) else mask_shapes(space)
    pieces = []
    for size in sizes:
        piece = rng.random(size) < 0.6
        piece[rng.integers(size)] = True
        pieces.append(piece)
    return np.concatenate(pieces)


@dataclass(frozen=True)
class World:
    """The environments of a case.

    Attributes:
        action: a key of ``ACTION_SPACES``.
        masked: whether the observations carry random masks.
        tree: whether observations are a Dict of two vectors, not one vector.
        ends: probabilities of a termination and of a truncation at each step; both may happen at once.
        reward_scale, reward_shift: of the rewards.
        autoreset: of the vector environment.
    """

    action: str = "discrete"
    masked: bool = False
    tree: bool = False
    ends: tuple[float, float] = (0.1, 0.1)
    reward_scale: float = 1.0
    reward_shift: float = 0.0
    autoreset: str = "same_step"

    @property
    def action_space(self) -> gym.Space:
        return ACTION_SPACES[self.action]

    @property
    def observation_space(self) -> gym.Space:
        parts: dict[str, gym.Space] = {"vector": SPACES.Box(-np.inf, np.inf, (OBS_SIZE,), np.float32)}
        if self.tree:
            parts = {
                name: SPACES.Box(-np.inf, np.inf, (size,), np.float32) for name, size in (("b", 2), ("a", 1))
            }
        if self.masked:
            shapes = mask_shapes(self.action_space)
            parts[MASK] = _boxes(shapes)
        elif not self.tree:
            return parts["vector"]
        return SPACES.Dict(parts)


def _boxes(shapes: Any) -> gym.Space:
    if isinstance(shapes, dict):
        return SPACES.Dict({name: _boxes(shape) for name, shape in shapes.items()})
    return SPACES.Box(np.zeros(shapes, np.bool_), np.ones(shapes, np.bool_), dtype=np.bool_)


class RecordingEnv(gym.Env):
    """A random walk whose rewards depend on the action; ``log`` has every reset and step in order."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.action_space, self.observation_space = world.action_space, world.observation_space
        self.log: list[tuple[Any, ...]] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place = self.np_random.normal(0.5, 1.0, OBS_SIZE)
        obs = self._obs()
        self.log.append(("reset", copy.deepcopy(obs)))
        return obs, {}

    def step(self, action: Any) -> Any:
        flat = np.asarray(SPACES.flatten(self.action_space, action), np.float64)
        weights = np.cos(1.0 + np.arange(len(flat)))
        push = float(np.clip(flat, -3, 3) @ weights)
        noise = self.np_random.normal(0.0, 1.0, OBS_SIZE)
        self.place = 0.7 * self.place + 0.5 * noise + 0.3 * push * np.array([1.0, -1.0, 0.5])
        gain = push * self.place[0] - 0.3 * self.place[1] ** 2 + 0.3 * self.np_random.normal()
        reward = float(np.float32(self.world.reward_scale * gain + self.world.reward_shift))
        terminated, truncated = (bool(self.np_random.random() < share) for share in self.world.ends)
        obs = self._obs()
        self.log.append(("step", copy.deepcopy(action), copy.deepcopy(obs), reward, terminated, truncated))
        return obs, reward, terminated, truncated, {}

    def _obs(self) -> Any:
        vector = (self.place * np.array([1.0, 2.0, 0.5]) + np.array([0.0, 1.0, -1.0])).astype(np.float32)
        parts: dict[str, Any] = {"a": vector[:1], "b": vector[1:]} if self.world.tree else {"vector": vector}
        if self.world.masked:
            parts[MASK] = random_mask(self.action_space, self.np_random)
        elif not self.world.tree:
            return vector
        return parts


def vector_of(obs: Any) -> np.ndarray:
    """Returns the numbers of one recorded observation, concatenated in the order of the names."""
    if isinstance(obs, dict):
        obs = np.concatenate([obs[name] for name in sorted(obs) if name != MASK])
    return np.asarray(obs, np.float64)


def mask_of(obs: Any) -> Any:
    """Returns the mask of one recorded observation, or None."""
    return obs.get(MASK) if isinstance(obs, dict) else None


@dataclass(eq=False)
class Step:
    """One row of one environment. In a filler row the vector environment only reset it.

    Attributes:
        key: (iteration, environment, row).
        next_obs: what the environment returned for this action: the next observation of the same episode.
        following: the observation of the next valid row of the environment, or the one after the rollout.
        run: the sequence that the step is learned in, of a policy with hidden states.
        before, after: hidden states before and after the step, by the networks that collected.
        reference: the parameters of the distribution of the policy of ``kl_beta``.
        novelty: the intrinsic reward, not scaled.
    """

    key: tuple[int, int, int]
    obs: Any
    valid: bool
    handed: Any = None
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    next_obs: Any = None
    action: Any = None  # the raw sample
    log_prob: float = 0.0  # under the policy that collected
    following: Any = None
    run: Any = None
    before: Any = None
    after: Any = None
    reference: Any = None
    novelty: float = 0.0

    @property
    def done(self) -> bool:
        return self.terminated or self.truncated


@dataclass
class Reader:
    """Reads the record of one environment row by row, as its vector environment returns it."""

    log: list[tuple[Any, ...]]
    autoreset: str
    place: int = 0
    obs: Any = None
    pending: bool = False  # the episode ended in the last row, and the next row is a filler

    def begin(self) -> None:
        """Moves to the next reset; the open episode is abandoned."""
        self.obs, self.pending = self._next("reset")[0], False

    def _next(self, kind: str) -> tuple[Any, ...]:
        if self.place >= len(self.log):
            raise Mismatch(f"the record of the environment ends, expected a {kind}")
        recorded, *values = self.log[self.place]
        if recorded != kind:
            raise Mismatch(f"the record of the environment has a {recorded}, expected a {kind}")
        self.place += 1
        return tuple(values)

    def row(self, iteration: int, env: int, t: int) -> Step:
        """Returns the next row, and moves past it."""
        step = Step((iteration, env, t), self.obs, valid=not self.pending)
        if self.pending:
            self.begin()
            return step
        step.handed, step.next_obs, step.reward, step.terminated, step.truncated = self._next("step")
        step.truncated = step.truncated and not step.terminated  # termination wins
        self.obs = step.next_obs
        if step.done and self.autoreset == "next_step":
            self.pending = True
        elif step.done:
            self.begin()
        return step

    def finish(self, calls: int) -> None:
        """Checks that exactly the first ``calls`` recorded calls were read."""
        if self.place != calls:
            raise Mismatch(f"{calls - self.place} calls of an environment belong to no row")
