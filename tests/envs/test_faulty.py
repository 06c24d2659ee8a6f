"""The wrapper ``faulty``: each fault happens as configured, and at the configured step."""

import contextlib
import subprocess
import sys
import time

import gymnasium as gym
import numpy as np
import pytest
from small_worlds import SeededEnv, SeededTree

from ding_lite import testing
from ding_lite.config.compile import compile_config
from ding_lite.envs.faulty import FAULTS, FaultyEnv
from ding_lite.envs.make import make_vector_env
from ding_lite.errors import ConfigError, EnvContractError, EnvError


def play(env, steps=300, seed=0):
    """Yields (step of the episode, obs, reward) of steps with action 1, resets included."""
    for episode in range(steps):
        obs, _ = env.reset(seed=1000 * seed + episode)
        count, over, reward = 0, False, None
        while not over:
            yield count, obs, reward
            obs, reward, terminated, truncated, _ = env.step(1)
            count, over = count + 1, terminated or truncated
            steps -= 1
            if steps < 0:
                return
        yield count, obs, reward


def test_without_faults_it_is_the_environment_itself():
    for (i, a, x), (j, b, y) in zip(play(FaultyEnv(SeededEnv())), play(SeededEnv()), strict=True):
        assert (i, a.tolist(), x) == (j, b.tolist(), y)


@pytest.mark.parametrize("fault", ["nan_obs", "nan_reward", "bad_shape"])
def test_values_are_spoiled_at_the_chosen_steps_alone(fault):
    steps = set()
    for count, obs, reward in play(FaultyEnv(SeededEnv(), at={fault: [1, 3]})):
        seen = {
            "nan_obs": bool(np.isnan(obs).any()),
            "nan_reward": reward is not None and bool(np.isnan(reward)),
            "bad_shape": obs.shape != (3,),
        }
        assert [name for name, spoiled in seen.items() if spoiled] == ([fault] if count in (1, 3) else [])
        steps.add(count)
    assert steps >= {0, 1, 2, 3, 4}


def test_a_crash_names_its_step():
    env = FaultyEnv(SeededEnv(), at={"crash": [0]})
    with pytest.raises(RuntimeError, match="step 0"):
        env.reset(seed=1)


def test_a_hang_lasts_hang_s_seconds():
    env = FaultyEnv(SeededEnv(), hang=1.0, hang_s=0.1)
    start = time.monotonic()
    env.reset(seed=1)
    assert 0.1 <= time.monotonic() - start < 5


