"""``ding-lite sweep``: searches the values of config keys that give the highest score."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ding_lite.cli.options import (
    PATH,
    POSITIVE,
    Source,
    command,
    config_options,
    given,
    json_option,
    limit_options,
    open_pool,
    option,
    parallel_options,
    print_json,
    print_line,
    print_table,
    seeds_option,
)
from ding_lite.errors import ConfigError

if TYPE_CHECKING:
    from ding_lite.config.compile import Config

DEFAULT_TRIALS = 20
SHOWN = 10  # best trials in the table
SEARCH = 'Search, such as: --search "policy.learn.learning_rate=log(1e-5,1e-2)" --trials 50 -s 0,1,2'


@command(preload="ding_lite.tools.sweep")
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
@seeds_option(SEARCH, "seeds of each trial (default: those of the file, or the config's seed)")
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
@option("--worker", type=POSITIVE, hidden=True)  # for the processes that share the work
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
    worker: int | None,
    json: bool,
) -> int:
    """Searches the values of config keys that give the highest score.

    Uses Optuna: each trial trains one set of values with each seed, and its score is the mean of the seeds'
    last evaluations. Trials that stay behind at their evaluations are pruned. --jobs trials train at a time.
    The search space is given as --search, or in the config file beside `config`:

        sweep = dict(
            search={"policy.learn.learning_rate": "log(1e-5, 1e-2)", "policy.learn.batch_size": [64, 256]},
            trials=50,
            seeds=[0, 1],
        )

    uniform(a, b)   a number                     int(a, b)            a whole number
    log(a, b)       uniform in its logarithm     choice(a, b, ...)    one of the values

    The folder has the runs, Optuna's storage, best.py (the best config) and pictures. Ctrl-C ends the sweep
    after the current iterations. The same command with --resume continues it, also after it was killed.
    Needs Optuna: pip install "ding_lite[sweep]".
    """
    from ding_lite.config.compile import parse_overrides
    from ding_lite.run.folder import locked
    from ding_lite.run.signals import EXIT_CODES, StopSignals
    from ding_lite.tools.parallel import Job, exit_code_of
    from ding_lite.tools.sweep import Worker, begin, first_values, reopen, report, search_space

    limits = {"max_env_step": max_env_step, "max_train_iter": max_train_iter}

    def config_with(values: Mapping[str, Any]) -> Config:
        return source.read([f"{key}={value!r}" for key, value in values.items()]).replaced(**limits)

    config = config_with({})
    in_file = _sweep_of_file(source)
    trials = trials or in_file["trials"]
    all_seeds = list(seeds or in_file["seeds"] or [config.values.seed])
    space = search_space(dict(text.partition("=")[::2] for text in searches) or in_file["search"])
    if twice := sorted(space.keys() & parse_overrides(source.overrides).keys()):
        raise ConfigError(f"{twice[0]} is searched, and set on the command line: remove one of them")
    config_with(first_values(space))  # its keys exist
    folder = Path(exp_name or Path("runs") / f"{config.values.exp_name}_sweep")
    if worker is not None:
        Worker(folder, space, all_seeds, config_with, print_line).work(trials, worker)
        return 0
    searched = {"search": {key: str(of_key) for key, of_key in space.items()}, "seeds": all_seeds}
    begin(folder, {**searched, **config.as_json()}, resume=resume)
    words = ["sweep", *source.words(), *source.overrides, *(w for s in searches for w in ("--search", s))]
    words += given({"--max-env-step": max_env_step, "--max-train-iter": max_train_iter})
    words += ["--trials", str(trials), "-s", ",".join(map(str, all_seeds)), "--exp-name", str(folder)]

    def say(line: str) -> None:
        log.write(f"{line}\n")
        if not (quiet or json):
            print_line(line)

    pools = open_pool(config, jobs, ray, say)
    with locked(folder), (folder / "log.txt").open("a") as log, pools as pool, StopSignals(pool.stop):
        workers = range(1, min(pool.jobs, trials - reopen(folder)) + 1)
        outcomes = pool.run([Job("", [*words, "--worker", str(number)]) for number in workers])
    for outcome in outcomes:
        if outcome is not None and outcome.error:
            print(f"ding-lite sweep: {outcome.error}", file=sys.stderr)
    result = report(folder, space, all_seeds)
    if json:
        print_json(result)
    elif not quiet:
        _print(result)
        if pool.stopped_by:
            print("to continue: the same command with --resume")
    return EXIT_CODES.get(pool.stopped_by, 0) or (
        0 if result["best"] is not None else exit_code_of(outcomes) or 1
    )


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


def _print(result: dict[str, Any]) -> None:
    from ding_lite.run.display import score_text
    from ding_lite.tools.sweep import assignments

    trials = result["trials"]
    ranked = sorted((t for t in trials if t["score"] is not None), key=lambda t: -t["score"])
    rows = [[str(t["trial"]), score_text(t["score"]), assignments(t["values"])] for t in ranked[:SHOWN]]
    print_table(["trial", "score", "values"], rows, right=(0, 1))
    states = Counter(t["state"] for t in trials)
    print(f"{len(trials)} trials: {', '.join(f'{count} {state}' for state, count in states.items())}")
    if result["importances"]:
        shares = ", ".join(f"{key} {100 * share:.0f} %" for key, share in result["importances"].items())
        print(f"importance: {shares}" + (" (a rough guess: few trials)" if len(ranked) < 50 else ""))
    if result["best_config"]:
        print(f"best config: {result['best_config']}; train it with seeds that the sweep has not used")
