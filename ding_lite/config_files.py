"""Config files: finding them, reading them, and overrides as the command line writes them."""

from __future__ import annotations

import ast
import difflib
import json
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ding_lite.errors import FOREIGN, ConfigError, DingLiteError, told

CONFIG_FOLDERS = (
    Path(__file__).parent / "_configs",  # an installed package
    Path(__file__).parents[1] / "configs",  # a checkout
)
WORDS = {"true": True, "false": False, "none": None, "null": None}


def parse_overrides(tokens: Sequence[str]) -> dict[str, Any]:
    """Returns ``["a.b=3"]`` as ``{"a.b": 3}``; values are Python literals, anything else is a string.

    Raises:
        ConfigError: for a token without ``=``, without a key or without a value, and for two that
            contradict each other.
    """
    overrides: dict[str, Any] = {}
    for token in tokens:
        path, equals, text = token.partition("=")
        if not equals or not path or not text:
            raise ConfigError(
                f"override {token!r}: expected key.path=value, such as policy.learn.batch_size=128"
            )
        try:
            value = ast.literal_eval(text)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            value = WORDS.get(text.lower(), text)
        if repr(overrides.setdefault(path, value)) != repr(value):
            raise ConfigError(
                f"{path} is given twice, as {overrides[path]!r} and as {value!r}: leave one out"
            )
    return overrides


def shipped_configs() -> dict[str, Path]:
    """Returns the configs that come with ding_lite, by name; modules beside them are left out."""
    folder = next((f for f in CONFIG_FOLDERS if f.is_dir()), None)
    files = [] if folder is None else sorted(folder.glob("*.py"))
    return {f.stem: f for f in files if "\nconfig = " in f.read_text()}


def find_config(name: str | Path) -> Path:
    """Returns the file that ``name`` means: a path, or the name of a shipped config.

    Raises:
        ConfigError: if there is no such file, with the closest name.
    """
    path = Path(name)
    if path.suffix in (".py", ".json"):
        if path.is_file():
            return path
        raise ConfigError(f"config file {path} does not exist (looked in {path.absolute().parent})")
    shipped = shipped_configs()
    if str(name) in shipped:
        return shipped[str(name)]
    close = difflib.get_close_matches(str(name), shipped, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise ConfigError(
        f"{str(name)!r} is neither a .py or .json file nor a shipped config.{hint} "
        f"Shipped: {', '.join(shipped)}"
    )


def read_config(file: Path) -> dict[str, Any]:
    """Returns the dict named ``config`` of a Python file, which is executed, or the object of a JSON one.

    The file's folder is put on ``sys.path``, so that ``type="my_module:MyPolicy"`` finds its neighbour.

    Raises:
        ConfigError: if it cannot be read, or has no such dict.
    """
    folder = str(file.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        if file.suffix == ".json":
            config = json.loads(file.read_text(), object_pairs_hook=_unlike_pairs)
        else:
            config = runpy.run_path(str(file)).get("config")
    except SyntaxError as error:
        raise ConfigError(f"config file {file}, line {error.lineno}: {error.msg}") from error
    except DingLiteError:
        raise
    except FOREIGN as error:
        raise ConfigError(f"config file {file} cannot be read: {told(error)}") from error
    if not isinstance(config, dict):
        found = "" if config is None else f"; its `config` is a {type(config).__name__}"
        raise ConfigError(f"config file {file} has no dict named `config`{found}")
    return config


def _unlike_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    read: dict[str, Any] = {}
    for name, value in pairs:
        if name in read:
            raise ValueError(f"the key {name!r} is there twice in one object: leave one out")
        read[name] = value
    return read


def file_name(text: str) -> str:
    """Returns ``text`` with an underscore for every character that a file's name should not have."""
    return "".join(c if c.isalnum() or c in "._-" else "_" for c in text)
