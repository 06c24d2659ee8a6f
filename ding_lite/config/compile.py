"""Compiles a config: from a file or a dict to every key with its value and the value's source.

    _as_written      a file, a dict or DI-engine's pair becomes one nested dict, with the overrides in it
    check            all of it is checked against the schema; each value has its source, defaults too
    _derive          values that follow from others: the length of the schedules, whole paths, the run's name
    _contradictions  values that contradict each other; keys without effect

Each default is declared in the class that reads it. A section is checked against the class that its key
``type`` names, so a custom policy or model declares its own keys. The input is never changed.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import dataclasses
import importlib
import json
import pprint
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from easydict import EasyDict

from ding_lite.config.di_engine import PAIR, as_pair, from_di_engine, refuse_methods, stand_ins
from ding_lite.config.registry import (
    HOOK_REGISTRY,
    INTRINSIC_REGISTRY,
    MODEL_REGISTRY,
    POLICY_REGISTRY,
    TRACKER_REGISTRY,
    Registry,
    env_name,
    env_section,
    import_file,
    name_of,
)
from ding_lite.config.schema import (
    Choice,
    Key,
    Name,
    Schema,
    as_schema,
    check,
    default_values,
    leaves,
    meant,
    merged_config,
    refuse,
    selected,
    set_value,
    without_effect,
)
from ding_lite.config.values import decode, encode, plain
from ding_lite.errors import FOREIGN, CheckpointError, ConfigError, RegistryError, error_text

# Sources of values, besides "default" and the name of a config file.
COMMAND_LINE = "command line"
DERIVED = ("default", "max_env_step", "name", "n_step")  # sources of values that no user wrote
SIZE, ROWS, LENGTH = "policy.collect.n_sample", "policy.collect.n_step", "policy.learn.schedule_env_step"
POLICIES = ("ppo", "ppo_offpolicy", "ppg", "ppg_offpolicy")  # of the library
CONFIG_FOLDER = Path(__file__).parents[1] / "_configs"  # of an installed package
if not CONFIG_FOLDER.is_dir():
    CONFIG_FOLDER = Path(__file__).parents[2] / "configs"  # of a checkout
LITERALS: dict[str, Any] = {"true": True, "false": False, "none": None, "null": None}
LITERALS |= {name: float(name) for name in ("inf", "-inf", "nan")}


RUN_CONFIG: dict[str, Any] = dict(
    exp_name=Key(
        "",
        doc="name of the run's folder under runs/; empty: the name of the config file, or of environment "
        "and policy. If the folder exists, a new run gets the next free name, such as my_run_2",
    ),
    seed=Key(0, low=0, doc="the source of all random numbers of the run"),
    max_env_step=Key(1_000_000, low=1, doc="steps to train for, counted over all environments"),
    max_train_iter=Key(None, int | None, low=1, doc="optimiser steps to train for"),
    init_from=Key(
        None,
        str | None,
        doc="run, checkpoint or file of weights that a new run begins with, as --init-from says",
    ),
    num_threads=Key(
        "auto",
        int | Literal["auto"],
        low=1,
        high=1024,
        doc='torch\'s CPU threads. "auto": 1 for vector observations, whose matrices are small; for images '
        "every core, shared by the seeds that train at a time. The pipeline restores the script's own number "
        "when it closes",
    ),
    checkpoint=dict(
        freq=Key(50_000, low=0, doc="env steps between saves of ckpt/last, beside the final save; 0: none"),
        minutes=Key(10.0, low=0, doc="minutes between saves of ckpt/last, for slow environments; 0: none"),
        keep_freq=Key(0, low=0, doc="env steps between snapshots ckpt/iteration_*; 0: none"),
        keep=Key(3, low=1, needs="keep_freq", doc="number of the newest snapshots to keep"),
    ),
    logger=dict(
        trackers=Key(
            ["tensorboard"],
            list,
            faults=TRACKER_REGISTRY.faults,
            doc='where the metrics are sent: names (ding-lite list trackers), "package.module:Class", or '
            'dicts {"type": ..., **arguments}. Every run writes metrics.csv and episodes.csv beside them',
        ),
        freq=Key(
            5_000,
            low=1,
            needs="trackers",
            doc="env steps between rows sent to trackers: at each multiple (metrics.csv has every iteration)",
        ),
    ),
    hooks=Key(
        [],
        list,
        faults=HOOK_REGISTRY.faults,
        doc="called before and after the run and each iteration: names (ding-lite list hooks), "
        '"package.module:Class", or dicts {"type": ..., **arguments}',
    ),
)


@dataclass(frozen=True)
class Config:
    """A complete config.

    Attributes:
        values: every key with its value, as an EasyDict.
        source: the origin of each value, by its path: ``{"policy.learn.batch_size": "default", ...}``.
        trusted: modules that the user has named, in the config or beside it (``--import``, ``trust``,
            DI-engine's ``import_names``). They are not saved.
        notes: keys without effect, and what was converted or left out of a config of DI-engine.
    """

    values: EasyDict
    source: dict[str, str]
    trusted: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Returns the content of a run's ``config.json``; a class is written as "package.module:Name"."""
        return {"config": encode(self.values), "source": dict(self.source)}

    def replaced(self, changes: Mapping[str, Any]) -> Config:
        """Returns a copy with other values of some keys, such as ``{"max_env_step": 10_000}``.

        Values that follow from them change too, except the name.

        Raises:
            ConfigError: if a change has a fault.
        """
        if not changes:
            return self
        saved = {"config": self.values, "source": self.source}
        again = compile_config(saved, changes, origin="the run's config")
        trusted = [*self.trusted]
        encode(dict(changes), modules=trusted)
        notes = tuple(dict.fromkeys((*self.notes, *again.notes)))
        return Config(again.values, again.source, tuple(trusted), notes)

    def limited(self, limits: Mapping[str, int | None]) -> Config:
        """Returns a copy that stops at other limits, by their keys; the schedules keep their length.

        Args:
            limits: new value of each limit; None: unchanged.
        """
        config = self.replaced({key: number for key, number in limits.items() if number is not None})
        if LENGTH in self.source:
            config.values.policy.learn.schedule_env_step = self.values.policy.learn.schedule_env_step
        return config

    def written(self) -> dict[str, Any]:
        """Returns the part of the config that the user wrote, without defaults, as plain data."""
        written = selected(plain(self.values), lambda path, _: self.source.get(path) not in DERIVED)
        learn = self.values.policy.learn
        length, limit = learn.get("schedule_env_step"), self.values.max_env_step
        if has_schedule(learn) and length not in (None, limit):  # by --max-env-step
            set_value(written, LENGTH, length)
        return written


# The forms of a config in Python: a dict, a file or a name, a compiled config, DI-engine's pair.
AnyConfig = Mapping[str, Any] | str | Path | Config | Sequence[Mapping[str, Any]]


# ---------------------------------------------------------------------- compile


def compile_config(
    user: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    overrides: Mapping[str, Any] | None = None,
    *,
    origin: str = "config",
    name: str = "",
) -> Config:
    """Checks a config and fills in its defaults. Compiling the result again changes nothing.

    Args:
        user: a config as the user wrote it, the content of a run's ``config.json``, or a config of DI-engine
            as ``(main_config, create_config)``.
        overrides: values that replace those of ``user``, such as ``{"policy.learn.batch_size": 128}``.
        origin: the name of ``user`` in error messages and in ``source``, such as a file name.
        name: the default of ``exp_name``; "": it is derived from the environment and the policy.

    Raises:
        ConfigError: listing every fault, each with the whole path of its key and the remedy.
    """
    written, overrides, saved, notes, trusted = _as_written(user, overrides or {}, origin)
    schema, faults = schema_of(written)
    checked, value_faults = check(written, schema)
    faults, defaults = faults + value_faults, default_values(schema)
    values = merged(defaults, checked)
    by_user, by_default = dict(leaves(checked)), dict(leaves(defaults))
    source = {}
    for path, value in leaves(values):
        is_typed = any(f"{path}.".startswith(f"{above}.") for above in overrides)
        source[path] = COMMAND_LINE if is_typed else saved.get(path, origin)
        if path not in by_user:
            source[path] = "default"
        elif source[path] == "default" and encode(value, path) != encode(by_default.get(path), path):
            source[path] = origin  # a config.json that was edited
    if not faults:
        _derive(values, source, name)
        faults, more_notes = _contradictions(values, source, schema)
        notes += more_notes
    refuse(f"{origin} with its overrides" if overrides and origin != COMMAND_LINE else origin, faults)
    encode(values, modules=trusted)  # a value that cannot be saved is refused
    return Config(EasyDict(values), source, tuple(dict.fromkeys(trusted)), tuple(notes))


def _as_written(
    user: Any, overrides: Mapping[str, Any], origin: str
) -> tuple[dict[str, Any], Mapping[str, Any], Mapping[str, str], list[str], list[str]]:
    """Returns a config in any form that :func:`compile_config` accepts, with the overrides in it.

    Returns:
        the config as one nested dict; the overrides by key; the sources in a run's ``config.json``; notes;
        modules to trust.
    """
    notes: list[str] = []
    trusted: list[str] = []
    if pair := as_pair(user):
        user, notes, trusted = from_di_engine(*pair, origin)
    if not isinstance(user, Mapping):
        raise ConfigError(f"expected a config as a dict, or DI-engine's {PAIR}; got {user!r:.60}")
    values: dict[str, Any] = decode(dict(user))  # a copy
    saved: dict[str, str] = {}
    if {"config", "source"} <= set(values) and isinstance(values["config"], dict):  # a run's config.json
        values, saved = values["config"], dict(values["source"])
    if isinstance(values.get("env"), str):
        values["env"] = env_section(values["env"])
    overrides = by_key(overrides, values)
    if "env.env_id" in overrides and _section(values, "env").get("type", "gymnasium") != "gymnasium":
        overrides = {"env.type": "gymnasium", **overrides}  # other types do not read the id
    if "max_env_step" in overrides and saved.get(LENGTH) == "max_env_step":
        overrides = {LENGTH: None, **overrides}  # it follows max_env_step again
    for path, value in overrides.items():
        set_value(values, path, decode(copy.deepcopy(value)))
    return values, overrides, saved, notes, trusted


def by_key(overrides: Mapping[str, Any], user: Mapping[str, Any]) -> dict[str, Any]:
    """Returns overrides by key: a section as a dict changes only its own keys, as a text its ``type``."""
    schema, _ = schema_of(user)
    to_do, keys = [*overrides.items()], dict[str, Any]()
    while to_do:
        path, value = to_do.pop(0)
        section: Any = schema
        for name in path.split("."):
            section = section.get(name) if isinstance(section, dict) else None
        is_section = isinstance(section, dict)
        if is_section and isinstance(value, str) and "type" in section:
            value = env_section(value) if path == "env" else {"type": value}
        if is_section and isinstance(value, Mapping):
            to_do = [(f"{path}.{name}", inner) for name, inner in value.items()] + to_do
        else:
            keys[path] = value
    return keys


def _derive(values: dict[str, Any], source: dict[str, str], name: str) -> None:
    """Sets the values that follow from others: rows, the length of the schedules, whole paths, the name."""
    collect, learn = values["policy"]["collect"], values["policy"]["learn"]
    typed = [path for path in (ROWS, SIZE) if source.get(path) == COMMAND_LINE]
    if typed == [SIZE]:  # in place of the config's n_step
        collect["n_step"] = None
    if collect.get("n_step") is not None and (source[SIZE] in DERIVED or typed == [ROWS]):
        collect["n_sample"] = collect["n_step"] * values["env"]["collector_env_num"]
        source[SIZE] = "n_step"
    if "schedule_env_step" in learn and learn["schedule_env_step"] is None:
        learn["schedule_env_step"] = values["max_env_step"]
        source[LENGTH] = "max_env_step"
    for section, key in ((learn, "pretrained_model_path"), (values, "init_from")):
        file = section.get(key)
        # A resumed run may begin in another folder.
        if file is not None and (Path(file).exists() or Path(f"{file}.safetensors").exists()):
            section[key] = str(Path(file).absolute())
    if not values["exp_name"]:
        name = name or f"{env_name(values['env'])}_{name_of(values['policy']['type'])}"
        values["exp_name"], source["exp_name"] = re.sub(r"[^\w.-]", "_", name), "name"


def _contradictions(
    values: Mapping[str, Any], source: Mapping[str, str], schema: Schema
) -> tuple[list[str], list[str]]:
    """Returns ``(faults, notes)`` about the keys of a complete config that contradict each other."""
    env, policy = values["env"], values["policy"]
    typed = [path for path, origin in source.items() if origin == COMMAND_LINE]
    faults, notes = without_effect(values, schema, typed)
    faults += _envs().section_faults(env)
    if policy["collect"].get("n_step") is not None and source[SIZE] != "n_step":
        faults.append("policy.collect.n_step: it is in place of n_sample; remove one of the two")
    rows = -(-policy["collect"]["n_sample"] // env["collector_env_num"]) * env["collector_env_num"]
    size, more = policy["learn"].get("batch_size", 0), "decrease it, or increase policy.collect.n_sample"
    if size > rows:
        faults.append(f"policy.learn.batch_size: {size} samples are more than a rollout has, {rows}; {more}")
    if size == 1 and policy["learn"].get("adv_norm") == "minibatch" and not policy["model"].get("rnn"):
        faults.append("policy.learn.batch_size: adv_norm='minibatch' makes the advantage of 1 sample 0")
    is_unused = policy["type"] in POLICIES and not has_schedule(policy["learn"])
    if is_unused and source.get(LENGTH, "default") not in DERIVED:
        notes.append(f"{LENGTH}={policy['learn']['schedule_env_step']}: no effect without a schedule")
    return faults, notes


def has_schedule(learn: Mapping[str, Any]) -> bool:
    """Returns whether a coefficient of the section ``policy.learn`` changes with the env steps."""
    kinds = [kind for key, kind in learn.items() if key.endswith("_schedule")]
    return not all(kind in ("constant", "adaptive") for kind in kinds)


def schema_of(user: Mapping[str, Any]) -> tuple[Schema, list[str]]:
    """Returns the schema of a whole config, and the faults of its keys ``type``.

    A section whose ``type`` is wrong accepts any keys: they are checked once it is right.
    """
    schema = {**as_schema(RUN_CONFIG), "env": as_schema(_envs().CONFIG)}
    faults: list[str] = []

    def add_section(path: str, keys: Schema, tree: Mapping[str, Any], registry: Registry, kind: Any) -> Any:
        """Adds the keys of a section's class to ``keys``; returns the class, or None if it is wrong."""
        name = path.rpartition(".")[2]
        kind = _section(tree, name).get("type", kind)
        try:
            cls = registry.get_class(kind)
        except (RegistryError, CheckpointError) as error:
            faults.append(f"{path}.type: {error}")
            keys[name] = Key({}, Choice)
            return None
        keys[name] = {**keys.get(name, {}), **merged_config(cls)}
        keys[name]["type"] = dataclasses.replace(keys[name].get("type", Key(None, Name)), default=kind)
        return cls

    if cls := add_section("policy", schema, user, POLICY_REGISTRY, "ppo"):
        policy, keys = _section(user, "policy"), schema["policy"]
        refuse_methods(cls)
        add_section("policy.model", keys, policy, MODEL_REGISTRY, cls.default_model())
        intrinsic = _section(policy, "intrinsic")
        if "intrinsic" in keys and intrinsic.get("type") is not None:
            add_section("policy.intrinsic", keys, policy, INTRINSIC_REGISTRY, None)
        elif "intrinsic" in keys and "type" in intrinsic:
            keys["intrinsic"] = Key({}, Choice)  # None: the keys beside it have no effect
    return schema, faults


def _envs() -> Any:
    """Returns the module that declares the section ``env``; by name, because it is in a higher layer."""
    return importlib.import_module("ding_lite.envs.make")


def _section(tree: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Returns a section; a text is its ``type``. Other values, which ``check`` reports, count as empty."""
    value = tree.get(name)
    return value if isinstance(value, Mapping) else {"type": value} if isinstance(value, str) else {}


def merged(defaults: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns ``defaults`` with ``values`` in place of some of them."""
    both = dict(defaults)
    for name, value in values.items():
        are_dicts = isinstance(both.get(name), dict) and isinstance(value, dict)
        both[name] = merged(both[name], value) if are_dicts else value
    return copy.deepcopy(both)


# ---------------------------------------------------------------------- files


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
    return load_config(config) if isinstance(config, (str, Path)) else compile_config(config)


def load_config(name: str | Path, overrides: Sequence[str] | Mapping[str, Any] = ()) -> Config:
    """Reads a config file, or a shipped config by its name, and compiles it.

    Args:
        name: ``path/to/file.py``, ``run/config.json``, or a shipped name such as ``cartpole_ppo``.
        overrides: ``{"key.path": value, ...}``, or ``["key.path=value", ...]`` as on the command line.

    Raises:
        ConfigError: if the file does not exist or cannot be read, or if the config has a fault.
    """
    values = overrides if isinstance(overrides, Mapping) else parse_overrides(overrides)
    file = find_config(name)
    return compile_config(read_config(file), values, origin=str(name), name=file.stem)


def shipped_configs() -> dict[str, Path]:
    """Returns the files of the configs that ding_lite ships, by name.

    Python files in that folder without a ``config``, such as environments, are left out.
    """
    return {f.stem: f for f in sorted(CONFIG_FOLDER.glob("*.py")) if "\nconfig = " in f.read_text()}


def find_config(name: str | Path) -> Path:
    """Returns the file of a config.

    Args:
        name: the path of a .py or .json file, or the name of a shipped config.

    Raises:
        ConfigError: if there is no such shipped config; the message has the closest name.
    """
    if Path(name).suffix in (".py", ".json"):
        return Path(name)
    shipped = shipped_configs()
    if str(name) in shipped:
        return shipped[str(name)]
    hint = meant(str(name), shipped) or "."
    if re.search(r"-v\d+$", str(name)):
        hint = f"; for an environment, write --env {name}, or in Python ding_lite.settings({name!r})."
    raise ConfigError(
        f"{str(name)!r} is neither a .py or .json file nor a shipped config{hint} "
        f"Shipped: {', '.join(shipped)}"
    )


def read_config(file: Path) -> Any:
    """Imports a Python file and returns its dict named ``config``, or returns the object in a JSON file.

    A file of DI-engine has ``main_config`` and ``create_config`` instead, and is returned as a pair of these
    two; the packages of DI-engine that it imports need not be installed. The file's folder is added to
    ``sys.path``, so that ``type="my_module:MyPolicy"`` can name a module in it.

    Raises:
        ConfigError: if the file cannot be read or has no such dict.
    """
    try:
        if file.suffix == ".json":
            config: Any = json.loads(file.read_text())
        else:
            with stand_ins():
                names = vars(import_file(file))
            config = names.get("config", as_pair(names))
    except FOREIGN as error:
        raise ConfigError(f"config file {file} cannot be read: {error_text(error)}") from error
    if not isinstance(config, (dict, tuple)):
        raise ConfigError(f"config file {file} has no dict named `config`, nor DI-engine's two dicts {PAIR}")
    return config


def save_config(config: Config, file: str | Path) -> None:
    """Writes the keys of a config that are not defaults to a new .py file.

    Raises:
        ConfigError: if it exists.
        OSError: if it cannot be written.
    """
    if Path(file).exists():
        raise ConfigError(f"{file} exists, and may have been edited: name another file, or remove it")
    Path(file).write_text(python_source(config.written(), config.notes), encoding="utf-8")


def python_source(config: Mapping[str, Any], comments: Sequence[str] = ()) -> str:
    """Returns the text of a config file.

    Args:
        config: plain data.
        comments: lines at the top of the file.
    """
    lines = [f"# {line}" for comment in comments for line in comment.splitlines()]
    text = pprint.pformat(encode(config), width=110, sort_dicts=False)
    if re.search(r"\b(inf|nan)\b", text):
        lines.append("from math import inf, nan")
    return "\n".join([*lines, "", f"config = (\n{textwrap.indent(text, '    ')}\n)", ""])


# ---------------------------------------------------------------------- overrides, differences


def parse_overrides(tokens: Sequence[str]) -> dict[str, Any]:
    """Returns ``["a.b=3"]`` as ``{"a.b": 3}``.

    A value is a Python literal, JSON, or true, false, none, null, inf, -inf or nan in any case, or a list of
    words without quotes (the shell removes them); any other text is a string. If a key is repeated, its
    last value counts.

    Raises:
        ConfigError: for a token without "=" or key.
    """
    overrides: dict[str, Any] = {}
    for token in [tokens] if isinstance(tokens, str) else tokens:
        path, equals, text = token.partition("=")
        if isinstance(overrides.pop(path, None), dict):
            raise ConfigError(f"override {token!r}: {path} is given twice; give its keys as {path}.key=value")
        if not path or not equals:
            raise ConfigError(
                f"override {token!r}: expected key.path=value, like seed=1; -c names a config, --env a task"
            )
        overrides[path] = _value(text)
    return overrides


def _value(text: str) -> Any:
    """Returns the value that a text of the command line represents."""
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(text)
        if words := re.fullmatch(r"\[([\w.:-]+(?:,\s*[\w.:-]+)*)\]", text):
            return [_value(word.strip()) for word in words[1].split(",")]
        return LITERALS.get(text.strip().lower(), text)


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Returns the differences between two complete configs, sorted by path.

    Returns:
        a list of ``(path, value in one, value in other)``; the value of a missing key is None.
    """
    left, right = dict(leaves(plain(one))), dict(leaves(plain(other)))
    pairs = ((path, left.get(path), right.get(path)) for path in sorted({*left, *right}))
    # As text, nan equals nan; encoded, sets have one order.
    return [(path, old, new) for path, old, new in pairs if repr(encode(old)) != repr(encode(new))]
