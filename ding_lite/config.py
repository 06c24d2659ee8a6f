"""From a user's plain dict to the one complete config of a run, with where each value came from.

    file or dict  ->  overrides  ->  checked against the defaults  ->  laid over them

Defaults live in the class that reads them. Each section is checked against the class that its ``type``
names, so a policy of your own brings its own keys. The input is never changed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from easydict import EasyDict

from ding_lite.config_files import file_name, find_config, parse_overrides, read_config
from ding_lite.errors import CheckpointError, ConfigError
from ding_lite.registry import POLICY_REGISTRY, modules_of
from ding_lite.schema import as_schema, check, default_values, leaves
from ding_lite.sections import RUN_CONFIG, cross_checks, schema_of

COMMAND_LINE = "command line"  # the origin and the source of what is typed there
PLANNED_STEPS = "planned gradient steps"  # the source of a value that follows from them


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
            raise _error("the call", faults)
        source = {**self.source, **dict.fromkeys(checked, COMMAND_LINE)}
        complete = EasyDict({**copy.deepcopy(dict(self.values)), **checked})
        if "max_env_step" in checked and source.get("policy.learn.compile") == PLANNED_STEPS:
            complete.policy.learn.compile = _planned_compile(complete)
        return Config(complete, source)

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
    user, source = _unpacked(user, origin)
    bad_keys = list(_bad_keys(user))
    if bad_keys:
        raise _error(origin, bad_keys)
    _expand_shorthand(user)
    given = {path: source.get(path, origin) for path, _ in leaves(user)}
    for path, value in (overrides or {}).items():
        _set(user, path, value)
        _expand_shorthand(user)  # so that env.manager=base may come before env.manager.autoreset=...
        given = {p: s for p, s in given.items() if not p.startswith(f"{path}.")}
        given[path] = COMMAND_LINE
    shown = f"{origin} with the command line" if overrides and origin != COMMAND_LINE else origin
    bad_keys = list(_bad_keys(user))
    if bad_keys:
        raise _error(shown, bad_keys)
    schema, faults = schema_of(user)
    values, found = check(user, schema)
    faults += found
    if not faults:
        values = _lay_over(default_values(schema), values)
        faults = cross_checks(values) + POLICY_REGISTRY.get(values["policy"]["type"]).config_faults(values)
    if faults:
        raise _error(shown, faults)
    for path, _ in leaves(values):
        where = next((s for p, s in given.items() if path == p or path.startswith(f"{p}.")), None)
        source[path] = where or source.get(path, "default")
    _resolve(values, source)
    return Config(EasyDict(values), source)


def _unpacked(user: Mapping[str, Any], origin: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns a copy of a config, and the sources that a run's ``config.json`` has beside it."""
    own: dict[str, Any] = copy.deepcopy(dict(user))
    if set(own) != {"config", "source"}:
        return own, {}
    if not (isinstance(own["config"], dict) and isinstance(own["source"], dict)):
        raise ConfigError(f"{origin}: 'config' and 'source' of a run's config.json must be objects")
    return own["config"], dict(own["source"])


def _expand_shorthand(user: dict[str, Any]) -> None:
    """``manager="base"`` stands for ``manager=dict(type="base")``."""
    env = user.get("env")
    if isinstance(env, dict) and isinstance(env.get("manager"), str):
        env["manager"] = {"type": env["manager"]}


def _error(origin: str, faults: list[str]) -> ConfigError:
    count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
    return ConfigError("\n  ".join([f"{origin} has {count}:", *faults]))


def _bad_keys(tree: Mapping[Any, Any], path: str = "config") -> Iterator[str]:
    """Yields what is wrong with keys themselves: EasyDict makes attributes of them."""
    for name, value in tree.items():
        if not isinstance(name, str):
            yield f"{path}: the key {name!r} is not a string"
        elif hasattr(dict, name):
            yield f"{path}: {name!r} is the name of a dict's method"
        if isinstance(value, Mapping):
            yield from _bad_keys(value, f"{path}.{name}")


