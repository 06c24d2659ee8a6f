"""The cases of tests with many of them."""

import random

import pytest


def drawn(count, *parts):
    """Returns ``count`` combinations of one value of each part, always the same ones.

    The values of a part come equally often.
    """
    rng, columns = random.Random(0), []
    for part in parts:
        column = []
        while len(column) < count:
            column += rng.sample(list(part), len(part))
        columns.append(column[:count])
    return list(zip(*columns, strict=True))


def slow_but(daily, cases):
    """Returns the cases as parameters: those in ``daily`` run daily, the others are slow."""
    return [case if case in daily else pytest.param(case, marks=pytest.mark.slow) for case in cases]
