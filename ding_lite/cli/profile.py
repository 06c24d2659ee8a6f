"""``ding-lite profile``: where the time of training goes, or which setting is fastest; a table, or JSON."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import shlex
import sys
import time
from collections.abc import Mapping
from typing import Any

from ding_lite.cli.output import stdout_to_stderr
from ding_lite.cli.sources import config_of
from ding_lite.config import Config
from ding_lite.config_files import parse_overrides
from ding_lite.errors import ConfigError
from ding_lite.profiling import Profile, advice, profile, training, words_for
from ding_lite.tuning import Setting, TrainingProcess, Trial, Tuner

SELDOM = ("auxiliary", "evaluation", "checkpoint")  # phases that not every iteration has
# What falls due in one slice and not in the next would hide what is compared.
UNDISTURBED = {"policy.eval.eval_freq": 0, "checkpoint.freq": 0, "checkpoint.keep_freq": 0}
WIDTH = 33  # of a setting
MINUTES = 1.0  # that --tune takes where nothing is said


def run(args: argparse.Namespace) -> int:
    """Measures, and prints what came out."""
    if args.iterations is not None and args.iterations < 1:
        raise ConfigError(f"--iterations: expected at least 1, got {args.iterations}")
    if args.tune and args.iterations is not None:
        raise ConfigError("--iterations is for the table of phases; --minutes says how long --tune may take")
    if args.minutes is not None and not args.tune:
        raise ConfigError("--minutes is how long --tune may take; --iterations is for the table of phases")
    if args.minutes is not None and not 0 < args.minutes < math.inf:
        raise ConfigError(f"--minutes: expected a number above 0, got {args.minutes}")
    config = config_of(args)
    if args.contestant:
        return _compete(config, args)
    if args.tune:
        return _tune(config, args)
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
    largest = words_for(told["largest"])
    lines.append(f"Most of the time, {told['largest_percent']:.0f} %, goes to: {largest}. To try:")
    width = max(len(key) for key in told["try"])
    return [
        *lines,
        *(f"  {key:<{width}}  now {row['now']!r}; {row['hint']}" for key, row in told["try"].items()),
    ]


def _compete(config: Config, args: argparse.Namespace) -> int:
    """Trains as many iterations as each line of standard input says, and answers with their profile."""
    with contextlib.ExitStack() as stack:
        with stdout_to_stderr():
            measure = stack.enter_context(training(config, args.seed))
        for line in sys.stdin:
            if args.signals.caught:  # a library that was being imported has swallowed the exception
                break
            with stdout_to_stderr():
                found = measure(int(line))
            print(json.dumps(found._asdict()), flush=True)
    return int(args.signals.exit_code)


def _tune(config: Config, args: argparse.Namespace) -> int:
    """Prints each setting as soon as it has been tried, and in the end the command of the fastest."""
    deadline = time.monotonic() + 60 * (MINUTES if args.minutes is None else args.minutes)
    with stdout_to_stderr() if args.json else contextlib.nullcontext():
        present = profile(config, iterations=2, warm_up=1, seed=args.seed)

    def start(setting: Setting) -> TrainingProcess:
        command = ["profile", "--contestant", *_source(args), *_typed(args, {**setting, **UNDISTURBED})]
        return TrainingProcess(command, deadline)

    tuner = Tuner(config, present, start, deadline - time.monotonic())
    if not args.json:
        print("\n".join(_heading(config, present)), flush=True)
    tried = []
    for trial in tuner.trials():
        tried.append(trial)
        if not args.json:
            print("\n".join(_rows(trial)), flush=True)
    command = shlex.join(["ding-lite", "train", *_source(args), *_typed(args, tuner.best)])
    if args.json:
        told = {"overrides": tuner.best, "gain": tuner.gain - 1, "command": command}
        print(json.dumps({**told, "tried": [_as_told(trial) for trial in tried]}))
    else:
        print("\n".join(_verdict(tuner, tried, command)))
    return 0


def _source(args: argparse.Namespace) -> list[str]:
    """Returns the arguments, as they were given, that say what is trained."""
    named = {"-c": args.config, "--env": args.env, "--policy": args.policy, "-s": args.seed}
    given = [word for option, value in named.items() if value is not None for word in (option, str(value))]
    return given + [word for name in args.named_imports for word in ("--import", name)]


def _typed(args: argparse.Namespace, setting: Mapping[str, Any]) -> list[str]:
    """Returns the overrides that were given, and those of ``setting`` in place of or after them."""
    given = [token for token in args.overrides if not parse_overrides([token]).keys() & setting.keys()]
    return given + _tokens(setting)


def _tokens(setting: Mapping[str, Any]) -> list[str]:
    return [f"{key}={value}" for key, value in setting.items()]


def _heading(config: Config, present: Profile) -> list[str]:
    threads = "1 thread" if present.threads == 1 else f"{present.threads} threads"
    steps = "compiled steps" if present.compiled else "no compiled steps"
    return [
        f"{config.values.exp_name} on {present.device}: {present.backend}, {threads}, {steps}",
        f"Most of the time goes to: {words_for(present.largest()[0])}",
        "",
        f"{'setting':<{WIDTH}} {'steps/s':>9} {'best so far':>11} {'gain':>7}",
    ]


def _rows(trial: Trial) -> list[str]:
    """Returns a line for each key of a setting, and one for what compiling costs."""
    one, *more = _tokens(trial.setting)
    *first, last = one, *(f"  {key}" for key in more)
    if trial.gain is None:
        told = f"{'':>29} {trial.verdict}" + (f": {trial.reason}" if trial.reason else "")
    else:
        gain = f"{100 * trial.gain:>+5.0f} % \N{PLUS-MINUS SIGN} {100 * (trial.spread or 0):.0f}"
        told = f"{trial.speed:>9,.0f} {trial.present:>11,.0f} {gain:<12} {trial.verdict}"
    rows = [*first, f"{last:<{WIDTH}} {told}"]
    if trial.compilation is not None:
        cost = trial.compilation
        pays = f"pays after {cost.pays_after:,.0f} updates, and this run plans {cost.planned:,.0f}"
        told = "no gain is certain" if math.isinf(cost.pays_after) else pays
        rows.append(f"  compiling takes {cost.seconds:.1f} s: {told}")
    return rows


def _verdict(tuner: Tuner, tried: list[Trial], command: str) -> list[str]:
    lines = [""]
    if any(trial.verdict == "not tried" for trial in tried):
        lines.append("The time was up before all were tried: --minutes gives more.")
    if not tuner.best:
        if any(trial.verdict == "not clear" for trial in tried):
            return [*lines, "The machine's own speed moves too much to say; try more --minutes."]
        return [*lines, "Nothing that was tried makes it faster: leave it as it is."]
    return [*lines, f"{100 * (tuner.gain - 1):+.0f} % env steps/s with", f"  {command}"]


def _as_told(trial: Trial) -> dict[str, Any]:
    """Returns a trial for JSON, which has no infinity."""
    cost = trial.compilation
    told = None if cost is None else cost._asdict()
    if told and math.isinf(told["pays_after"]):
        told["pays_after"] = None
    return {**trial._asdict(), "compilation": told}
