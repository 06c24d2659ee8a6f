"""``ding-lite sweep``: searches the values of config keys that give the highest score."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from ding_lite.cli import options
from ding_lite.errors import ConfigError, counted, require

SHOWN = 10  # best trials in the table


@options.command()
@options.config_options
@options.option("--search KEY=VALUES", "a key and its values; may be repeated", multiple=True)
@options.option(
    "--trials N", "number of trials, with those before --resume (default: 20)", options.POSITIVE, default=20
)
@options.seeds_option("seeds of each trial (default: the config's seed)")
@options.option("--exp-name DIR", "the sweep's folder (default: runs/EXP_NAME_sweep)", options.PATH)
@options.option("--resume", "continue the sweep in its folder")
@options.jobs_option
@options.ray_option
@options.option("--worker N", "a process of a sweep", options.POSITIVE, hidden=True)
@options.json_option
def run(
    source: options.Source,
    search: tuple[str, ...],
    trials: int,
    seeds: tuple[int, ...],
    exp_name: Path | None,
    resume: bool,
    jobs: int | None,
    ray: str | None,
    worker: int | None,
    json: bool,
) -> int:
    """Searches the values of config keys that give the highest score.

    Uses Optuna: each trial trains one set of values with each seed, and its score is the mean of the seeds'
    last evaluations. Trials that stay behind at their evaluations are pruned. --jobs trials train at a time.
    The values of a key are one of:

    uniform(a, b)   a number                     int(a, b)            a whole number
    log(a, b)       uniform in its logarithm     choice(a, b, ...)    one of the values

    The folder has the runs, Optuna's storage and best.py, the best config. Ctrl-C ends the sweep after the
    current iterations. The same command with --resume continues it, also after it was killed.
    Needs Optuna: pip install "ding_lite[sweep]".

    ding-lite sweep -c cartpole_ppo --search "policy.learn.learning_rate=log(1e-5,1e-2)" --trials 50
    """
    require("optuna", "a sweep", "sweep")
    from ding_lite.config.compile import parse_overrides
    from ding_lite.run.display import Display, score_text
    from ding_lite.run.folder import locked
    from ding_lite.run.signals import EXIT_CODES, stop_signals
    from ding_lite.tools.parallel import Job, exit_code_of
    from ding_lite.tools.sweep import Worker, assignments, begin, first_values, reopen, report, search_space

    config, shown = source.read(), Display(sys.stdout)
    seeds = seeds or (config.values.seed,)
    space = search_space(search)
    if twice := sorted(space.keys() & parse_overrides(source.overrides).keys()):
        raise ConfigError(f"{twice[0]} has a value and a --search: type one")
    source.read(first_values(space))  # refuses unknown keys
    folder = exp_name or Path("runs") / f"{config.values.exp_name}_sweep"
    if worker is not None:
        Worker(folder, space, seeds, source.read, shown.write).work(trials, worker)
        return 0
    searched = {"search": {key: str(values) for key, values in space.items()}, "seeds": seeds}
    begin(folder, {**searched, **config.as_json()}, resume=resume)

    def say(line: str) -> None:
        log.write(f"{line}\n")
        if not json:
            shown.write(line)

    pools = options.open_pool(config, jobs, ray, say)
    with locked(folder), (folder / "log.txt").open("a") as log, pools as pool, stop_signals(pool.stop):
        for note in config.notes:
            say(note)
        workers = range(1, min(pool.jobs, trials - reopen(folder)) + 1)
        in_worker = {"jobs": None, "ray": None, "json": None}
        outcomes = pool.run([Job("", options.words_with(worker=number, **in_worker)) for number in workers])
    for number, outcome in zip(workers, outcomes, strict=True):
        if outcome.error:
            print(f"ding-lite sweep: worker {number}: {outcome.error}", file=sys.stderr)
    result = report(folder, seeds)
    left = [f"trial {trial['trial']}" for trial in result["trials"] if trial["state"] == "open"]
    if left and not pool.stopped_by:
        print(f"ding-lite sweep: {', '.join(left)} did not end", file=sys.stderr)
    failed = exit_code_of(outcomes) or int(bool(left) or result["best"] is None)
    code = EXIT_CODES.get(pool.stopped_by, failed)
    if json:
        options.print_json(result)
        return code
    tried = result["trials"]
    ranked = sorted((t for t in tried if t["score"] is not None), key=lambda t: -t["score"])
    rows = [[str(t["trial"]), score_text(t["score"]), assignments(t["values"])] for t in ranked[:SHOWN]]
    options.print_table(["trial", "score", "values"], rows, right=(0, 1))
    states = [f"{count} {state}" for state, count in Counter(t["state"] for t in tried).items()]
    print(f"{counted(len(tried), 'trial')}: {', '.join(states)}")
    if result["best_config"]:
        print(f"best config: {result['best_config']}; train it with seeds that the sweep has not used")
    if left or pool.stopped_by:
        print("to continue: the same command with --resume")
    return code
