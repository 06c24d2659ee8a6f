"""Wrappers by name, for the list ``env.wrappers`` (outermost last).

    wrappers=["atari"]
    wrappers=[dict(type="time_limit", max_episode_steps=200), "my_module:MyWrapper"]

A wrapper is any ``wrapper(env, **arguments)`` that returns an environment. Where it has a keyword-only
parameter of that name, it is told

* ``evaluate``: whether this environment is one to evaluate in. Reward clipping and episodic life are
  for training alone, and leave an evaluation's environment as it is;
* ``index``: the number of this environment among those of its vector.

Every wrapper lies outside the EpisodeRecorder: what is reported is the raw return of whole games. Those of
games of several lives, and Atari's, are in ``envs.atari``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import (
    FrameStackObservation,
    MaxAndSkipObservation,
    RecordVideo,
    RescaleAction,
    TimeLimit,
    TransformReward,
)

from ding_lite.envs.faulty import FaultyEnv
from ding_lite.envs.masks import OBSERVATION
from ding_lite.errors import ConfigError
from ding_lite.registry import WRAPPER_REGISTRY

STEP_COUNT = "step_count"

WRAPPER_REGISTRY.register("max_and_skip")(MaxAndSkipObservation)
WRAPPER_REGISTRY.register("faulty")(FaultyEnv)


def wrap(env: gym.Env, wrapper: Any, *, evaluate: bool = False, index: int = 0) -> gym.Env:
    """Returns ``env`` in one wrapper, as an item of ``env.wrappers`` says it.

    Raises:
        ConfigError: if the item is no wrapper, or the wrapper does not take its arguments.
        RegistryError: if there is no wrapper of this name; it lists those that there are.
    """
    shown, factory, arguments = find_wrapper(wrapper)
    try:
        signature = inspect.signature(factory)
    except ValueError:  # built-in callables have none
        return factory(env, **arguments)
    told = {"evaluate": evaluate, "index": index}
    for name, parameter in signature.parameters.items():
        if name in told and parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            arguments.setdefault(name, told[name])
    try:
        signature.bind(env, **arguments)
    except TypeError as error:
        takes = ", ".join(list(signature.parameters)[1:]) or "no arguments"
        raise ConfigError(f"env.wrappers: {shown}: {error}; it takes {takes}") from error
    return factory(env, **arguments)


def find_wrapper(wrapper: Any) -> tuple[str, Callable[..., gym.Env], dict[str, Any]]:
    """Returns what to call an item of ``env.wrappers``, the wrapper itself, and its arguments."""
    arguments = _choice(wrapper)
    kind = arguments.pop("type")
    shown = repr(kind) if isinstance(kind, str) else getattr(kind, "__name__", "a wrapper")
    return shown, WRAPPER_REGISTRY.get(kind), arguments


def wrapper_faults(wrappers: Sequence[Any], path: str) -> list[str]:
    """Returns what is wrong with ``env.wrappers`` whatever environment they are for, a line each."""
    faults = [WRAPPER_REGISTRY.choice_faults(_choice(one), f"{path}[{i}]") for i, one in enumerate(wrappers)]
    return [fault for found in faults for fault in found]


def _choice(wrapper: Any) -> dict[str, Any]:
    return {"type": None, **wrapper} if isinstance(wrapper, Mapping) else {"type": wrapper}


@WRAPPER_REGISTRY.register("step_counter")
class StepCounter(gym.Wrapper):
    """Adds ``step_count``, the steps since the reset, to the observation, which becomes a Dict.

    An agent that is cut after a fixed time needs it to tell early from late (arXiv:1712.00378). Where a
    count is only to be recorded this is not needed: episodes.csv has the length of every episode.

    Args:
        env: its observation is the Dict's "observation", unless it is a Dict already.
        horizon: the count is divided by it; by default the environment's own limit, or else 1.
    """

    def __init__(self, env: gym.Env, horizon: int | None = None) -> None:
        super().__init__(env)
        limit = env.spec.max_episode_steps if env.spec is not None else None
        self.count, self.horizon = 0, horizon or limit or 1
        space = env.observation_space
        self._is_dict = isinstance(space, gym.spaces.Dict)
        plain = space.spaces if isinstance(space, gym.spaces.Dict) else {OBSERVATION: space}
        if STEP_COUNT in plain:
            raise ConfigError(f"env.wrappers: step_counter: the observation has a {STEP_COUNT!r} already")
        counts = gym.spaces.Box(0.0, np.inf, (1,), np.float32)
        self.observation_space = gym.spaces.Dict({**plain, STEP_COUNT: counts})

    def reset(self, **kwargs: Any) -> Any:
        self.count = 0
        obs, info = self.env.reset(**kwargs)
        return self._counted(obs), info

    def step(self, action: Any) -> Any:
        self.count += 1
        obs, *rest = self.env.step(action)
        return (self._counted(obs), *rest)

    def _counted(self, obs: Any) -> dict[str, Any]:
        plain = obs if self._is_dict else {OBSERVATION: obs}
        return {**plain, STEP_COUNT: np.array([self.count / self.horizon], np.float32)}


@WRAPPER_REGISTRY.register("action_rescale")
def action_rescale(env: gym.Env, min_action: float = -1.0, max_action: float = 1.0) -> gym.Env:
    """Takes Box actions between -1 and 1, and stretches them to the environment's own bounds."""
    return RescaleAction(env, np.float32(min_action), np.float32(max_action))


