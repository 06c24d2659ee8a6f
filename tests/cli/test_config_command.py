"""``ding-lite config --explain``: what keys do, as the command line says it."""

from __future__ import annotations

import re

import pytest

from ding_lite.cli import main


def explained(capsys, *arguments):
    assert main(["config", *arguments]) == 0
    return re.findall(r"^(\S+) = (.*?)    \((.*)\)\n((?:    .*\n)+)", capsys.readouterr().out, re.MULTILINE)


def test_explain_prints_value_type_range_and_effect_of_the_keys_with_the_text(capsys):
    keys = explained(capsys, "-c", "cartpole_ppo", "--explain", "learn.clip_", "policy.learn.clip_ratio=0.1")
    assert [path for path, *_ in keys] == [
        "policy.learn.clip_ratio",
        "policy.learn.clip_schedule",
        "policy.learn.clip_final",
    ]
    _, value, rules, effect = keys[0]
    assert (value, rules) == ("0.1", "a number, above 0")
    assert effect.startswith("    Epsilon: ")


def test_explain_has_the_keys_of_the_policy_of_the_config(capsys):
    keys = explained(capsys, "--env", "CartPole-v1", "--policy", "ppg", "--explain", "aux_freq")
    assert [(path, value) for path, value, *_ in keys] == [("policy.learn.aux_freq", "8")]
    assert main(["config", "-c", "cartpole_ppo", "--explain", "aux_freq"]) == 2
    assert "no key contains 'aux_freq'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "path"), [("gamma", "policy.collect.discount_factor"), ("Rollout", "policy.collect.n_sample")]
)
def test_explain_knows_words_of_other_libraries_and_those_of_explanations(text, path, capsys):
    keys = explained(capsys, "-c", "cartpole_ppo", "--explain", text)
    assert path in [path for path, *_ in keys]
    assert not any(text in path for path, *_ in keys)


def test_explain_with_an_empty_text_has_every_key_of_the_config(capsys):
    keys = explained(capsys, "-c", "cartpole_ppo", "--explain", "")
    main(["config", "-c", "cartpole_ppo"])
    assert [path for path, *_ in keys] == [line.split()[0] for line in capsys.readouterr().out.splitlines()]


def test_explain_without_a_config_has_the_keys_of_all_policies_and_their_defaults(capsys):
    (path, value, rules, effect), *_ = explained(capsys, "--explain", "aux_freq")
    assert (path, value) == ("policy.learn.aux_freq", "8, ppg_offpolicy: 16")
    assert rules == "a whole number, at least 1; only ppg and ppg_offpolicy"
    assert effect.startswith("    N_pi")
    ((_, value, rules, _),) = explained(capsys, "--policy", "ppg", "--explain", "aux_freq")
    assert (value, rules) == ("8", "a whole number, at least 1")
    keys = dict((path, value) for path, value, *_ in explained(capsys, "--explain", "learn.learning_rate"))
    assert keys == {
        "policy.learn.learning_rate": "0.0003, ppo_offpolicy: 0.001, ppg and ppg_offpolicy: 0.0005"
    }
    assert main(["config", "--explain", "no such text"]) == 2
    assert "no key contains" in capsys.readouterr().err
