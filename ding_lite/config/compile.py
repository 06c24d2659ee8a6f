"""Completes a user's config: checks it, fills in the defaults, and records the source of each value.

    file or dict  ->  overrides applied  ->  checked against the schema  ->  defaults filled in

Each default is declared in the class that reads it. A section is checked against the class that its key
``type`` names, so a custom policy or model declares its own keys. The input is never changed.
"""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from easydict import EasyDict

from ding_lite.config.di_engine import (
    CREATE,
    MAIN,
    from_di_engine,
    is_main_alone,
    is_pair,
    overrides_of_pair,
)
from ding_lite.config.files import (
    file_name,
    find_config,
    parse_overrides,
    python_source,
    read_config,
)
from ding_lite.config.named_classes import names_of
from ding_lite.config.registry import POLICY_REGISTRY, env_name, modules_of, name_of
from ding_lite.config.schema import as_schema, check, default_values, leaves, without_effect
from ding_lite.config.sections import (
    RUN_CONFIG,
    below_runs,
    cross_checks,
    device_contradicts,
    schema_of,
)
from ding_lite.config.values import decode, encode, plain
from ding_lite.errors import ConfigError

# Sources of values, besides "default" and the name of a config file.
COMMAND_LINE = "command line"
PAIR = f"({MAIN}, {CREATE})"
DERIVED = ("default", "max_env_step", "env and policy")  # sources of values that no user wrote


@dataclass(frozen=True)
class Config:
    """A complete config.

    Attributes:
        values: every key with its value, as an EasyDict.
        source: the origin of each value, by its path: ``{"policy.learn.batch_size": "default", ...}``.
        imports: modules that the user has named beside the config (``--import``, ``trust``). They are not
            saved.
        notes: what was converted or left out, if the config is one of DI-engine.
        file: that the config was read from, which may register names itself; None if there is none.
    """

    values: EasyDict
    source: dict[str, str]
    imports: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    file: Path | None = None

    def as_json(self) -> dict[str, Any]:
        """Returns the content of a run's ``config.json``; a class is written as "package.module:Name"."""
        return {"config": encode(self.values), "source": dict(self.source)}

    def replaced(self, **values: Any) -> Config:
        """Returns a copy with other top-level values; None leaves a value unchanged.

        The length of the schedules (``policy.learn.schedule_env_step``) stays the same.

        Raises:
            ConfigError: if a value is out of its range.
        """
        changes = {name: value for name, value in values.items() if value is not None}
        checked, faults = check(changes, as_schema(RUN_CONFIG))
        _refuse("the call", faults)
        source = {**self.source, **dict.fromkeys(checked, COMMAND_LINE)}
        complete = EasyDict({**copy.deepcopy(dict(self.values)), **checked})
        return replace(self, values=complete, source=source)

    def written(self) -> dict[str, Any]:
        """Returns the part of the config that the user wrote, without defaults, as plain data."""
        return without_sources(plain(self.values), self.source, DERIVED)

    def modules(self) -> list[str]:
        """Returns the modules of the classes that this config names as "package.module:Name"."""
        return modules_of(names_of(plain(self.values)))

    @property
    def trusted(self) -> list[str]:
        """The modules that the user has named, in the config or beside it."""
        return list(dict.fromkeys([*self.imports, *self.modules()]))


def without_sources(
    section: Mapping[str, Any], source: Mapping[str, str], left_out: Collection[str], path: str = ""
) -> dict[str, Any]:
    """Returns the values of a section that do not come from one of some sources; its keys may contain dots.

    Args:
        section: of a config, as plain data.
        source: the origin of each value, as :attr:`Config.source`.
        left_out: the sources whose values are left out.
        path: of the section in ``source``, with a dot at its end.
    """
    kept: dict[str, Any] = {}
    for name, value in section.items():
        place = f"{path}{name}"
        if isinstance(value, dict) and value:
            if inner := without_sources(value, source, left_out, f"{place}."):
                kept[name] = inner
        elif source.get(place) not in left_out:
            kept[name] = value
    return kept


