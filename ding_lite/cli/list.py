"""``ding-lite list``: lists the names that a config can use."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from ding_lite.cli.common import add_import

SUMMARY = "list the policies, models, environments and shipped configs"
DESCRIPTION = """\
Lists the names that a config or the command line can use, with a line about each.

policies       key policy.type                     envs       key env.type
models         key policy.model.type               wrappers   key env.wrappers
encoders       key policy.model.encoder            trackers   key logger.trackers
distributions  key policy.model.box_distribution   hooks      key hooks
intrinsic      key policy.intrinsic.type           configs    option -c
"""
EXAMPLES = """\
examples:
  ding-lite list configs       the shipped configs
  ding-lite list policies      the algorithms
  ding-lite list               everything
  ding-lite list policies --import my_policy.py    yours among them
"""
LISTS = (
    *("policies", "models", "encoders", "distributions", "intrinsic"),
    *("envs", "wrappers", "trackers", "hooks", "configs"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``ding-lite list``."""
    parser.add_argument("kind", nargs="?", choices=LISTS, help="one kind of names (default: all)")
    add_import(parser)


def run(args: argparse.Namespace) -> int:
    """Prints one kind of names, or all."""
    for kind in [args.kind] if args.kind else LISTS:
        if args.kind is None:
            print(f"{kind}:")
        for name, summary in entries(kind):
            print(f"  {name:<36}{summary}".rstrip())
    return 0


def entries(kind: str) -> list[tuple[str, str]]:
    """Returns ``(name, summary)`` of each entry of a kind."""
    from ding_lite.config import registry as registries
    from ding_lite.config.compile import read_config, shipped_configs

    if kind == "configs":
        return [(name, _config_summary(read_config(file))) for name, file in shipped_configs().items()]
    registry = {
        "policies": registries.POLICY_REGISTRY,
        "models": registries.MODEL_REGISTRY,
        "encoders": registries.ENCODER_REGISTRY,
        "distributions": registries.BOX_DISTRIBUTION_REGISTRY,
        "intrinsic": registries.INTRINSIC_REGISTRY,
        "envs": registries.ENV_REGISTRY,
        "wrappers": registries.WRAPPER_REGISTRY,
        "trackers": registries.TRACKER_REGISTRY,
        "hooks": registries.HOOK_REGISTRY,
    }[kind]
    return [(name, _first_line(registry.get(name).__doc__)) for name in registry.names()]


def _config_summary(config: Mapping[str, Any]) -> str:
    """Returns "ppo on CartPole-v1"."""
    from ding_lite.config.registry import env_name

    return f"{config['policy'].get('type', 'ppo')} on {env_name(config['env'])}"


def _first_line(text: str | None) -> str:
    return (text or "").strip().split("\n")[0]
