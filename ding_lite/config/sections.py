"""The sections of a config: the schema of each one, and the checks between keys of different sections.

The keys at the top level are declared here. Those of the sections ``env``, ``policy`` and ``policy.model``
are declared by the environments' module and by the classes that the key ``type`` of each section names.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from ding_lite.config.files import file_that_registers
from ding_lite.config.other_names import OTHER_ALGORITHMS, OTHER_POLICIES
from ding_lite.config.registry import (
    HOOK_REGISTRY,
    INTRINSIC_REGISTRY,
    MODEL_REGISTRY,
    POLICY_REGISTRY,
    TRACKER_REGISTRY,
    Registry,
    modules_of,
)
from ding_lite.config.schema import Key, Name, Schema, as_schema, merged_config
from ding_lite.config.user_modules import import_user_module
from ding_lite.errors import FOREIGN, ConfigError, RegistryError, error_text


def run_name_faults(name: str, path: str) -> list[str]:
    """Returns why ``name`` cannot be the name of a folder under ``runs/``, as a list of 0 or 1 messages."""
    try:
        unusable = b"\0" in name.encode()
    except UnicodeEncodeError:  # a lone surrogate
        unusable = True
    if unusable:
        return [f"{path}: {name!r} cannot be the name of a folder"]
    folder = Path(name)
    if name and (folder.is_absolute() or ".." in folder.parts or not folder.parts):
        return [
            f"{path}: expected the name of a folder under runs/, got {name!r}; for a folder elsewhere, use "
            "--exp-name DIR on the command line"
        ]
    return []


def below_runs(name: str) -> str:
    """Returns the name of a run's folder under ``runs/``: "my_run" also of "runs/my_run"."""
    parts = Path(name).parts
    while len(parts) > 1 and parts[0] == "runs":
        name = str(Path(*(parts := parts[1:])))
    return name


RUN_CONFIG: dict[str, Any] = dict(
    exp_name=Key(
        "",
        faults=run_name_faults,
        doc='name of the run\'s folder under runs/ ("runs/my_run" is the same as "my_run"); empty: derived '
        "from the environment and the policy. If the folder exists, a new run is in the next one, such "
        "as my_run_2",
    ),
    seed=Key(0, low=0, doc="the source of all random numbers of the run"),
    max_env_step=Key(1_000_000, low=1, doc="steps to train for, counted over all environments"),
    max_train_iter=Key(None, int | None, low=1, doc="optimiser steps to train for"),
    num_threads=Key(
        "auto",
        int | Literal["auto"],
        low=1,
        high=1024,
        doc='torch\'s CPU threads. "auto": 1 for vector observations, whose matrices are small; every core '
        "for images. The command line applies it; a pipeline in a script only with SerialPipeline(..., "
        "own_process=True)",
    ),
    checkpoint=dict(
        freq=Key(50_000, low=0, doc="env steps between saves of ckpt/last; 0: save at the end only"),
        keep_freq=Key(0, low=0, doc="env steps between snapshots ckpt/iteration_*; 0: none"),
        keep=Key(3, low=1, doc="number of the newest snapshots to keep"),
    ),
    logger=dict(
        trackers=Key(
            ["tensorboard"],
            list,
            faults=TRACKER_REGISTRY.item_faults,
            doc='where the metrics are sent: names (ding-lite list trackers), "package.module:Class", or '
            'dicts {"type": ..., **arguments}. Every run writes metrics.csv and episodes.csv beside them',
        ),
        freq=Key(
            5_000,
            low=1,
            doc="env steps between rows sent to trackers: at each multiple (metrics.csv has every iteration)",
        ),
    ),
    hooks=Key(
        [],
        list,
        faults=HOOK_REGISTRY.item_faults,
        doc="called before and after the run and each iteration: names (ding-lite list hooks), "
        '"package.module:Class", or dicts {"type": ..., **arguments}',
    ),
)


POLICIES = ("ppo", "ppo_offpolicy", "ppg", "ppg_offpolicy")  # of the library


