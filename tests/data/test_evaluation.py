"""What is said of the episodes of an evaluation."""

import pytest

from ding_lite.data.episodes import means_of
from ding_lite.run.rank_reports import merged_metrics
from ding_lite.run.score_text import score_text


def test_means_are_over_the_episodes_that_have_the_key_but_for_successes():
    infos = [{"is_success": 1.0, "crashes": 2.0}, {}, {"crashes": 4.0}, {"is_success": 0.0}]
    assert means_of(infos) == {"is_success": 0.25, "crashes": 3.0}
    assert means_of([{}, {}]) == {}


def test_a_rank_without_a_success_counts_in_the_rate_of_all():
    had_episodes = {"collect/episode_return": 1.0}
    reports = [{**had_episodes, "collect/is_success": 0.5}, had_episodes, {}]
    assert merged_metrics(reports)["collect/is_success"] == 0.25


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ((500.0, 0.0), "500.0 ± 0.0"),
        ((-1234.56, 3.0), "-1234.6 ± 3.0"),
        ((0.912, 0.0834), "0.912 ± 0.083"),
        ((1.0, 12.0), "1.0 ± 12.0"),
        ((0.5,), "0.500"),
        ((None,), "-"),
        ((None, None), "-"),
    ],
)
def test_small_returns_have_three_digits(numbers, text):
    assert score_text(*numbers) == text
