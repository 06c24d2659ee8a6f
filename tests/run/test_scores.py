"""The evaluations of a run: what is solved, what is the best, and what is logged."""

import pytest

from ding_lite.data.episodes import Evaluation
from ding_lite.run.scores import Scores, evaluation_metrics


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
