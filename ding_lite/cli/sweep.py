"""``ding-lite sweep``: searches the values of config keys that give the highest score."""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ding_lite.cli.common import (
    Once,
    add_config_options,
    add_json,
    add_limits,
    add_parallel,
    add_seeds,
    config_of,
    open_crew,
    path_text,
    positive_number,
    run_options,
    seeds_of,
)
from ding_lite.cli.process import stdout_to_stderr
from ding_lite.errors import ConfigError
from ding_lite.run.signals import EXIT_CODES, StopSignals

if TYPE_CHECKING:
    from ding_lite.config.compile import Config
    from ding_lite.tools.sweep import Sweep

SUMMARY = "search the values of config keys that give the highest score"
DESCRIPTION = """\
Searches values of config keys with Optuna: each trial trains one set of values with each seed, and
its score is the mean of the seeds' last evaluations. Trials that stay behind at their evaluations
are pruned. The search space is given as --search, or in the config file beside `config`:

  sweep = dict(
      search={"policy.learn.learning_rate": "log(1e-5, 1e-2)", "policy.learn.batch_size": [64, 256]},
      trials=50,
      seeds=[0, 1],
  )

  uniform(a, b)   a number                     int(a, b)            a whole number
  log(a, b)       uniform in its logarithm     choice(a, b, ...)    one of the values

The folder has the runs, Optuna's storage (sweep.db), best.py (the best config) and sweep.png.
Ctrl-C ends the sweep after the current iterations. The same command with --resume continues it,
also after it was killed. Needs Optuna: pip install "ding_lite[sweep]".
"""
EXAMPLES = """\
examples:
  ding-lite sweep -c my.py                            the search space is in the file
  ding-lite sweep -c cartpole_ppo --search "policy.learn.learning_rate=log(1e-5,1e-2)" --trials 20
  ding-lite sweep -c my.py -s 0 1 2 --jobs 6          three seeds a trial, six runs at a time
  ding-lite sweep -c my.py --resume                   continue
  ding-lite train -c runs/my_sweep/best.py -s 3 4 5   train the best config with other seeds
"""
PRELOAD = ("ding_lite.tools.sweep_report",)  # reports a missing package before the search
DEFAULT_TRIALS = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``ding-lite sweep``."""
    add_config_options(parser)
    sweep = parser.add_argument_group("sweep")
    sweep.add_argument(
        "--search",
        action="append",
        default=[],
        metavar="KEY=VALUES",
        help="a key and its values, such as 'policy.learn.learning_rate=log(1e-5,1e-2)'; may be repeated",
    )
    sweep.add_argument(
        "--trials",
        type=positive_number,
        metavar="N",
        help=f"number of trials, with those before --resume (default: that of the file, or {DEFAULT_TRIALS})",
    )
    add_seeds(sweep, "seeds of each trial (default: those of the file, or the config's seed)")
    sweep.add_argument(
        "--exp-name",
        action=Once,
        type=path_text,
        metavar="DIR",
        help="the sweep's folder, as a path (default: runs/EXP_NAME_sweep)",
    )
    add_limits(sweep)
    sweep.add_argument("--resume", action="store_true", help="continue the sweep in its folder")
    sweep.add_argument("-q", "--quiet", action="store_true", help="print nothing but errors")
    add_parallel(parser)
    add_json(parser)


def _refuse_misplaced(args: argparse.Namespace) -> None:
    """Refuses what is no override: a folder, since the search space is not in it, and a search."""
    from ding_lite.tools.search import KINDS

    for token in args.overrides:
        if re.search(rf"=\s*({'|'.join(KINDS)})\(", token):
            raise ConfigError(f"{token}: each key that is searched needs its own --search")
    if args.resume and (folders := [token for token in args.overrides if Path(token).is_dir()]):
        raise ConfigError(
            f"--resume takes no folder, got {folders[0]}: type the command that began the sweep, with "
            "--resume added (--exp-name names its folder, unless it is the default)"
        )


def run(args: argparse.Namespace) -> int:
    """Searches and prints the best trials; returns 0 if a trial has a score, or a signal's exit code."""
    from ding_lite.tools.sweep import Sweep

    _refuse_misplaced(args)
    config = _config(args, {})
    options = _options(args)
    trials, seeds = options["trials"], options["seeds"] or [config.values.seed]
    space = _space(args, options["search"])
    folder = Path(args.exp_name or Path("runs") / f"{config.values.exp_name}_sweep")
    arguments = ["train", "--quiet", *run_options(args)]
    with (
        open_crew(args, config, trials * len(seeds)) as crew,
        contextlib.closing(Sweep(folder, config, space, seeds, arguments, crew, resume=args.resume)) as sweep,
        StopSignals(crew.request_stop),
    ):
        sweep.run(trials)
    args.stopped_by = crew.stopped_by
    _report(args, sweep)
    code = 0 if sweep.best() is not None else crew.exit_code
    return EXIT_CODES.get(crew.stopped_by, 0) or code


