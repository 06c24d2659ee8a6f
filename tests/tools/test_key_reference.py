"""Every key of the four policies has a type, a default, a range and an effect, as the code declares them."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

import ding_lite
from ding_lite.config.compile import compile_config
from ding_lite.config.schema import Key, leaves
from ding_lite.tools.key_reference import DocumentedKey, comments_of, documented_keys

POLICIES = ("ppo", "ppo_offpolicy", "ppg", "ppg_offpolicy")
LIBRARY = Path(ding_lite.__file__).parent
# Words of messages that look like keys, and are methods, files, keys of the user or placeholders.
NO_KEYS = {
    "policy.reset",
    "policy.onnx",
    "policy.onnx.json",
    "policy.pt2",
    "env.step",
}
NO_KEYS |= {"env.kwargs.size", "env.kwargs.g", "env.key"}
NO_KEYS |= {"policy.model.encoder.widths", "policy.model.encoder.channels"}
MODULE = """\
from ding_lite.config.schema import Key
from ding_lite.policies import PPOPolicy


def _pair():
    return dict(
        left=1,  # of two numbers
        right=2,
    )


class Mine(PPOPolicy):
    # not about a key

    config = dict(
        # Two lines above
        # the key.
        first=Key(1, low=0),
        second=2.0,  # behind it
        third=Key(
            3,
            high=4,  # inside of it
        ),
        silent=4,
        pair=_pair(),
        learn=dict(deep="x"),  # belongs to deep
        **{"hidden": 5},
    )
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    (tmp_path / "my_keys.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield "my_keys:Mine"
    sys.modules.pop("my_keys", None)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_key_of_a_complete_config_is_documented(policy):
    config = {"env": {"env_id": "CartPole-v1"}, "policy": {"type": policy, "intrinsic": {"type": "rnd"}}}
    complete = {path for path, _ in leaves(compile_config(config).values)}
    found = {entry.path: entry for entry in documented_keys(config)}
    free = {path for path, entry in found.items() if not entry.key.fixed_because}
    assert free == complete
    assert [path for path, entry in found.items() if not entry.effect] == [], (
        "write what the key does as a comment above it or behind it"
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_keys_of_an_intrinsic_reward_are_listed_where_a_config_names_none(policy):
    found = {entry.path: entry for entry in documented_keys({"policy": {"type": policy}})}
    assert found["policy.intrinsic.feature_size"].key.default == 128
    assert found["policy.intrinsic.type"].key.default is None


def test_names_keep_their_spelling_at_the_start_of_a_sentence():
    sentences = {entry.path: entry.sentences for entry in documented_keys({"policy": {"type": "ppo"}})}
    assert sentences["policy.learn.value_loss"].startswith("smooth_l1 is linear")
    assert sentences["policy.learn.batch_size"].startswith("Samples in a minibatch")


def test_every_key_that_a_message_names_exists():
    configs = [{"policy": {"type": policy, "intrinsic": {"type": "rnd"}}} for policy in POLICIES]
    keys = {entry.path for config in configs for entry in documented_keys(config)}
    known = {
        path[:end] for path in keys for end in (len(path), *(dot.start() for dot in re.finditer(r"\.", path)))
    }
    named = {
        (word, file.name)
        for file in LIBRARY.rglob("*.py")
        if file.name != "di_engine.py"  # it names keys of DI-engine
        for text in texts_of(file)
        for word in re.findall(r"(?<![\w.])(?:policy|env|logger|checkpoint)(?:\.[a-z_]\w*)+", text)
    }
    assert len(named) > 150
    assert sorted((word, file) for word, file in named if word not in known | NO_KEYS) == []
    assert {word for word, _ in named} >= NO_KEYS


def texts_of(file):
    """Returns the texts in a module that are no docstrings."""
    tree = ast.parse(file.read_text())
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and isinstance(node.body[0], ast.Expr)
    }
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in docstrings]
    return [node.value for node in nodes if isinstance(node.value, str)]


def test_defaults_are_those_of_the_policy():
    def rate(policy):
        keys = documented_keys({"policy": {"type": policy}})
        return next(entry.key.default for entry in keys if entry.path == "policy.learn.learning_rate")

    assert [rate(policy) for policy in POLICIES] == [3e-4, 1e-3, 5e-4, 5e-4]


def test_comments_above_behind_and_inside_belong_to_their_key(mine):
    found = {entry.path: entry for entry in documented_keys({"policy": {"type": mine}})}
    effects = {name: found[f"policy.{name}"].effect for name in ("first", "second", "third", "silent")}
    assert effects == {
        "first": "Two lines above the key.",
        "second": "behind it",
        "third": "inside of it",
        "silent": "",
    }
    assert found["policy.pair.left"].effect == "of two numbers"
    assert found["policy.pair.right"].effect == ""
    assert found["policy.learn.deep"].effect == "belongs to deep"
    assert found["policy.hidden"].effect == ""
    assert found["policy.learn.clip_ratio"].effect.startswith("epsilon")


def test_class_without_source_has_no_comments():
    namespace = {}
    exec("class Typed: config = dict(a=1)", namespace)
    assert comments_of(namespace["Typed"], "config") == {}


@pytest.mark.parametrize(
    ("key", "kind", "span"),
    [
        (Key(1, low=0), "whole number", "at least 0"),
        (Key(0.5, low=0, high=1), "number", "0 to 1"),
        (Key(None, (float,), above=1, optional=True), "number or None", "above 1"),
        (Key(True), "True or False", ""),
        (Key(None, (bool,), optional=True), "True, False or None", ""),
        (Key("auto", (int,), choices=("auto",), low=1), "whole number or 'auto'", "at least 1"),
        (Key("a", choices=("a", False)), "'a' or False", ""),
        (Key([16], low=1), "list", "each item at least 1"),
        (Key(None), "any value", ""),
    ],
)
def test_type_and_range_in_words(key, kind, span):
    entry = DocumentedKey("key", key, "what it does")
    assert (entry.type, entry.range) == (kind, span)
    assert entry.sentences == "What it does."
