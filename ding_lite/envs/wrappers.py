"""Wrappers by name, for the list ``env.wrappers`` (outermost last).

    wrappers=["atari"]
    wrappers=[dict(type="time_limit", max_episode_steps=200), "my_module:MyWrapper"]

A wrapper is any function or class ``wrapper(env, **arguments)`` that returns an environment. If it has a
keyword-only parameter of one of these names, it also receives

* ``evaluate``: whether the environment is for evaluation. Reward clipping and episodic life are for training
  only, and return an evaluation environment unchanged;
* ``index``: the number of the environment in its vector.

Every wrapper is outside the EpisodeRecorder, which records the raw returns of whole games. Wrappers for
Atari and for games with several lives are in ``envs.atari``.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import (
    FrameStackObservation,
    RescaleAction,
    TimeLimit,
    TransformObservation,
    TransformReward,
)

from ding_lite.config.registry import WRAPPER_REGISTRY, as_choice
from ding_lite.envs.masks import observation_parts, with_branch
from ding_lite.errors import ConfigError
from ding_lite.trees import has_channels_last, is_image


def wrap(env: gym.Env, wrapper: Any, *, evaluate: bool = False, index: int = 0) -> gym.Env:
    """Returns ``env`` wrapped in one item of ``env.wrappers``.

    Raises:
        RegistryError: if no wrapper is registered under this name; the message lists the names.
    """
    factory, arguments = find_wrapper(wrapper)
    own = {"evaluate": evaluate, "index": index}
    asked = own.keys() & set(inspect.getfullargspec(factory).kwonlyargs)
    return factory(env, **{name: own[name] for name in asked} | arguments)


def find_wrapper(wrapper: Any) -> tuple[Callable[..., gym.Env], dict[str, Any]]:
    """Returns the wrapper that an item of ``env.wrappers`` names, and its arguments."""
    arguments = as_choice(wrapper)
    return WRAPPER_REGISTRY.get(arguments.pop("type", None)), arguments


@WRAPPER_REGISTRY.register("action_rescale")
def action_rescale(env: gym.Env, min_action: float = -1.0, max_action: float = 1.0) -> gym.Env:
    """Rescales Box actions from -1 .. 1 to the environment's own bounds."""
    return RescaleAction(env, np.float32(min_action), np.float32(max_action))


@WRAPPER_REGISTRY.register("action_bins")
class ActionBins(gym.ActionWrapper):
    """Replaces each number of a Box action by ``bins`` values, evenly spaced from its low to its high.

    The action space becomes Discrete for one number and MultiDiscrete for several (arXiv:1901.10500).
    """

    def __init__(self, env: gym.Env, bins: int = 11) -> None:
        super().__init__(env)
        box = env.action_space
        if not (isinstance(box, gym.spaces.Box) and box.is_bounded() and bins >= 2):
            raise ConfigError(
                "env.wrappers: action_bins: expected at least 2 bins and a Box of finite bounds, got "
                f"{bins} and {box}"
            )
        self._values = np.linspace(box.low, box.high, bins, dtype=box.dtype)  # (bins, *shape)
        shape = box.shape
        self.action_space = (
            gym.spaces.Discrete(bins) if shape == (1,) else gym.spaces.MultiDiscrete(np.full(shape, bins))
        )

    def action(self, action: Any) -> np.ndarray:
        index = np.reshape(action, (1, *self._values.shape[1:]))
        return np.take_along_axis(self._values, index, axis=0)[0]


@WRAPPER_REGISTRY.register("frame_stack")
def frame_stack(env: gym.Env, stack_size: int = 4) -> gym.Env:
    """Stacks the last 4 observations, oldest first; after a reset, all 4 are its observation.

    Images of three dimensions are stacked along their channels: (H, W, C) -> (H, W, 4 C).
    """
    # Copies: the environment may use the array of an observation again.
    stacked = FrameStackObservation(TransformObservation(env, copy.deepcopy, None), stack_size)
    frame, box = env.observation_space, stacked.observation_space
    if not (isinstance(frame, gym.spaces.Box) and is_image(frame) and len(frame.shape) == 3):
        return stacked
    assert isinstance(box, gym.spaces.Box)
    axis = -1 if has_channels_last(frame.shape) else 0
    low, high = (np.concatenate(bound, axis) for bound in (box.low, box.high))
    space = gym.spaces.Box(low, high, dtype=frame.dtype.type)
    return TransformObservation(stacked, lambda frames: np.concatenate(frames, axis), space)


