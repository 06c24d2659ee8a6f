"""Rollouts of whole episodes: each environment plays its share, and later steps are not valid."""

import contextlib
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import small_worlds
import torch
from small_worlds import CountingEnv, LengthEnv, SeededEnv, SpoiledEnv, StuckEnv
from worlds import digest, policy_for, same_tree, trainee, vector_of

from ding_lite import ConfigError, SerialPipeline, compile_config
from ding_lite.data.collector import Collector
from ding_lite.data.episodes import shares
from ding_lite.envs.in_process import AUTORESET
from ding_lite.envs.make import make_vector_env
from ding_lite.envs.native import NativeVectorEnv
from ding_lite.envs.workers.vector_env import SubprocessVectorEnv
from ding_lite.errors import EnvError, NotFiniteError
from ding_lite.rl.returns import gae
from ding_lite.trees import to_dict

KINDS = ["ppo", "ppo_offpolicy", "ppg", "ppg_offpolicy"]
SCRIPTS = (
    ((2, "terminated"), (3, "truncated"), (4, "terminated")),
    ((9, "truncated"), (1, "terminated")),
    ((1, "terminated"), (1, "truncated"), (6, "truncated")),
)


scripted = partial(small_worlds.scripted, scripts=SCRIPTS)


def collector_of(envs, n_episode, n_sample=6, **policy):
    return Collector(envs, policy_for(envs, **policy).collect_mode, n_sample, n_episode)


def episodes_of(rollout):
    """Returns (env, length, end) of each episode in the valid rows of a rollout."""
    found = []
    for env in range(rollout.valid.shape[1]):
        length = 0
        for t in range(len(rollout.valid)):
            if not rollout.valid[t, env]:
                continue
            assert float(rollout.obs[t, env, 1]) == length, "every row follows the one before"
            length += 1
            ends = [name for name in ("terminated", "truncated") if rollout[name][t, env]]
            if ends:
                found.append((env, length, *ends))
                length = 0
        assert length == 0, "an episode has no end"
    return found


@pytest.mark.parametrize("autoreset", AUTORESET)
@pytest.mark.parametrize(
    ("n_episode", "expected"),
    [
        (3, [(0, 2, "terminated"), (1, 9, "truncated"), (2, 1, "terminated")]),
        (
            5,
            [
                *((0, 2, "terminated"), (0, 3, "truncated")),
                *((1, 9, "truncated"), (1, 1, "terminated")),
                (2, 1, "terminated"),
            ],
        ),
    ],
)
def test_a_rollout_is_each_environments_share_of_whole_episodes(n_episode, expected, autoreset):
    envs = vector_of(lambda index: CountingEnv(SCRIPTS[index]), 3, autoreset=autoreset)
    collector = collector_of(envs, n_episode)
    rollout = collector.collect()
    # The environments have been begun twice by now: scripts go on with the second episode.
    turned = [script[1:] + script[:1] for script in SCRIPTS]
    expected = [
        (env, *turned[env][k]) for env, share in enumerate(shares(n_episode, 3)) for k in range(share)
    ]
    assert episodes_of(rollout) == expected
    assert rollout.valid[-1].any()
    assert sorted((e.env, e.length) for e in collector.episodes) == sorted((e[0], e[1]) for e in expected)
    assert collector.episode_count == n_episode
    cut = [(t, env) for t, env in zip(rollout.final.t.tolist(), rollout.final.env.tolist(), strict=True)]
    assert sorted(cut) == sorted(map(tuple, (rollout.truncated & rollout.valid).nonzero().tolist()))


def test_shares_differ_by_at_most_one():
    assert shares(7, 3).tolist() == [3, 2, 2]
    assert shares(8, 4).tolist() == [2, 2, 2, 2]


def test_every_rollout_begins_anew_from_seeds_of_its_own():
    collector = collector_of(vector_of(lambda index: SeededEnv(), 3), 3)
    first = [collector.collect().obs[0].clone() for _ in range(4)]
    assert len({digest(obs) for obs in first}) == 4


@pytest.mark.parametrize("autoreset", AUTORESET)
def test_an_episode_that_a_wrapper_cuts_is_reported(autoreset):
    cut = {"type": "time_limit", "max_episode_steps": 5}
    section = {"type": LengthEnv, "kwargs": {"length": 100}, "wrappers": [cut]}
    manager = {"type": "base", "autoreset": autoreset}
    cfg = compile_config({"env": {**section, "manager": manager}}).values.env
    collector = collector_of(make_vector_env(cfg, 3, seed=0), 7)
    for number in (1, 2):
        collector.collect()
        assert [episode.length for episode in collector.episodes] == [5] * 7
        assert collector.episode_count == 7 * number


