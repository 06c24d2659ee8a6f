"""Finds and reads config files, and parses the overrides of the command line."""

from __future__ import annotations

import ast
import difflib
import json
import keyword
import math
import re
import runpy
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ding_lite.config.di_engine import CREATE, MAIN, SLIP, stand_ins
from ding_lite.config.user_modules import OF_CONFIG_FILE, keep_executed, no_training
from ding_lite.config.values import encode
from ding_lite.errors import FOREIGN, ConfigError, DingLiteError, error_text

CONFIG_FOLDERS = (
    Path(__file__).parents[1] / "_configs",  # an installed package
    Path(__file__).parents[2] / "configs",  # a checkout
)
LITERALS = {"true": True, "false": False, "none": None, "null": None}
# "[old]run/ckpt": a text whose first bracket is closed before its end, as in the name of a file.
TEXT_IN_BRACKETS = re.compile(r"(\[[^][{}]*\]|\{[^][{}]*\})[^][{}]+")


def parse_overrides(tokens: Sequence[str]) -> dict[str, Any]:
    """Returns ``["a.b=3"]`` as ``{"a.b": 3}``.

    A value is a Python literal, in which a dict may be written dict(key=value), or true, false, none or null
    in any case, or a list of these without quotes (the shell takes them away), or a list or an object of
    JSON; any other text is a string.

    Raises:
        ConfigError: for a token without "=", key or value, for a list or a dict that cannot be read, and for
            two different values of one key.
    """
    overrides: dict[str, Any] = {}
    for token in tokens:
        path, equals, text = token.partition("=")
        if not equals or not path or not text:
            hint = "" if equals else _option_hint(token)
            raise ConfigError(
                f"override {token!r}: expected key.path=value, such as policy.learn.batch_size=128{hint}"
            )
        try:
            value = _value(text)
        except ValueError as error:
            raise ConfigError(f"override {token!r}: {error}") from error
        if repr(overrides.setdefault(path, value)) != repr(value):
            raise ConfigError(
                f"{path} is given twice, as {overrides[path]!r} and as {value!r}: remove one of them"
            )
    return overrides


def _option_hint(token: str) -> str:
    """Returns how to name the environment or the config that an argument without "=" probably is."""
    if Path(token).is_dir():
        return f" ({token} is a folder, and this command takes no further one)"
    if token.isdecimal():
        return " (the option before it takes one number)"
    if re.fullmatch(r"[\w./:-]+-v\d+|[\w.]+:\w+", token):
        return f" (to name an environment, write --env {token}; for a saved run, env.env_id={token})"
    return "" if "." in token else f" (to name a config, write -c {token})"


def _value(text: str) -> Any:
    """Returns the value that a text of the command line stands for.

    Raises:
        ValueError: if it begins as a list or a dict and is none, which a string hardly ever does.
    """
    try:
        return _literal(ast.parse(text.strip(), mode="eval").body)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        words = re.fullmatch(r"\[([\w.:-]+(?:,\s*[\w.:-]+)*)\]", text)
        if words:
            return [_value(word.strip()) for word in words[1].split(",")]
    if not text.lstrip().startswith(("[", "{")) or TEXT_IN_BRACKETS.fullmatch(text.strip()):
        return LITERALS.get(text.lower(), text)
    try:
        return json.loads(text, object_pairs_hook=_dict_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            "its value begins as a list or a dict, and is neither Python nor JSON; quote its texts, and the "
            """whole for the shell, as in hooks='[{"type": "early_stopping"}]' (a text that begins so: """
            """key='"[a text"')"""
        ) from error


def _literal(node: ast.expr) -> Any:
    """Returns the value of a literal, in which ``dict(key=value)`` is one, as in a config file."""
    if isinstance(node, (ast.List, ast.Tuple)):
        items = [_literal(item) for item in node.elts]
        return items if isinstance(node, ast.List) else tuple(items)
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "dict" and not node.args:
        names = [_named(keyword) for keyword in node.keywords]
        if len(set(names)) < len(names):
            raise ValueError("a keyword is repeated")
        return {name: _literal(keyword.value) for name, keyword in zip(names, node.keywords, strict=True)}
    if isinstance(node, ast.Dict) and None not in node.keys:
        keys = [ast.literal_eval(key) for key in node.keys if key is not None]
        return dict(zip(keys, map(_literal, node.values), strict=True))
    return ast.literal_eval(node)


