"""Every key of a config with its type, default, range and effect, read from the code that declares it.

Type, default and range are those of the schema that configs are checked against. The effect of a key is its
comment in the ``config`` that declares it: the lines above the key, or the rest of its line.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import re
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ding_lite.config import sections
from ding_lite.config.registry import INTRINSIC_REGISTRY, MODEL_REGISTRY, POLICY_REGISTRY
from ding_lite.config.schema import Key, leaves, merged_config
from ding_lite.config.sections import POLICIES, schema_of
from ding_lite.envs import make

TYPE_NAMES = {
    int: "whole number",
    float: "number",
    str: "text",
    list: "list",
    dict: "dict",
    object: "class",
}
ANY_INTRINSIC = "rnd"  # its keys are listed where a config names no intrinsic reward


@dataclass(frozen=True)
class DocumentedKey:
    """One key of a config, and what it does.

    Attributes:
        path: such as "policy.learn.batch_size".
        key: its default, and the rules for its values.
        effect: one or more sentences; "" if the code says none.
    """

    path: str
    key: Key
    effect: str

    @property
    def type(self) -> str:
        """The accepted types and values in words, such as "whole number or None"."""
        key = self.key
        choices: list[Any] = list(key.choices)
        kinds = key.kind if key.choices else key.kinds
        if bool in kinds:
            choices += [True, False]
        words = [TYPE_NAMES.get(kind, kind.__name__) for kind in kinds if kind is not bool]
        words += [repr(choice) for choice in choices]
        if not words:
            return "any value"
        if key.optional or key.default is None:
            words.append("None")
        *others, last = dict.fromkeys(words)
        return f"{', '.join(others)} or {last}" if others else last

    @property
    def sentences(self) -> str:
        """The effect with a capital letter at its start and a full stop at its end."""
        if not self.effect:
            return ""
        text = self.effect if self.effect.endswith(".") else f"{self.effect}."
        first = re.split(r"[\s:,]", text, maxsplit=1)[0]
        is_name = first in self.key.choices or not first.isalpha()  # such as kl_penalty and torch.compile
        return text if is_name else text[0].upper() + text[1:]

    @property
    def range(self) -> str:
        """The bounds in words, such as "at least 1"; "" without bounds."""
        key = self.key
        bounds = ((key.low, "at least"), (key.above, "above"), (key.high, "at most"), (key.below, "below"))
        text = " and ".join(f"{word} {_digits(bound)}" for bound, word in bounds if bound is not None)
        if key.low is not None and key.high is not None:
            text = f"{_digits(key.low)} to {_digits(key.high)}"
        return f"each item {text}" if text and list in key.kinds else text


def _digits(bound: float) -> str:
    return f"{bound:,}" if isinstance(bound, int) else f"{bound:,g}"


def documented_keys(user: Mapping[str, Any]) -> list[DocumentedKey]:
    """Returns every key that a config may have, sections in the order of ``ding-lite config``.

    Keys that accept only their default (``Key.fixed_because``) are among them; their effect is the reason.

    Args:
        user: a config, of which only the keys ``type`` matter: they name the classes that declare keys.
    """
    schema, _ = schema_of(_without_unused_reward(user))
    declared = [("", sections, "RUN_CONFIG"), ("env", make, "CONFIG")]
    policy = schema["policy"]
    if not isinstance(policy, Key):
        kind, model = policy["type"].default, policy["model"]
        declared += _of_class("policy", POLICY_REGISTRY.get(kind))
        if not isinstance(model, Key):
            declared += _of_class("policy.model", MODEL_REGISTRY.get(model["type"].default))
        intrinsic = policy.get("intrinsic", {})
        if not isinstance(intrinsic, Key):
            reward = INTRINSIC_REGISTRY.get(intrinsic["type"].default or ANY_INTRINSIC)
            declared += _of_class("policy.intrinsic", reward)
            policy["intrinsic"] = {**merged_config(reward), **intrinsic}
    effects: dict[str, str] = {}
    for prefix, owner, name in declared:
        effects |= {f"{prefix}.{path}".lstrip("."): text for path, text in comments_of(owner, name).items()}
    return [
        DocumentedKey(path, key, key.fixed_because or effects.get(path, "")) for path, key in leaves(schema)
    ]


@dataclass
class KeyOfPolicies:
    """A key of several policies, which may differ in its rules or lack it."""

    by_policy: dict[str, DocumentedKey] = field(default_factory=dict)

    def free(self) -> dict[str, DocumentedKey]:
        """Returns the key for the policies that accept more than one value of it."""
        return {name: entry for name, entry in self.by_policy.items() if not entry.key.fixed_because}


def keys_of_policies(policies: Iterable[str] = POLICIES) -> dict[str, KeyOfPolicies]:
    """Returns every key of some policies by its path."""
    keys: dict[str, KeyOfPolicies] = {}
    for name in policies:
        for entry in documented_keys({"policy": {"type": name}}):
            keys.setdefault(entry.path, KeyOfPolicies()).by_policy[name] = entry
    return keys


def defaults_of(entries: Mapping[str, DocumentedKey]) -> dict[str, list[str]]:
    """Returns the policies of each default of a key; ``entries`` has the key of each policy."""
    by_value: dict[str, list[str]] = {}
    for name, entry in entries.items():
        by_value.setdefault(repr(entry.key.default), []).append(name)
    return by_value


def _without_unused_reward(user: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a config without its section of an intrinsic reward, if that names none."""
    policy = user.get("policy") or {}
    if (policy.get("intrinsic") or {}).get("type") is not None:
        return user
    return {**user, "policy": {name: value for name, value in policy.items() if name != "intrinsic"}}