class ManyLives(SeededEnv):
    """Loses a life at each step, so that no game ends within a share of lives."""

    lives = 100

    def reset(self, *, seed=None, options=None):
        self.lives = 100
        obs, info = super().reset(seed=seed)
        return obs, {**info, "lives": self.lives}

    def step(self, action):
        self.lives -= 1
        obs, reward, _, _, info = super().step(action)
        return obs, reward, False, False, {**info, "lives": self.lives}


def test_rollouts_that_report_no_episode_begin_anew_from_seeds_of_their_own():
    section = {"type": ManyLives, "wrappers": ["episodic_life"], "manager": {"type": "base"}}
    cfg = compile_config({"env": section}).values.env
    collector = collector_of(make_vector_env(cfg, 3, seed=0), 3)
    first = [digest(collector.collect().obs[0].clone()) for _ in range(3)]
    assert collector.episode_count == 0
    assert len(set(first)) == 3
    state = collector.state_dict()
    resumed = collector_of(make_vector_env(cfg, 3, seed=0), 3)
    resumed.load_state_dict(state)
    assert digest(resumed.collect().obs[0].clone()) not in first


def test_environments_that_are_not_deterministic_are_resumed(tmp_path):
    user = config()
    user["env"]["type"] = small_worlds.UnseededEnv
    with SerialPipeline(user, folder=tmp_path / "run") as pipeline:
        pipeline.step()
        pipeline.save()
        assert pipeline.collector.state_dict()["envs"] is None
    with SerialPipeline.resume(tmp_path / "run", trust=["small_worlds"]) as pipeline:
        assert pipeline.step().env_step > 0


def test_advantages_are_those_of_each_episode_alone():
    collector = collector_of(vector_of(lambda index: CountingEnv(SCRIPTS[index]), 3), 7)
    for _ in range(3):
        rollout = collector.collect()
        ends, compared = rollout.terminated | rollout.truncated, 0
        values = collector.mode.get_train_sample.__self__.values
        final = {
            (t, env): values(obs[None])[0]
            for t, env, obs in zip(
                rollout.final.t.tolist(), rollout.final.env.tolist(), rollout.final.obs, strict=True
            )
        }
        for env in range(3):
            rows = rollout.valid[:, env].nonzero()[:, 0].tolist()
            begin = 0
            for k, t in enumerate(rows):
                if not ends[t, env]:
                    continue
                mine = rows[begin : k + 1]
                value = rollout.value[mine, env]
                last = torch.zeros(()) if rollout.terminated[t, env] else final[t, env]
                alone, _ = gae(
                    rollout.reward[mine, env][:, None],
                    value[:, None],
                    torch.cat([value[1:], last[None]])[:, None],
                    rollout.terminated[mine, env][:, None],
                    rollout.truncated[mine, env][:, None],
                    gamma=0.99,
                    gae_lambda=0.95,
                )
                assert torch.allclose(rollout.advantage[mine, env], alone[:, 0], atol=1e-5)
                begin, compared = k + 1, compared + 1
        assert compared == 7


@pytest.mark.daily(2)
@pytest.mark.parametrize("autoreset", AUTORESET)
@pytest.mark.parametrize("double_buffer", [False, True])
def test_workers_collect_what_one_process_does(double_buffer, autoreset):
    def marked(obs):
        action = torch.as_tensor(obs[:, 0] + 2 * obs[:, 1]).long() % 3
        return {"action": action, "log_prob": -torch.ones(len(obs))}

    options = dict(num_workers=1, double_buffer=double_buffer, autoreset=autoreset)
    with contextlib.closing(SubprocessVectorEnv(scripted, 4, **options)) as apart:
        found = []
        for envs in (apart, vector_of(lambda index: CountingEnv(SCRIPTS[index % 3]), 4, autoreset=autoreset)):
            mode = policy_for(envs).collect_mode._replace(forward=marked)
            collector = Collector(envs, mode, 4, 6)
            collector.collect()
            rollout = collector.collect()
            shown = {name: x for name, x in to_dict(rollout).items() if x is not rollout.valid}
            rows = {
                name: shown[name][rollout.valid]
                for name in ("obs", "action", "reward", "advantage", "value_target")
            }
            found.append({**rows, "valid": rollout.valid.clone()})
    assert same_tree(*found)


def test_native_environments_play_their_shares():
    envs = NativeVectorEnv(gym.vector.SyncVectorEnv([partial(LengthEnv, n) for n in (2, 5, 3)]))
    collector = collector_of(envs, 6)
    for _ in range(2):
        rollout = collector.collect()
        assert rollout.valid.sum(0).tolist() == [4, 10, 6]
        assert [e.length for e in sorted(collector.episodes, key=lambda e: e.env)] == [2, 2, 5, 5, 3, 3]


