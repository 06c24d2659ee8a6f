"""``ding-lite train``: trains a policy from a config, or resumes a run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ding_lite.cli import options
from ding_lite.errors import ConfigError

AUTO = Path("auto")  # for --resume


@options.command()
@options.config_options
@options.seeds_option("seed (default: the config's seed); several, such as 0,1,2, train one run each")
@options.option("--exp-name DIR", "the run's folder; new, except with --resume auto", options.PATH)
@options.option("-q --quiet", "print nothing; log.txt in the run's folder has everything")
@options.option(
    "--max-env-step N",
    "stop after N steps of the environments. The schedules of learning rate, clip range and entropy "
    "keep their length; the key max_env_step=N changes both",
    options.POSITIVE,
)
@options.option("--max-train-iter N", "stop after N optimiser steps", options.POSITIVE)
@options.option(
    "--resume RUN|CKPT",
    "continue a run from its newest checkpoint; auto: the run at --exp-name, or begin it if it has none",
    options.PATH,
)
@options.option(
    "--override",
    "with --resume: accept changes that the saved state does not fit, such as another number of "
    "environments; new episodes begin",
)
@options.option(
    "--init-from RUN|CKPT|FILE",
    "a new run with the weights and normalisation statistics of a run's best checkpoint, of a "
    "checkpoint, or of a .pt or .safetensors file with a state dict",
    options.PATH,
)
@options.jobs_option
@options.ray_option
@options.option("--json", "with several seeds: print one JSON object and nothing else")
def run(
    source: options.Source,
    seeds: tuple[int, ...],
    exp_name: Path | None,
    quiet: bool,
    max_env_step: int | None,
    max_train_iter: int | None,
    resume: Path | None,
    override: bool,
    init_from: Path | None,
    jobs: int | None,
    ray: str | None,
    json: bool,
) -> int:
    """Trains a policy, or resumes a run.

    Writes metrics, checkpoints and a log to a run folder: runs/EXP_NAME, where EXP_NAME is a key of the
    config. If that folder exists, the run is runs/EXP_NAME_2, and so on; --exp-name DIR refuses a
    folder that exists, unless its run ended before its first checkpoint. With --resume auto the run of
    --exp-name DIR goes on from its newest checkpoint, or begins.

    A run ends after the first iteration that reaches its limit of steps (1,000,000 by default), or when
    an evaluation reaches env.stop_value and a second one confirms it. Ctrl-C ends it after the current
    iteration and saves it; a second Ctrl-C ends it at once. --resume continues a run that was ended in
    any way.

    --env ID begins with the shipped config of this task, or else with settings for its kind of
    observations, and the first line says which; keys of the command line replace them, and of a key that
    is typed twice the last value counts. `ding-lite config` with --env, --policy, the same keys and
    -o FILE writes them to a file; --plain uses only the defaults of the keys.

    With several seeds (-s 0,1,2) each one is a process with a run folder of its own: runs/EXP_NAME_s0,
    runs/EXP_NAME_s1, ... (--exp-name DIR and --resume DIR: DIR_s0, DIR_s1, ...). A seed that fails does
    not end the others.

    ding-lite train -c cartpole_ppo env.collector_env_num=16 -s 0,1,2 --jobs 2
    ding-lite train --env Pendulum-v1 --policy ppg --max-env-step 1e6
    ding-lite train --resume runs/cartpole_ppo --max-env-step 500000
    ding-lite train -c cartpole_ppo --exp-name runs/mine --resume auto
    """
    from ding_lite.config.compile import LENGTH, differences, parse_overrides
    from ding_lite.ranks import kept_before_restart, restarts
    from ding_lite.run.checkpoint import checkpoints_of
    from ding_lite.run.display import Display, display_for
    from ding_lite.run.folder import is_replaceable
    from ding_lite.run.pipeline import SerialPipeline
    from ding_lite.run.resources import keep_freed_memory
    from ding_lite.run.resume import folder_of
    from ding_lite.run.signals import EXIT_CODES, stop_signals
    from ding_lite.tools.parallel import Job, exit_code_of, seeds_report

    if override and resume is None:
        raise ConfigError("--override is for --resume")
    if resume == AUTO and exp_name is None:
        raise ConfigError("--resume auto continues the run of --exp-name DIR: name its folder")
    if resume not in (None, AUTO) and (exp_name or init_from):
        raise ConfigError("--resume RUN excludes --exp-name and --init-from: the run has both")
    if resume and not source and (source.policy or source.plain):
        raise ConfigError("--resume goes on with the run's config: --policy and --plain are for --env ID")
    if len(seeds) > 1:  # each one is a process of this command
        config = source.read()
        prefix = exp_name or resume or Path("runs", config.values.exp_name)
        folders = {seed: prefix.with_name(f"{prefix.name}_s{seed}") for seed in seeds}
        taken = [str(path) for path in folders.values() if path.exists() and not is_replaceable(path)]
        if taken and resume is None:
            raise ConfigError(f"these runs exist: {', '.join(taken)}; choose another --exp-name, or --resume")
        if not taken and resume not in (None, AUTO):
            raise ConfigError(f"--resume: none of these runs exists: {', '.join(map(str, folders.values()))}")
        child: Any = dict(resume=resume and AUTO, jobs=None, ray=None, json=None, quiet=quiet or json)
        child["overrides"] = tuple(word for word in source.overrides if not word.startswith("exp_name="))
        to_do = [
            Job(f"seed {seed}", options.words_with(seeds=seed, exp_name=folder, **child))
            for seed, folder in folders.items()
        ]
        say = (lambda line: None) if quiet or json else Display(sys.stdout).write
        if begins := [str(path) for path in folders.values() if resume and not path.exists()]:
            say(f"new runs, since they do not exist: {', '.join(begins)}")
        with options.open_pool(config, jobs, ray, say) as pool, stop_signals(pool.stop):
            outcomes = pool.run(to_do)
        report = seeds_report(folders, outcomes)
        for run in report["runs"]:
            if run["error"]:
                print(f"ding-lite train: seed {run['seed']} failed: {run['error']}", file=sys.stderr)
        if json:
            options.print_json(report)
        elif not quiet:
            _print_seeds(report)
            if pool.stopped_by:
                print(f"to continue: the same command with --resume {AUTO if exp_name else prefix}")
        return EXIT_CODES.get(pool.stopped_by, 0) or exit_code_of(outcomes)
    if json or jobs is not None or ray is not None:
        raise ConfigError("--jobs, --ray and --json are for several seeds, such as -s 0,1,2")
    if resume == AUTO:
        resume = exp_name if exp_name and checkpoints_of(exp_name) else None
    if restarts():  # by torchrun --max-restarts: from the newest checkpoint, not from the first one
        folder = folder_of(resume) if resume else kept_before_restart()
        if folder and checkpoints_of(Path(folder)):
            resume = Path(folder)
    seed = seeds[0] if seeds else None
    arguments: dict[str, Any] = {"display": None if quiet else display_for(sys.stdout)}
    arguments |= {"max_env_step": max_env_step, "max_train_iter": max_train_iter}
    keep_freed_memory()
    if resume is None:
        pipeline = SerialPipeline(source.read(), folder=exp_name, init_from=init_from, seed=seed, **arguments)
    else:
        # Of a config beside --resume only the modules count, which the user trusts.
        beside = source.read() if source else None
        trust = beside.trusted if beside else options.import_modules(source.imports)
        named = {"seed": seed, "init_from": init_from and str(init_from)}
        changes = parse_overrides(source.overrides) | {key: x for key, x in named.items() if x is not None}
        pipeline = SerialPipeline.resume(resume, changes=changes, override=override, trust=trust, **arguments)
        if beside:  # such as a file that was edited
            other = {path for path, *_ in differences(pipeline.config.values, beside.values)}
            typed = {**named, "max_env_step": max_env_step, "max_train_iter": max_train_iter}
            other -= {"exp_name", *(key for key, x in typed.items() if x is not None)}
            if beside.source.get(LENGTH) == "max_env_step":
                other.discard(LENGTH)
            if other:
                pipeline.say(
                    f"WARNING: the run has its saved config. {source.config or source.env} differs in "
                    f"{', '.join(sorted(other))}, and is not used; key.path=value changes a key"
                )
    try:
        for _ in pipeline:
            pass
    except KeyboardInterrupt:
        if pipeline.stop_reason not in EXIT_CODES:
            raise
    # A second Ctrl-C while the run was being saved has made it "failed".
    has_stopped = pipeline.status in ("interrupted", "failed")
    return EXIT_CODES.get(pipeline.stop_reason, 0) if has_stopped else 0


def _print_seeds(report: dict[str, Any]) -> None:
    from ding_lite.run.display import score_text

    rows = [
        [str(run["seed"]), run["status"], score_text(run["score"]), f"{run['env_step']:,}"]
        + ["-" if run["wall_time_s"] is None else f"{run['wall_time_s']:,.1f}", run["folder"]]
        for run in report["runs"]
    ]
    options.print_table(["seed", "status", "score", "env steps", "seconds", "folder"], rows, right=range(5))
    line = f"mean {score_text(report['mean'])} over {report['n']} of {len(rows)} seeds"
    if edges := report["interval"]:
        line += f", 95 % bootstrap interval [{', '.join(map(score_text, edges))}]"
    print(line)