def _resolve(values: dict[str, Any], source: dict[str, str]) -> None:
    """Fills in what follows from other keys, and says so."""
    learn = values["policy"]["learn"]
    if "schedule_env_step" in learn and learn["schedule_env_step"] is None:
        learn["schedule_env_step"] = values["max_env_step"]
        source["policy.learn.schedule_env_step"] = "max_env_step"
    if learn.get("compile") == "auto":
        learn["compile"] = _planned_compile(values)
        source["policy.learn.compile"] = PLANNED_STEPS
    if not values["exp_name"]:
        kind = values["env"]["env_id"] or _name_of(values["env"]["type"])
        values["exp_name"] = file_name(f"{kind}_{_name_of(values['policy']['type'])}")
        source["exp_name"] = "env and policy"


def _planned_compile(values: Mapping[str, Any]) -> Any:  # what "auto" comes to
    return POLICY_REGISTRY.get(values["policy"]["type"]).planned_compile(values)


def _name_of(kind: Any) -> str:
    if isinstance(kind, str):
        return kind
    named = kind if hasattr(kind, "__qualname__") else type(kind)  # a partial, an object that is called
    return f"{named.__module__}:{named.__qualname__}"


def plain(value: Any) -> Any:
    """Returns a config as JSON data: plain dicts, names for classes, and the repr of other objects.

    A run that was given objects runs, and its config.json shows them; it cannot be made again from it.
    """
    if isinstance(value, Mapping):
        return {name: plain(v) for name, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if callable(value):
        return _name_of(value)
    return value if value is None or isinstance(value, (bool, int, float, str)) else repr(value)


def policy_modules(policy: Mapping[str, Any]) -> list[str]:
    """Returns the modules that building a policy would import: those of "package.module:Name"."""
    encoder = policy["model"].get("encoder")
    encoders = [text for _, text in leaves(encoder)] if isinstance(encoder, Mapping) else []
    return modules_of([policy["type"], policy["model"]["type"], *encoders])


def foreign_modules(values: Mapping[str, Any]) -> list[str]:
    """Returns the modules that building a run would import."""
    env = values["env"]
    wrappers = [w["type"] if isinstance(w, Mapping) else w for w in env["wrappers"]]
    return policy_modules(values["policy"]) + modules_of([env["type"], env["env_id"], *wrappers])


def refuse_untrusted(modules: Sequence[str], trust: Sequence[str]) -> None:
    """Lets a config that came with a checkpoint import only what the user has named in this call.

    Raises:
        CheckpointError: naming the first module that was not.
    """
    for module in modules:
        if module not in trust:
            raise CheckpointError(
                f"the checkpoint's config names a class of the module {module!r}, and nothing named inside a "
                f"checkpoint is imported by itself. If you trust it, say so: --import {module}, or -c FILE "
                "(in Python: trust=[...])"
            )


def trusted_config(
    saved: Mapping[str, Any], modules: Callable[[Mapping[str, Any]], list[str]], trust: Sequence[str]
) -> dict[str, Any]:
    """Returns the config that came with a checkpoint, if the user trusts the ``modules`` it names.

    Raises:
        CheckpointError: if not, or if there is no config.
    """
    try:
        named = modules(saved["config"])
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise CheckpointError(f"the checkpoint's config is not that of a run: {error!r}") from error
    refuse_untrusted(named, trust)
    config: dict[str, Any] = saved["config"]
    return config


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Returns ``(key, its value in one, its value in other)`` where two complete configs differ, sorted."""
    left, right = dict(leaves(plain(one))), dict(leaves(plain(other)))
    return [
        (path, left.get(path), right.get(path))
        for path in sorted(set(left) | set(right))
        if left.get(path) != right.get(path)
    ]


def _lay_over(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    for name, value in above.items():
        both = isinstance(below.get(name), dict) and isinstance(value, dict)
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
    if isinstance(config, (str, Path)):
        return load_config(config)
    if not isinstance(config, Mapping):
        raise ConfigError(
            "expected a config: a dict, a file, the name of a shipped config or a compiled one; got "
            f"{config!r:.60}"
        )
    return compile_config(config)
