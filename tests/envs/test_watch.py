"""What is checked in observations; ``on_bad_value="reset_env"`` ends the episode of a nan before it."""

import contextlib
import functools

import gymnasium as gym
import numpy as np
import pytest
import torch
from scripted import Scripted, nan_obs, nan_reward, world
from small_worlds import LengthEnv
from worlds import digest, policy_for, vector_of

from ding_lite.config.compile import compile_config
from ding_lite.data.collector import Collector
from ding_lite.data.episodes import Evaluator
from ding_lite.envs.checks import Watch, bad_observation
from ding_lite.envs.in_process import InProcessVectorEnv
from ding_lite.envs.make import make_vector_env
from ding_lite.envs.recorder import EpisodeRecorder
from ding_lite.envs.workers.vector_env import SubprocessVectorEnv
from ding_lite.errors import ConfigError, EnvContractError, EnvError, NotFiniteError
from ding_lite.trees import named_leaves, to_dict

BACKENDS = {
    "base": InProcessVectorEnv,
    "subprocess": functools.partial(SubprocessVectorEnv, num_workers=2),
    "two halves": functools.partial(SubprocessVectorEnv, num_workers=2, double_buffer=True),
}
ZEROS = np.zeros(4, int)


@contextlib.contextmanager
def vector(make, backend="base", num_envs=4):
    envs = BACKENDS[backend](make, num_envs, on_bad_value="reset_env")
    envs.lines = []
    envs.say = envs.lines.append
    with contextlib.closing(envs):
        yield envs


@pytest.mark.parametrize(
    ("fault", "backend"), [(nan_obs, "base"), (nan_reward, "subprocess"), (nan_obs, "two halves")]
)
def test_the_episode_of_a_bad_value_ends_before_it(tmp_path, fault, backend):
    make = world(fault=fault, at=[3], only=1, once=tmp_path)
    alone, hit = InProcessVectorEnv(world(), 4), 0
    with vector(make, backend) as envs:
        shown, other = envs.reset("x").copy(), alone.reset("x").copy()
        assert shown.tolist() == other.tolist()
        for _ in range(12):
            name, before = shown[1, 0], envs.bad_values
            got, reference = envs.step(ZEROS), alone.step(ZEROS)
            shown, neighbours = got.obs.copy(), [0, 2, 3]
            assert np.isfinite(shown).all()
            assert np.isfinite(got.reward).all()
            assert shown[neighbours].tolist() == reference.obs[neighbours].tolist()
            assert got.valid[neighbours].all()
            if envs.bad_values > before:
                hit += 1
                row = (got.valid, got.terminated, got.truncated, got.reward)
                assert [field[1] for field in row] == [False, False, False, 0]
                assert (shown[1, 1], shown[1, 0] != name) == (0, True)
                assert not [one for one in got.episodes if one.env == 1]
                assert envs.episode_lengths[1] == envs.episode_returns[1] == 0
        assert (hit, envs.bad_values, len(envs.lines)) == (1, 1, 1)
        assert "env 1 (seed" in envs.lines[0]
        assert "nan" in envs.lines[0]


def test_bad_values_reach_no_rollout_and_are_the_same_in_workers():
    def played(backend, fault):
        found = []
        with vector(world(fault=fault, chance=0.04), backend) as envs:
            collector = Collector(envs, policy_for(envs).collect_mode, 60)
            for _ in range(4):
                rollout = to_dict(collector.collect())
                assert all(torch.isfinite(leaf).all() for _, leaf in named_leaves(rollout))
                assert all(e.episode_return == e.length * (e.length + 1) / 2 for e in collector.episodes)
                found.append(digest(rollout))
            assert envs.bad_values > 5
            assert len(envs.lines) == 1  # the others are counted
            return found, envs.bad_values

    assert played("base", nan_obs) == played("subprocess", nan_obs)
    played("base", nan_reward)