def _of_class(prefix: str, cls: type) -> list[tuple[str, Any, str]]:
    """Returns where the keys of a class are declared: its bases first."""
    return [(prefix, base, "config") for base in reversed(cls.__mro__) if "config" in vars(base)]


def comments_of(owner: Any, name: str) -> dict[str, str]:
    """Returns the comment of each key in a dict that source code builds, by the path of the key.

    Args:
        owner: a module, or a class.
        name: of its variable, which is ``dict(...)`` with nested ``dict(...)``, or calls of functions of the
            same module that return those.

    Returns:
        only keys with a comment; nothing if there is no source code, as in an interactive session.
    """
    with contextlib.suppress(OSError, TypeError):
        module = inspect.getmodule(owner)
        source = inspect.getsource(module) if module else ""
        tree = ast.parse(source)
        scope: ast.AST = tree
        if isinstance(owner, type):
            scope = next(
                node
                for node in ast.walk(tree)
                if isinstance(node, ast.ClassDef) and node.name == owner.__name__
            )
        for node in ast.iter_child_nodes(scope):
            if not isinstance(node, (ast.Assign, ast.AnnAssign)):
                continue
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                return dict(_Comments(source, tree).of_keys(node.value))
    return {}


class _Comments:
    """The comments of a module's source code, and which key each belongs to."""

    def __init__(self, source: str, tree: ast.Module) -> None:
        self.alone: dict[int, str] = {}  # by line number
        self.behind_code: dict[int, str] = {}
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                is_alone = not token.line[: token.start[1]].strip()
                kept = self.alone if is_alone else self.behind_code
                kept[token.start[0]] = token.string.lstrip("# ")
        self.functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}

    def of_keys(self, value: ast.expr | None, path: str = "") -> Iterator[tuple[str, str]]:
        """Yields ``(path, comment)`` of the keys of a call of ``dict``."""
        call = self._call_of_dict(value)
        for keyword in call.keywords if call else ():
            if keyword.arg is None:  # **another dict
                continue
            where = f"{path}.{keyword.arg}" if path else keyword.arg
            if self._call_of_dict(keyword.value):
                yield from self.of_keys(keyword.value, where)
            elif comment := self._of_lines(keyword.lineno, keyword.value.end_lineno or keyword.lineno):
                yield where, comment

    def _call_of_dict(self, value: ast.expr | None) -> ast.Call | None:
        """Returns the call ``dict(...)`` that ``value`` is, or that the function it calls returns."""
        if not (isinstance(value, ast.Call) and isinstance(value.func, ast.Name)):
            return None
        if value.func.id == "dict":
            return value
        function = self.functions.get(value.func.id)
        returned = function.body[-1] if function else None
        return self._call_of_dict(returned.value) if isinstance(returned, ast.Return) else None

    def _of_lines(self, first: int, last: int) -> str:
        """Returns the comment of a key on these lines: that above it, then that behind it."""
        above: list[str] = []
        line = first - 1
        while line in self.alone:
            above.insert(0, self.alone[line])
            line -= 1
        behind = [self.behind_code[line] for line in range(first, last + 1) if line in self.behind_code]
        return " ".join([*above, *behind]).removesuffix(" noqa")
