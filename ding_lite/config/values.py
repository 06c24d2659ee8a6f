"""The values of a config in JSON. A type that JSON lacks is an object with its name, under ``__kind__``.

    (84, 84)        {"__kind__": "tuple", "value": [84, 84]}    also set, frozenset
    Path("maps")    {"__kind__": "path", "value": "maps"}
    np.ones(2)      {"__kind__": "array", "value": [1.0, 1.0], "dtype": "<f8", "shape": [2]}

Any other type is refused: it would not be restored, and a resumed run would have another environment.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

from ding_lite.config.registry import name_of
from ding_lite.errors import ConfigError

KIND = "__kind__"
COLLECTIONS = {kind.__name__: kind for kind in (tuple, set, frozenset)}
NUMBERS = re.compile(r"[<>|][biuf][1248]")  # NumPy's dtypes of numbers
# The keys whose values a registry, or gymnasium's, resolves. At other keys a class cannot be saved.
PLACES = re.compile(
    r"(env|policy|policy\.model|policy\.intrinsic|policy\.model\.encoder(\..+)?)\.type|env\.env_id"
    r"|policy\.model\.box_distribution|(env\.wrappers|hooks|logger\.trackers)\[\d+\](\.type)?"
)


def encode(value: Any, path: str = "", modules: list[str] | None = None) -> Any:
    """Returns a value of a config as JSON data.

    Args:
        value: a config, a section or a value of one.
        path: of ``value`` in the config.
        modules: a list that receives the module of each "module:Name" at a key of ``PLACES``.

    Raises:
        ConfigError: if :func:`decode` could not return the same value; the message names the key.
    """
    kind = type(value)
    if callable(value) and PLACES.fullmatch(path):
        return encode(name_of(value), path, modules)
    if modules is not None and kind is str and ":" in value and PLACES.fullmatch(path):
        modules.append(value.partition(":")[0])
    if value is None or kind in (bool, int, float, str):
        return value
    if isinstance(value, dict) and KIND not in value and all(isinstance(name, str) for name in value):
        parts = dict.items(value)
        return {name: encode(item, f"{path}.{name}".removeprefix("."), modules) for name, item in parts}
    if kind is list or kind in COLLECTIONS.values():
        items = [encode(item, f"{path}[{i}]", modules) for i, item in enumerate(value)]
        items = items if kind in (list, tuple) else sorted(items, key=repr)  # equal sets have equal data
        return items if kind is list else {KIND: kind.__name__, "value": items}
    if kind is type(Path()):
        return {KIND: "path", "value": str(value)}
    dtype = getattr(value, "dtype", None)
    if kind.__module__ == "numpy" and NUMBERS.fullmatch(getattr(dtype, "str", "")):
        array = {"value": value.ravel().tolist(), "dtype": value.dtype.str, "shape": list(value.shape)}
        return {KIND: "array", **array}
    what = f"the class {value.__qualname__}" if isinstance(value, type) else f"a {kind.__qualname__}"
    raise ConfigError(
        f"{path}: {what} cannot be saved with the run; give a text, a number or a NumPy array of numbers, "
        "and convert it in the environment or in the class that receives it"
    )


def decode(data: Any) -> Any:
    """Returns the value that :func:`encode` wrote; a decoded value is returned as it is.

    Scalars and 0-d arrays of NumPy and torch become Python numbers.

    Raises:
        ConfigError: if an object with ``__kind__`` is not as :func:`encode` writes it.
    """
    import numpy as np  # the command line starts without it

    if type(data) in (list, tuple):  # a .py file may have tuples
        return type(data)(decode(item) for item in data)
    if not isinstance(data, dict):
        is_scalar = not isinstance(data, type) and getattr(data, "ndim", None) == 0 and hasattr(data, "item")
        return data.item() if is_scalar else data
    items = {name: decode(item) for name, item in dict.items(data)}
    if KIND not in items:
        return items
    with contextlib.suppress(TypeError, ValueError, LookupError, OverflowError):
        kind, value = items[KIND], items["value"]
        if kind == "array" and NUMBERS.fullmatch(items["dtype"]):
            return np.array(value, items["dtype"]).reshape(items["shape"])[()]  # a number if the shape is ()
        if isinstance(value, list):
            return COLLECTIONS[kind](value)
        if kind == "path":
            return Path(value)
    raise ConfigError(f"not a saved value: {data!r:.60}")


def plain(value: Any) -> Any:
    """Returns a copy of a value as it is after saving and loading: with names in place of classes."""
    return decode(encode(value))