@WRAPPER_REGISTRY.register("record")
def record(env: gym.Env, folder: str, every: int = 100, *, evaluate: bool = False, index: int = 0) -> gym.Env:
    """Films environment 0: its first episode, and each ``every``-th; in ``folder``/train and /eval."""
    if index:
        return env
    if env.render_mode is None:
        raise ConfigError(
            'env.wrappers: record: nothing to film; set env.kwargs={"render_mode": "rgb_array"}'
        )
    return RecordVideo(
        env,
        str(Path(folder) / ("eval" if evaluate else "train")),
        episode_trigger=lambda number: number % every == 0,
        disable_logger=True,
    )


@WRAPPER_REGISTRY.register("frame_stack")
def frame_stack(env: gym.Env, stack_size: int = 4) -> gym.Env:
    """Shows the last 4 observations, oldest first; a reset's fills the stack. The dtype stays."""
    return FrameStackObservation(env, stack_size)


@WRAPPER_REGISTRY.register("minigrid_image")
def minigrid_image(env: gym.Env) -> gym.Env:
    """Shows MiniGrid's 7 x 7 x 3 grid of codes alone, without direction and mission."""
    from minigrid.wrappers import ImgObsWrapper

    return ImgObsWrapper(env)


@WRAPPER_REGISTRY.register("minigrid_flat")
def minigrid_flat(env: gym.Env) -> gym.Env:
    """Shows MiniGrid's grid of codes and its mission's letters as one vector of 2,835 bytes."""
    from minigrid.wrappers import FlatObsWrapper

    return FlatObsWrapper(env)


@WRAPPER_REGISTRY.register("noop_reset")
class NoopReset(gym.Wrapper):
    """Begins each game with 1 to ``noop_max`` steps of doing nothing, so that starts differ."""

    def __init__(self, env: gym.Env, noop_max: int = 30, noop_action: int = 0) -> None:
        super().__init__(env)
        self.noop_max, self.noop_action = noop_max, noop_action
        self._generator = np.random.default_rng()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is not None:
            self._generator = np.random.default_rng(seed)
        obs, info = self.env.reset(seed=seed, options=options)
        for _ in range(self._generator.integers(1, self.noop_max + 1)):
            obs, _, terminated, truncated, info = self.env.step(self.noop_action)
            if terminated or truncated:
                obs, info = self.env.reset(options=options)
        return obs, info


@WRAPPER_REGISTRY.register("time_limit")
def time_limit(
    env: gym.Env, max_episode_steps: int, training_only: bool = False, *, evaluate: bool = False
) -> gym.Env:
    """Cuts (truncates) every episode after ``max_episode_steps``.

    ``training_only`` leaves evaluation its whole episodes: short ones in training show the start states
    more often, and lose nothing, since what is cut is bootstrapped.
    """
    return env if evaluate and training_only else TimeLimit(env, max_episode_steps)


@WRAPPER_REGISTRY.register("reward_clip")
def reward_clip(env: gym.Env, *, evaluate: bool = False) -> gym.Env:
    """Gives the sign of each reward, in training alone."""
    return env if evaluate else TransformReward(env, sign)


def sign(reward: Any) -> float:
    """Returns -1, 0 or 1."""
    return float(reward > 0) - float(reward < 0)
