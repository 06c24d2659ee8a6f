"""Keys as the code declares them: those that messages name, their defaults, types and ranges."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import ding_lite
from ding_lite.config.compile import POLICIES
from ding_lite.tools.key_reference import keys_of

LIBRARY = Path(ding_lite.__file__).parent
# Words of messages that look like keys, and are methods, files, keys of the user or placeholders.
NO_KEYS = {
    "policy.onnx",
    "env.kwargs.size",
    "env.kwargs.g",
    "env.kwargs.max_episode_steps",
    "env.key",
    "policy.model.encoder.channels",
    "policy.learn.entropy_",  # the beginning of two
}


def test_every_key_that_a_message_names_exists():
    configs = [{"policy": {"type": policy, "intrinsic": {"type": "rnd"}}} for policy in POLICIES]
    keys = {path for config in configs for path in keys_of(config)}
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
    assert len(named) > 100, "it finds them"
    assert sorted((word, file) for word, file in named if word not in known | NO_KEYS) == []


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
