"""Finds names in the user's classes that are nearly a name of the base class, and so override nothing.

A hook with ``after_iteration`` in place of ``after_iter`` is never called, and a policy with the default
``learn=dict(batch_sise=64)`` declares a key that nothing reads. Python accepts both.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ding_lite.config.named_classes import classes_of
from ding_lite.config.schema import Schema, merged_config

CLOSE = 0.8  # ratio of difflib: that of after_iteration and after_iter
# Methods with an underscore that a policy is asked to define (policies.base). Private names of the user are
# compared with these alone, and must be closer, since names such as _init_head are usual.
HOOKS = {
    *("_init_shared", "_init_learn", "_init_collect", "_init_eval", "_monitor_vars_learn"),
    *("_forward_learn", "_forward_collect", "_forward_eval", "_process_transition", "_get_train_sample"),
}
CLOSE_HOOK = 0.9


def near_name_warnings(values: Mapping[str, Any], others: Iterable[type]) -> list[str]:
    """Returns a line for each name of the user's classes that is nearly a name of their base class.

    Args:
        values: a complete config, whose classes can be imported.
        others: classes that the config need not name, such as those of the model's parts.
    """
    # Entries of the other registries have no base class to compare with.
    named = [
        registry.get(name) for registry, name in classes_of(values) if name and registry.base is not object
    ]
    classes = dict.fromkeys(cls for cls in (*named, *others) if isinstance(cls, type))
    return list(dict.fromkeys(line for cls in classes for line in _warnings(cls)))


def _warnings(cls: type) -> Iterator[str]:
    """Yields the lines about one class; none if it is not derived from a class of ding_lite."""
    library = [base for base in cls.__mro__ if base.__module__.partition(".")[0] == "ding_lite"]
    known = {base for library_class in library for base in library_class.__mro__}
    own = [base for base in cls.__mro__ if base not in known]
    if not (library and own):
        return
    inherited = {name for base in known for name in vars(base)}
    public = {name for base in library for name in vars(base) if not name.startswith("_")}
    hooks = HOOKS & {name for base in library for name in vars(base)}
    schema = merged_config(library[0])
    defined: set[str] = set()  # in this class or in one derived from it
    for base in own:
        defined |= vars(base).keys()
        where = f"{base.__module__}.{base.__qualname__}"
        for name in vars(base):
            if name in inherited or name.startswith("__"):
                continue
            if f"_{name}" in hooks - defined:
                close: str | None = f"_{name}"
            elif name.startswith("_"):
                close = near_name(name, hooks - defined, CLOSE_HOOK)
            else:
                close = near_name(name, public - defined)
            if close:
                yield f"WARNING: {where} defines {name!r}, which overrides nothing; did you mean {close!r}?"
        config = vars(base).get("config")
        for path, close in _near_keys(config if isinstance(config, Mapping) else {}, schema):
            yield f"WARNING: {where}.config declares a new key {path!r}; did you mean {close!r}?"


def near_name(name: str, names: Iterable[str], cutoff: float = CLOSE) -> str | None:
    """Returns the name that ``name`` is probably a misspelling of, or None.

    A name with more words or a number, such as ``policy_loss2`` or ``old_policy_loss``, is not a misspelling.

    Args:
        name: of the user.
        names: that may be meant.
        cutoff: the ratio of difflib from which on two names are close.
    """
    likely = [x for x in names if not re.fullmatch(rf"(.+_)?{re.escape(x)}(_.+|\d+)?", name)]
    return next(iter(difflib.get_close_matches(name, sorted(likely), n=1, cutoff=cutoff)), None)


def _near_keys(config: Mapping[str, Any], schema: Schema, path: str = "") -> Iterator[tuple[str, str]]:
    """Yields each new key of ``config`` that is nearly one of ``schema``, and that one, as paths."""
    for name, value in config.items():
        if name not in schema:
            close = near_name(name, schema)
            if close:
                yield f"{path}{name}", f"{path}{close}"
        elif isinstance(value, Mapping) and isinstance(schema[name], Mapping):
            yield from _near_keys(value, schema[name], f"{path}{name}.")
