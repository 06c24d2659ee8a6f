"""The values of a config in JSON: numbers, texts, lists, dicts, None, and what JSON lacks.

    (84, 84)                 {"__tuple__": [84, 84]}
    a class of a registry    its name

A value of any other kind is refused, so that no run is saved that another environment would continue.
"""

from __future__ import annotations

import re
from typing import Any

from ding_lite.config.registry import name_of
from ding_lite.errors import ConfigError

TUPLE = "__tuple__"
# The keys whose names a registry resolves. A class as the value of another key is not saved.
PLACES = re.compile(
    r"(env|policy|policy\.model|policy\.intrinsic|policy\.model\.encoder(\..+)?)\.type"
    r"|policy\.model\.box_distribution|(env\.wrappers|hooks|logger\.trackers)\[\d+\](\.type)?"
)
# "package.module:Class", or gymnasium's "module:Id-v0".
NAMED = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.-]*")


def encode(value: Any, path: str = "") -> Any:
    """Returns a value of a config as JSON data.

    Args:
        value: a config, a section or a value of one.
        path: of ``value`` in the config.

    Raises:
        ConfigError: if :func:`decode` could not return the same value; the message has the key.
    """
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if isinstance(value, dict) and TUPLE not in value and all(isinstance(name, str) for name in value):
        return {name: encode(item, f"{path}.{name}".removeprefix(".")) for name, item in value.items()}
    if kind in (list, tuple):
        items = [encode(item, f"{path}[{i}]") for i, item in enumerate(value)]
        return items if kind is list else {TUPLE: items}
    if callable(value) and PLACES.fullmatch(path):
        return name_of(value)
    what = f"the class {value.__qualname__}" if isinstance(value, type) else f"a {kind.__qualname__}"
    raise ConfigError(
        f"{path}: {what} cannot be saved with the run; give texts, numbers, lists or dicts of these, and "
        "convert them in the environment or in the class that takes them"
    )


def decode(data: Any) -> Any:
    """Returns the value that :func:`encode` wrote; what is decoded already stays as it is."""
    if type(data) in (list, tuple):  # a .py file has tuples
        return type(data)(map(decode, data))
    if not isinstance(data, dict):
        return data
    if TUPLE in data:
        return tuple(map(decode, data[TUPLE]))
    return {name: decode(item) for name, item in data.items()}


def plain(value: Any, path: str = "") -> Any:
    """Returns a copy of a value of a config as its file gives it back: with names in the place of classes.

    Args:
        value, path: as for :func:`encode`.
    """
    return decode(encode(value, path))


def named_paths(data: Any) -> list[str]:
    """Returns every text of the form "module:Name" in plain data: what may import a module."""
    if isinstance(data, dict):
        data = [*data.keys(), *data.values()]
    if isinstance(data, list):
        return [path for item in data for path in named_paths(item)]
    return [data] if isinstance(data, str) and NAMED.fullmatch(data) else []
