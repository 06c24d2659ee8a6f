"""``ding-lite list``: lists the names that a config can use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from ding_lite.cli.options import command, import_modules, import_option, print_table

LISTS = (
    *("policies", "models", "encoders", "distributions", "intrinsic"),
    *("envs", "wrappers", "trackers", "hooks", "configs"),
)


@command()
@click.argument("kind", required=False, type=click.Choice(LISTS), help="one kind of names (default: all)")
@import_option
def run(kind: str | None, imports: tuple[str, ...]) -> None:
    """Lists the policies, models, environments and shipped configs.

    These are the names that a config or the command line can use, with a line about each:

    policies       key policy.type                     envs       key env.type
    models         key policy.model.type               wrappers   key env.wrappers
    encoders       key policy.model.encoder            trackers   key logger.trackers
    distributions  key policy.model.box_distribution   hooks      key hooks
    intrinsic      key policy.intrinsic.type           configs    option -c
    """
    import_modules(imports)
    for name in [kind] if kind else LISTS:
        print_table([name, ""], entries(name))


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