@WRAPPER_REGISTRY.register("minigrid_image")
def minigrid_image(env: gym.Env) -> gym.Env:
    """Returns MiniGrid's 7 x 7 x 3 grid of codes, without direction and mission."""
    from minigrid.wrappers import ImgObsWrapper

    return ImgObsWrapper(env)


@WRAPPER_REGISTRY.register("minigrid_flat")
def minigrid_flat(env: gym.Env) -> gym.Env:
    """Returns MiniGrid's grid of codes and the letters of its mission as one vector of 2,835 bytes."""
    from minigrid.wrappers import FlatObsWrapper

    return FlatObsWrapper(env)


@WRAPPER_REGISTRY.register("time_limit")
def time_limit(
    env: gym.Env, max_episode_steps: int, training_only: bool = False, *, evaluate: bool = False
) -> gym.Env:
    """Truncates every episode after ``max_episode_steps``.

    With ``training_only``, evaluation has whole episodes. Short episodes in training visit the start states
    more often; truncation does not bias returns, because the value of the last observation is bootstrapped.
    """
    return env if evaluate and training_only else TimeLimit(env, max_episode_steps)


@WRAPPER_REGISTRY.register("ignore_done")
class IgnoreDone(gym.Wrapper):
    """Turns the end of an episode into a cut, so that training bootstraps there; not in evaluation."""

    def __init__(self, env: gym.Env, *, evaluate: bool = False) -> None:
        super().__init__(env)
        self.evaluate = evaluate

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        if self.evaluate:
            return obs, reward, terminated, truncated, info
        return obs, reward, False, terminated or truncated, info


@WRAPPER_REGISTRY.register("reward_clip")
def reward_clip(
    env: gym.Env, low: float | None = None, high: float | None = None, *, evaluate: bool = False
) -> gym.Env:
    """Replaces each reward by its sign, or clips it at ``low`` and ``high``, in training only."""
    if evaluate:
        return env
    if low is None and high is None:
        return TransformReward(env, lambda reward: float(np.sign(float(reward))))  # nan stays nan
    return TransformReward(env, lambda reward: float(np.clip(float(reward), low, high)))


@WRAPPER_REGISTRY.register("previous_step")
class PreviousStep(gym.Wrapper):
    """Adds ``previous_action``, flattened, and ``previous_reward`` to the observation; both begin with 0.

    A discrete action is flattened to one number for each choice, which is 1 for the one that was taken. The
    reward is the one that the wrappers before this one return.
    """

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        sizes = {"previous_action": gym.spaces.flatdim(env.action_space), "previous_reward": 1}
        added = {name: gym.spaces.Box(-np.inf, np.inf, (n,), np.float32) for name, n in sizes.items()}
        self.observation_space = gym.spaces.Dict({**observation_parts(env.observation_space), **added})
        self._no_action = np.zeros(sizes["previous_action"], np.float32)

    def _told(self, obs: Any, action: np.ndarray, reward: float) -> dict[str, Any]:
        obs = with_branch(obs, "previous_action", action)
        return with_branch(obs, "previous_reward", np.array([reward], np.float32))

    def reset(self, **kwargs: Any) -> Any:
        obs, info = self.env.reset(**kwargs)
        return self._told(obs, self._no_action, 0.0), info

    def step(self, action: Any) -> Any:
        obs, reward, *rest = self.env.step(action)
        flat = np.asarray(gym.spaces.flatten(self.env.action_space, action), np.float32)
        return (self._told(obs, flat, float(reward)), reward, *rest)