def test_a_backend_that_cannot_save_open_episodes_goes_on_to_the_same_rollouts():
    def pair():
        envs = NativeVectorEnv(gym.vector.SyncVectorEnv([partial(LengthEnv, n) for n in (2, 5, 3)]))
        assert not envs.restorable
        policy = policy_for(envs)
        return policy, Collector(envs, policy.collect_mode, 6, 6)

    (policy, straight), (of_resumed, resumed) = pair(), pair()
    for _ in range(2):
        straight.collect()
    resumed.load_state_dict(straight.state_dict())
    of_resumed.load_state_dict(policy.state_dict())
    expected, found = (digest(to_dict(one.collect())) for one in (straight, resumed))
    assert expected == found


@pytest.mark.parametrize("on_bad_value", ["reset_env", "drop"])
def test_an_episode_that_is_lost_is_played_anew(on_bad_value):
    def bad(result):
        return (result[0] * np.nan, *result[1:])

    envs = vector_of(lambda index: SpoiledEnv(11, bad), 2, on_bad_value=on_bad_value)
    collector = collector_of(envs, 8)
    with pytest.warns(RuntimeWarning, match="nan"):
        rollout = collector.collect()
    assert collector.bad_values > 0
    assert len(collector.episodes) == 8
    ended = (rollout.terminated | rollout.truncated) & rollout.valid
    assert ended.sum() >= 8


@pytest.mark.parametrize("on_bad_value", ["reset_env", "drop"])
def test_a_rollout_all_of_whose_episodes_are_lost_is_given_up(on_bad_value):
    class Spoiled(CountingEnv):
        def step(self, action):
            obs, *rest = super().step(action)
            return (obs * np.nan if self.count == 2 else obs, *rest)

    envs = vector_of(lambda index: Spoiled(), 2, on_bad_value=on_bad_value)
    with (
        pytest.warns(RuntimeWarning, match="nan"),
        pytest.raises(NotFiniteError, match=r"4 episodes lost 4[12] .*env\.on_bad_value"),
    ):
        collector_of(envs, 4).collect()


def test_masks_after_a_share_is_played_are_no_matter():
    """The last observations of these environments have no legal action, and no action follows them."""
    for autoreset in AUTORESET:
        envs = vector_of(lambda index: StuckEnv(5), 2, autoreset=autoreset)
        assert collector_of(envs, 3).collect().valid.sum() == 15


def test_values_that_are_not_finite_after_a_share_is_played_are_no_matter():
    class Spoiled(CountingEnv):
        def step(self, action):
            obs, *rest = super().step(action)
            return (obs * np.nan if self.episode > 1 else obs, *rest)

    def make(index):
        return CountingEnv(((200, "terminated"),)) if index else Spoiled(((1, "terminated"),))

    envs = vector_of(make, 2, on_bad_value="reset_env")
    with pytest.warns(RuntimeWarning, match="nan"):
        rollout = collector_of(envs, 2).collect()
    assert rollout.valid.sum(0).tolist() == [1, 200]


def test_an_episode_without_end_is_given_up(monkeypatch):
    monkeypatch.setattr("ding_lite.data.episodes.MAX_EPISODE_STEPS", 50)
    envs = vector_of(lambda index: LengthEnv(49 if index == 0 else 51), 2)
    with pytest.raises(EnvError, match=r"policy\.collect\.n_episode: .*environment 1 .*50 steps"):
        collector_of(envs, 2).collect()
    for n_episode in (2, 4):  # the bound is that of each episode, not of all together
        collector = collector_of(vector_of(lambda index: LengthEnv(50), 2), n_episode)
        assert collector.collect().valid.sum() == 50 * n_episode


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("unroll_len", [1, 3])
def test_every_policy_learns_from_them(kind, unroll_len):
    options = {"collect": {"n_episode": 6, "unroll_len": unroll_len}, "normalize": {"reward": True}}
    if "ppg" in kind:
        options["learn"] = {"aux_freq": 2, "critic_epoch_per_collect": 2}
        options["other"] = {"replay_buffer": {"value": {"max_use": 4}}} if "off" in kind else {}
    policy, collector = trainee(kind, **options)
    before, phases, lengths = digest(policy.model.state_dict()), 0, set()
    for _ in range(4):
        rollout = collector.collect()
        lengths.add(len(rollout.valid))
        metrics = policy.learn_mode.forward(rollout)
        assert metrics["updates"] > 0
        assert all(np.isfinite(value) for value in metrics.values())
        phases += "aux_updates" in metrics
    assert len(lengths) > 1, "rollouts of one length show nothing"
    assert phases == (2 if "ppg" in kind else 0)
    assert digest(policy.model.state_dict()) != before


