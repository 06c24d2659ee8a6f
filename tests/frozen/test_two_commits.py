"""The comparison of two commits finds nothing where there is nothing, and a difference where there is one."""

import pytest
from two_commits import CASES, ROOT, compare, differences, facts, train

CASE = CASES["cartpole, NumPy, native"]


@pytest.mark.slow
def test_a_tree_trains_what_it_trains(tmp_path):
    assert compare(ROOT, ROOT, CASE, tmp_path) == {"straight": [], "resumed": []}


@pytest.mark.slow
def test_another_seed_is_another_run(tmp_path):
    for seed in ("0", "1"):
        train(ROOT, tmp_path, *CASE, "--max-env-step", "512", "-s", seed, "--exp-name", seed)
    found = differences(facts(tmp_path / "0"), facts(tmp_path / "1"))
    assert "metrics.csv learn/policy_loss" in found
    assert any(name.startswith("state/policy/model/") for name in found)


def test_what_a_new_run_has_more_of_is_no_difference():
    assert differences({"a": "1", "b": "2"}, {"a": "1", "b": "2", "c": "3"}) == []
    assert differences({"a": "1", "b": "2"}, {"a": "1", "b": "3"}) == ["b"]
    assert differences({"a": "1"}, {}) == ["a"]
