"""From a config to environments: every way to name one, wrappers, and the errors when it cannot be made."""

import contextlib
import functools
import threading

import gymnasium as gym
import numpy as np
import pytest
from small_worlds import HalveReward, LengthEnv
from worlds import section

from ding_lite.config.registry import ENV_REGISTRY
from ding_lite.envs.make import make_env, make_vector_env
from ding_lite.envs.native import NativeVectorEnv
from ding_lite.errors import ConfigError, EnvError


@ENV_REGISTRY.register("test_make_length")
def make_length(length=4):
    return LengthEnv(length)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (LengthEnv, 5),
        (make_length, 4),
        (lambda: LengthEnv(7), 7),
        ("test_make_length", 4),
        ("small_worlds:LengthEnv", 5),
    ],
    ids=["class", "function", "lambda", "registered name", "module:Class"],
)
def test_environment_of_ones_own_is_made_however_it_is_named(kind, expected):
    env = make_env({**section(env_id="CartPole-v1"), "type": kind, "env_id": ""})
    assert env.unwrapped.length == expected


def test_a_vector_of_environments_is_no_environment_for_a_video():
    cfg = section(env_id="", type=make_length, manager={"type": "vector"})
    with pytest.raises(EnvError, match="make_length.* a video or a window shows one environment"):
        make_env(cfg, evaluate=True, render_mode="rgb_array")


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        ("vector", "wrappers", ["frame_stack"]),
        ("env_pool", "wrappers", ["frame_stack"]),
        ("env_pool", "action_mask", "info"),
        ("vector", "action_mask", "info"),
    ],
)
def test_config_refuses_what_its_backend_cannot_do(kind, key, value):
    with pytest.raises(ConfigError, match=f"env.{key}: .*env.manager.type='{kind}'"):
        section(env_id="CartPole-v1", manager={"type": kind}, **{key: value})


class Numbered(LengthEnv):
    """Takes no options, and shows its number and whether it evaluates."""

    observation_space = gym.spaces.Box(-9, 9, (2,))

    def __init__(self, env_index=0, evaluate=False):
        super().__init__(3)
        self.shown = np.array([env_index, evaluate], np.float32)

    def reset(self, *, seed=None):
        return self.shown, super().reset(seed=seed)[1]

    def step(self, action):
        return self.shown, *super().step(action)[1:]


@pytest.mark.parametrize("kind", ["base", "subprocess"])
def test_an_environment_gets_its_number_and_its_wrappers_change_no_return(kind):
    cfg = section(type=Numbered, wrappers=[HalveReward], manager={"type": kind, "worker_num": 2})
    for evaluate in (False, True):
        with contextlib.closing(make_vector_env(cfg, 3, 0, evaluate=evaluate)) as envs:
            assert envs.reset("x").tolist() == [[number, evaluate] for number in range(3)]
            steps = [envs.step(np.zeros(3, int)) for _ in range(3)]
            assert steps[0].reward.tolist() == [0.5] * 3
            assert [one.episode_return for one in steps[2].episodes] == [3.0] * 3


def test_an_error_in_a_worker_names_the_environment_as_in_this_process():
    for kind in ("base", "subprocess"):
        cfg = section(env_id="CartPole-v1", kwargs={"no_such": 1}, manager=kind)
        with pytest.raises(EnvError, match="'CartPole-v1' cannot be made") as caught:
            make_vector_env(cfg, 1, 0)
        assert "EnvSpec(" not in str(caught.value)
    made_with = functools.partial(LengthEnv, threading.Lock())
    with pytest.raises(EnvError, match="cannot be made: TypeError: cannot pickle"):
        make_vector_env({**section(type=LengthEnv, manager="subprocess"), "type": made_with}, 1, 0)


def test_only_a_missing_package_is_advised_to_be_installed():
    for env_id, kwargs in (("Ant-v5", {"xml_file": "no_such.xml"}), ("ALE/Pong-v5", {"foo": 99})):
        with pytest.raises(EnvError) as caught:
            make_env(section(env_id=env_id, kwargs=kwargs))
        assert "pip install" not in str(caught.value)


@pytest.mark.parametrize(
    ("env", "native"),
    [
        ({"env_id": "CartPole-v1"}, True),
        ({"env_id": "CartPole-v1", "manager": {"type": "base"}}, False),
        ({"env_id": "CartPole-v1", "manager": {"type": "vector"}}, True),
        ({"env_id": "CartPole-v1", "kwargs": {"render_mode": None}}, False),
        ({"env_id": "CartPole-v1", "wrappers": ["small_worlds:HalveReward"]}, False),
        ({"env_id": "Pendulum-v1"}, False),
        ({"type": LengthEnv}, False),
    ],
    ids=str,
)
def test_auto_takes_a_native_vector_only_where_its_episodes_can_be_saved(env, native):
    envs = make_vector_env(section(**env), 2, seed=0)
    assert isinstance(envs, NativeVectorEnv) == native
    assert envs.num_envs == 2
    envs.close()


def test_native_vector_that_does_not_exist_is_an_env_error():
    with pytest.raises(EnvError, match="Pendulum-v1"):
        make_vector_env(section(env_id="Pendulum-v1", manager={"type": "vector"}), 2, seed=0)


def test_evaluation_environments_are_bounded_and_training_ones_are_not():
    cfg = section(type=LengthEnv, kwargs={"length": 50}, max_eval_steps=3, manager={"type": "base"})
    lengths = []
    for evaluate in (True, False):
        envs = make_vector_env(cfg, 1, seed=0, evaluate=evaluate)
        envs.reset("collect")
        transitions = [envs.step(np.zeros(1, np.int64)) for _ in range(60)]
        lengths.append([e.length for one in transitions for e in one.episodes][0])
        envs.close()
    assert lengths == [3, 50]


class Telling(LengthEnv):
    """Puts a number and a word into its info."""

    def step(self, action):
        *result, info = super().step(action)
        return *result, {**info, "is_success": True, "colour": "red", "term": 4 - self.count}


def telling(length, info_keys):
    cfg = section(type=Telling, kwargs={"length": length}, info_keys=info_keys)
    return make_vector_env(cfg, 1, seed=0)


@pytest.mark.parametrize(("rule", "number"), [("last", 1), ("sum", 6), ("mean", 2), ("max", 3)])
def test_numbers_of_each_step_s_info_are_taken_together_by_a_rule(rule, number):
    envs = telling(3, {"term": rule, "missing": rule})
    envs.reset("collect")
    episodes = [episode for _ in range(6) for episode in envs.step(np.zeros(1, int)).episodes]
    assert [episode.info for episode in episodes] == [{"term": number}] * 2


def test_numbers_of_info_that_are_asked_for_are_recorded():
    envs = telling(1, ["colour", "is_success", "missing"])
    envs.reset("collect")
    with pytest.warns(RuntimeWarning, match=r"info\['colour'\] is 'red', and env.info_keys takes numbers"):
        (episode,) = envs.step(np.zeros(1, int)).episodes
    assert episode.info == {"is_success": 1.0}