def test_reuse_is_of_what_was_collected_not_of_what_was_foreseen():
    policy, collector = trainee("ppo_offpolicy", n_sample=16, collect={"n_episode": 12}, learn={"reuse": 2})
    for _ in range(3):
        rollout = collector.collect()
        expected = -(-2 * int(rollout.valid.sum()) // 16)
        assert policy.learn_mode.forward(rollout)["updates"] == expected > 3


def test_rows_that_follow_a_share_take_no_room_in_a_buffer():
    """Three of four environments end after one step, so their columns are mostly empty."""
    kept = {"max_staleness": 9, "max_use": 99, "replay_buffer_size": 400}
    options = {"collect": {"n_episode": 4}, "other": {"replay_buffer": kept}}
    policy, _ = trainee("ppo_offpolicy", LengthEnv, learn={"update_per_collect": 1}, **options)
    envs = vector_of(lambda index: LengthEnv(90 if index == 0 else 2), 4)
    collector = Collector(envs, policy.collect_mode, 4, 4)
    samples = [policy.learn_mode.forward(collector.collect())["buffer_samples"] for _ in range(6)]
    assert samples == [96, 192, 288, 384, 384, 384]


@pytest.mark.parametrize("changed", [{"n_episode": None}, {"unroll_len": 3}, {}])
def test_what_is_kept_is_forgotten_where_columns_become_others(changed):
    collect = {"n_episode": 6, "n_sample": 60}
    policy, collector = trainee("ppo_offpolicy", collect=collect, learn={"update_per_collect": 1})
    policy.learn_mode.forward(collector.collect())
    assert len(policy.buffers["policy"].live_places())
    other, collector = trainee("ppo_offpolicy", collect=collect | changed)
    other.load_state_dict(policy.state_dict())
    assert (other.buffers["policy"].data is None) == bool(changed)
    other.learn_mode.forward(collector.collect())


def test_minibatches_may_be_larger_than_what_is_foreseen():
    user = config(n_sample=30)
    user["policy"]["learn"]["batch_size"] = 64
    assert compile_config(user).values.policy.learn.batch_size == 64


def config(**collect):
    return {
        "env": {"type": SeededEnv, "collector_env_num": 3, "evaluator_env_num": 1, "n_evaluator_episode": 1},
        "policy": {
            "type": "ppo_offpolicy",
            "collect": {"n_sample": 30, "n_episode": 4, **collect},
            "learn": {"batch_size": 16},
        },
        "max_env_step": 10**6,
        "max_train_iter": 60,
    }


def test_a_run_goes_on_after_a_break_as_if_there_had_been_none(tmp_path):
    def trained(name, breaks):
        run, pipeline = tmp_path / name, SerialPipeline(config(unroll_len=2), folder=tmp_path / name)
        for _ in pipeline:
            if breaks and pipeline.progress.iteration == 3:
                break
        pipeline.close()
        if breaks:
            pipeline = SerialPipeline.resume(run, trust=["small_worlds"])
            for _ in pipeline:
                pass
        return pipeline

    straight, broken = trained("straight", False), trained("broken", True)
    assert straight.progress.iteration == broken.progress.iteration > 4
    states = [one.state_dict() | {"clock": None} for one in (straight, broken)]
    assert same_tree(*states)
    assert "rollouts of 4 whole episodes" in (tmp_path / "straight/log.txt").read_text()
    assert "numbers differ" not in (tmp_path / "broken/log.txt").read_text()


class FromFive(SeededEnv):
    """Observations are the numbers from 5 on; 0 is none of them."""

    observation_space = gym.spaces.Discrete(40, start=5)

    def obs(self):
        return np.int64(5 + min(self.count, 39))


@pytest.mark.parametrize("unroll_len", [1, 4])
@pytest.mark.parametrize("kind", ["ppo", "ppg_offpolicy"])
def test_rows_that_fill_up_a_rollout_have_observations_of_the_space(kind, unroll_len):
    learn = {"update_per_collect": 3} if kind == "ppg_offpolicy" else {}
    policy, collector = trainee(
        kind, FromFive, collect={"n_episode": 8, "unroll_len": unroll_len}, learn={"batch_size": 8, **learn}
    )
    for _ in range(3):
        rollout = collector.collect()
        assert rollout.obs.min() >= 5
        policy.learn_mode.forward(rollout)


@pytest.mark.parametrize(
    ("collect", "message"),
    [
        ({"n_episode": 2}, r"policy\.collect\.n_episode: .* 2 .* 3 "),
        ({"n_episode": 0}, "policy.collect.n_episode"),
        (
            {"n_episode": None, "unroll_len": 4},
            r"policy\.collect\.unroll_len: .* 10 .* 4; policy\.collect\.n_sample=36",
        ),
    ],
)
def test_what_cannot_be_is_refused(collect, message):
    with pytest.raises(ConfigError, match=message):
        compile_config(config(**collect))
