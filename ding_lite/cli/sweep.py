"""``ding-lite sweep``: searches the values of config keys that give the highest score."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ding_lite.cli.options import (
    PATH,
    POSITIVE,
    Seeds,
    Source,
    command,
    config_options,
    given,
    json_option,
    limit_options,
    open_crew,
    option,
    parallel_options,
    print_json,
)
from ding_lite.errors import ConfigError

if TYPE_CHECKING:
    from ding_lite.config.compile import Config
    from ding_lite.tools.sweep import Sweep

DEFAULT_TRIALS = 20
SEARCH = 'Search, such as: --search "policy.learn.learning_rate=log(1e-5,1e-2)" --trials 50 -s 0,1,2'


@command(preload="ding_lite.tools.sweep_report")
@config_options
@option(
    "--search",
    "searches",
    multiple=True,
    metavar="KEY=VALUES",
    group=SEARCH,
    help="a key and its values; may be repeated",
)
@option(
    "--trials",
    type=POSITIVE,
    metavar="N",
    group=SEARCH,
    help=f"number of trials, with those before --resume (default: that of the file, or {DEFAULT_TRIALS})",
)
@option(
    *("-s", "--seed", "seeds"),
    type=Seeds(),
    default=(),
    metavar="SEED,...",
    group=SEARCH,
    help="seeds of each trial (default: those of the file, or the config's seed)",
)
@option(
    "--exp-name",
    type=PATH,
    metavar="DIR",
    group=SEARCH,
    help="the sweep's folder, as a path (default: runs/EXP_NAME_sweep)",
)
@option("--resume", is_flag=True, group=SEARCH, help="continue the sweep in its folder")
@option(*("-q", "--quiet"), is_flag=True, help="print nothing but errors")
@limit_options
@parallel_options
@json_option
def run(
    source: Source,
    searches: tuple[str, ...],
    trials: int | None,
    seeds: tuple[int, ...],
    exp_name: str | None,
    resume: bool,
    quiet: bool,
    max_env_step: int | None,
    max_train_iter: int | None,
    jobs: int | None,
    ray: str | None,
    json: bool,
) -> int:
    """Searches the values of config keys that give the highest score.

    Uses Optuna: each trial trains one set of values with each seed, and its score is the mean of the seeds'
    last evaluations. Trials that stay behind at their evaluations are pruned. The search space is given as
    --search, or in the config file beside `config`:

        sweep = dict(
            search={"policy.learn.learning_rate": "log(1e-5, 1e-2)", "policy.learn.batch_size": [64, 256]},
            trials=50,
            seeds=[0, 1],
        )

    uniform(a, b)   a number                     int(a, b)            a whole number
    log(a, b)       uniform in its logarithm     choice(a, b, ...)    one of the values

    The folder has the runs, Optuna's storage (sweep.db), best.py (the best config) and sweep.png. Ctrl-C
    ends the sweep after the current iterations. The same command with --resume continues it, also after it
    was killed. Needs Optuna: pip install "ding_lite[sweep]".
    """
    from ding_lite.config.compile import parse_overrides
    from ding_lite.run.signals import EXIT_CODES, StopSignals
    from ding_lite.tools.search import check_space, parse_searches, search_space
    from ding_lite.tools.sweep import Sweep

    limits = {"max_env_step": max_env_step, "max_train_iter": max_train_iter}

    def config_with(values: Mapping[str, Any]) -> Config:
        return source.read([f"{key}={value!r}" for key, value in values.items()]).replaced(**limits)

    config = config_with({})
    in_file = _sweep_of_file(source)
    trials = trials or in_file["trials"]
    all_seeds = list(seeds or in_file["seeds"] or [config.values.seed])
    overrides = parse_overrides(source.overrides)
    space = search_space(parse_searches(searches) or in_file["search"])
    twice = sorted(({*space} | ({"seed"} if seeds or in_file["seeds"] else set())) & overrides.keys())
    if twice:
        raise ConfigError(f"{twice[0]} is set on the command line, and by the search or its seeds")
    check_space(space, config_with)
    folder = Path(exp_name or Path("runs") / f"{config.values.exp_name}_sweep")
    arguments = ["train", "--quiet", *source.words(), *source.overrides]
    arguments += given({"--max-env-step": max_env_step, "--max-train-iter": max_train_iter})
    with (
        open_crew(config, trials * len(all_seeds), jobs, ray, quiet or json) as crew,
        contextlib.closing(Sweep(folder, config, space, all_seeds, arguments, crew, resume=resume)) as sweep,
        StopSignals(crew.request_stop),
    ):
        sweep.run(trials)
    _report(sweep, quiet, json)
    if crew.stopped_by and not (quiet or json):
        print("to continue: the same command with --resume")
    return EXIT_CODES.get(crew.stopped_by, 0) or (0 if sweep.best() is not None else crew.exit_code)


def _sweep_of_file(source: Source) -> dict[str, Any]:
    """Returns search, trials and seeds of the dict ``sweep`` in the config file, or the defaults."""
    from ding_lite.config.compile import find_config, read_sweep
    from ding_lite.config.schema import Key, check

    schema = {
        "search": Key({}),
        "trials": Key(DEFAULT_TRIALS, low=1),
        "seeds": Key([], list[int], low=0),
    }
    in_file = read_sweep(find_config(source.config)) if source.config else {}
    values, faults = check(in_file, schema, "sweep")
    seeds = values.get("seeds", [])
    if len(set(seeds)) < len(seeds):
        faults.append("sweep.seeds: expected different numbers")
    if faults:
        raise ConfigError("\n  ".join(["the sweep has a fault:", *faults]))
    return {name: key.default for name, key in schema.items()} | values


def _report(sweep: Sweep, quiet: bool, json: bool) -> None:
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
    if json:
        print_json(sweep_report(sweep, best))
    elif not quiet:
        print(sweep_table(sweep))
        if best is not None:
            print(f"history and importance: {picture}")
            command = best_command(sweep, imports_of_best(sweep))
            print(f"best config: {best}, to train with unused seeds   try: {command}")
        elif sweep.best() is not None:
            print("there is no best.py: the run folder of the best trial was removed")
