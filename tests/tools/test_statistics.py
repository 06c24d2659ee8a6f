"""Statistics of a few runs, against closed forms, enumeration, simulation and the numbers of rliable."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from ding_lite.tools import statistics
from ding_lite.tools.statistics import (
    aggregate_iqm,
    curve_interval,
    interquartile_mean,
    interval,
    performance_profile,
    probability_of_improvement,
)

# Interquartile mean


FLOATS = st.floats(-1e6, 1e6)


@given(st.lists(st.tuples(FLOATS, st.integers(1, 3)), min_size=1, max_size=9))
def test_iqm_is_the_mean_of_the_middle_half_of_repeated_values(runs):
    """Of each value four times, the middle half is a whole number of them. Weights are repetitions."""
    values, weights = map(np.array, zip(*runs, strict=True))
    for repeats in (np.ones_like(weights), weights):
        expected = scipy.stats.trim_mean(np.repeat(values, 4 * repeats), 0.25)
        assert interquartile_mean(values, repeats.astype(float)) == pytest.approx(expected, abs=1e-6)
    assert interquartile_mean(np.stack([values] * 2)) == pytest.approx(
        scipy.stats.trim_mean(np.repeat(values, 4), 0.25), abs=1e-6
    )


def test_each_task_counts_the_same_whatever_its_number_of_runs():
    first, second = np.array([1.0, 2.0]), np.array([3.0, 4.0, 5.0, 6.0])
    same = aggregate_iqm([np.repeat(first, 2), second])
    assert aggregate_iqm([first, second]) == pytest.approx(float(same))
    assert aggregate_iqm([first, second]) != pytest.approx(
        float(interquartile_mean(np.concatenate([first, second])))
    )
    assert statistics.mean([first, second]) == pytest.approx((1.5 + 4.5) / 2)


# Probability of improvement and profiles


SCORES = st.lists(st.integers(0, 5).map(float), min_size=1, max_size=7).map(np.array)


@given(SCORES, SCORES)
def test_probability_of_improvement_counts_pairs_and_half_of_the_ties(ours, theirs):
    pairs = [(a > b) + (a == b) / 2 for a in ours for b in theirs]
    assert probability_of_improvement([ours], [theirs]) == pytest.approx(np.mean(pairs))


# Intervals


def quantiles_of_all_resamples(*tasks):
    """The edges of the middle 95 % of the mean over tasks of means, over every possible resample."""
    of_tasks = [[np.mean(drawn) for drawn in itertools.product(task, repeat=len(task))] for task in tasks]
    return np.quantile([np.mean(means) for means in itertools.product(*of_tasks)], [0.025, 0.975])


def test_interval_is_that_of_all_resamples_of_each_task():
    tasks = [np.array([1.0, 4.0, 9.0, 12.0]), np.array([100.0, 103.0, 110.0])]
    np.testing.assert_allclose(
        interval(statistics.mean, tasks, resamples=200_000), quantiles_of_all_resamples(*tasks), atol=0.26
    )
    # Resampling the runs of all tasks together would give another one: the tasks are far from each other.
    together = interval(statistics.mean, [np.concatenate(tasks)])
    assert together[1] - together[0] > 5 * np.ptp(quantiles_of_all_resamples(*tasks))


def test_interval_of_two_groups_resamples_both():
    ours, theirs = np.array([1.0, 3.0, 5.0]), np.array([0.0, 2.0, 4.0])
    all_values = [
        float(probability_of_improvement([np.array(a)], [np.array(b)]))
        for a in itertools.product(ours, repeat=3)
        for b in itertools.product(theirs, repeat=3)
    ]
    found = interval(probability_of_improvement, [ours], [theirs], resamples=50_000)
    np.testing.assert_allclose(found, np.quantile(all_values, [0.025, 0.975]), atol=1 / 9)
    assert found[0] < 1 / 3
    assert found[1] == 1.0


@pytest.mark.parametrize("groups", [[[np.ones(2)]], [[np.ones(3), np.ones(2)]], [[np.ones(5)], [np.ones(1)]]])
def test_too_few_runs_have_no_interval(groups):
    count = len(groups)
    statistic = probability_of_improvement if count == 2 else aggregate_iqm
    assert interval(statistic, *groups) is None


def columns(rows):
    return list(np.array(rows).T)


OURS = columns(
    [
        *([0.6, 0.66, 0.55], [0.42, 0.51, 0.4], [0.61, 0.87, 0.5], [0.48, 0.7, 0.67]),
        *([0.62, 0.41, 0.59], [0.74, 0.33, 0.51], [0.22, 0.34, 0.23], [0.55, 0.35, 0.65]),
    ]
)
THEIRS = columns([[0.55, 0.44, -0.26], [0.34, 0.49, 0.53], [0.04, 0.36, 0.21], [0.26, 0.82, 0.26]])


def test_results_are_those_of_rliable():
    """rliable 1.2.0 with NumPy 2.4.6, arch 7.2.0 and pandas 2.3.3; 50,000 resamples in the intervals."""
    assert aggregate_iqm(OURS) == pytest.approx(0.5291666666666667)
    assert aggregate_iqm(THEIRS) == pytest.approx(0.3583333333333334)
    assert statistics.mean(OURS) == pytest.approx(0.52125)
    assert probability_of_improvement(OURS, THEIRS) == pytest.approx(0.703125)
    np.testing.assert_allclose(
        performance_profile(OURS, np.array([0.2, 0.5, 0.61, 0.8])), [1, 14 / 24, 7 / 24, 1 / 24]
    )
    np.testing.assert_allclose(interval(aggregate_iqm, OURS), [0.4525, 0.59916667], atol=0.008)
    np.testing.assert_allclose(interval(aggregate_iqm, THEIRS), [0.24333333, 0.47833333], atol=0.008)


# Curves


def test_the_interval_agrees_with_the_normal_one_and_contains_the_truth():
    values = np.random.default_rng(0).normal(size=(30, 400))
    low, high = curve_interval(values, lambda drawn: drawn.mean(axis=-1), 2000)
    width = 2 * 1.96 * values.std(axis=0) / np.sqrt(30)
    np.testing.assert_allclose((high - low).mean(), width.mean(), rtol=0.03)
    assert 0.90 < np.mean((low < 0) & (high > 0)) < 0.98
    again = curve_interval(values, lambda drawn: drawn.mean(axis=-1), 2000)
    np.testing.assert_array_equal(again, (low, high))
