"""Atari frames; tests of lives and FIRE are in test_wrappers.py."""

import gymnasium as gym
import numpy as np
import pytest

from ding_lite.config.compile import compile_config
from ding_lite.envs.make import make_env

GAME = "BreakoutNoFrameskip-v4"
IN_COLOURS = {"type": "atari_preprocessing", "grayscale_obs": False, "frame_skip": 2}


def game(*wrappers, **kwargs):
    config = dict(env_id=GAME, wrappers=list(wrappers), kwargs=dict(render_mode="rgb_array", **kwargs))
    return make_env(compile_config({"env": config}).values.env)


def played(env, steps=100):
    """Yields the results of some steps of some episodes."""
    yield env.reset(seed=3)
    for action in np.random.default_rng(0).integers(env.action_space.n, size=steps):
        shown = env.step(action)
        yield shown
        if shown[2] or shown[3]:
            yield env.reset()


@pytest.mark.parametrize(
    ("wrapper", "obs_type"), [("atari", "rgb"), ("atari", "grayscale"), (IN_COLOURS, "rgb")]
)
def test_unread_raw_frames_are_not_made_and_nothing_else_changes(wrapper, obs_type):
    env, whole = (game(wrapper, obs_type=obs_type) for _ in range(2))
    vars(whole.unwrapped)["_obs_type"] = obs_type  # as ale_py has it
    ends = 0
    for ours, theirs in zip(played(env), played(whole), strict=True):
        np.testing.assert_equal(ours, theirs)
        ends += len(ours) > 2 and ours[2]
    assert ends or wrapper != "atari", "a life was lost"
    assert env.observation_space == whole.observation_space
    assert whole.unwrapped.step(0)[0].shape[:2] == (210, 160)
    assert env.unwrapped.step(0)[0].shape == (128,)
    assert env.render().shape == (210, 160, 3), "what is filmed is the screen"


class PaysForColour(gym.RewardWrapper):
    """Reads the raw frames, and is not in IGNORE_OBSERVATIONS."""

    def step(self, action):
        obs, _, *rest = self.env.step(action)
        assert obs.shape == (210, 160, 3)
        return obs, float(obs[..., 0].mean()), *rest


def test_raw_frames_are_whole_where_they_are_read():
    assert game("fire_reset").reset(seed=0)[0].shape == (210, 160, 3)
    env = game(f"{__name__}:PaysForColour", "atari_preprocessing")
    env.reset(seed=0)
    assert env.step(0)[1] > 1
