"""Atari, and other games of several lives: what their frames, lives and FIRE become.

``wrappers=["atari"]`` is all of it; each can be named alone, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
from gymnasium.wrappers import AtariPreprocessing, OrderEnforcing, TimeLimit

from ding_lite.envs.packages import AtariReset
from ding_lite.envs.recorder import EpisodeRecorder
from ding_lite.envs.wrappers import frame_stack, reward_clip
from ding_lite.errors import ConfigError, EnvContractError
from ding_lite.registry import WRAPPER_REGISTRY

BLIND = (AtariReset, EpisodeRecorder, OrderEnforcing, TimeLimit)  # wrappers that look at no observation


@WRAPPER_REGISTRY.register("episodic_life")
def episodic_life(env: gym.Env, noop_action: int = 0, *, evaluate: bool = False) -> gym.Env:
    """Ends the agent's episode with each lost life, in training alone; the game goes on."""
    return env if evaluate else EpisodicLife(env, noop_action)


class EpisodicLife(gym.Wrapper):
    """Says "terminated" when ``info["lives"]`` falls; the reset after it goes on with the same game.

    Such a reset does not reach the environment: one step of doing nothing takes its place.
    """

    def __init__(self, env: gym.Env, noop_action: int = 0) -> None:
        super().__init__(env)
        self.noop_action = noop_action
        self._lives, self._life_lost = 0, False

    def reset(self, **kwargs: Any) -> Any:
        if self._life_lost:
            self._life_lost = False
            obs, _, terminated, truncated, info = self.env.step(self.noop_action)
            if not (terminated or truncated):
                self._lives = lives_of(info, "episodic_life")
                return obs, info
        obs, info = self.env.reset(**kwargs)
        self._lives = lives_of(info, "episodic_life")
        return obs, info

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        lives = lives_of(info, "episodic_life")
        # At 0 lives some games (Qbert) still play a few frames: their own end is the end.
        self._life_lost = 0 < lives < self._lives and not (terminated or truncated)
        self._lives = lives
        return obs, reward, terminated or self._life_lost, truncated, info


def lives_of(info: Mapping[str, Any], wrapper: str) -> int:
    """Returns the lives that an info tells.

    Raises:
        EnvContractError: if it tells none.
    """
    if "lives" not in info:
        raise EnvContractError(
            f"env.wrappers: {wrapper} needs info['lives'] at every reset and step, and there is only "
            f"{sorted(map(str, info))}"
        )
    return int(info["lives"])


@WRAPPER_REGISTRY.register("fire_reset")
def fire_reset(env: gym.Env) -> gym.Env:
    """Presses FIRE where a new ball waits for it; games without FIRE are left as they are."""
    if not hasattr(env.unwrapped, "get_action_meanings"):
        raise ConfigError("env.wrappers: fire_reset: only Atari environments say which action is FIRE")
    meanings = env.unwrapped.get_action_meanings()
    return FireReset(env) if "FIRE" in meanings and len(meanings) >= 3 else env


class FireReset(gym.Wrapper):
    """Takes actions 1 (FIRE) and 2 after each reset, and after each lost life that is no reset.

    The second matters where episodic life is off, as in evaluations: an agent that never had to press
    FIRE in training would wait there forever.
    """

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self._lives = 0

    def reset(self, **kwargs: Any) -> Any:
        obs, info = self.env.reset(**kwargs)
        for action in (1, 2):
            obs, _, terminated, truncated, info = self.env.step(action)
            if terminated or truncated:
                obs, info = self.env.reset(**kwargs)
        self._lives = lives_of(info, "fire_reset")
        return obs, info

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        total = float(reward)
        if lives_of(info, "fire_reset") < self._lives:
            for fire in (1, 2):
                if not (terminated or truncated):
                    obs, reward, terminated, truncated, info = self.env.step(fire)
                    total += float(reward)
        self._lives = lives_of(info, "fire_reset")
        return obs, total, terminated, truncated, info


@WRAPPER_REGISTRY.register("atari_preprocessing")
def atari_preprocessing(
    env: gym.Env,
    noop_max: int = 30,
    frame_skip: int = 4,
    screen_size: int = 84,
    grayscale_obs: bool = True,
) -> gym.Env:
    """Makes uint8 frames of 84 x 84 in grey, of the maximum over two, one each 4 emulator frames."""
    if frame_skip > 1 and getattr(env.unwrapped, "_frameskip", 1) != 1:
        raise ConfigError(
            "env.wrappers: atari_preprocessing: the environment skips frames itself already; set "
            'env.kwargs={"frameskip": 1}, or take an id such as BreakoutNoFrameskip-v4'
        )
    import cv2

    cv2.setNumThreads(1)  # a frame is far too small to share
    made = AtariPreprocessing(
        env, noop_max, frame_skip, screen_size=screen_size, grayscale_obs=grayscale_obs, scale_obs=False
    )
    if not _has_reader(env) and getattr(env.unwrapped, "_obs_type", None) in ("rgb", "grayscale"):
        # It asks the emulator itself for the frames that it shows. Those that the raw environment returns,
        # four a step, nobody reads: 128 bytes of RAM in their place save a sixth of the time.
        vars(env.unwrapped)["_obs_type"] = "ram"
    return made


def _has_reader(env: gym.Env) -> bool:
    """Returns whether a wrapper may look at what the raw environment shows."""
    while isinstance(env, gym.Wrapper):
        if type(env) not in BLIND:
            return True
        env = env.env
    return False


@WRAPPER_REGISTRY.register("atari")
def atari(
    env: gym.Env,
    noop_max: int = 30,
    frame_skip: int = 4,
    screen_size: int = 84,
    life_is_episode: bool = True,
    fire: bool = True,
    clip_reward: bool = True,
    stack_size: int = 4,
    *,
    evaluate: bool = False,
) -> gym.Env:
    """All that is usual on Atari: preprocessing, episodic life, fire reset, reward clip, frame stack."""
    env = atari_preprocessing(env, noop_max, frame_skip, screen_size)
    if life_is_episode:
        env = episodic_life(env, evaluate=evaluate)
    if fire:
        env = fire_reset(env)
    if clip_reward:
        env = reward_clip(env, evaluate=evaluate)
    return frame_stack(env, stack_size) if stack_size > 1 else env
