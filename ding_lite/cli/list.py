"""``ding-lite list``: lists the names that a config can use."""

from __future__ import annotations

import ast

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
    from ding_lite.config.compile import shipped_configs

    if kind == "configs":  # the first line of each says its family: "MuJoCo: HalfCheetah-v5 ..."
        docs = {
            name: ast.get_docstring(ast.parse(file.read_text())) for name, file in shipped_configs().items()
        }
        lines = [(name, _first_line(doc)) for name, doc in docs.items()]
        return sorted(lines, key=lambda line: line[1].split(":")[0])
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


def _first_line(text: str | None) -> str:
    return (text or "").strip().split("\n")[0]
