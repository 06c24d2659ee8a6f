"""``ding-lite check-env``: checks an environment."""

from __future__ import annotations

import click

from ding_lite.cli import options
from ding_lite.errors import ConfigError, EnvError

COLOURS = {"OK": "green", "WARN": "yellow", "FAIL": "red"}


@options.command()
@options.words(
    "overrides",
    "[ENV_ID | key.path=value]...",
    "a gymnasium id, a registered name or package.module:Class; and keys of the section env, such as "
    "env.kwargs.size=8",
)
@options.option("-c --config FILE|NAME", "check the environment of this config")
@options.option(
    "--steps N", "steps to play in each of two environments (default: 1000)", options.POSITIVE, default=1000
)
@options.option("-s --seed SEED", "(default: the config's)", options.NUMBER)
@options.import_option
@options.json_option
def run(
    overrides: tuple[str, ...],
    config: str | None,
    steps: int,
    seed: int | None,
    imports: tuple[str, ...],
    json: bool,
) -> int:
    """Checks that an environment works, also in worker processes.

    Plays random actions with the checks of training, so that a fault has the same message as in training.
    Then plays the same seeds again, and in worker processes (not with env.manager.type vector or env_pool),
    and compares every number. Also checks time limits and speed, and shows the ranges of observations and
    rewards.

    Each check prints OK, WARN (it works here, but may cause trouble) or FAIL, with what to do. The exit
    code is 3 if a check failed, and 0 otherwise.

    ding-lite check-env my_module:MyEnv env.kwargs.size=8   a class in my_module.py, with an argument
    ding-lite check-env -c my.py                            the environment of a config, with its wrappers
    """
    from ding_lite.config.registry import env_name
    from ding_lite.tools.env_check import findings

    env = next((word for word in overrides if "=" not in word), None)
    if not (env or config):
        raise ConfigError("expected an environment: its name, such as CartPole-v1, or a config by -c")
    changes = tuple(word for word in overrides if word != env)
    if others := [word for word in changes if "=" in word and not word.startswith(("env.", "env="))]:
        raise ConfigError(f"{others[0]}: only keys of env can be changed here, such as env.kwargs.size=8")
    values = options.Source(config, env, None, not config, imports, changes).read().values
    seed = values.seed if seed is None else seed
    name = env_name(values.env)
    rows = []
    for row in findings(values.env, steps=steps, seed=seed):
        rows.append(row)
        if not json:  # at once: the environment may end this process
            verdict = click.style(f"{row.verdict:4}", fg=COLOURS[row.verdict])
            click.echo(f"{verdict}  {row.check:13}  {' '.join(row.text.split())}")
    failed, warned = (sum(row.verdict == verdict for row in rows) for verdict in ("FAIL", "WARN"))
    report = {"env": name, "steps": steps, "seed": seed, "failed": failed, "warned": warned}
    if json:
        options.print_json({**report, "findings": [row._asdict() for row in rows]})
    else:
        print(f"{name}: {len(rows)} checks, {failed} failed, {warned} warned ({steps} steps, seed {seed})")
    return EnvError.exit_code if failed else 0
