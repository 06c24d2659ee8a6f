"""Environments that are unusual and valid: what they return reaches the policy as it is."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from small_worlds import CountingEnv

from ding_lite.config.compile import compile_config
from ding_lite.data.episodes import Evaluator
from ding_lite.data.modes import EvalMode
from ding_lite.envs.checks import Watch
from ding_lite.envs.make import make_env, make_vector_env
from ding_lite.envs.native import NativeVectorEnv
from ding_lite.envs.space_json import space_from_json, space_to_json
from ding_lite.errors import EnvContractError, EnvError
from ding_lite.run.progress import evaluation_metrics

TWO = gym.spaces.Discrete(2)


def vector(kind, num_envs=1, evaluate=False, **env):
    section = compile_config({"env": {"type": kind, "manager": {"type": "base"}, **env}}).values.env
    return make_vector_env(section, num_envs, 0, evaluate=evaluate)


class Goal(gym.Env):
    """Ends only when the goal is reached, in a quarter of the episodes; every info says whether it is."""

    observation_space, action_space = gym.spaces.Box(-1000, 1000, (1,)), TWO

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.goal = 0, 3 if self.np_random.random() < 0.25 else 10**9
        return np.zeros(1, np.float32), {"is_success": False}

    def step(self, action):
        self.t += 1
        reached = self.t >= self.goal
        return np.array([self.t], np.float32), 0.0, reached, False, {"is_success": reached}


PASSIVE = EvalMode(
    forward=lambda obs: {"action": np.zeros(len(obs), np.int64)},
    to_env=lambda action: action,
    reset=lambda: None,
)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_largest_floats_are_no_bounds(dtype):
    class Wide(Goal):
        largest = np.finfo(dtype).max
        observation_space = gym.spaces.Box(-largest, largest, (1,), dtype)

    envs, said = vector(Wide), []
    envs.say = said.append
    Watch(envs, "").look_at_bounds(np.full((1, 1, 1), np.finfo(np.float32).max))
    assert not said


@pytest.mark.parametrize(("number", "is_said"), [(1.000005, False), (1.0001, True)])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_number_may_pass_its_bound_by_a_rounding_error_alone(number, is_said, sign):
    class Bounded(Goal):
        observation_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    envs, said = vector(Bounded), []
    envs.say = said.append
    Watch(envs, "").look_at_bounds(np.full((2, 1, 1), sign * number, np.float32))
    assert bool(said) == is_said


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_a_success_rate_counts_the_episodes_that_are_cut(autoreset):
    manager = {"type": "base", "autoreset": autoreset}
    wrapper = {"wrappers": [{"type": "time_limit", "max_episode_steps": 10}]}
    rates = []
    for kind, limit, options in (
        (Goal, 1000, wrapper),
        (Goal, 10, {"max_eval_steps": 10}),
        (lambda: gym.wrappers.TimeLimit(Goal(), 10), 1000, {}),
    ):
        envs = vector(kind, 4, evaluate=True, manager=manager, **options)
        found = Evaluator(envs, PASSIVE, 40, limit).evaluate(0)
        rates.append(evaluation_metrics(found)["eval/is_success"])
    assert rates[0] == rates[1] == rates[2]
    assert 0.1 < rates[0] < 0.5


class Reused(gym.Env):
    """Returns the same array at each step, with the number of the step in it."""

    observation_space, action_space = gym.spaces.Box(-100, 100, (1,)), TWO

    def __init__(self, length=6):
        self.obs, self.length = np.zeros(1, np.float32), length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.obs[:] = 0
        return self.obs, {}

    def step(self, action):
        self.obs += 1
        return self.obs, 1.0, False, bool(self.obs[0] >= self.length), {}


def test_stacked_frames_of_a_reused_array_are_different_ones():
    envs = vector(Reused, wrappers=["frame_stack"])
    envs.reset("collect")
    for _ in range(3):
        obs = envs.step(np.array([0])).obs
    assert obs.ravel().tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(("length", "frames"), [(6, [4, 6]), (5, [4, 5]), (8, [4, 8])])
def test_frames_of_repeated_actions_are_those_of_the_episode_s_end(length, frames):
    envs = vector(lambda: Reused(length), wrappers=["max_and_skip"])
    envs.reset("collect")
    for _ in range(2):  # the second episode must not show frames of the first
        assert envs.step(np.array([0])).obs.item() == frames[0]
        second = envs.step(np.array([0]))
        assert second.final_obs.item() == frames[1]
        assert second.reward.item() == length - 4


class Masked(gym.Env):
    """Episodes of two or three steps, whose info has a mask with one legal action."""

    observation_space, action_space = gym.spaces.Box(-9, 9, (1,)), gym.spaces.Discrete(3)

    def __init__(self, number):
        self.number = number

    def info(self):
        info = {"action_mask": np.eye(3, dtype=np.int8)[(self.number + self.t) % 3]}
        return info | ({"is_success": True} if self.number == 0 else {})

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), self.info()

    def step(self, action):
        self.t += 1
        return np.array([self.t], np.float32), 1.0, self.t >= 2 + self.number % 2, False, self.info()


def test_a_mask_in_info_of_another_shape_is_named_with_the_one_it_needs():
    class Wider(Masked):
        action_space = gym.spaces.Discrete(4)

    with pytest.raises(EnvContractError, match=r"info\['action_mask'\] has the shape \(3,\); .*\(4,\)"):
        vector(lambda: Wider(0), action_mask="info").reset("collect")


@pytest.mark.parametrize("mode", AutoresetMode)
def test_masks_of_info_are_those_of_each_environment_in_every_mode(mode):
    plain = SyncVectorEnv([lambda n=n: Masked(n) for n in range(3)], autoreset_mode=mode)
    envs = NativeVectorEnv(plain, mask_from_info=True, info_keys=("is_success",))
    obs, ended = envs.reset("collect"), []
    for _ in range(12):
        expected = np.stack([np.eye(3)[(env.number + env.t) % 3] for env in plain.envs])
        assert np.array_equal(obs["action_mask"], expected)
        transition = envs.step(np.zeros(3, np.int64))
        obs, ended = transition.obs, ended + transition.episodes
    # gymnasium writes 0 for an environment that has no such key.
    assert {(episode.env, *episode.info.values()) for episode in ended} == {(0, 1.0), (1,), (2,)}


class OneArray(gym.vector.VectorEnv):
    """Writes rewards and flags of every call, also of a reset, into the same arrays."""

    metadata = {"autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012
    single_observation_space, single_action_space = gym.spaces.Box(-99, 99, (1,)), TWO

    def __init__(self):
        self.num_envs, self.t = 2, np.zeros(2)
        self.reward, self.terminated = np.zeros(2), np.zeros(2, bool)

    def reset(self, *, seed=None, options=None):
        self.t[(options or {}).get("reset_mask", slice(None))] = 0
        self.reward[:], self.terminated[:] = 0, False
        return self.t[:, None].astype(np.float32), {}

    def step(self, actions):
        self.t += 1
        self.reward[:], self.terminated[:] = 1, self.t >= [2, 3]
        return self.t[:, None].astype(np.float32), self.reward, self.terminated, np.zeros(2, bool), {}


def test_rewards_and_ends_of_a_step_stay_when_the_reset_reuses_their_arrays():
    envs = NativeVectorEnv(OneArray())
    envs.reset("collect")
    steps = [envs.step(np.zeros(2, np.int64)) for _ in range(6)]
    assert [step.terminated.tolist() for step in steps[:3]] == [[False, False], [True, False], [False, True]]
    assert all(step.reward.tolist() == [1, 1] for step in steps)


@pytest.mark.parametrize(
    "space",
    [
        gym.spaces.Discrete(5, start=-1, dtype=np.int32),
        gym.spaces.MultiDiscrete([3, 4], dtype=np.int32, start=[1, 0]),
        gym.spaces.Discrete(3),
    ],
)
def test_saved_spaces_keep_their_dtype(space):
    assert space_from_json(space_to_json(space)) == space
    assert ("dtype" in space_to_json(space)) == (space.dtype != np.int64)


class Fixed(CountingEnv):
    """Returns the same observation at every reset."""

    def __init__(self, space, value):
        super().__init__(((3, "terminated"),))
        self.observation_space, self.value = space, value

    def reset(self, **kwargs):
        super().reset(**kwargs)
        return self.value, {}


BYTES = gym.spaces.Box(0, 255, (3,), np.uint8)


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (BYTES, np.array([300, 256, 255], np.uint16)),
        (gym.spaces.Box(-128, 127, (1,), np.int8), np.array([300])),
        (gym.spaces.Box(0, 1, (2,), np.bool_), np.array([0, 2], np.int8)),
    ],
)
def test_integers_that_do_not_fit_are_refused(space, value):
    with pytest.raises(EnvContractError, match="into which its values do not fit"):
        vector(lambda: Fixed(space, value)).reset("collect")


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (BYTES, [0, 255, 3]),
        (gym.spaces.MultiDiscrete([3, 4], dtype=np.uint8), [2, 3]),
        (gym.spaces.Box(0, 1, (2,), np.bool_), np.array([0, 1], np.int8)),
    ],
)
def test_integers_that_fit_are_taken_whatever_their_dtype(space, value):
    obs = vector(lambda: Fixed(space, value)).reset("collect")
    assert obs[0].tolist() == [type(obs[0, 0].item())(x) for x in value]


class NoDimension(gym.Env):
    """An action of no dimension, which must be an array."""

    observation_space = gym.spaces.Box(-9, 9, (1,))
    action_space = gym.spaces.Box(-1.0, 1.0, (), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.taken = action
        return np.zeros(1, np.float32), 0.0, False, False, {}


def test_an_action_of_no_dimension_is_an_array():
    envs = vector(NoDimension)
    envs.reset("collect")
    envs.step(np.array([0.5], np.float32))
    (env,) = envs.envs
    assert isinstance(env.unwrapped.taken, np.ndarray)
    assert env.action_space.contains(env.unwrapped.taken)


def test_an_error_in_a_worker_names_the_environment_as_in_this_process():
    messages = []
    for kind in ("base", "subprocess"):
        env = {
            "env_id": "CartPole-v1",
            "kwargs": {"sutton_barto_reward": True, "no_such": 1},
            "manager": kind,
        }
        section = compile_config({"env": env}).values.env
        with pytest.raises(EnvError) as caught:
            make_vector_env(section, 1, 0)
        messages.append(str(caught.value))
    assert all("'CartPole-v1' cannot be made" in message for message in messages)
    assert not any("EnvSpec(" in message for message in messages)


def test_only_a_missing_package_is_advised_to_be_installed():
    for env_id, kwargs in (("Ant-v5", {"xml_file": "no_such.xml"}), ("ALE/Pong-v5", {"foo": 99})):
        section = compile_config({"env": {"env_id": env_id, "kwargs": kwargs}}).values.env
        with pytest.raises(EnvError) as caught:
            make_env(section)
        assert "Install what it needs" not in str(caught.value)