# What stands for a config in Python: a dict, a file or a name, a compiled one, DI-engine's pair.
AnyConfig = Mapping[str, Any] | str | Path | Config | Sequence[Mapping[str, Any]]


def compile_config(
    user: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    overrides: Mapping[str, Any] | None = None,
    *,
    origin: str = "config",
    folder: Path | None = None,
) -> Config:
    """Checks a config and fills in its defaults. Compiling the result again changes nothing.

    Args:
        user: a config as the user wrote it, the content of a run's ``config.json``, or a config of DI-engine
            as ``(main_config, create_config)`` or ``{"main_config": ..., "create_config": ...}``.
        overrides: values that replace those of ``user``, such as ``{"policy.learn.batch_size": 128}``.
        origin: the name of ``user`` in error messages and in ``source``, such as a file name.
        folder: of the config file, for messages about modules beside it.

    Raises:
        ConfigError: listing every fault, each with the whole path of its key and the remedy.
    """
    notes: tuple[str, ...] = ()
    faults_of_pair: list[str] = []
    origin = PAIR if is_pair(user) and origin == "config" else origin
    user = _as_dict(user)
    if set(user) == {MAIN, CREATE}:
        user, notes, faults_of_pair = from_di_engine(user[MAIN], user[CREATE])
        overrides = overrides_of_pair(overrides or {})
    user, source = _config_and_source(user, origin)
    _refuse(origin, list(_key_faults(user)))
    _expand_short_forms(user)
    user_sources = {path: source.get(path, origin) for path, _ in leaves(user)}
    user_sources = _override(user, overrides or {}, user_sources)
    origins = f"{origin} with the command line" if overrides and origin != COMMAND_LINE else origin
    _refuse(origins, list(_key_faults(user)))
    schema, faults = schema_of(user, folder)
    values, value_faults = check(user, schema)
    faults = faults_of_pair + faults + value_faults
    if not faults:
        values = _merge(default_values(schema), values)
        by_default = check(values, schema)[1]  # the user's values have no fault
        faults = [f"{fault}; it is the default in the `config` of a class" for fault in by_default]
    if not faults:
        faults = cross_checks(values) + POLICY_REGISTRY.get(values["policy"]["type"]).config_faults(values)
        idle, idle_notes = _without_effect(values, schema)
        faults, notes = faults + idle, (*notes, *idle_notes)
    beside = [note for note in notes if note.startswith("warning: ")]
    if is_main_alone(user):
        beside.append(f"it looks like DI-engine's {MAIN} without its {CREATE}: pass both, {PAIR}")
    _refuse(origins, faults, beside)
    encode(values)  # a value that cannot be saved is refused
    defaults = dict(leaves(default_values(schema)))
    for path, value in leaves(values):
        # The longest one: a value that was {} or None in the user's config may have been given keys since.
        above = max((p for p in user_sources if path == p or path.startswith(f"{p}.")), key=len, default=None)
        source[path] = source.get(path, "default") if above is None else user_sources[above]
        if source[path] == "default" and encode(value, path) != encode(defaults.get(path), path):
            source[path] = origin  # a config.json that was edited, or is of other defaults
    _fill_derived(values, source)
    return Config(EasyDict(values), source, notes=notes)


def _as_dict(user: Any) -> Mapping[str, Any]:
    """Returns the first argument of :func:`compile_config` as a dict."""
    if is_pair(user):
        return dict(zip((MAIN, CREATE), user, strict=True))
    if not isinstance(user, Mapping):
        raise ConfigError(
            f"compile_config: expected a dict, or DI-engine's {PAIR}, got {user!r:.60}; "
            "load_config reads a file"
        )
    return user