def _named(keyword: ast.keyword) -> str:
    if keyword.arg is None:
        raise ValueError("dict(**other) is no literal")
    return keyword.arg


def shipped_configs() -> dict[str, Path]:
    """Returns the files of the configs that ding_lite ships, by name.

    Python files in that folder without a ``config``, such as environments, are left out.
    """
    folder = next((f for f in CONFIG_FOLDERS if f.is_dir()), None)
    files = [] if folder is None else sorted(folder.glob("*.py"))
    return {f.stem: f for f in files if "\nconfig = " in f.read_text()}


def find_config(name: str | Path) -> Path:
    """Returns the file of a config.

    Args:
        name: the path of a .py or .json file, or the name of a shipped config.

    Raises:
        ConfigError: if the file does not exist; the message has the closest name of a shipped config.
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
    if str(name) in gymnasium_ids():
        hint = f' It is an environment: --env {name}, or in Python {{"env": {{"env_id": {name!r}}}}}.'
    raise ConfigError(
        f"{str(name)!r} is neither a .py or .json file nor a shipped config.{hint} "
        f"Shipped: {', '.join(shipped)}"
    )


def gymnasium_ids() -> Collection[str]:
    """Returns the ids of the environments that gymnasium knows."""
    import gymnasium  # it takes a second

    return gymnasium.registry.keys()


def read_config(file: Path) -> dict[str, Any]:
    """Executes a Python file and returns its dict named ``config``, or returns the object in a JSON file.

    A file of DI-engine has ``main_config`` and ``create_config`` instead, and is returned as a dict of these
    two; the packages of DI-engine that it imports need not be installed. The file's folder is added to
    ``sys.path``, so that ``type="my_module:MyPolicy"`` can name a module in it.

    Raises:
        ConfigError: if the file cannot be read or has no such dict.
    """
    folder = str(file.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        if file.suffix == ".json":
            config = json.loads(file.read_text(), object_pairs_hook=_dict_without_duplicates)
        else:
            with stand_ins(file), no_training(file.name):
                names = runpy.run_path(str(file), run_name=OF_CONFIG_FILE)
            config = _config_of(names, file)
            keep_executed(file, names)
    except SyntaxError as error:
        imported = "" if error.filename in (None, str(file)) else f": {error.filename}"
        line = "" if error.lineno is None else f", line {error.lineno}"
        raise ConfigError(f"config file {file}{imported}{line}: {error.msg}") from error
    except DingLiteError:
        raise
    except FOREIGN as error:
        raise ConfigError(f"config file {file} cannot be read: {error_text(error)}") from error
    if not isinstance(config, dict) and file.suffix == ".json":
        raise ConfigError(f"config file {file}: expected a JSON object, got a {type(config).__name__}")
    if not isinstance(config, dict):
        near = _near_pair(names)
        other_type = "" if config is None else f"; its `config` is a {type(config).__name__}"
        raise ConfigError(
            f"config file {file} has no dict named `config`{other_type}, nor DI-engine's two dicts "
            f"`{MAIN}` and `{CREATE}`{near}"
        )
    return _with_neighbours(config, file.absolute().parent)


def _with_neighbours(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Returns a config whose ``pretrained_model_path`` may be relative to the file's folder, too.

    A path that exists in the working directory is meant to be there.
    """
    learn: Any = config
    for section in ("policy", "learn"):
        learn = learn.get(section) if isinstance(learn, dict) else None
    path = learn.get("pretrained_model_path") if isinstance(learn, dict) else None
    if not isinstance(path, str) or Path(path).exists() or not (folder / path).exists():
        return config
    learn = {**learn, "pretrained_model_path": str(folder / path)}
    return {**config, "policy": {**config["policy"], "learn": learn}}


