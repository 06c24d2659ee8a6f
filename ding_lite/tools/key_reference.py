"""Every key of a config with its type, default, range and effect, as the classes declare it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ding_lite.config.compile import POLICIES, schema_of
from ding_lite.config.registry import INTRINSIC_REGISTRY
from ding_lite.config.schema import Key, in_words, leaves, merged_config, refuse

ANY_INTRINSIC = "rnd"  # its keys are listed where a config names no intrinsic reward


def keys_of(user: Mapping[str, Any]) -> dict[str, Key]:
    """Returns every key that a config may have by its path, sections in the order of ``ding-lite config``.

    Args:
        user: a config. Only its keys ``type`` matter: they name the classes that declare keys.
    """
    schema, faults = schema_of(user)
    refuse("config", faults)
    policy = schema["policy"]
    declared = policy.get("intrinsic")
    if isinstance(declared, dict) and declared["type"].default is None:
        policy["intrinsic"] = {**declared, **merged_config(INTRINSIC_REGISTRY.get(ANY_INTRINSIC))}
    return dict(leaves(schema))


def keys_of_policies(policies: Iterable[str] = POLICIES) -> dict[str, dict[str, Key]]:
    """Returns every key of some policies as ``{path: {name of policy: key}}``."""
    keys: dict[str, dict[str, Key]] = {}
    for name in policies:
        for path, key in keys_of({"policy": {"type": name}}).items():
            keys.setdefault(path, {})[name] = key
    return keys


def defaults_of(by_policy: Mapping[str, Key]) -> dict[str, list[str]]:
    """Returns the policies that have each default of a key, as ``{default: [name of policy, ...]}``."""
    by_value: dict[str, list[str]] = {}
    for name, key in by_policy.items():
        by_value.setdefault(repr(key.default), []).append(name)
    return by_value


def rules(key: Key) -> str:
    """Returns type, range and condition of a key, such as "int | None, at least 1, needs model.rnn"."""
    return ", ".join(filter(None, (in_words(key.type), key.range, key.needs and f"needs {key.needs}")))