def test_a_kill_is_a_real_one():
    code = (
        "import gymnasium as gym, sys\nfrom ding_lite.envs.faulty import FaultyEnv\n"
        "assert 'torch' not in sys.modules\n"  # workers import this module
        "env = FaultyEnv(gym.make('CartPole-v1'), at={'kill': [1]})\nenv.reset(seed=1)\nenv.step(0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (-9, "")


def test_probabilities_are_of_each_step_and_follow_the_seeds():
    def rewards(seed, worlds_seed):
        return [r for _, _, r in play(FaultyEnv(SeededEnv(), nan_reward=0.2, seed=seed), 3000, worlds_seed)]

    first = np.array(rewards(0, 0), float)
    assert np.array_equal(first, np.array(rewards(0, 0), float), equal_nan=True)
    assert not np.array_equal(np.isnan(first), np.isnan(np.array(rewards(1, 0), float)))
    numbers = [r for r in rewards(0, 0) if r is not None]
    assert 0.17 < np.isnan(numbers).mean() < 0.23


def test_a_chosen_fault_may_happen_once_whatever_comes_after(tmp_path):
    for index in (0, 1):
        env = FaultyEnv(SeededEnv(), at={"crash": [1]}, once=str(tmp_path), index=index)
        env.reset(seed=0)
        with pytest.raises(RuntimeError, match="on purpose"):
            env.step(1)
        again = FaultyEnv(SeededEnv(), at={"crash": [1]}, once=str(tmp_path), index=index)
        again.reset(seed=0)
        again.step(1)


def test_some_environments_and_evaluations_may_be_left_alone():
    at = {"crash": [0]}
    FaultyEnv(SeededEnv(), at=at, envs=[1], index=0).reset(seed=0)
    FaultyEnv(SeededEnv(), at=at, evaluate=True).reset(seed=0)
    for options in (dict(envs=[1], index=1), dict(evaluate=True, in_evaluation=True)):
        with pytest.raises(RuntimeError, match="on purpose"):
            FaultyEnv(SeededEnv(), at=at, **options).reset(seed=0)


def test_an_alias_is_one_object_and_does_not_reach_transitions():
    env = FaultyEnv(SeededEnv(), alias=True)
    first, _ = env.reset(seed=0)
    assert env.step(1)[0] is first
    plain, aliased = (vector(SeededEnv, *wrappers) for wrappers in ((), (dict(type="faulty", alias=True),)))
    with contextlib.closing(plain), contextlib.closing(aliased):
        assert plain.reset("x").tolist() == aliased.reset("x").tolist()
        for _ in range(40):
            x, y = plain.step(np.ones(3, int)), aliased.step(np.ones(3, int))
            assert x.obs.tolist() == y.obs.tolist()
            assert (x.final_obs is None) == (y.final_obs is None)
            assert x.final_obs is None or x.final_obs.tolist() == y.final_obs.tolist()


def vector(kind, *wrappers, **env):
    cfg = compile_config({"env": {"type": kind, "wrappers": list(wrappers), **env}}).values.env
    return make_vector_env(cfg, 3, 0)


@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        ("crash", EnvError, r"env 1 \(seed \d+, episode 0, step 1\), action 1: RuntimeError: "),
        ("nan_reward", EnvContractError, r"env 1 \(seed \d+, episode 0, step 1\), action 1: reward = nan"),
        ("bad_shape", EnvContractError, r"env 1 .*observation.*\(1, 3\).*\(3,\)"),
    ],
)
def test_in_this_process_a_fault_is_an_error_at_once(fault, error, words):
    with contextlib.closing(vector(SeededEnv, dict(type="faulty", at={fault: [1]}, envs=[1]))) as envs:
        envs.reset("x")
        with pytest.raises(error, match=words):
            envs.step(np.ones(3, int))


def test_trees_are_spoiled_leaf_by_leaf():
    class Nested(SeededTree):
        observation_space = gym.spaces.Dict(
            pose=SeededTree.observation_space, at=gym.spaces.Tuple([gym.spaces.Discrete(99)])
        )

        def obs(self):
            return {"pose": super().obs(), "at": (self.count,)}

    shown, _ = FaultyEnv(Nested(), nan_obs=1.0).reset(seed=0)
    assert np.isnan(shown["pose"]).tolist() == [True, False, False]
    assert shown["at"] == (0,)
    shown, _ = FaultyEnv(Nested(), bad_shape=1.0).reset(seed=0)
    assert (shown["pose"].shape, shown["at"][0].shape) == ((1, 3), (1,))
    env = FaultyEnv(Nested(), alias=True)
    first, _ = env.reset(seed=0)
    action = env.action_space.sample()
    assert env.step(action)[0]["pose"] is first["pose"]
    assert env.step(action)[0]["at"] == (2,)


def test_picture_in_column_order_is_spoiled():
    class Columns(SeededTree):
        observation_space = gym.spaces.Box(-1, 1, (2, 3))

        def obs(self):
            return np.zeros((2, 3), np.float32, order="F")

    shown, _ = FaultyEnv(Columns(), nan_obs=1.0).reset(seed=0)
    assert np.isnan(shown).sum() == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (dict(at=dict(explode=[1])), "'explode'.*crash, hang, kill"),
        (dict(crash=-0.1), r"crash=-0\.1"),
        (dict(crash=0.6, kill=0.6), "crash=0.6, hang=0, kill=0.6"),
    ],
)
def test_faults_that_cannot_be_are_a_config_error(arguments, words):
    with pytest.raises(ConfigError, match=f"env.wrappers: faulty: .*{words}"):
        vector(SeededEnv, dict(type="faulty", **arguments))


def test_its_public_names():
    assert testing.FaultyEnv is FaultyEnv
    assert {"crash", "hang", "kill", "nan_obs", "nan_reward", "bad_shape"} == set(FAULTS)
