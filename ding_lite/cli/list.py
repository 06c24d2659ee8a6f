"""``ding-lite list``: the names that a config can use."""

from __future__ import annotations

import argparse

from ding_lite.config_files import read_config, shipped_configs
from ding_lite.registry import (
    ENCODER_REGISTRY,
    ENV_REGISTRY,
    MODEL_REGISTRY,
    POLICY_REGISTRY,
    WRAPPER_REGISTRY,
    Registry,
)

REGISTRIES: dict[str, Registry] = {
    "policies": POLICY_REGISTRY,
    "models": MODEL_REGISTRY,
    "encoders": ENCODER_REGISTRY,
    "envs": ENV_REGISTRY,
    "wrappers": WRAPPER_REGISTRY,
}


def run(args: argparse.Namespace) -> int:
    """Prints one kind of names, or all."""
    for kind in [args.kind] if args.kind else [*REGISTRIES, "configs"]:
        if args.kind is None:
            print(f"{kind}:")
        for name, about in _entries(kind):
            print(f"  {name:<36}{about}".rstrip())
    return 0


def _entries(kind: str) -> list[tuple[str, str]]:
    if kind == "configs":
        return [(name, _about(file)) for name, file in shipped_configs().items()]
    registry = REGISTRIES[kind]
    return [(name, _first_line(registry.get(name).__doc__)) for name in registry.names()]


def _about(file: object) -> str:
    config = read_config(file)  # type: ignore[arg-type]
    return (
        f"{config['policy'].get('type', 'ppo')} on {config['env'].get('env_id') or config['env'].get('type')}"
    )


def _first_line(text: str | None) -> str:
    return (text or "").strip().split("\n")[0]
