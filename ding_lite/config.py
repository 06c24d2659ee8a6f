"""From a user's plain dict to the one complete config of a run, with where each value came from.

    file or dict  ->  overrides  ->  checked against the defaults  ->  laid over them

Defaults live in the class that reads them. Each section is checked against the class that its ``type``
names, so a policy of your own brings its own keys. The input is never changed.
"""

from __future__ import annotations

import ast
import copy
import difflib
import json
import runpy
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from easydict import EasyDict

from ding_lite.checkpoint import CHECKPOINT_CONFIG
from ding_lite.errors import CheckpointError, ConfigError, DingLiteError, RegistryError
from ding_lite.logger import LOGGER_CONFIG
from ding_lite.registry import ENV_REGISTRY, MODEL_REGISTRY, POLICY_REGISTRY, Registry
from ding_lite.schema import Key, Schema, as_schema, check, default_values, leaves, merged_config

RUN_CONFIG: dict[str, Any] = dict(
    exp_name="",  # name of the run's folder under runs/; made from env and policy when empty
    seed=Key(0, low=0),
    max_env_step=Key(1_000_000, low=1),  # env steps to train for
    max_train_iter=Key(None, (int,), low=1, optional=True),  # optimiser steps to train for
    # Torch's CPU threads; auto: 1 for vectors, whose matrices are small, every core for images.
    num_threads=Key("auto", (int,), choices=("auto",), low=1),
    checkpoint=CHECKPOINT_CONFIG,
    logger=LOGGER_CONFIG,
)
CONFIG_FOLDERS = (
    Path(__file__).parent / "_configs",  # an installed package
    Path(__file__).parents[1] / "configs",  # a checkout
)

WORDS = {"true": True, "false": False, "none": None, "null": None}


@dataclass(frozen=True)
class Config:
    """A complete config: ``values`` (an EasyDict) and ``source``, where each leaf came from."""

    values: EasyDict
    source: dict[str, str]

    def as_json(self) -> dict[str, Any]:
        """Returns what ``config.json`` of a run holds; classes become "package.module:Name"."""
        return {"config": plain(self.values), "source": dict(self.source)}

    def replaced(self, **values: Any) -> Config:
        """Returns a copy with other top-level values (None: as it is); schedules keep their length.

        Raises:
            ConfigError: for a value out of its range.
        """
        given = {name: value for name, value in values.items() if value is not None}
        checked, faults = check(given, as_schema(RUN_CONFIG))
        if faults:
            raise _error("the arguments", faults)
        return Config(
            EasyDict({**self.values, **checked}), {**self.source, **dict.fromkeys(checked, "command line")}
        )

    def modules(self) -> list[str]:
        """Returns the modules of the user's own classes that this config names."""
        return foreign_modules(plain(self.values))


def compile_config(
    user: Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
    *,
    origin: str = "config",
) -> Config:
    """Checks a config and completes it; compiling the result again changes nothing.

    Args:
        user: a config, or what a run's ``config.json`` holds.
        overrides: ``{"policy.learn.batch_size": 128}``, laid over ``user``.
        origin: what to call ``user`` in messages and in ``source``.

    Raises:
        ConfigError: naming every fault at once, each with its whole path and what to do.
    """
    user = copy.deepcopy(dict(user))
    source: dict[str, str] = {}
    if set(user) == {"config", "source"}:  # a run's config.json
        source = dict(user["source"])
        user = user["config"]
    taken = [f"{path}: {name!r} is the name of a dict's method" for path, name in _dict_methods(user)]
    if taken:
        raise _error(origin, taken)
    given = {path: source.get(path, origin) for path, _ in leaves(user)}
    for path, value in (overrides or {}).items():
        _set(user, path, value)
        given = {p: s for p, s in given.items() if not p.startswith(f"{path}.")}
        given[path] = "command line"
    schema = _schema_of(user, origin)
    values, faults = check(user, schema)
    if not faults:
        values = _lay_over(default_values(schema), values)
        faults = _cross_checks(values)
    if faults:
        raise _error(origin, faults)
    for path, _ in leaves(values):
        where = next((s for p, s in given.items() if path == p or path.startswith(f"{p}.")), None)
        source[path] = where or source.get(path, "default")
    _resolve(values, source)
    return Config(EasyDict(values), source)


