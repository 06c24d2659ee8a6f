"""``env.on_bad_value``: a nan ends the run, ends its episode, or drops its episode; none is learned from.

Observations of the test environment are (episode, step) and its reward is the step, so that any mix-up shows.
"""

import contextlib
import functools
import itertools

import faulty_worlds
import gymnasium as gym
import numpy as np
import pytest
import torch
from chains import check_chain
from small_worlds import LengthEnv, SeededEnv
from worlds import digest, policy_for, small_config, trainee, vector_of

from ding_lite.cli import main
from ding_lite.config.compile import compile_config
from ding_lite.data.collector import Collector
from ding_lite.data.episodes import Evaluator
from ding_lite.envs.bad_values import bad_observation
from ding_lite.envs.faulty import FaultyEnv
from ding_lite.envs.in_process import AUTORESET, InProcessVectorEnv
from ding_lite.envs.make import make_vector_env
from ding_lite.envs.recorder import EpisodeRecorder
from ding_lite.envs.workers.vector_env import SubprocessVectorEnv
from ding_lite.errors import ConfigError, EnvError, NotFiniteError, NumericsError
from ding_lite.trees import to_dict

BACKENDS = {
    "base": InProcessVectorEnv,
    "subprocess": functools.partial(SubprocessVectorEnv, num_workers=2),
    "two halves": functools.partial(SubprocessVectorEnv, num_workers=2, double_buffer=True),
}
FAULTS = {"nan_obs": r"observation[0] = nan", "nan_reward": "reward = nan"}
ZEROS = np.zeros(4, int)


def world(**faults):
    return functools.partial(faulty_worlds.marked, faults)


@contextlib.contextmanager
def vector(make, backend="base", num_envs=4, on_bad_value="reset_env", **options):
    envs = BACKENDS[backend](make, num_envs, on_bad_value=on_bad_value, **options)
    envs.lines = []
    envs.say = envs.lines.append
    with contextlib.closing(envs):
        yield envs


def rollouts(envs, n, n_sample=60, **policy):
    collector = Collector(envs, policy_for(envs, **policy).collect_mode, n_sample)
    for _ in range(n):
        yield collector, collector.collect()


@pytest.mark.daily(4)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("autoreset", AUTORESET)
@pytest.mark.parametrize("fault", FAULTS)
def test_the_episode_of_a_bad_value_ends_before_it(tmp_path, fault, autoreset, backend):
    make = world(at={fault: [3]}, once=str(tmp_path), envs=[1])
    alone = InProcessVectorEnv(world(), 4, autoreset=autoreset)
    with vector(make, backend, autoreset=autoreset) as envs:
        shown, other, hit = envs.reset("x").copy(), alone.reset("x").copy(), 0
        assert shown.tolist() == other.tolist()
        for _ in range(12):
            name, bad_before = shown[1, 0], envs.bad_values
            transition, reference = envs.step(ZEROS), alone.step(ZEROS)
            shown = transition.obs.copy()
            assert np.isfinite(shown).all()
            assert np.isfinite(transition.reward).all()
            neighbours = [0, 2, 3]
            assert shown[neighbours].tolist() == reference.obs[neighbours].tolist()
            assert transition.valid[neighbours].tolist() == reference.valid[neighbours].tolist()
            assert all(np.isfinite(one.episode_return) for one in transition.episodes)
            if envs.bad_values > bad_before:
                hit += 1
                row = (transition.valid, transition.terminated, transition.truncated, transition.reward)
                assert [field[1] for field in row] == [False, False, False, 0]
                assert shown[1, 1] == 0
                assert shown[1, 0] != name
                assert not [one for one in transition.episodes if one.env == 1]
                assert envs.episode_lengths[1] == envs.episode_returns[1] == 0
        assert (hit, envs.bad_values, len(envs.lines)) == (1, 1, 1)
        assert f"step 3), action 0: {FAULTS[fault]}" in envs.lines[0]
        assert "env 1 (seed" in envs.lines[0]
        assert "env.on_bad_value='reset_env'" in envs.lines[0]
        del transition


@pytest.mark.daily(4)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("autoreset", AUTORESET)
def test_no_transition_crosses_a_bad_value(autoreset, backend):
    make = world(nan_obs=0.03, nan_reward=0.03, seed=3)
    with vector(make, backend, autoreset=autoreset) as envs:
        for collector, rollout in rollouts(envs, 6):
            check_chain(rollout)
            assert all(torch.isfinite(leaf).all() for leaf in leaves(to_dict(rollout)))
            # The reward is the step, so that a whole episode's return follows from its length.
            assert all(e.episode_return == e.length * (e.length + 1) / 2 for e in collector.episodes)
            assert collector.metrics()["bad_values"] > 0
        assert envs.bad_values > 10
        assert len(envs.lines) == 1  # the others are counted


def leaves(tree):
    return itertools.chain(*map(leaves, tree.values())) if isinstance(tree, dict) else [tree]


