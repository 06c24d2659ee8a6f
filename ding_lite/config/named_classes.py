"""The classes that a config names, each with the registry of its kind."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ding_lite.config.registry import (
    BOX_DISTRIBUTION_REGISTRY,
    ENCODER_REGISTRY,
    ENV_REGISTRY,
    HOOK_REGISTRY,
    INTRINSIC_REGISTRY,
    MODEL_REGISTRY,
    POLICY_REGISTRY,
    TRACKER_REGISTRY,
    WRAPPER_REGISTRY,
    Registry,
    as_choice,
)
from ding_lite.config.schema import leaves

# The keys whose names a registry resolves. A class as the value of another key is not saved.
PLACES = re.compile(
    r"(env|policy|policy\.model|policy\.intrinsic|policy\.model\.encoder(\..+)?)\.type"
    r"|policy\.model\.box_distribution|(env\.wrappers|hooks|logger\.trackers)\[\d+\](\.type)?"
)


def classes_of_policy(policy: Mapping[str, Any]) -> Iterator[tuple[Registry, Any]]:
    """Yields the registry and the name of each class that a complete section ``policy`` names.

    For encoders it yields all values, of which some are options.
    """
    encoder = policy["model"].get("encoder")
    yield POLICY_REGISTRY, policy["type"]
    yield MODEL_REGISTRY, policy["model"]["type"]
    yield BOX_DISTRIBUTION_REGISTRY, policy["model"].get("box_distribution")
    yield INTRINSIC_REGISTRY, policy.get("intrinsic", {}).get("type")
    for _, value in leaves({"encoder": encoder}):  # a name alone is one, too
        yield ENCODER_REGISTRY, value


def classes_of(values: Mapping[str, Any]) -> Iterator[tuple[Registry, Any]]:
    """Yields the registry and the name of each class that a complete config names."""
    yield from classes_of_policy(values["policy"])
    yield ENV_REGISTRY, values["env"]["type"]
    for registry, items in (
        (WRAPPER_REGISTRY, values["env"]["wrappers"]),
        (HOOK_REGISTRY, values.get("hooks", [])),
        (TRACKER_REGISTRY, values["logger"].get("trackers", [])),
    ):
        for item in [items] if isinstance(items, str) else items:
            yield registry, as_choice(item).get("type")


def policy_names(values: Mapping[str, Any]) -> list[Any]:
    """Returns the names in the section ``policy`` of a complete config; building the policy imports them."""
    return [name for _, name in classes_of_policy(values["policy"])]


def names_of(values: Mapping[str, Any]) -> list[Any]:
    """Returns the names in a complete config whose modules building the run imports."""
    return [values["env"]["env_id"], *(name for _, name in classes_of(values))]


def registered_classes(values: Mapping[str, Any]) -> list[Any]:
    """Returns what the registered names in a complete config stand for; other names are left out."""
    return [
        registry.get(name)
        for registry, name in classes_of(values)
        if isinstance(name, str) and name in registry
    ]