def _error(origin: str, faults: list[str]) -> ConfigError:
    count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
    return ConfigError("\n  ".join([f"{origin} has {count}:", *faults]))


def _schema_of(user: Mapping[str, Any], origin: str) -> Schema:
    schema = as_schema(RUN_CONFIG)
    schema["env"] = as_schema(ENV_REGISTRY.section)
    policy = user.get("policy", {})
    policy = policy if isinstance(policy, Mapping) else {}
    schema["policy"] = _section(POLICY_REGISTRY, policy.get("type", "ppo"), "policy.type", origin)
    model = policy.get("model", {})
    kind = model.get("type", "vac") if isinstance(model, Mapping) else "vac"
    if isinstance(model, Mapping) and "type" not in model:
        declared = schema["policy"].get("model", {}).get("type")
        kind = declared.default if declared is not None else kind
    schema["policy"]["model"] = schema["policy"].get("model", {}) | _section(
        MODEL_REGISTRY, kind, "policy.model.type", origin
    )
    return schema


def _section(registry: Registry, kind: Any, path: str, origin: str) -> Schema:
    try:
        cls = registry.get(kind) if isinstance(kind, str) else kind
    except RegistryError as error:
        raise RegistryError(f"{origin}: {path}: {error}") from error
    schema = merged_config(cls) if isinstance(cls, type) else {}
    if "type" in schema:
        schema["type"] = Key(kind, (str, object))
    return schema


def _dict_methods(tree: Mapping[str, Any], path: str = "config") -> Iterator[tuple[str, str]]:
    for name, value in tree.items():
        if isinstance(name, str) and hasattr(dict, name):
            yield path, name
        if isinstance(value, Mapping):
            yield from _dict_methods(value, f"{path}.{name}")