def test_a_worker_and_this_process_give_the_same_rollouts():
    def played(backend):
        with vector(world(nan_obs=0.05, nan_reward=0.05), backend) as envs:
            return [digest(to_dict(rollout)) for _, rollout in rollouts(envs, 3)], envs.bad_values

    assert played("base") == played("subprocess")


def test_by_default_a_bad_value_is_an_error():
    for fault, words in FAULTS.items():
        with vector(world(at={fault: [3]}), on_bad_value="raise") as envs:
            with pytest.raises(NotFiniteError) as caught:
                list(rollouts(envs, 1))
            assert words in str(caught.value)
            assert envs.bad_values == 0


def test_a_native_vector_environment_is_checked_too():
    cfg = compile_config({"env": {"env_id": "CartPole-v1"}}).values.env
    with contextlib.closing(make_vector_env(cfg, 4, 0)) as envs:
        policy = policy_for(envs)
        collector = Collector(envs, policy.collect_mode, 40)
        collector.collect()
        envs.env.unwrapped.state[2, 1] = np.nan
        with pytest.raises(NotFiniteError, match=r"env 1 .*observation\[\d\] = nan"):
            collector.collect()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_bad_reset_is_made_again_with_the_next_seed_but_not_for_ever(tmp_path, backend):
    with vector(world(at={"nan_obs": [0]}, once=str(tmp_path), envs=[1]), backend) as envs:
        assert np.isfinite(envs.reset("x")).all()
        assert "episode 1, step 0" in envs.describe(1)
        assert (envs.bad_values, len(envs.lines)) == (1, 1)
    always = world(at={"nan_obs": [0]}, envs=[1])
    message = "env 1 .*at reset.*observation.* 9 resets"
    with vector(always, backend) as envs, pytest.raises(NotFiniteError, match=message):
        envs.reset("x")


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_trained_stays_finite(fault):
    policy, _ = trainee("ppo", normalize={"obs": True, "reward": True})
    envs = vector_of(lambda i: FaultyEnv(SeededEnv(), **{fault: 0.1}, index=i), 4, on_bad_value="reset_env")
    envs.say = print
    collector = Collector(envs, policy.collect_mode, 64)
    for _ in range(5):
        assert np.isfinite(list(policy.learn_mode.forward(collector.collect()).values())).all()
    assert all(np.isfinite(np.asarray(leaf)).all() for leaf in numbers(policy.state_dict()))
    assert envs.bad_values > 10


def numbers(tree):
    if isinstance(tree, dict):
        return itertools.chain(*map(numbers, tree.values()))
    return [tree] if isinstance(tree, (float, np.ndarray, torch.Tensor)) else []


def test_a_resumed_run_has_the_same_bad_values():
    make = world(nan_obs=0.05, nan_reward=0.05)
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


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("on_bad_value", ["raise", "reset_env"])
def test_an_action_that_is_not_finite_is_a_numerics_error(on_bad_value, backend):
    make = functools.partial(faulty_worlds.counting, "box")
    with vector(make, backend, on_bad_value=on_bad_value) as envs:
        envs.reset("x")
        with pytest.raises(NumericsError, match=r"env 2 .*step 1\), action .*nan.*learning_rate"):
            envs.step(np.array([[0, 0], [0, 0], [0, np.nan], [0, 0]], np.float32))


def test_random_steps_before_training_are_checked_too():
    """They would spoil the scale of the observations for good."""
    envs = vector_of(lambda i: FaultyEnv(SeededEnv(), at={"nan_obs": [1]}, index=i), 2)
    collector = Collector(envs, policy_for(envs).collect_mode, 8)
    with pytest.raises(NotFiniteError, match=r"observation\[0\] = nan"):
        collector.random_observations(20, 0)


def test_a_rollout_without_a_good_step_is_an_error():
    with vector(world(at={"nan_reward": [1]})) as envs, pytest.raises(EnvError, match="none of the 60 rows"):
        list(rollouts(envs, 1))


def test_an_evaluation_plays_such_episodes_anew_but_not_for_ever():
    def evaluated(on_bad_value, **faults):
        with vector(world(in_evaluation=True, **faults), on_bad_value=on_bad_value) as envs:
            return Evaluator(envs, policy_for(envs).eval_mode, 10, 100).evaluate(0), envs.bad_values

    result, bad = evaluated("reset_env", nan_obs=0.03, nan_reward=0.03)
    assert bad > 2
    assert result.returns == tuple(n * (n + 1) / 2 for n in result.lengths)
    assert len(result.returns) == 10
    with pytest.raises(NotFiniteError, match="evaluation of 10 episodes"):
        evaluated("reset_env", at={"nan_obs": [1]})
    for fault, words in FAULTS.items():
        with pytest.raises(NotFiniteError) as caught:
            evaluated("raise", at={fault: [1]})
        assert words in str(caught.value)


