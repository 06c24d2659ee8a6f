"""Evaluation: fixed quotas, named seeds, bounded length, and an unchanged policy."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from small_worlds import SCRIPTS, CountingEnv, LengthEnv, StuckEnv
from worlds import AUTORESET, section, vector_of

from ding_lite.data.episodes import Evaluator, means_of
from ding_lite.data.modes import Acting
from ding_lite.data.samples import Recurrence
from ding_lite.envs.make import make_vector_env
from ding_lite.errors import EnvContractError


def first_action(obs):
    return {"action": np.zeros(len(obs["at"] if isinstance(obs, dict) else obs), np.int64)}


def passive(forward=first_action, recurrence=None):
    """Returns what acts by a function; by default it always takes action 0."""
    acting = Acting("", forward, forward, lambda actions: actions, None, None)
    return SimpleNamespace(recurrence=recurrence, acting=lambda: acting)


def evaluator_of(make, num_envs, n_episode, max_steps=1000, autoreset="same_step"):
    return Evaluator(vector_of(make, num_envs, autoreset=autoreset), passive(), n_episode, max_steps)


@pytest.mark.parametrize("autoreset", AUTORESET)
@pytest.mark.parametrize(("num_envs", "n_episode"), [(1, 1), (4, 4), (4, 10), (4, 3), (3, 16)])
def test_exactly_the_wanted_number_of_episodes_is_played(num_envs, n_episode, autoreset):
    result = evaluator_of(lambda i: LengthEnv(2 + i), num_envs, n_episode, autoreset=autoreset).evaluate(0)
    assert len(result.returns) == len(result.lengths) == n_episode


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


@pytest.mark.parametrize("autoreset", AUTORESET)
def test_mask_that_leaves_no_action_is_refused_where_one_is_needed(autoreset):
    """The last observation of an episode may have such a mask, because no action follows it."""
    for stuck_after, played in ((4, False), (5, True)):
        evaluator = evaluator_of(lambda i, after=stuck_after: StuckEnv(after), 2, 4, autoreset=autoreset)
        if played:
            assert evaluator.evaluate(0).lengths == (5,) * 4
            continue
        message = r"env 0 \(.*step 4\).*action_mask.*evaluation"
        with pytest.raises(EnvContractError, match=message):
            evaluator.evaluate(0)


def test_endless_episodes_are_cut_at_the_bound_and_reported_as_cut():
    cfg = section(type=LengthEnv, kwargs={"length": 10**9}, max_eval_steps=7)
    envs = make_vector_env(cfg, 3, seed=0, evaluate=True)
    result = Evaluator(envs, passive(), 6, 7).evaluate(0)
    assert result.lengths == (7,) * 6
    assert result.returns == (7.0,) * 6
    assert result.cut_short == 6


@pytest.mark.parametrize("bound", [5, 6])
def test_an_episode_that_ends_by_itself_is_not_reported_as_cut(bound):
    envs = make_vector_env(section(type=LengthEnv, max_eval_steps=bound), 2, seed=0, evaluate=True)
    assert Evaluator(envs, passive(), 4, bound).evaluate(0).cut_short == 0


@pytest.mark.filterwarnings("ignore:.*precision lowered by casting")  # of EnvPool's bounds
@pytest.mark.parametrize("manager", ["vector", pytest.param("env_pool", marks=pytest.mark.slow)])
def test_native_environments_keep_number_and_bound_of_episodes_too(manager):
    if manager == "env_pool":
        pytest.importorskip("envpool", reason="the extra envpool is not installed")
    cfg = section(env_id="CartPole-v1", max_eval_steps=4, manager=manager)
    envs = make_vector_env(cfg, 2, seed=0, evaluate=True)
    result = Evaluator(envs, passive(), 6, 4).evaluate(0)
    assert len(result.lengths) == 6
    assert max(result.lengths) <= 4
    assert result.cut_short == 6


def test_each_episode_begins_with_the_initial_hidden_state():
    """The hidden state counts the steps of its episode, as the observations do."""
    seen = []

    def forward(obs, hidden):
        seen.append((hidden["h"].tolist(), obs[:, 1].tolist()))
        return {"action": np.zeros(len(obs), np.int64), "hidden": {"h": hidden["h"] + 1}}

    envs = vector_of(lambda i: CountingEnv(SCRIPTS[i]), 2, autoreset="same_step")
    recurrence = Recurrence(4, lambda n: {"h": torch.zeros(n)})
    Evaluator(envs, passive(forward, recurrence), 6, 100).evaluate(0)
    assert len(seen) > 5
    assert all(hidden == steps for hidden, steps in seen)


# ---------------------------------------------------------------------- infos


def test_means_are_over_the_episodes_that_have_the_key_but_for_successes():
    infos = [{"is_success": 1.0, "crashes": 2.0}, {}, {"crashes": 4.0}, {"is_success": 0.0}]
    assert means_of(infos) == {"is_success": 0.25, "crashes": 3.0}
    assert means_of([{}, {}]) == {}