def _cross_checks(values: Mapping[str, Any]) -> list[str]:
    """Returns the faults that only show between keys."""
    env, policy = values["env"], values["policy"]
    faults = []
    if env["type"] == "gymnasium" and not env["env_id"]:
        faults.append('env.env_id: missing; name a gymnasium environment, such as "CartPole-v1"')
    n_sample, batch_size = policy["collect"].get("n_sample"), policy["learn"].get("batch_size")
    if isinstance(n_sample, int) and isinstance(batch_size, int) and batch_size > n_sample:
        envs = env["collector_env_num"]
        rows = -(-n_sample // envs) * envs
        if batch_size > rows:
            faults.append(
                f"policy.learn.batch_size: {batch_size} samples in a minibatch, and a rollout has only {rows}"
            )
    return faults


def _resolve(values: dict[str, Any], source: dict[str, str]) -> None:
    """Fills in what follows from other keys, and says so."""
    learn = values["policy"]["learn"]
    if "schedule_env_step" in learn and learn["schedule_env_step"] is None:
        learn["schedule_env_step"] = values["max_env_step"]
        source["policy.learn.schedule_env_step"] = "max_env_step"
    if not values["exp_name"]:
        kind = values["env"]["env_id"] or _name_of(values["env"]["type"])
        values["exp_name"] = _file_name(f"{kind}_{_name_of(values['policy']['type'])}")
        source["exp_name"] = "env and policy"


def _file_name(text: str) -> str:
    return "".join(c if c.isalnum() or c in "._-" else "_" for c in text)


def _name_of(kind: Any) -> str:
    return kind if isinstance(kind, str) else f"{kind.__module__}:{kind.__qualname__}"


def plain(value: Any) -> Any:
    """Returns a config as JSON data: plain dicts, and names for classes."""
    if isinstance(value, Mapping):
        return {name: plain(v) for name, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return _name_of(value) if callable(value) else value


def foreign_modules(values: Mapping[str, Any]) -> list[str]:
    """Returns the modules that building a config would import: those of "package.module:Name"."""
    env = values["env"]
    wrappers = [w["type"] if isinstance(w, Mapping) else w for w in env["wrappers"]]
    encoder = values["policy"]["model"].get("encoder")
    encoders = [text for _, text in leaves(encoder)] if isinstance(encoder, Mapping) else []
    named = [values["policy"]["type"], values["policy"]["model"]["type"], env["type"], env["env_id"]]
    texts = [text for text in (*named, *wrappers, *encoders) if isinstance(text, str) and ":" in text]
    return sorted({text.partition(":")[0] for text in texts})


def refuse_foreign_modules(values: Mapping[str, Any], trusted: Sequence[str]) -> None:
    """Lets a config that came with a checkpoint import only what the user has named in this call.

    Raises:
        CheckpointError: naming the first module that was not.
    """
    for module in foreign_modules(values):
        if module not in trusted:
            raise CheckpointError(
                f"the checkpoint's config names a class of the module {module!r}, and nothing named inside a "
                f"checkpoint is imported by itself. If you trust it, say so: --import {module}, or -c FILE "
                "(in Python: trust=[...])"
            )


def differences(saved: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Returns one line for each key in which two complete configs differ."""
    left, right = dict(leaves(plain(saved))), dict(leaves(plain(other)))
    return [
        f"{path}: {left.get(path)!r}, not {right.get(path)!r}"
        for path in sorted(set(left) | set(right))
        if left.get(path) != right.get(path)
    ]


def _lay_over(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    for name, value in above.items():
        known = below.get(name)
        both = isinstance(known, dict) and isinstance(value, dict)
        below[name] = _lay_over(below[name], value) if both else value
    return below


def _set(tree: Any, path: str, value: Any) -> None:
    *parents, last = path.split(".")
    for i, name in enumerate(parents):
        tree = tree.setdefault(name, {})
        if not isinstance(tree, dict):
            above = ".".join(parents[: i + 1])
            raise ConfigError(f"override {path}={value!r}: {above} is a value, not a section")
    tree[last] = value


def parse_overrides(tokens: Sequence[str]) -> dict[str, Any]:
    """Returns ``["a.b=3"]`` as ``{"a.b": 3}``; values are Python literals, anything else is a string.

    Raises:
        ConfigError: for a token without ``=``, without a key or without a value.
    """
    overrides: dict[str, Any] = {}
    for token in tokens:
        path, equals, text = token.partition("=")
        if not equals or not path or not text:
            raise ConfigError(
                f"override {token!r}: expected key.path=value, such as policy.learn.batch_size=128"
            )
        try:
            overrides[path] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            overrides[path] = WORDS.get(text.lower(), text)
    return overrides


def load_config(name: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Reads a config file, or a shipped config by its name, and completes it.

    Args:
        name: ``path/to/file.py``, ``run/config.json``, or a shipped name such as ``cartpole_ppo``.
        overrides: ``["key.path=value", ...]``.

    Raises:
        ConfigError: if there is no such file, if it cannot be read, or for any fault in it.
    """
    file = find_config(name)
    return compile_config(read_config(file), parse_overrides(overrides), origin=str(file))


def as_config(config: Mapping[str, Any] | str | Path | Config) -> Config:
    """Returns a complete config from whatever names or holds one."""
    if isinstance(config, Config):
        return config
    return load_config(config) if isinstance(config, (str, Path)) else compile_config(config)


def shipped_configs() -> dict[str, Path]:
    """Returns the configs that come with ding_lite, by name."""
    folder = next((f for f in CONFIG_FOLDERS if f.is_dir()), None)
    return {} if folder is None else {f.stem: f for f in sorted(folder.glob("*.py"))}


def find_config(name: str | Path) -> Path:
    """Returns the file that ``name`` means."""
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
    """
    try:
        if file.suffix == ".json":
            config = json.loads(file.read_text())
        else:
            folder = str(file.resolve().parent)
            if folder not in sys.path:
                sys.path.insert(0, folder)
            config = runpy.run_path(str(file)).get("config")
    except SyntaxError as error:
        raise ConfigError(f"config file {file}, line {error.lineno}: {error.msg}") from error
    except DingLiteError:
        raise
    except Exception as error:
        raise ConfigError(f"config file {file} cannot be read: {type(error).__name__}: {error}") from error
    if not isinstance(config, dict):
        raise ConfigError(
            f"config file {file} has no dict named `config`"
            + (f"; its `config` is a {type(config).__name__}" if config is not None else "")
        )
    return config