def test_a_branch_of_an_observation_is_named():
    class Nested(SeededEnv):
        observation_space = gym.spaces.Dict(pose=gym.spaces.Dict(arm=SeededEnv.observation_space))

        def obs(self):
            return {"pose": {"arm": super().obs()}}

    envs = vector_of(lambda i: FaultyEnv(Nested(), at={"nan_obs": [1]}, envs=[1], index=i), 2)
    with pytest.raises(NotFiniteError, match=r"env 1 .*observation\['pose'\]\['arm'\]\[0\] = nan"):
        list(rollouts(envs, 1))


def test_a_reward_that_float32_cannot_hold_is_no_number():
    class Huge(SeededEnv):
        def step(self, action):
            obs, _, *rest = super().step(action)
            return (obs, 1e39, *rest)

    with contextlib.closing(vector_of(lambda i: Huge(), 1)) as envs:
        envs.reset("x")
        with pytest.raises(NotFiniteError, match=r"reward = 1e\+39"):
            envs.step(np.zeros(1, int))


@pytest.mark.parametrize("kind", ["vector", "env_pool"])
def test_environments_that_only_begin_together_refuse_it(kind):
    env = {"env_id": "CartPole-v1", "on_bad_value": "reset_env", "manager": kind}
    with pytest.raises(ConfigError, match=f"env.on_bad_value: 'reset_env'.*{kind}.*env.manager.type='base'"):
        compile_config({"env": env})


def test_auto_takes_environments_that_begin_one_by_one():
    for on_bad_value, backend in (("raise", "CartPoleVectorEnv"), ("reset_env", "in this process")):
        cfg = compile_config({"env": {"env_id": "CartPole-v1", "on_bad_value": on_bad_value}}).values.env
        with contextlib.closing(make_vector_env(cfg, 2, 0)) as envs:
            assert backend in envs.backend


def test_an_unknown_value_is_refused_by_the_config_and_by_the_class():
    with pytest.raises(ConfigError, match="env.on_bad_value: .*raise.*reset_env"):
        compile_config({"env": {"env_id": "CartPole-v1", "on_bad_value": "skip"}})
    with pytest.raises(ValueError, match="on_bad_value.*raise, reset_env.*'skip'"):
        vector_of(lambda i: SeededEnv(), 1, on_bad_value="skip")


@pytest.mark.daily(1)
@pytest.mark.parametrize("manager", ["base", "subprocess"])
def test_a_run_goes_on_says_so_once_and_counts(tmp_path, monkeypatch, capsys, manager):
    faulty = dict(type="faulty", nan_obs=0.01, nan_reward=0.01)
    config = small_config(env={"wrappers": [faulty], "on_bad_value": "reset_env", "manager": manager})
    (tmp_path / "spoiled.py").write_text(f"config = {config!r}")
    monkeypatch.chdir(tmp_path)
    assert main(["train", "-c", "spoiled.py", "--exp-name", "run"]) == 0
    assert capsys.readouterr().err == ""
    log = (tmp_path / "run" / "log.txt").read_text()
    assert log.count("env.on_bad_value='reset_env'") == 1
    header, *rows = (
        (line.split(",")) for line in (tmp_path / "run" / "metrics.csv").read_text().splitlines()
    )
    assert sum(float(row[header.index("collect/bad_values")]) for row in rows) > 5
    assert not [name for name in ("nan", "inf") if name in ",".join(rows[-1])]


@pytest.mark.parametrize("fault", FAULTS)
def test_an_episode_whose_last_step_is_bad_is_not_reported(fault):
    envs = vector_of(
        lambda i: FaultyEnv(LengthEnv(3), at={fault: [3]}, envs=[1], index=i), 2, on_bad_value="reset_env"
    )
    envs.say = print
    for collector, rollout in rollouts(envs, 2, 24):
        assert [one.env for one in collector.episodes] == [0] * 4
        assert rollout.valid[:, 1].tolist() == [True, True, False] * 4


def test_what_a_wrapper_does_in_a_reset_is_not_reported_either():
    """The steps that a wrapper takes to begin a game that turns out bad are no episode."""

    class Steps(gym.Wrapper):
        def reset(self, **kwargs):
            super().reset(**kwargs)
            obs, *_, info = self.env.step(0)
            return obs, info

    def make(index):
        return Steps(FaultyEnv(EpisodeRecorder(faulty_worlds.Marked()), nan_obs=0.5))

    with vector(make, num_envs=1) as envs:
        envs.reset("x")
        for _ in range(300):
            for episode in envs.step(np.zeros(1, int)).episodes:
                assert episode.length > 1 or not episode.cut
        assert envs.bad_values > 30


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(3,), (3, 4), (3, 2, 2)])
def test_large_numbers_are_finite_though_their_squares_are_not(dtype, shape):
    obs = np.full(shape, np.finfo(dtype).max, dtype)
    assert bad_observation(obs) is None
    for bad in (np.nan, np.inf, -np.inf):
        obs[(1, *[-1] * (len(shape) - 1))] = bad
        found = bad_observation({"x": obs})
        assert found.env == 1
        assert found.message.startswith("observation['x']")
        assert f"= {bad}," in found.message