def schema_of(user: Mapping[str, Any], folder: Path | None = None) -> tuple[Schema, list[str]]:
    """Returns the schema of a whole config, and the faults of its keys ``type``.

    Where a ``type`` is wrong, its section accepts unknown keys, since the class that is meant may have them.
    The others are checked as those of the closest name, or not at all if no registered name is close.

    Args:
        user: the config.
        folder: of the config file. A module in it that registers a missing name is named in the fault.
    """
    schema = as_schema(RUN_CONFIG)
    env = _mapping(user.get("env"))
    schema["env"] = as_schema(_envs().CONFIG)
    if env.get("wrappers"):
        _import_quietly(modules_of([env.get("type"), env.get("env_id")]))
    schema["policy"], faults = _policy_schema(_mapping(user.get("policy")), folder)
    return schema, faults


def _envs() -> Any:
    """Returns the module that declares the section ``env``; by name, because it is in a higher layer."""
    return importlib.import_module("ding_lite.envs.make")


def _policy_schema(policy: Mapping[str, Any], folder: Path | None) -> tuple[Schema | Key, list[str]]:
    """Returns the schema of the section ``policy``, and the faults of the keys ``type`` in it."""
    kind = policy.get("type", "ppo")
    policy_class, faults = _chosen(POLICY_REGISTRY, kind, "policy.type", folder)
    if policy_class is None:
        return Key({}), faults
    schema = _typed(merged_config(policy_class), kind)
    model = _mapping(policy.get("model"))
    kind = model.get("type", _default_model(policy_class))
    model_class, model_faults = _chosen(MODEL_REGISTRY, kind, "policy.model.type", folder)
    if model_class is None:
        schema["model"] = Key({})
    else:
        keys = _typed({**schema.get("model", {}), **merged_config(model_class)}, kind)
        keys |= _undeclared(model_class, keys, model)
        schema["model"] = _opened(keys, model) if model_faults else keys
    intrinsic = _mapping(policy.get("intrinsic"))
    declared = schema.get("intrinsic", {}).get("type")
    kind = intrinsic.get("type", declared and declared.default)
    reward_class, reward_faults = (
        (None, _missing_type(intrinsic))
        if kind is None
        else _chosen(INTRINSIC_REGISTRY, kind, "policy.intrinsic.type", folder)
    )
    if reward_class is not None:
        keys = _typed({**schema.get("intrinsic", {}), **merged_config(reward_class)}, kind)
        keys |= _undeclared(reward_class, keys, intrinsic)
        schema["intrinsic"] = _opened(keys, intrinsic) if reward_faults else keys
    elif kind is not None or intrinsic.keys() - {
        "type"
    }:  # no class declares these keys; with type=None they have no effect
        schema["intrinsic"] = Key({})
    return _opened(schema, policy) if faults else schema, faults + model_faults + reward_faults


def _typed(schema: Schema, kind: Any) -> Schema:
    """Returns a schema whose key ``type`` has another default."""
    return {**schema, "type": dataclasses.replace(schema.get("type", Key(None, Name)), default=kind)}


def _undeclared(cls: type, keys: Schema, user: Mapping[str, Any]) -> Schema:
    """Returns a key for each argument of ``cls`` that ``user`` gives and ``cls.config`` does not declare.

    Its fault says what to declare; that the key is unknown would be no help.
    """
    arguments = inspect.signature(cls).parameters

    def faults(value: Any, path: str) -> list[str]:
        name = path.rpartition(".")[2]
        return [
            f"{path}: {cls.__name__}.__init__ takes it, but {cls.__name__}.config does not declare it: add "
            f"config = dict({name}={value!r}), with the default of your choice"
        ]

    names = [name for name in user if name in arguments and name not in keys]
    return {name: Key(None, faults=faults) for name in names}


def _missing_type(intrinsic: Mapping[str, Any]) -> list[str]:
    """Returns the fault of a section ``policy.intrinsic`` that has keys and no ``type``, as a list."""
    if not intrinsic or "type" in intrinsic:
        return []
    keys = ", ".join(map(repr, intrinsic))
    return [f"policy.intrinsic: {keys} without 'type'; set policy.intrinsic.type too, such as to 'rnd'"]


def _opened(schema: Schema, user: Mapping[str, Any]) -> Schema:
    """Returns a schema that also accepts those keys of ``user`` that it lacks, with any value."""
    unknown: Schema = {name: Key(None) for name in user if name not in schema}
    return unknown | {
        name: _opened(rule, _mapping(user.get(name))) if isinstance(rule, dict) else rule
        for name, rule in schema.items()
    }


