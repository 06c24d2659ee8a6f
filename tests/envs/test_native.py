"""Native vectors: infos, parts. Transitions are in test_backends.py, faults in test_contract.py."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from small_worlds import LengthEnv, SeededEnv
from worlds import copy_of, section

from ding_lite.envs.make import make_vector_env
from ding_lite.envs.native import EnvPoolVectorEnv, NativeVectorEnv
from ding_lite.errors import EnvError

TWO = gym.spaces.Discrete(2)


def rows_of(envs, count):
    envs.reset("collect")
    return [copy_of(envs.step(np.zeros(envs.num_envs, np.int64))) for _ in range(count)]


def test_reward_of_a_filler_is_no_part_of_an_episode():
    class Paying(SyncVectorEnv):
        def step(self, action):
            obs, reward, *rest = super().step(action)
            return (obs, np.ones_like(reward), *rest)

    rows = rows_of(NativeVectorEnv(Paying([lambda: LengthEnv(2)])), 8)
    assert [row.valid[0] for row in rows[:3]] == [True, True, False]
    assert [(e.episode_return, e.length) for row in rows for e in row.episodes] == [(2, 2)] * 3


def test_parts_of_a_vector_have_starts_and_numbers_of_their_own():
    parts = [NativeVectorEnv(SyncVectorEnv([SeededEnv] * 2), index_offset=offset) for offset in (0, 2)]
    assert not np.isin(*(part.reset("collect")[:, 2] for part in parts)).any()
    assert parts[1].describe(1) == "env 3 (step 0)"


class Counting(LengthEnv):
    """Episodes of two or three steps; env 0 has a number in its info."""

    def __init__(self, number):
        super().__init__(2 + number % 2)
        self.info = {"is_success": True} if number == 0 else {}

    def reset(self, **kwargs):
        return super().reset(**kwargs)[0], self.info

    def step(self, action):
        return *super().step(action)[:-1], self.info


@pytest.mark.parametrize("mode", AutoresetMode)
def test_numbers_of_info_are_those_of_each_environment_in_every_mode(mode):
    plain = SyncVectorEnv([lambda n=n: Counting(n) for n in range(3)], autoreset_mode=mode)
    rows = rows_of(NativeVectorEnv(plain, info_keys=("is_success",)), 12)
    ended = [episode for row in rows for episode in row.episodes]
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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*precision lowered by casting")
def test_env_pool_begins_anew_from_the_seed_of_the_stream():
    pytest.importorskip("envpool", reason="the extra envpool is not installed")
    vectors = [EnvPoolVectorEnv("CartPole-v1", 4, seed, {"num_threads": 1}) for seed in (1, 1, 1)]
    starts = [envs.reset("evaluate", k).copy() for envs, k in zip(vectors, (0, 0, 1), strict=True)]
    assert np.array_equal(starts[0], starts[1])
    assert not np.array_equal(starts[0], starts[2])
    with pytest.raises(EnvError, match="NoSuch.*list_all_envs"):
        make_vector_env(section(env_id="NoSuch-v0", manager="env_pool"), 1, 0)


@pytest.mark.slow
def test_env_pool_with_episodic_life_reports_whole_games_with_raw_rewards():
    pytest.importorskip("envpool", reason="the extra envpool is not installed")
    games = {}
    for episodic_life in (False, True):
        kwargs = dict(num_threads=1, episodic_life=episodic_life, reward_clip=True, max_episode_steps=300)
        envs, rng = EnvPoolVectorEnv("Breakout-v5", 2, 0, kwargs), np.random.default_rng(0)
        envs.reset("evaluate")
        rows = [envs.step(rng.integers(0, 4, 2)) for _ in range(1200)]
        ends = sum(int((row.terminated | row.truncated).sum()) for row in rows)
        games[episodic_life] = [episode for row in rows for episode in row.episodes]
        assert (ends > 3 * len(games[True])) if episodic_life else (ends == len(games[False]))
        assert sum(e.length for e in games[episodic_life]) > 1500
    means = [np.mean([episode.episode_return for episode in of]) for of in games.values()]
    assert means[1] > 0.7 * means[0] > 0
