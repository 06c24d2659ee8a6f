"""``ding-lite list``: lists the names that a config can use."""

from __future__ import annotations

import ast

import click

from ding_lite.cli import options

LISTS = {  # the registry of each kind of names
    "policies": "POLICY_REGISTRY",
    "models": "MODEL_REGISTRY",
    "encoders": "ENCODER_REGISTRY",
    "distributions": "BOX_DISTRIBUTION_REGISTRY",
    "intrinsic": "INTRINSIC_REGISTRY",
    "envs": "ENV_REGISTRY",
    "wrappers": "WRAPPER_REGISTRY",
    "trackers": "TRACKER_REGISTRY",
    "hooks": "HOOK_REGISTRY",
    "configs": "",
}


@options.command()
@click.argument(
    "kind", required=False, type=click.Choice(list(LISTS)), help="one kind of names (default: all)"
)
@options.import_option
def run(kind: str | None, imports: tuple[str, ...]) -> None:
    """Lists the policies, models, environments and shipped configs.

    These are the names that a config or the command line can use, with a line about each:

    policies       key policy.type                     envs       key env.type
    models         key policy.model.type               wrappers   key env.wrappers
    encoders       key policy.model.encoder            trackers   key logger.trackers
    distributions  key policy.model.box_distribution   hooks      key hooks
    intrinsic      key policy.intrinsic.type           configs    option -c
    """
    options.import_modules(imports)
    for name in [kind] if kind else LISTS:
        options.print_table([name, ""], entries(name))


def entries(kind: str) -> list[tuple[str, str]]:
    """Returns ``(name, summary)`` of each entry of a kind."""
    from ding_lite.config import registry as registries
    from ding_lite.config.compile import shipped_configs

    if kind == "configs":
        docs = {name: ast.get_docstring(ast.parse(f.read_text())) for name, f in shipped_configs().items()}
        lines = [(name, (doc or "").split("\n")[0]) for name, doc in docs.items()]
        # Sorted by kind, which each first line begins with: "MuJoCo: HalfCheetah-v5".
        return sorted(lines, key=lambda line: line[1].split(":")[0])
    registry = getattr(registries, LISTS[kind])
    return [(name, (registry.get(name).__doc__ or "").strip().split("\n")[0]) for name in registry.names()]