def _import_quietly(modules: Sequence[str]) -> None:
    """Imports modules that may register wrappers; errors are ignored until the environment is made."""
    for module in modules:
        with contextlib.suppress(*FOREIGN):
            import_user_module(module)


def _default_model(policy_class: Any) -> Any:
    """Returns the name of a policy's default model, after importing the modules that register it.

    Raises:
        ConfigError: if ``default_model`` of the class does not work.
    """
    try:
        name, modules = policy_class.default_model()
        for module in modules:
            importlib.import_module(module)
    except FOREIGN as error:
        raise ConfigError(
            f"policy.type: {policy_class.__name__}.default_model must be a classmethod that returns (name, "
            f"modules to import): {error_text(error)}"
        ) from error
    return name


def _mapping(value: Any) -> Mapping[str, Any]:
    """Returns a section, or an empty one if the value is no dict; that fault is reported elsewhere."""
    return value if isinstance(value, Mapping) else {}


def _chosen(registry: Registry, kind: Any, path: str, folder: Path | None) -> tuple[Any, list[str]]:
    """Returns ``(class, faults)`` of the value ``kind`` of a key ``type``.

    If the name is unknown, the class is that of the closest name, or None if no name is close.
    """
    try:
        return registry.get_class(kind), []
    except RegistryError as error:
        closest = registry.closest(kind)
        fault = f"{path}: {_with_advice(registry, kind, folder, str(error))}"
        return None if closest is None else registry.get(closest), [fault]


def _with_advice(registry: Registry, kind: Any, folder: Path | None, message: str) -> str:
    """Returns the message about a name that a registry lacks, with what to write if that is known."""
    if not isinstance(kind, str) or ":" in kind or kind in registry:
        return message
    file = None if folder is None else file_that_registers(kind, folder)
    if file is not None:
        module = file.stem if folder == Path.cwd() else file
        return (
            f"there is no {registry.noun} named {kind!r} yet. {file.name} beside the config registers "
            f"{kind!r}: add --import {module}"
        )
    if registry is POLICY_REGISTRY and kind.lower() in OTHER_ALGORITHMS.split():
        return f"{message} ding_lite has PPO and PPG only."
    if registry is POLICY_REGISTRY and kind.lower() in OTHER_POLICIES:
        return f"{message} {OTHER_POLICIES[kind.lower()]}"
    in_lower_case = registry.closest(kind.lower())
    if in_lower_case and not registry.closest(kind):
        return f"{message} Did you mean {in_lower_case!r}?"
    return message


def device_contradicts(device: Any, cuda: Any) -> bool:
    """Returns whether ``policy.device`` is another kind of device than ``policy.cuda`` asks for."""
    kind = str(device).partition(":")[0]
    return cuda is not None and kind not in ("auto", "cuda" if cuda else "cpu")


def cross_checks(values: Mapping[str, Any]) -> list[str]:
    """Returns the faults between keys of a complete config, one message each."""
    env = values["env"]
    policy = values["policy"]
    env_num = env["collector_env_num"]
    n_sample = policy["collect"].get("n_sample")
    batch_size = policy["learn"].get("batch_size")
    faults: list[str] = _envs().section_faults(env)
    if isinstance(n_sample, int):
        rows = -(-n_sample // env_num) * env_num
        if isinstance(batch_size, int) and batch_size > rows:
            faults.append(
                f"policy.learn.batch_size: a minibatch of {batch_size} samples is larger than a rollout, "
                f"which has {rows}; decrease it, or increase policy.collect.n_sample"
            )
    device, cuda = policy.get("device", "auto"), policy.get("cuda")
    if device_contradicts(device, cuda):
        faults.append(
            f"policy.cuda: {cuda} and policy.device={device!r} contradict each other: remove one of them"
        )
    if batch_size == 1 and policy["learn"].get("adv_norm") in (True, "minibatch"):
        faults.append(
            "policy.learn.batch_size: the advantage of 1 sample is always 0 when normalised within its "
            "minibatch; use at least 2, or policy.learn.adv_norm='batch' or False"
        )
    return faults
