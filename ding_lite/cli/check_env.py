"""``ding-lite check-env``: checks an environment, or prints a random rollout of it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ding_lite.cli import options
from ding_lite.errors import ConfigError, EnvError

if TYPE_CHECKING:
    from ding_lite.config.compile import Config
    from ding_lite.tools.env_check import Finding

STYLES = {"OK": "green", "WARN": "yellow", "FAIL": "bold red"}


@options.command(preload="ding_lite.tools.env_check")
@options.words(
    "overrides",
    "[ENV_ID | key.path=value]...",
    "a gymnasium id, a registered name or package.module:Class; and keys of the section env, such as "
    "env.kwargs.size=8",
)
@options.option("-c --config FILE|NAME", "check the environment of this config")
@options.option(
    "--steps N",
    "steps to play in each of two environments (default: 1000)",
    options.POSITIVE,
    default=1000,
)
@options.seed_option()
@options.option(
    "--rollout N",
    "print the shapes, dtypes and ranges of N random steps, and check nothing",
    options.POSITIVE,
)
@options.import_option
@options.json_option
def run(
    overrides: tuple[str, ...],
    config: str | None,
    steps: int,
    seed: int | None,
    rollout: int | None,
    imports: tuple[str, ...],
    json: bool,
) -> int:
    """Checks that an environment works, also in worker processes.

    Plays random actions under the guards of training, so that a fault is reported in the words of training.
    Then plays the same seeds again, and in worker processes, and compares every number. Also checks time
    limits, observations that are overwritten, and speed.

    Each check prints OK, WARN (it works here, but may cause trouble) or FAIL, with what to do. The exit
    code is 3 if a check failed, and 0 otherwise.

    ding-lite check-env my_module:MyEnv env.kwargs.size=8   a class in my_module.py, with an argument
    ding-lite check-env -c my.py                            the environment of a config, with its wrappers
    ding-lite check-env CartPole-v1 --rollout 100           shapes, dtypes and ranges of 100 random steps
    """
    from ding_lite.config.registry import env_name
    from ding_lite.tools.env_check import findings, random_rollout, rollout_rows
    from ding_lite.trees import map_tree

    options.import_modules(imports)
    values = _config(overrides, config).values
    seed = values.seed if seed is None else seed
    name = env_name(values.env)
    if rollout is not None:
        tree = random_rollout(values.env, rollout, seed)
        if json:
            options.print_json(
                map_tree(lambda leaf: {"shape": list(leaf.shape), "dtype": str(leaf.dtype)}, tree)
            )
        else:
            print(f"{rollout} random steps of {name}, seed {seed}")
            options.print_table(["", "shape", "dtype", "range"], rollout_rows(tree))
        return 0
    rows = _shown(findings(values.env, steps=steps, seed=seed))
    failed, warned = (sum(row.verdict == verdict for row in rows) for verdict in ("FAIL", "WARN"))
    report = {"env": name, "steps": steps, "seed": seed, "failed": failed, "warned": warned}
    if json:
        options.print_json({**report, "findings": [row._asdict() for row in rows]})
    else:
        cells = [[row.verdict, row.check, " ".join(row.text.split())] for row in rows]
        options.print_table(["", "check", "what was seen, and what to do"], cells, styles=STYLES)
        print(f"{name}: {len(rows)} checks, {failed} failed, {warned} warned ({steps} steps, seed {seed})")
    return EnvError.exit_code if failed else 0


def _config(overrides: tuple[str, ...], file: str | None) -> Config:
    """Returns the config of -c or of the named environment, with the overrides applied."""
    from ding_lite.config.compile import COMMAND_LINE, compile_config, load_config, parse_overrides
    from ding_lite.config.registry import env_section

    names = [token for token in overrides if "=" not in token]
    changes = parse_overrides([token for token in overrides if "=" in token])
    if len(names) > 1 or (names and file):
        raise ConfigError("expected one environment, by its name or by -c; with -c, env.env_id=ID changes it")
    if file:
        return load_config(file, changes)
    if not names and not {"env.type", "env.env_id"} & changes.keys():
        raise ConfigError(
            "no environment: name one (ding-lite check-env CartPole-v1), or give -c FILE or NAME"
        )
    user: Mapping[str, Any] = {"env": env_section(names[0])} if names else {}
    return compile_config(user, changes, origin=COMMAND_LINE)


def _shown(found: Iterable[Finding]) -> list[Finding]:
    """Returns the findings; a terminal shows the progress while the checks run."""
    from rich.console import Console

    rows = []
    with Console(file=sys.stderr).status("making the environment") as status:
        for row in found:
            rows.append(row)
            status.update(f"{len(rows)} checks done, last: {row.check}")
    return rows