def _override(
    user: dict[str, Any], overrides: Mapping[str, Any], user_sources: dict[str, str]
) -> dict[str, str]:
    """Writes overrides into a config, in place, and returns the sources of its values."""
    before: list[str] = []
    complete = _with_other_device(_with_other_source(overrides, user.get("env")), user.get("policy"))
    for path, value in complete.items():
        lost = [earlier for earlier in before if earlier.startswith(f"{path}.")]
        if lost:
            raise ConfigError(f"{path}={value!r} replaces {lost[0]}, which is set before it: set it after")
        before.append(path)
        _set(user, path, copy.deepcopy(value))
        _expand_short_forms(user)  # an override env.manager.autoreset=... can follow env.manager=base
        user_sources = {p: s for p, s in user_sources.items() if not p.startswith(f"{path}.")}
        given = (p for p, _ in leaves(user) if f"{p}.".startswith(f"{path}."))
        user_sources |= dict.fromkeys(given, COMMAND_LINE)
    return user_sources


def _config_and_source(user: Mapping[str, Any], origin: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns copies of a config and of its sources, which a ``config.json`` of a run or checkpoint has."""
    content: dict[str, Any] = copy.deepcopy(decode(dict(user)))
    if not {"config", "source"} <= set(content) <= {"config", "source", "imports", "spaces", "versions"}:
        return content, {}
    if not (isinstance(content["config"], dict) and isinstance(content["source"], dict)):
        raise ConfigError(f"{origin}: 'config' and 'source' of a run's config.json must be objects")
    return content["config"], dict(content["source"])


# Sections that are often given as the name of their type alone.
TYPED_SECTIONS = ("env.manager", "policy.model.encoder", "policy.intrinsic")


def _with_other_source(overrides: Mapping[str, Any], env: Any) -> dict[str, Any]:
    """Returns overrides in which an id replaces the type of the section ``env``, and a type its id.

    Both name an environment, and a type other than "gymnasium" does not read the id.
    """
    given = env if isinstance(env, Mapping) else {}
    is_new_id = "env.env_id" in overrides and "env.type" not in overrides
    is_new_type = "env.type" in overrides and "env.env_id" not in overrides
    if is_new_id and given.get("type", "gymnasium") != "gymnasium":
        return {"env.type": "gymnasium", **overrides}
    if is_new_type and overrides["env.type"] != "gymnasium" and given.get("env_id"):
        return {"env.env_id": "", **overrides}
    return dict(overrides)


def _with_other_device(overrides: dict[str, Any], policy: Any) -> dict[str, Any]:
    """Returns overrides in which a device replaces a contradicting ``cuda`` of the config, or ``cuda`` it."""
    given = policy if isinstance(policy, Mapping) else {}
    device, cuda = "policy.device", "policy.cuda"
    values = (overrides.get(device, given.get("device", "auto")), overrides.get(cuda, given.get("cuda")))
    if (device in overrides) == (cuda in overrides) or not device_contradicts(*values):
        return overrides
    return {**({cuda: None} if device in overrides else {device: "auto"}), **overrides}


def _expand_short_forms(user: dict[str, Any]) -> None:
    """Replaces short forms, in place.

    * ``env.manager="base"`` becomes ``{"type": "base"}``, and so do ``policy.model.encoder`` and
      ``policy.intrinsic``.
    * ``logger.trackers="wandb"``, ``hooks="my_hook"`` and ``env.wrappers="atari"`` become lists.
    * ``logger.tensorboard=False``, a key of earlier versions, takes "tensorboard" out of ``logger.trackers``.
    """
    logger, env = user.get("logger"), user.get("env")
    for path in TYPED_SECTIONS:
        *above, name = path.split(".")
        section: Any = user
        for part in above:
            section = section.get(part) if isinstance(section, dict) else None
        if isinstance(section, dict) and isinstance(section.get(name), str):
            section[name] = {"type": section[name]}
    if isinstance(user.get("hooks"), str):
        user["hooks"] = [user["hooks"]]
    if isinstance(env, dict) and isinstance(env.get("wrappers"), str):
        env["wrappers"] = [env["wrappers"]]
    if not isinstance(logger, dict):
        return
    if isinstance(logger.get("trackers"), str):
        logger["trackers"] = [logger["trackers"]]
    if isinstance(logger.get("tensorboard"), bool):
        wanted = logger.pop("tensorboard")
        trackers = logger.get("trackers", RUN_CONFIG["logger"]["trackers"].default)
        if isinstance(trackers, list) and wanted != ("tensorboard" in trackers):
            others = [tracker for tracker in trackers if tracker != "tensorboard"]
            logger["trackers"] = [*others, "tensorboard"] if wanted else others


def _refuse(origin: str, faults: Sequence[str], warnings: Sequence[str] = ()) -> None:
    """Raises a ConfigError that lists the faults, and behind them the warnings, if there are faults."""
    if faults:
        count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
        raise ConfigError("\n  ".join([f"{origin} has {count}:", *faults, *warnings]))


def _key_faults(tree: Mapping[Any, Any], path: str = "config") -> Iterator[str]:
    """Yields a message for each key that EasyDict cannot offer as an attribute, also in dicts in lists."""
    for name, value in tree.items():
        if not isinstance(name, str):
            yield f"{path}: the key {name!r} is not a string"
        elif hasattr(dict, name):
            yield f"{path}: {name!r} is the name of a dict's method"
        if isinstance(value, Mapping):
            yield from _key_faults(value, f"{path}.{name}")
        elif isinstance(value, (list, tuple)):
            for number, item in enumerate(value):
                if isinstance(item, Mapping):
                    yield from _key_faults_in_list(item, f"{path}.{name}[{number}]")


def _key_faults_in_list(item: Mapping[Any, Any], path: str) -> Iterator[str]:
    """Yields a message for each key that is no string, or hides the method that reads the item."""
    for name, value in item.items():
        if not isinstance(name, str):
            yield f"{path}: the key {name!r} is not a string"
        elif name == "items":
            yield f"{path}: {name!r} is the name of a dict's method"
        for below in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(below, Mapping):
                yield from _key_faults_in_list(below, f"{path}.{name}")


def _fill_derived(values: dict[str, Any], source: dict[str, str]) -> None:
    """Sets the values that are derived from other keys, and their sources, in place."""
    learn = values["policy"]["learn"]
    if "schedule_env_step" in learn and learn["schedule_env_step"] is None:
        learn["schedule_env_step"] = values["max_env_step"]
        source["policy.learn.schedule_env_step"] = "max_env_step"
    reference = learn.get("pretrained_model_path")
    if reference is not None and Path(reference).exists():  # a resumed run may begin in another folder
        learn["pretrained_model_path"] = str(Path(reference).absolute())
    values["exp_name"] = below_runs(values["exp_name"])
    if not values["exp_name"]:
        values["exp_name"] = file_name(f"{env_name(values['env'])}_{name_of(values['policy']['type'])}")
        source["exp_name"] = "env and policy"


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Returns the differences between two complete configs, sorted by path.

    Returns:
        a list of ``(path, value in one, value in other)``; the value of a missing key is None.
    """
    left, right = dict(leaves(plain(one))), dict(leaves(plain(other)))
    paths = sorted(set(left) | set(right))
    # A section that is empty in one of them is a leaf there.
    sections: set[str] = set()
    for path in paths:
        sections.update(itertools.accumulate(path.split(".")[:-1], "{}.{}".format))
    return [
        (path, left.get(path), right.get(path))
        for path in paths
        if path not in sections and not _equal(left.get(path), right.get(path))
    ]


def _equal(one: Any, other: Any) -> bool:
    """Returns whether two values are equal; NaN is equal to itself."""
    one, other = encode(one), encode(other)
    return bool(one == other) or repr(one) == repr(other)


def _without_effect(values: Mapping[str, Any], schema: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Returns ``(faults, notes)`` about the keys of a complete config that have no effect."""
    policy, of_policy = values["policy"], schema["policy"]
    own = {name: rule for name, rule in of_policy.items() if name not in ("model", "intrinsic")}
    of_model = of_policy["model"] if isinstance(of_policy["model"], dict) else {}
    sections = ((policy, own, "policy"), (policy["model"], of_model, "policy.model"))
    found = [without_effect(*section) for section in sections]
    return [line for faults, _ in found for line in faults], [line for _, notes in found for line in notes]


def _merge(defaults: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Writes ``values`` over ``defaults``, in place, and returns it."""
    for name, value in values.items():
        both_dicts = isinstance(defaults.get(name), dict) and isinstance(value, dict)
        defaults[name] = _merge(defaults[name], value) if both_dicts else value
    return defaults


def _set(tree: Any, path: str, value: Any) -> None:
    """Sets one value of a nested dict, in place, and creates the sections above it."""
    *parents, last = path.split(".")
    for i, name in enumerate(parents):
        if tree.get(name) is None:  # missing, or an optional section
            tree[name] = {}
        tree = tree[name]
        if not isinstance(tree, dict):
            above = ".".join(parents[: i + 1])
            raise ConfigError(f"override {path}={value!r}: {above} is a value, not a section")
    tree[last] = value


def load_config(name: str | Path, overrides: Sequence[str] | Mapping[str, Any] = ()) -> Config:
    """Reads a config file, or a shipped config by its name, and compiles it.

    Args:
        name: ``path/to/file.py``, ``run/config.json``, or a shipped name such as ``cartpole_ppo``.
        overrides: ``{"key.path": value, ...}``, or ``["key.path=value", ...]`` as on the command line.

    Raises:
        ConfigError: if the file does not exist or cannot be read, or if the config has a fault.
    """
    if isinstance(overrides, str):
        raise ConfigError(f"overrides: expected a list or a dict, got a string; write [{overrides!r}]")
    values = overrides if isinstance(overrides, Mapping) else parse_overrides(overrides)
    file = find_config(name)
    folder = file.absolute().parent
    origin = str(name) if file != Path(name) else str(file)  # a shipped config has a name
    config = compile_config(read_config(file), values, origin=origin, folder=folder)
    return replace(config, file=file)


def save_config(config: Config, file: str | Path) -> None:
    """Writes a config to a new file that :func:`load_config` reads.

    Args:
        config: to be written.
        file: ``.json`` for all keys and their sources, ``.py`` for those that no default gives.

    Raises:
        ConfigError: if the file has another ending, exists, or cannot be written.
    """
    file = Path(file)
    if file.suffix == ".json":
        text = json.dumps(config.as_json(), indent=2) + "\n"
    elif file.suffix == ".py":
        text = python_source(config.written(), config.notes)
    else:
        raise ConfigError(f"{file}: expected a name that ends in .py or .json")
    try:
        with file.open("x", encoding="utf-8") as output:
            output.write(text)
    except FileExistsError as error:
        raise ConfigError(f"{file} exists: remove it, or choose another name") from error
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}") from error


def as_config(config: AnyConfig) -> Config:
    """Returns a complete config.

    Args:
        config: a dict, the path of a file, the name of a shipped config, DI-engine's pair
            ``(main_config, create_config)``, or a complete config.

    Raises:
        ConfigError: if it is none of these, or has a fault.
    """
    if isinstance(config, Config):
        return config
    if isinstance(config, (str, Path)):
        return load_config(config)
    if not (is_pair(config) or isinstance(config, Mapping)):
        raise ConfigError(
            "expected a config: a dict, a file, the name of a shipped config, a compiled one, or DI-engine's "
            f"{PAIR}; got {config!r:.60}"
        )
    return compile_config(config)
