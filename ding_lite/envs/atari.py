"""Wrappers for Atari, and for other games with several lives: frames, lives and the FIRE button.

``wrappers=["atari"]`` applies all of them. Each is registered under its own name, too, to
select some of them or to change their arguments.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from gymnasium.wrappers import AtariPreprocessing, OrderEnforcing, TimeLimit

from ding_lite.config.registry import WRAPPER_REGISTRY
from ding_lite.envs.packages import AtariReset
from ding_lite.envs.recorder import EpisodeRecorder
from ding_lite.envs.wrappers import frame_stack, reward_clip

IGNORE_OBSERVATIONS = (AtariReset, EpisodeRecorder, OrderEnforcing, TimeLimit)  # wrappers


@WRAPPER_REGISTRY.register("episodic_life")
def episodic_life(env: gym.Env, *, evaluate: bool = False) -> gym.Env:
    """Ends the agent's episode at each lost life, in training only; the game goes on."""
    return env if evaluate else EpisodicLife(env)


class EpisodicLife(gym.Wrapper):
    """Returns terminated=True when ``info["lives"]`` decreases; the next reset goes on with the same game.

    Such a reset does not reset the environment: it takes one step with action 0, a no-op, instead.
    """

    _life_lost = False

    def reset(self, **kwargs: Any) -> Any:
        if self._life_lost:
            self._life_lost = False
            obs, _, terminated, truncated, info = self.env.step(0)
            if not (terminated or truncated):
                self._lives = info["lives"]
                return obs, info
        obs, info = self.env.reset(**kwargs)
        self._lives = info["lives"]
        return obs, info

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        lives = info["lives"]
        # Some games (Qbert) play a few more frames at 0 lives; only the game itself ends the last life.
        self._life_lost = 0 < lives < self._lives and not (terminated or truncated)
        self._lives = lives
        return obs, reward, terminated or self._life_lost, truncated, info


@WRAPPER_REGISTRY.register("fire_reset")
def fire_reset(env: gym.Env) -> gym.Env:
    """Presses FIRE where the game waits for it, such as for a new ball; no effect on games without FIRE."""
    meanings = env.get_wrapper_attr("get_action_meanings")()
    return FireReset(env) if "FIRE" in meanings and len(meanings) >= 3 else env


class FireReset(gym.Wrapper):
    """Takes actions 1 (FIRE) and 2 after each reset, and after each lost life that no reset follows.

    No reset follows a lost life without episodic life, as in evaluations. There an agent that never had to
    press FIRE in training would wait forever after its first lost life.
    """

    def reset(self, **kwargs: Any) -> Any:
        obs, info = self.env.reset(**kwargs)
        for action in (1, 2):
            obs, _, terminated, truncated, info = self.env.step(action)
            if terminated or truncated:
                obs, info = self.env.reset(**kwargs)
        self._lives = info["lives"]
        return obs, info

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        total = float(reward)
        if info["lives"] < self._lives:
            for fire in (1, 2):
                if not (terminated or truncated):
                    obs, reward, terminated, truncated, info = self.env.step(fire)
                    total += float(reward)
        self._lives = info["lives"]
        return obs, total, terminated, truncated, info


@WRAPPER_REGISTRY.register("atari_preprocessing")
def atari_preprocessing(
    env: gym.Env,
    noop_max: int = 30,
    frame_skip: int = 4,
    screen_size: int = 84,
    grayscale_obs: bool = True,
) -> gym.Env:
    """Returns one grey uint8 frame of 84 x 84 per 4 emulator frames: the maximum of the last two.

    Raises:
        ValueError: if the environment skips frames itself, as ``ALE/*`` ids do without ``frameskip=1``.
    """
    import cv2

    cv2.setNumThreads(1)  # a frame is too small for several threads
    wrapped = AtariPreprocessing(
        env, noop_max, frame_skip, screen_size=screen_size, grayscale_obs=grayscale_obs, scale_obs=False
    )
    while isinstance(env, IGNORE_OBSERVATIONS):
        env = env.env
    if env is env.unwrapped and getattr(env, "_obs_type", None) in ("rgb", "grayscale"):
        # AtariPreprocessing reads frames from the emulator. The frames that the raw environment returns, four
        # per step, are unused: returning the 128 bytes of RAM instead saves a sixth of the time.
        vars(env)["_obs_type"] = "ram"
    return wrapped


@WRAPPER_REGISTRY.register("atari")
def atari(env: gym.Env, stack_size: int = 4, *, evaluate: bool = False) -> gym.Env:
    """The usual Atari wrappers: preprocessing, episodic life, fire reset, reward clip, frame stack."""
    env = fire_reset(episodic_life(atari_preprocessing(env), evaluate=evaluate))
    env = reward_clip(env, evaluate=evaluate)
    return frame_stack(env, stack_size) if stack_size > 1 else env
