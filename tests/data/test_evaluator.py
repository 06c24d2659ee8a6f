"""Evaluation: fixed quotas, named seeds, bounded length, and an unchanged policy."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from small_worlds import SCRIPTS, CountingEnv, HalveReward, LengthEnv, SeededEnv, StuckEnv
from worlds import digest, policy_for, vector_of

from ding_lite.config.compile import compile_config
from ding_lite.data.evaluation import Evaluation
from ding_lite.data.evaluator import Evaluator, Scores, evaluation_metrics
from ding_lite.data.modes import EvalMode
from ding_lite.envs.in_process import AUTORESET, InProcessVectorEnv
from ding_lite.envs.make import make_vector_env
from ding_lite.envs.native import NativeVectorEnv
from ding_lite.envs.recorder import EpisodeRecorder
from ding_lite.errors import EnvContractError


def passive(action=0):
    """Returns an eval mode that always chooses one action."""

    def forward(obs):
        return {"action": np.full(len(obs["at"] if isinstance(obs, dict) else obs), action, np.int64)}

    return EvalMode(forward, lambda actions: actions, lambda: None)


def evaluator_of(make, num_envs, n_episode, max_steps=1000, autoreset="same_step"):
    return Evaluator(vector_of(make, num_envs, autoreset=autoreset), passive(), n_episode, max_steps)


@pytest.mark.parametrize("autoreset", AUTORESET)
@pytest.mark.parametrize(("num_envs", "n_episode"), [(1, 1), (4, 4), (4, 10), (4, 3), (3, 16)])
def test_exactly_the_wanted_number_of_episodes_is_played(num_envs, n_episode, autoreset):
    result = evaluator_of(lambda i: LengthEnv(2 + i), num_envs, n_episode, autoreset=autoreset).evaluate(0)
    assert len(result.returns) == len(result.lengths) == n_episode


def test_shares_of_the_environments_differ_by_at_most_one():
    result = evaluator_of(lambda i: LengthEnv(i + 1), 4, 10).evaluate(0)
    assert sorted(result.lengths) == [1, 1, 1, 2, 2, 2, 3, 3, 4, 4]


@pytest.mark.parametrize("autoreset", AUTORESET)
def test_short_episodes_are_not_favoured(autoreset):
    """Half of the environments end after 1 step and half after 100: both halves count equally."""
    result = evaluator_of(lambda i: LengthEnv(1 if i % 2 else 100), 4, 8, autoreset=autoreset).evaluate(0)
    assert result.mean == 50.5
    assert sorted(result.lengths) == [1] * 4 + [100] * 4


def test_environments_play_their_shares_in_one_round_if_no_episode_is_cut(monkeypatch):
    evaluator = evaluator_of(lambda i: LengthEnv(i + 1), 4, 14)
    resets, reset = [], evaluator.envs.reset
    monkeypatch.setattr(evaluator.envs, "reset", lambda *stream: [resets.append(stream), reset(*stream)][1])
    assert evaluator.evaluate(5).lengths == (1,) * 4 + (2,) * 4 + (3,) * 3 + (4,) * 3
    assert resets == [("evaluate", 5)]


def test_the_round_after_a_cut_has_other_seeds(monkeypatch):
    evaluator = evaluator_of(lambda i: LengthEnv(100), 1, 2, max_steps=5)
    resets, reset = [], evaluator.envs.reset
    monkeypatch.setattr(evaluator.envs, "reset", lambda *stream: [resets.append(stream), reset(*stream)][1])
    assert evaluator.evaluate(7).cut_short == 2
    assert resets == [("evaluate", 7), ("evaluate", 7, 1)]


def test_same_stream_gives_the_same_starts_and_another_gives_others():
    evaluator = evaluator_of(lambda i: SeededEnv(), 4, 8)
    first, again, other = (evaluator.evaluate(*stream) for stream in ((3, 0), (3, 0), (3, 1)))
    assert first == again
    assert first.returns != other.returns


def test_evaluation_never_starts_where_training_does():
    envs = vector_of(lambda i: SeededEnv(), 4)
    training = envs.reset("collect").copy()
    starts = []
    Evaluator(envs, passive(), 4, 100).evaluate(0, 0, on_step=lambda obs: starts.append(obs.copy()))
    assert not np.isin(starts[0][:, 2], training[:, 2]).any()


def test_on_step_sees_every_observation_before_its_step():
    seen = []
    evaluator_of(lambda i: CountingEnv(((3, "terminated"),)), 1, 1).evaluate(
        0, on_step=lambda obs: seen.append(obs[0].tolist())
    )
    assert seen == [[0, 0], [0, 1], [0, 2]]


@pytest.mark.parametrize("autoreset", AUTORESET)
def test_mask_that_leaves_no_action_is_refused_where_one_is_needed(autoreset):
    """The last observation of an episode may have such a mask, because no action follows it."""
    for stuck_after, played in ((4, False), (5, True)):
        evaluator = evaluator_of(lambda i, after=stuck_after: StuckEnv(after), 2, 4, autoreset=autoreset)
        if played:
            assert evaluator.evaluate(0).lengths == (5,) * 4
            continue
        message = r"env 0 \(seed \d+, episode 0, step 4\).*action_mask.*evaluation"
        with pytest.raises(EnvContractError, match=message):
            evaluator.evaluate(0)


@pytest.mark.parametrize("autoreset", AUTORESET)
def test_endless_episodes_are_cut_at_the_bound_and_reported_as_cut(autoreset):
    cfg = section(kwargs={"length": 10**9}, max_eval_steps=7, manager={"autoreset": autoreset})
    envs = make_vector_env(cfg, 3, seed=0, evaluate=True)
    result = Evaluator(envs, passive(), 6, 7).evaluate(0)
    assert result.lengths == (7,) * 6
    assert result.returns == (7.0,) * 6
    assert result.cut_short == 6


def section(**env):
    return compile_config({"env": {"type": LengthEnv, **env}}).values.env


def test_episode_that_ends_before_the_bound_is_not_reported_as_cut():
    envs = make_vector_env(section(max_eval_steps=6), 2, seed=0, evaluate=True)
    assert Evaluator(envs, passive(), 4, 6).evaluate(0).cut_short == 0


def test_episode_that_ends_by_itself_at_the_bound_is_not_reported_as_cut():
    envs = make_vector_env(section(max_eval_steps=5), 2, seed=0, evaluate=True)
    assert Evaluator(envs, passive(), 4, 5).evaluate(0).cut_short == 0


@pytest.mark.parametrize("manager", ["vector", pytest.param("env_pool", marks=pytest.mark.slow)])
def test_native_environments_keep_number_and_bound_of_episodes_too(manager):
    if manager == "env_pool":
        pytest.importorskip("envpool", reason="the extra envpool is not installed")
    cfg = compile_config(
        {"env": {"env_id": "CartPole-v1", "max_eval_steps": 4, "manager": manager}}
    ).values.env
    envs = make_vector_env(cfg, 2, seed=0, evaluate=True)
    result = Evaluator(envs, passive(), 6, 4).evaluate(0)
    assert len(result.lengths) == 6
    assert max(result.lengths) <= 4
    assert result.cut_short == 6


class Successes(gym.vector.VectorEnv):
    """Reports a success at each step, and never ends."""

    metadata = {"autoreset_mode": gym.vector.AutoresetMode.NEXT_STEP}  # noqa: RUF012
    single_observation_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
    single_action_space = gym.spaces.Discrete(2)

    def __init__(self, num_envs):
        self.num_envs = num_envs

    def reset(self, *, seed=None, options=None):
        return np.zeros((self.num_envs, 1), np.float32), {}

    def step(self, action):
        obs, never = np.zeros((self.num_envs, 1), np.float32), np.zeros(self.num_envs, bool)
        return obs, np.zeros(self.num_envs), never, never, {"is_success": np.arange(self.num_envs) == 1}


def test_an_episode_that_is_cut_keeps_its_last_info():
    envs = NativeVectorEnv(Successes(2), info_keys=("is_success",))
    assert Evaluator(envs, passive(), 2, 3).evaluate(0).infos == ({"is_success": 0.0}, {"is_success": 1.0})


def test_evaluation_always_ends_where_episodes_never_do():
    """Also without the time limit that evaluation environments have."""
    result = evaluator_of(lambda i: LengthEnv(10**9), 2, 2, max_steps=5).evaluate(0)
    assert len(result.lengths) == 2
    assert result.cut_short == 2


def test_returns_are_raw_below_wrappers():
    envs = InProcessVectorEnv(lambda i: HalveReward(EpisodeRecorder(LengthEnv(4))), 2)
    assert Evaluator(envs, passive(), 2, 100).evaluate(0).returns == (4.0, 4.0)


def test_two_evaluations_in_a_row_do_not_mix():
    evaluator = evaluator_of(lambda i: LengthEnv(1 if i else 9), 2, 2)
    assert evaluator.evaluate(0) == evaluator.evaluate(0)
    assert evaluator.evaluate(1).lengths == (9, 1)


def test_policy_and_every_generator_stay_as_they_were():
    envs = vector_of(lambda i: SeededEnv(), 3)
    policy = policy_for(envs, normalize={"obs": True})
    before, random = digest(policy.state_dict()), torch.get_rng_state()
    numpy_before = digest(list(np.random.get_state()))
    Evaluator(envs, policy.eval_mode, 7, 100).evaluate(0, 0)
    assert digest(policy.state_dict()) == before
    assert torch.equal(torch.get_rng_state(), random)
    assert digest(list(np.random.get_state())) == numpy_before


def test_policy_plays_greedily():
    envs = vector_of(lambda i: SeededEnv(), 2)
    policy = policy_for(envs)
    played = []
    mode = policy.eval_mode._replace(to_env=lambda action: played.append(action.clone()) or action.numpy())
    obs = []
    Evaluator(envs, mode, 2, 100).evaluate(0, on_step=lambda o: obs.append(torch.tensor(o)))
    greedy = [policy.model.distribution(policy.model.compute_actor(o)).mode() for o in obs]
    assert torch.equal(torch.stack(played), torch.stack(greedy))


def test_each_episode_begins_with_the_initial_memory():
    """The memory counts the steps of its episode, as the observations do."""
    seen = []

    def forward(obs, state):
        seen.append((state.tolist(), obs[:, 1].tolist()))
        return {"action": np.zeros(len(obs), np.int64), "state": state + 1}

    envs = vector_of(lambda i: CountingEnv(SCRIPTS[i]), 2, autoreset="same_step")
    mode = passive()._replace(forward=forward, initial_state=torch.zeros)
    Evaluator(envs, mode, 6, 100).evaluate(0)
    assert len(seen) > 5
    assert all(memory == steps for memory, steps in seen)


# ---------------------------------------------------------------------- scores


class Played:
    """An evaluator with given means, which records the streams that it is called with."""

    def __init__(self, *means):
        self.means, self.streams = list(means), []

    def evaluate(self, *stream):
        self.streams.append(stream)
        return Evaluation((self.means.pop(0),), (1,), infos=({"is_success": 1.0},))


def test_solved_needs_a_second_evaluation_on_fresh_seeds():
    played = Played(10.0, 11.0)
    found, solved = Scores(10.0).evaluate(played, 4)
    assert solved
    assert played.streams == [(4, 0), (4, 1)]
    assert found.returns == (10.0, 11.0)


def test_a_second_evaluation_below_the_bar_is_not_solved():
    found, solved = Scores(10.0).evaluate(Played(12.0, 9.0), 4)
    assert not solved
    assert found.mean == 10.5


def test_no_second_evaluation_below_the_bar_and_none_without_a_bar():
    for scores, mean in ((Scores(10.0), 9.9), (Scores(None), 1e9)):
        played = Played(mean)
        assert not scores.evaluate(played, 0)[1]
        assert len(played.streams) == 1


def test_nan_is_never_the_best_and_never_solved():
    scores = Scores(10.0)
    assert not scores.evaluate(Played(float("nan")), 0)[1]
    assert not scores.update_best(Evaluation((float("nan"),), (1,)))
    assert scores.update_best(Evaluation((-5.0,), (1,)))
    assert not scores.update_best(Evaluation((float("nan"),), (1,)))
    assert scores.best == -5.0


def test_of_equals_the_later_is_the_best():
    scores = Scores(None)
    results = [scores.update_best(Evaluation((mean,), (1,))) for mean in (1.0, 3.0, 2.0, 3.0)]
    assert results == [True, True, False, True]


def test_scores_come_back_from_their_state():
    scores = Scores(None)
    scores.evaluate(Played(3.0), 7)
    scores.update_best(scores.last)
    other = Scores(None)
    other.load_state_dict(scores.state_dict())
    assert (other.best, other.iteration, other.last) == (3.0, 7, scores.last)


def test_scores_without_an_evaluation_come_back_too():
    other = Scores(None)
    other.load_state_dict(Scores(None).state_dict())
    assert other.last is None
    assert other.update_best(Evaluation((-1e9,), (1,)))


def test_metrics_of_an_evaluation_are_those_counted_by_hand():
    metrics = evaluation_metrics(Evaluation((1.0, 3.0), (5, 7)))
    assert metrics == {
        "eval/episode_return_mean": 2.0,
        "eval/episode_return_std": 1.0,
        "eval/episode_return_min": 1.0,
        "eval/episode_return_max": 3.0,
        "eval/episode_length_mean": 6.0,
        "eval/episode_length_max": 7.0,
    }


@pytest.mark.parametrize("mean", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_never_the_best_and_the_first_finite_is(mean):
    scores = Scores(None)
    assert not scores.update_best(Evaluation((mean,), (1,)))
    assert scores.update_best(Evaluation((-5.0,), (1,)))
    assert not scores.update_best(Evaluation((mean,), (1,)))
    assert scores.best == -5.0
