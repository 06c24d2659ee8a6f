"""Whose code an exception comes from, which decides between a line and a traceback."""

import re

import pytest
import torch

from ding_lite.data.rollout import require_rollout
from ding_lite.data.samples import Batch
from ding_lite.errors import error_text, is_of_user
from ding_lite.rl.losses import weighted_mean
from ding_lite.trees import map_tree


def fails(leaf):
    raise ValueError("boom")


def caught(function, *arguments):
    with pytest.raises((ValueError, RuntimeError, AttributeError, TypeError)) as found:
        function(*arguments)
    return found.value


def test_error_in_code_of_the_user_that_the_library_calls_is_the_users():
    error = caught(map_tree, fails, {"a": 1})
    assert is_of_user(error)
    assert re.fullmatch(r"ValueError: boom \(at test_errors.py:\d+\)", error_text(error))


def test_error_in_the_library_is_not_the_users_even_if_the_user_calls_it():
    assert not is_of_user(caught(require_rollout, None, None))
    assert not is_of_user(caught(map_tree, lambda leaf: require_rollout(None, "it"), {"a": 1}))


def test_error_of_a_helper_that_the_user_calls_is_the_users():
    lengths = torch.ones(2), torch.ones(3)
    error = caught(map_tree, lambda leaf: weighted_mean(*lengths), {"a": 1})
    assert is_of_user(error)
    assert re.search(r"\(at test_errors.py:\d+\)$", error_text(error))
    assert is_of_user(caught(map_tree, lambda leaf: Batch(obs=leaf).actions, {"a": 1}))