def _config_of(names: Mapping[str, Any], file: Path) -> Any:
    """Returns ``config`` among the names of a file, or DI-engine's two dicts, or None if it has neither."""
    pair = {name: names[name] for name in (MAIN, CREATE) if isinstance(names.get(name), Mapping)}
    if len(pair) < 2:
        return names.get("config")
    if isinstance(names.get("config"), Mapping):
        raise ConfigError(
            f"config file {file} has `config`, and DI-engine's `{MAIN}` and `{CREATE}` beside it: remove "
            "`config`, or the two"
        )
    return pair


def _near_pair(names: Mapping[str, Any]) -> str:
    """Returns which of DI-engine's two dicts a file has, and names that are nearly theirs, or ""."""
    dicts = [name for name, value in names.items() if isinstance(value, Mapping)]
    said = [f"it has `{name}`" for name in (MAIN, CREATE) if name in dicts]
    others = [name for name in dicts if name not in (MAIN, CREATE)]
    for name in (MAIN, CREATE):
        if close := difflib.get_close_matches(name, others, n=1, cutoff=SLIP):
            said.append(f"rename `{close[0]}`, if it is meant to be `{name}`")
    return "".join(f"; {part}" for part in said)


def file_that_registers(name: str, folder: Path) -> Path | None:
    """Returns the Python file in a folder that has ``register("name")``; the files are read, not executed."""
    return next((file for file in sorted(folder.glob("*.py")) if name in _registered_names(file)), None)


def _registered_names(file: Path) -> set[str]:
    """Returns the names in the calls ``register("name")`` of a Python file; empty if it cannot be read."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return set()
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args]
    names = [
        node.args[0]
        for node in calls
        if isinstance(node.func, ast.Attribute) and node.func.attr == "register"
    ]
    return {name.value for name in names if isinstance(name, ast.Constant) and isinstance(name.value, str)}


def read_sweep(file: Path) -> dict[str, Any]:
    """Executes a Python file and returns its dict named ``sweep``; empty if it has none, or is a JSON file.

    Raises:
        ConfigError: if its ``sweep`` is not a dict.
    """
    if file.suffix == ".json":
        return {}
    with stand_ins(file):
        sweep = runpy.run_path(str(file), run_name=OF_CONFIG_FILE).get("sweep", {})
    if not isinstance(sweep, dict):
        raise ConfigError(f"config file {file}: `sweep` is a {type(sweep).__name__}, not a dict")
    return sweep


def _dict_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns the dict of a JSON object.

    Raises:
        ValueError: if a key occurs twice.
    """
    content: dict[str, Any] = {}
    for name, value in pairs:
        if name in content:
            raise ValueError(f"the key {name!r} occurs twice in one object: remove one of them")
        content[name] = value
    return content


def file_name(text: str) -> str:
    """Returns ``text`` with every character other than letters, digits, ".", "_" and "-" replaced by "_"."""
    return "".join(char if char.isalnum() or char in "._-" else "_" for char in text)


def python_source(config: Mapping[str, Any], comments: Sequence[str] = ()) -> str:
    """Returns the text of a config file.

    Args:
        config: plain data.
        comments: lines at the top of the file.
    """
    lines = [f"# {line}" for comment in comments for line in comment.splitlines()]
    return "\n".join([*lines, *([""] if lines else []), f"config = {_source(config, '')}", ""])


def _source(value: Any, indent: str) -> str:
    """Returns Python code for a value; each key of a dict with other keys has a line."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, (list, tuple)):
        inside = ", ".join(_source(item, indent) for item in value)
        return f"[{inside}]" if isinstance(value, list) else f"({inside}{',' * (len(value) == 1)})"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if not isinstance(value, Mapping):
        value = encode(value)
    if not isinstance(value, Mapping):
        return repr(value)
    inner = indent + "    "
    as_keywords = all(name.isidentifier() and not keyword.iskeyword(name) for name in value)
    items = [
        f"{inner}{name}={_source(item, inner)},"
        if as_keywords
        else f"{inner}{_source(name, inner)}: {_source(item, inner)},"
        for name, item in value.items()
    ]
    opening, closing = ("dict(", ")") if as_keywords and items else ("{", "}")
    return "\n".join([opening, *items, indent + closing]) if items else "{}"
