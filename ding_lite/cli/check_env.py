"""``ding-lite check-env``: checks an environment, or prints a random rollout of it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ding_lite.cli.common import (
    add_import,
    add_json,
    overrides_of,
    positive_number,
    seed_number,
)
from ding_lite.cli.process import stdout_to_stderr
from ding_lite.errors import ConfigError, EnvError

if TYPE_CHECKING:
    from ding_lite.config.compile import Config
    from ding_lite.tools.env_check import Finding

SUMMARY = "check that an environment works, also in worker processes"
DESCRIPTION = """\
Plays random actions and checks that the environment follows gymnasium's API and its own spaces:
observations, rewards, flags, time limits, seeds. Then checks that env.manager.type=base and
subprocess return exactly the same transitions as the environment alone. (Ray actors run the
same code as subprocess.)

Each check prints OK, WARN (it works here, but may cause trouble) or FAIL, with what to do.
The exit code is 3 if a check failed, and 0 otherwise.
"""
EXAMPLES = """\
examples:
  ding-lite check-env CartPole-v1                      a gymnasium id
  ding-lite check-env my_module:MyEnv --steps 5000     a class in my_module.py
  ding-lite check-env my_module:MyEnv env.kwargs.size=8
                                                       with an argument of the class
  ding-lite check-env -c my.py                         the environment of a config, with its wrappers
  ding-lite check-env CartPole-v1 --rollout 100        shapes, dtypes and ranges of 100 random steps
"""
PRELOAD = ("ding_lite.tools.env_check",)
STYLES = {"OK": "green", "WARN": "yellow", "FAIL": "bold red"}
MOST_TIMES = 5  # --seconds after which a call counts as one that hangs
CHECK_WIDTH = 20  # characters of the column with the names of the checks


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``ding-lite check-env``."""
    parser.add_argument(
        "overrides",
        nargs="*",
        default=[],
        metavar="ENV_ID | key.path=value",
        help="a gymnasium id, a registered name or package.module:Class; and keys of the section env, such "
        "as env.kwargs.size=8",
    )
    parser.add_argument("-c", "--config", metavar="FILE|NAME", help="check the environment of this config")
    parser.add_argument(
        "--steps",
        type=positive_number,
        default=1000,
        metavar="N",
        help="number of steps to play (default: 1000)",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=30.0,
        metavar="S",
        help="time for the checks; of a slow environment fewer steps are played, and after five times as "
        "long (a minute or more) a call counts as one that hangs (default: 30)",
    )
    parser.add_argument(
        "-s",
        "--seed",
        type=seed_number,
        metavar="SEED",
        help="seed of start states and actions (default: the config's seed)",
    )
    parser.add_argument(
        "--rollout",
        type=positive_number,
        metavar="N",
        help="print N random steps as a tree of shapes, dtypes and ranges, and check nothing",
    )
    add_json(parser)
    add_import(parser)


def run(args: argparse.Namespace) -> int:
    """Prints the findings; returns 3 if a check failed, and 0 otherwise."""
    from ding_lite.config.registry import env_name

    if not args.seconds > 0:
        raise ConfigError(f"--seconds: expected a number above 0, got {args.seconds:g}")
    config = _config(args)
    seed = config.values.seed if args.seed is None else args.seed
    env_cfg = config.values.env
    name = env_name(env_cfg)
    if args.rollout is not None:
        return _rollout(env_cfg, name, seed, args)
    return _check(env_cfg, name, seed, args)


def _config(args: argparse.Namespace) -> Config:
    """Returns the config of -c or of the named environment, with the overrides applied."""
    from ding_lite.config.compile import COMMAND_LINE, compile_config, load_config
    from ding_lite.config.registry import env_section

    names = [token for token in args.overrides if "=" not in token]
    overrides = overrides_of(args, [token for token in args.overrides if "=" in token])
    others = [key for key in overrides if key != "seed" and not key.startswith("env.")]
    if others:
        raise ConfigError(f"{others[0]}: only keys of env, and seed, have an effect on these checks")
    if len(names) > 1:
        raise ConfigError(f"expected one environment, got {' and '.join(names)}")
    if args.config:
        if names:
            raise ConfigError(
                f"-c and {names[0]} exclude each other; with -c, change the environment by env.env_id=ID"
            )
        with stdout_to_stderr(args.json):
            return load_config(args.config, overrides)
    if not names and not {"env.type", "env.env_id"} & overrides.keys():
        raise ConfigError(
            "no environment: name one (ding-lite check-env CartPole-v1), or give -c FILE or NAME"
        )
    user = {"env": env_section(names[0])} if names else {}
    return compile_config(user, overrides, origin=COMMAND_LINE)


def _rollout(env_cfg: Mapping[str, Any], name: str, seed: int, args: argparse.Namespace) -> int:
    from ding_lite.tools.env_check import as_shapes, random_rollout, tree_lines

    with stdout_to_stderr(args.json):
        tree = random_rollout(env_cfg, args.rollout, seed)
    if args.json:
        print(json.dumps(as_shapes(tree)))
        return 0
    print(f"{args.rollout} random steps of {name}, seed {seed}")
    print("\n".join(tree_lines(tree)))
    return 0


def _check(env_cfg: Mapping[str, Any], name: str, seed: int, args: argparse.Namespace) -> int:
    from ding_lite.tools.env_check import findings, interrupted_after

    found = findings(env_cfg, steps=args.steps, seed=seed, seconds=args.seconds)
    # A slow environment takes longer than it was given, since each check makes at least one call.
    with interrupted_after(min(max(MOST_TIMES * args.seconds, 60.0), 1e6)):
        if args.json:
            with stdout_to_stderr():
                rows = list(found)
        elif sys.stdout.isatty():
            rows = _print_table(found)
        else:
            rows = list(_print_lines(found))
    failed = sum(row.verdict == "FAIL" for row in rows)
    warned = sum(row.verdict == "WARN" for row in rows)
    if args.json:
        report = {
            "env": name,
            "steps": args.steps,
            "seed": seed,
            "failed": failed,
            "warned": warned,
            "findings": [row._asdict() for row in rows],
        }
        print(json.dumps(report))
    else:
        checks = "1 check" if len(rows) == 1 else f"{len(rows)} checks"
        print(f"{name}: {checks}, {failed} failed, {warned} warned ({args.steps} steps, seed {seed})")
    return EnvError.exit_code if failed else 0


def _print_lines(found: Iterable[Finding]) -> Iterator[Finding]:
    """Prints each finding as soon as its check is done, with advice on a line of its own, and yields it."""
    for row in found:
        print(f"{row.verdict:<5} {row.check:<{CHECK_WIDTH}} {_one_line(row.seen)}", flush=True)
        if row.advice:
            print(f"{'':<5} {'':<{CHECK_WIDTH}} -> {_one_line(row.advice)}", flush=True)
        yield row


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _print_table(found: Iterable[Finding]) -> list[Finding]:
    """Prints a table for a terminal, and the progress while the checks run; returns the findings."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    table = Table("", "check", "what was seen", "what to do")
    rows = []
    with console.status("making the environment") as status:
        for row in found:
            rows.append(row)
            style = STYLES[row.verdict]
            cells = (row.check, _one_line(row.seen), _one_line(row.advice))
            table.add_row(Text(row.verdict, style=style), *(Text(cell) for cell in cells))
            status.update(f"{len(rows)} checks done, last: {row.check}")
    console.print(table)
    return rows
