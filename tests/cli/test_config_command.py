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
    assert (value, rules) == ("0.1", "number, above 0")
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
