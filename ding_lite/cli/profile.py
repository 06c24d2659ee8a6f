"""``ding-lite profile``: where the time of training goes, as a table with a verdict, or as JSON."""

from __future__ import annotations

import argparse
import contextlib
import json
from typing import Any

from ding_lite.cli.output import stdout_to_stderr
from ding_lite.cli.sources import config_of
from ding_lite.config import Config
from ding_lite.errors import ConfigError
from ding_lite.profiling import Profile, advice, profile

SELDOM = ("auxiliary", "evaluation", "checkpoint")  # phases that not every iteration has


def run(args: argparse.Namespace) -> int:
    """Measures, and prints what came out."""
    if args.iterations is not None and args.iterations < 1:
        raise ConfigError(f"--iterations: expected at least 1, got {args.iterations}")
    config = config_of(args)
    with stdout_to_stderr() if args.json else contextlib.nullcontext():
        found = profile(config, iterations=args.iterations, seed=args.seed)
    told = _told(found, config)
    print(json.dumps(told) if args.json else "\n".join(_table(told)))
    return 0


def _told(found: Profile, config: Config) -> dict[str, Any]:
    largest, share = found.largest()
    return {
        "config": config.values.exp_name,
        "device": found.device,
        "iterations": found.iterations,
        "env_steps": found.env_steps,
        "iteration_ms": 1000 * found.seconds / found.iterations,
        "env_steps_per_second": found.env_steps_per_second,
        "phases": {
            phase.name: {
                "ms": 1000 * phase.seconds / found.iterations,
                "percent": 100 * phase.seconds / found.seconds,
                "calls": phase.calls,
            }
            for phase in found.phases
        },
        "largest": largest,
        "largest_percent": 100 * share,
        "try": {key: {"now": value, "hint": hint} for key, value, hint in advice(largest, config)},
    }


def _table(told: dict[str, Any]) -> list[str]:
    count = told["iterations"]
    lines = [f"{told['config']} on {told['device']}: {count} iterations, {told['env_steps']:,} env steps", ""]
    lines.append(f"{'phase':<12} {'ms/iteration':>12} {'%':>6}")
    for phase, row in told["phases"].items():
        seldom = f"   {row['calls']} in {count} iterations" if phase in SELDOM else ""
        lines.append(f"{phase:<12} {row['ms']:>12.2f} {row['percent']:>6.1f}{seldom}")
    lines.append(f"{'iteration':<12} {told['iteration_ms']:>12.2f} {100:>6.1f}")
    lines += ["", f"{told['env_steps_per_second']:,.0f} env steps/s"]
    lines.append(f"Most of the time, {told['largest_percent']:.0f} %, goes to: {told['largest']}. To try:")
    width = max(len(key) for key in told["try"])
    return [
        *lines,
        *(f"  {key:<{width}}  now {row['now']!r}; {row['hint']}" for key, row in told["try"].items()),
    ]