@pytest.mark.parametrize("backend", ["base", pytest.param("subprocess", marks=pytest.mark.slow)])
def test_a_bad_reset_is_made_again_with_the_next_seed_but_not_for_ever(tmp_path, backend):
    with vector(world(fault=nan_obs, at=[0], only=1, once=tmp_path), backend) as envs:
        assert np.isfinite(envs.reset("x")).all()
        assert "episode 1, step 0" in envs.describe(1)
        assert (envs.bad_values, len(envs.lines)) == (1, 1)
    with (
        vector(world(fault=nan_obs, at=[0], only=1), backend) as envs,
        pytest.raises(NotFiniteError, match="env 1"),
    ):
        envs.reset("x")


def test_a_resumed_run_has_the_same_bad_values():
    make = world(fault=nan_obs, chance=0.05)
    with vector(make) as one, vector(make) as other:
        policy = policy_for(one)
        straight = Collector(one, policy.collect_mode, 60)
        straight.collect()
        resumed = Collector(other, straight.mode, 60)
        resumed.load_state_dict(straight.state_dict())
        generator = policy.state_dict()
        expected = digest(to_dict(straight.collect())), straight.metrics()
        policy.load_state_dict(generator)
        assert (digest(to_dict(resumed.collect())), resumed.metrics()) == expected


def test_a_rollout_without_a_good_step_and_an_evaluation_without_a_good_episode_are_errors():
    with vector(world(fault=nan_reward, at=[1])) as envs:
        with pytest.raises(EnvError, match="none of the 60 rows"):
            Collector(envs, policy_for(envs).collect_mode, 60).collect()
        with pytest.raises(NotFiniteError, match="evaluation of 10 episodes"):
            Evaluator(envs, policy_for(envs).eval_mode, 10, 100).evaluate(0)
    with vector(world(fault=nan_obs, chance=0.03)) as envs:
        result = Evaluator(envs, policy_for(envs).eval_mode, 10, 100).evaluate(0)
        assert envs.bad_values > 0
        assert result.returns == tuple(n * (n + 1) / 2 for n in result.lengths)


def test_steps_of_a_wrapper_in_a_reset_that_turns_out_bad_are_no_episode():
    class Steps(gym.Wrapper):
        def reset(self, **kwargs):
            super().reset(**kwargs)
            obs, *_, info = self.env.step(0)
            return obs, info

    def make(index):
        return Steps(EpisodeRecorder(Scripted(index, fault=nan_obs, chance=0.3)))

    with vector(make, num_envs=1) as envs:
        envs.reset("x")
        for _ in range(200):
            assert all(episode.length for episode in envs.step(np.zeros(1, int)).episodes)
        assert envs.bad_values > 30


@pytest.mark.parametrize("kind", ["vector", "env_pool"])
def test_environments_that_only_begin_together_refuse_reset_env(kind):
    env = {"env_id": "CartPole-v1", "on_bad_value": "reset_env", "manager": kind}
    with pytest.raises(ConfigError, match="env.on_bad_value"):
        compile_config({"env": env})
    cfg = compile_config({"env": {**env, "manager": "auto"}}).values.env
    with contextlib.closing(make_vector_env(cfg, 2, 0)) as envs:
        assert "in this process" in envs.backend


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_large_numbers_are_finite_though_their_squares_are_not(dtype):
    obs = np.full((3, 2, 2), np.finfo(dtype).max, dtype)
    assert bad_observation(obs) is None
    for bad in (np.nan, np.inf, -np.inf):
        obs[1, -1, -1] = bad
        assert bad_observation({"x": obs}).row == 1


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (gym.spaces.Discrete(3), 3),
        (gym.spaces.Discrete(3, start=-1), 2),
        (gym.spaces.MultiDiscrete([2, 2]), np.array([0, -1])),
    ],
)
def test_an_index_outside_of_its_range_is_refused(space, value):
    class Shows(LengthEnv):
        observation_space = gym.spaces.Tuple([space])

        def reset(self, **kwargs):
            return (value,), super().reset(**kwargs)[1]

    watch = Watch(vector_of(lambda index: Shows(5), 1), "")
    with pytest.raises(EnvContractError, match=r"env 0 .*observation\['0'\].*not in"):
        watch.reset("x")