def _config(args: argparse.Namespace, values: Mapping[str, Any]) -> Config:
    """Returns the complete config of the command line, with values of a trial."""
    config = config_of(args, [f"{key}={value!r}" for key, value in values.items()])
    return config.replaced(max_env_step=args.max_env_step, max_train_iter=args.max_train_iter)


def _options(args: argparse.Namespace) -> dict[str, Any]:
    """Returns search, trials and seeds of the command line, or else of the dict ``sweep`` in the file."""
    from ding_lite.config.compile import find_config, read_sweep
    from ding_lite.config.schema import Key, check
    from ding_lite.tools.search import parse_searches

    schema = {
        "search": Key({}),
        "trials": Key(DEFAULT_TRIALS, low=1),
        "seeds": Key([], list[int], low=0),
    }
    with stdout_to_stderr(args.json):
        in_file = read_sweep(find_config(args.config)) if args.config else {}
    values, faults = check(in_file, schema, "sweep")
    if faults:
        raise ConfigError("\n  ".join(["the sweep has a fault:", *faults]))
    args.seeds = args.seeds or values.get("seeds")
    if args.seeds and any(token.startswith("seed=") for token in args.overrides):
        raise ConfigError("the seeds of each trial and seed= contradict each other: remove one of them")
    given = {"search": parse_searches(args.search), "trials": args.trials, "seeds": seeds_of(args)}
    defaults = {name: key.default for name, key in schema.items()}
    return defaults | values | {name: value for name, value in given.items() if value}


def _space(args: argparse.Namespace, searches: Mapping[str, Any]) -> Any:
    """Returns the search space, after checking that the config accepts it."""
    from ding_lite.config.compile import parse_overrides
    from ding_lite.tools.search import check_space, search_space

    space = search_space(searches)
    twice = sorted(space.keys() & parse_overrides(args.overrides).keys())
    if twice:
        raise ConfigError(f"{twice[0]} is searched, and set on the command line: remove one of them")
    check_space(space, lambda values: _config(args, values))
    return space


def _report(args: argparse.Namespace, sweep: Sweep) -> None:
    """Writes best.py and sweep.png, and prints the result."""
    from ding_lite.tools.sweep_report import (
        best_command,
        draw_sweep,
        imports_of_best,
        sweep_report,
        sweep_table,
        write_best,
    )

    best = write_best(sweep)
    picture = draw_sweep(sweep)
    if args.json:
        print(json.dumps(sweep_report(sweep, best)))
    elif not args.quiet:
        print(sweep_table(sweep))
        if best is not None:
            print(f"history and importance: {picture}")
            command = best_command(sweep, imports_of_best(sweep))
            print(f"best config: {best}, to train with unused seeds   try: {command}")
        elif sweep.best() is not None:
            print("there is no best.py: the run folder of the best trial was removed")
        if args.stopped_by:
            typed = [word for word in args.typed if word != "--resume"]
            print(f"to continue   try: {shlex.join(['ding-lite', *typed, '--resume'])}")
