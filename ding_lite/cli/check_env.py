"""``ding-lite check-env``: a verdict table on an environment, or a random rollout of it as a tree."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ding_lite.cli.output import stdout_to_stderr
from ding_lite.cli.sources import env_section, overrides_of
from ding_lite.config import COMMAND_LINE, Config, compile_config
from ding_lite.config_files import find_config, read_config
from ding_lite.env_check import (
    FAIL,
    WARN,
    Finding,
    as_shapes,
    findings,
    random_rollout,
    tree_lines,
)
from ding_lite.errors import ConfigError, EnvError

STYLES = {"OK": "green", "WARN": "yellow", "FAIL": "bold red"}
WIDTH = 20  # of the checks' names


def run(args: argparse.Namespace) -> int:
    """Checks, and returns 0 if nothing failed, 3 otherwise."""
    for name in ("steps", "rollout"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise ConfigError(f"--{name}: expected at least 1, got {value}")
    config = _config(args)
    seed = config.values.seed if args.seed is None else args.seed
    if seed < 0:
        raise ConfigError(f"--seed: expected at least 0, got {seed}")
    env_cfg = config.values.env
    name = env_cfg.env_id or getattr(env_cfg.type, "__qualname__", env_cfg.type)
    if args.rollout is not None:
        return _rollout(env_cfg, name, seed, args)
    return _check(env_cfg, name, seed, args)


def _config(args: argparse.Namespace) -> Config:
    """Returns the config of -c, or of the environment that is named, with the overrides on top."""
    named = [token for token in args.targets if "=" not in token]
    overrides = overrides_of(args, [token for token in args.targets if "=" in token])
    if len(named) > 1:
        raise ConfigError(f"one environment at a time: got {' and '.join(named)}")
    if args.config:
        if named:
            raise ConfigError(f"give either -c or {named[0]}; with -c, env.env_id=... changes it")
        file = find_config(args.config)
        return compile_config(read_config(file), overrides, origin=str(file))
    if named:
        return compile_config({"env": env_section(named[0])}, overrides, origin=COMMAND_LINE)
    if not {"env.type", "env.env_id"} & overrides.keys():
        raise ConfigError(
            "which environment? Name it (ding-lite check-env CartPole-v1), or give -c FILE or NAME"
        )
    return compile_config({}, overrides, origin=COMMAND_LINE)


def _rollout(env_cfg: Mapping[str, Any], name: str, seed: int, args: argparse.Namespace) -> int:
    if args.json:
        with stdout_to_stderr():
            tree = random_rollout(env_cfg, args.rollout, seed)
        print(json.dumps(as_shapes(tree)))
        return 0
    tree = random_rollout(env_cfg, args.rollout, seed)
    print(f"{args.rollout} random steps of {name}, seed {seed}")
    print("\n".join(tree_lines(tree)))
    return 0


def _check(env_cfg: Mapping[str, Any], name: str, seed: int, args: argparse.Namespace) -> int:
    found = findings(env_cfg, steps=args.steps, seed=seed)
    if args.json:
        with stdout_to_stderr():
            rows = list(found)
        told = {"env": name, "steps": args.steps, "seed": seed, "failed": _count(rows, FAIL)}
        told |= {"warned": _count(rows, WARN), "findings": [row._asdict() for row in rows]}
        print(json.dumps(told))
    else:
        rows = list(_table(found) if sys.stdout.isatty() else _lines(found))
        checks = "1 check" if len(rows) == 1 else f"{len(rows)} checks"
        counts = f"{checks}, {_count(rows, FAIL)} failed, {_count(rows, WARN)} warned"
        print(f"{name}: {counts} ({args.steps} steps, seed {seed})")
    return EnvError.exit_code if _count(rows, FAIL) else 0


def _count(rows: Iterable[Finding], verdict: str) -> int:
    return sum(row.verdict == verdict for row in rows)


def _lines(found: Iterable[Finding]) -> Iterator[Finding]:
    """Prints each finding as soon as it is known; advice has a line of its own."""
    for row in found:
        print(f"{row.verdict:<5} {row.check:<{WIDTH}} {_one_line(row.seen)}", flush=True)
        if row.advice:
            print(f"{'':<5} {'':<{WIDTH}} -> {_one_line(row.advice)}", flush=True)
        yield row


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _table(found: Iterable[Finding]) -> list[Finding]:
    """Draws a table for a terminal, with the check that is running below it."""
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
            status.update(f"{len(rows)} checks done, the last: {row.check}")
    console.print(table)
    return rows
