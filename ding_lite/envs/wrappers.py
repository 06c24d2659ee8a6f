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
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import FrameStackObservation, TimeLimit, TransformObservation, TransformReward

from ding_lite.config.registry import WRAPPER_REGISTRY, as_choice, name_of
from ding_lite.envs.recorder import EpisodeRecorder
from ding_lite.envs.space_json import space_to_json, spaces_from_json
from ding_lite.errors import ConfigError
from ding_lite.trees import has_channels_last, is_image

# Names of wrappers that change neither observations nor actions.
WITHOUT_ACTIONS = ("time_limit", "ignore_done", "reward_clip", "episodic_life")


def wrap(env: gym.Env, wrapper: Any, *, evaluate: bool = False, index: int = 0) -> gym.Env:
    """Returns ``env`` wrapped in one item of ``env.wrappers``.

    Raises:
        RegistryError: if no wrapper is registered under this name; the message lists the names.
    """
    factory, arguments = find_wrapper(wrapper)
    optional = {"evaluate": evaluate, "index": index}
    names = optional.keys() & set(inspect.getfullargspec(factory).kwonlyargs)
    return factory(env, **{name: optional[name] for name in names} | arguments)


def find_wrapper(wrapper: Any) -> tuple[Callable[..., gym.Env], dict[str, Any]]:
    """Returns the wrapper that an item of ``env.wrappers`` names, and its arguments."""
    arguments = as_choice(wrapper)
    return WRAPPER_REGISTRY.get(arguments.pop("type", None)), arguments


class ActionMap(NamedTuple):
    """How a wrapper maps an action: ``action * scale + offset``, clipped to ``low`` .. ``high``.

    Attributes:
        space: the Box of the results.
        scale, offset, low, high: (*space.shape) float64.
    """

    space: gym.spaces.Box
    scale: Any
    offset: Any
    low: Any
    high: Any

    def __call__(self, action: np.ndarray) -> np.ndarray:
        """Maps a batch: (N,) or (N, *space.shape) -> (N, *space.shape)."""
        return self.scaled(action).astype(self.space.dtype)

    def scaled(self, action: Any) -> Any:
        """Maps a batch to float64; tensors if the fields are tensors."""
        moved = action.reshape(-1, *self.scale.shape) * self.scale + self.offset
        return moved.clip(self.low, self.high)

    def as_json(self) -> dict[str, Any]:
        space, *arrays = self
        return {"space": space_to_json(space), "arrays": [array.tolist() for array in arrays]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], weights: int) -> ActionMap:
        space: Any = spaces_from_json(weights, {"action": data["space"]})["action"]
        return cls(space, *(np.array(array, np.float64) for array in data["arrays"]))


class ScaledActions(gym.ActionWrapper):
    """Base of the wrappers that scale actions to the bounds of the environment's Box.

    A policy stores the ``action_map``, so ``act`` and an exported file return actions as the environment
    receives them.

    Args:
        env: to wrap.
        first, last: actions that become the low and the high of the Box.
    """

    def __init__(self, env: gym.Env, first: float, last: float) -> None:
        super().__init__(env)
        box = env.action_space
        if not (isinstance(box, gym.spaces.Box) and box.is_bounded() and first < last):
            raise ConfigError(
                f"env.wrappers: {name_of(type(self))}: expected a Box of finite bounds, and actions from "
                f"{first:g} to a higher number, got {box} and {last:g}"
            )
        low, high = box.low.astype(np.float64), box.high.astype(np.float64)
        scale = high / (last - first) - low / (last - first)
        self.action_map = ActionMap(box, scale, low - first * scale, low, high)

    def action(self, action: Any) -> np.ndarray:
        return self.action_map(np.asarray(action))[0]


@WRAPPER_REGISTRY.register("action_rescale")
class ActionRescale(ScaledActions):
    """Rescales Box actions from -1 .. 1 to the environment's own bounds."""

    def __init__(self, env: gym.Env, min_action: float = -1.0, max_action: float = 1.0) -> None:
        super().__init__(env, min_action, max_action)
        box = self.action_map.space
        self.action_space = gym.spaces.Box(min_action, max_action, box.shape, box.dtype.type)


@WRAPPER_REGISTRY.register("action_bins")
class ActionBins(ScaledActions):
    """Replaces each number of a Box action by ``bins`` values, evenly spaced from its low to its high.

    The action space becomes Discrete for one number and MultiDiscrete for several (arXiv:1901.10500).
    """

    def __init__(self, env: gym.Env, bins: int = 11) -> None:
        super().__init__(env, 0, bins - 1)
        shape = self.action_map.space.shape
        self.action_space = (
            gym.spaces.Discrete(bins) if shape == (1,) else gym.spaces.MultiDiscrete(np.full(shape, bins))
        )


def action_maps(env: gym.Env) -> list[ActionMap]:
    """Returns the action maps of an environment's wrappers, the outermost first.

    The list ends at any other wrapper that changes the action space.
    """
    maps = []
    while isinstance(env, gym.Wrapper) and not isinstance(env, EpisodeRecorder):
        if isinstance(env, ScaledActions):
            maps.append(env.action_map)
        elif env.action_space != env.env.action_space:
            break
        env = env.env
    return maps


def left_out(wrappers: Sequence[Any], maps: int) -> list[str]:
    """Returns the names of the wrappers that ``act`` and an exported file leave out.

    Args:
        wrappers: ``env.wrappers``.
        maps: number of action maps that the policy has.
    """
    names = []
    for wrapper in reversed(wrappers):
        name = name_of(as_choice(wrapper)["type"])
        if name in ("action_rescale", "action_bins") and maps:
            maps -= 1
        elif name not in WITHOUT_ACTIONS:
            names.append(name)
    return names[::-1]


@WRAPPER_REGISTRY.register("frame_stack")
def frame_stack(env: gym.Env, stack_size: int = 4) -> gym.Env:
    """Stacks the last 4 observations, oldest first; after a reset, all 4 are the first observation.

    Images of three dimensions are stacked along their channels: (H, W, C) -> (H, W, 4 C).
    """
    # Copies, because the environment may reuse the array of an observation.
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
def ignore_done(env: gym.Env, *, evaluate: bool = False) -> gym.Env:
    """Turns terminations into truncations, in training only, so that returns bootstrap there."""
    return env if evaluate else IgnoreDone(env)


class IgnoreDone(gym.Wrapper):
    """Returns truncated=True in place of terminated=True."""

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
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
