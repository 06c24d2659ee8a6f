"""The sections of a config: the keys of each, which the class that its ``type`` names brings along."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from ding_lite.checkpoint import CHECKPOINT_CONFIG
from ding_lite.errors import FOREIGN, ConfigError, RegistryError, told
from ding_lite.logger import LOGGER_CONFIG, run_name_faults
from ding_lite.registry import ENV_REGISTRY, MODEL_REGISTRY, POLICY_REGISTRY, Registry, modules_of
from ding_lite.schema import Key, Schema, as_schema, merged_config

RUN_CONFIG: dict[str, Any] = dict(
    # Name of the run's folder under runs/; made from env and policy when empty.
    exp_name=Key("", faults=run_name_faults),
    seed=Key(0, low=0),
    max_env_step=Key(1_000_000, low=1),  # env steps to train for
    max_train_iter=Key(None, (int,), low=1, optional=True),  # optimiser steps to train for
    # Torch's CPU threads; auto: 1 for vectors, whose matrices are small, every core for images.
    num_threads=Key("auto", (int,), choices=("auto",), low=1, high=1024),
    checkpoint=CHECKPOINT_CONFIG,
    logger=LOGGER_CONFIG,
)


def schema_of(user: Mapping[str, Any]) -> tuple[Schema, list[str]]:
    """Returns the schema of every section, and what is wrong with the types that choose them."""
    schema, env, policy = as_schema(RUN_CONFIG), _mapping(user.get("env")), _mapping(user.get("policy"))
    schema["env"] = as_schema(ENV_REGISTRY.section)
    if env.get("wrappers"):
        _import_quietly(modules_of([env.get("type"), env.get("env_id")]))
    kind = policy.get("type", "ppo")
    policy_class, faults = _chosen(POLICY_REGISTRY, kind, "policy.type")
    if policy_class is None:
        schema["policy"] = Key({}, (dict,))
        return schema, faults
    schema["policy"] = _keys(policy_class, kind)
    declared, given = schema["policy"].get("model", {}), _mapping(policy.get("model"))
    kind = given.get("type", _default_model(policy_class))
    model_class, found = _chosen(MODEL_REGISTRY, kind, "policy.model.type")
    schema["policy"]["model"] = (
        Key({}, (dict,))
        if model_class is None
        else {**declared, **_keys(model_class, kind), "type": Key(kind, (str, object))}
    )
    return schema, faults + found


def _import_quietly(modules: Sequence[str]) -> None:
    """Imports the environment's module, which may register wrappers; its faults show when it is made."""
    for module in modules:
        with contextlib.suppress(*FOREIGN):
            importlib.import_module(module)


def _default_model(policy_class: Any) -> Any:
    """Returns the name of the model that a policy has where the config names none; its modules are imported.

    Raises:
        ConfigError: if the class cannot say so.
    """
    try:
        name, modules = policy_class.default_model()
        for module in modules:
            importlib.import_module(module)
    except FOREIGN as error:
        raise ConfigError(
            f"policy.type: {policy_class.__name__}.default_model must be a classmethod that returns (name, "
            f"modules to import): {told(error)}"
        ) from error
    return name


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _chosen(registry: Registry, kind: Any, path: str) -> tuple[Any, list[str]]:
    """Returns the class that ``kind`` names, or else is likely to mean, if any, and what is wrong with it."""
    try:
        cls = registry.get(kind)
        if not (isinstance(cls, type) and issubclass(cls, registry.base)):
            raise RegistryError(
                f"expected a registered name ({', '.join(registry.names())}), 'package.module:Name' or a "
                f"subclass of {registry.base.__name__}, got {kind!r}"
            )
    except RegistryError as error:
        meant = registry.closest(kind)
        return None if meant is None else registry.get(meant), [f"{path}: {error}"]
    return cls, []


def _keys(cls: type, kind: Any) -> Schema:
    """Returns the keys of a class, which was chosen by ``type=kind``."""
    schema = merged_config(cls)
    if "type" in schema:
        schema["type"] = Key(kind, (str, object))
    return schema


def cross_checks(values: Mapping[str, Any]) -> list[str]:
    """Returns the faults that only show between keys."""
    env, policy = values["env"], values["policy"]
    faults = ENV_REGISTRY.section_faults(env)
    collect, env_num = policy["collect"], env["collector_env_num"]
    n_sample, batch_size = collect.get("n_sample"), policy["learn"].get("batch_size")
    n_episode, length = collect.get("n_episode"), collect.get("unroll_len") or 0
    if n_episode is not None and n_episode < env_num:
        faults.append(
            f"policy.collect.n_episode: {n_episode} episodes, of which each of {env_num} environments plays "
            "its share; take more of them, or a smaller env.collector_env_num"
        )
    if isinstance(n_sample, int):
        steps = -(-n_sample // env_num)
        if length > 1 and n_episode is None and steps % length:
            faults.append(
                f"policy.collect.unroll_len: the {steps} steps of a rollout cannot be cut into segments of "
                f"{length}; n_sample={-(-steps // length) * length * env_num} could"
            )
        rows = steps * env_num
        if isinstance(batch_size, int) and batch_size > rows and n_episode is None:
            faults.append(
                f"policy.learn.batch_size: {batch_size} samples in a minibatch, and a rollout has only {rows}"
            )
    if batch_size == 1 and policy["learn"].get("adv_norm") in (True, "minibatch"):
        faults.append(
            "policy.learn.batch_size: the advantage of 1 sample, normalised among itself, is always 0; take "
            "more, or policy.learn.adv_norm='batch' or False"
        )
    return faults
