"""``ding-lite train``: trains a policy from a config, or resumes a run."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

from ding_lite.cli.options import (
    PATH,
    Source,
    command,
    config_options,
    given,
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

RUN = "Run, such as: -s 3 --exp-name /tmp/try"
START = "Start from saved weights, such as: --resume runs/cartpole_ppo --max-env-step 500000"


@dataclasses.dataclass(frozen=True)
class Request:
    """The options of the command, but for those of the config and of several runs."""

    seeds: tuple[int, ...]
    exp_name: str | None
    max_env_step: int | None
    max_train_iter: int | None
    resume: str | None
    override: bool
    init_from: str | None


@command(preload="ding_lite.run.pipeline")
@config_options
@seeds_option(RUN, "seed (default: the config's seed); several, such as 0,1,2, train one run each")
@option("--exp-name", type=PATH, metavar="DIR", group=RUN, help="the run's folder, which must not exist")
@option(
    *("-q", "--quiet"),
    is_flag=True,
    group=RUN,
    help="print nothing; log.txt in the run's folder has everything",
)
@option("-v", "--verbose", is_flag=True, group=RUN, help="show also how the library computes")
@limit_options
@option(
    "--resume", type=PATH, metavar="RUN|CKPT", group=START, help="continue a run, from its newest checkpoint"
)
@option(
    "--override",
    is_flag=True,
    group=START,
    help="with --resume: accept changes that the saved state does not fit, such as another number of "
    "environments; episodes then start anew",
)
@option(
    "--init-from",
    type=PATH,
    metavar="RUN|CKPT|FILE",
    group=START,
    help="a new run with the weights and normalisation statistics of a run's best checkpoint, of a "
    "checkpoint, or of a .pt or .safetensors file with a state dict",
)
@parallel_options
@option("--json", is_flag=True, help="with several seeds: print one JSON object and nothing else")
def run(
    source: Source,
    quiet: bool,
    verbose: bool,
    jobs: int | None,
    ray: str | None,
    json: bool,
    **options: Any,
) -> int:
    """Trains a policy, or resumes a run.

    Writes metrics, checkpoints and a log to a run folder: runs/EXP_NAME, where EXP_NAME is a key of the
    config. If that folder exists, the run is runs/EXP_NAME_2, and so on; --exp-name DIR refuses a
    folder that exists.

    A run ends after the first iteration that reaches its limit of steps (1,000,000 by default), or when
    an evaluation reaches env.stop_value and a second one confirms it. Ctrl-C ends it after the current
    iteration and saves it; a second Ctrl-C ends it at once. --resume continues a run that was ended in
    any way.

    With several seeds (-s 0,1,2) each one is a process with a run folder of its own: runs/EXP_NAME_s0,
    runs/EXP_NAME_s1, ... (--exp-name DIR and --resume DIR: DIR_s0, DIR_s1, ...). A seed that fails does
    not end the others.
    """
    request = Request(**options)
    if request.override and request.resume is None:
        raise ConfigError("--override needs --resume; a new run accepts any key.path=value")
    if request.resume and request.init_from:
        raise ConfigError("--resume and --init-from exclude each other: a resumed run has weights of its own")
    if len(request.seeds) > 1:
        return _train_seeds(source, request, quiet, jobs, ray, json)
    if json or jobs is not None or ray is not None:
        raise ConfigError("--jobs, --ray and --json are for several seeds, such as -s 0,1,2")
    return _train_one(source, _after_restart(request), quiet, verbose)


def _train_one(source: Source, request: Request, quiet: bool, verbose: bool) -> int:
    from ding_lite.config.compile import parse_overrides
    from ding_lite.run.display import display_for
    from ding_lite.run.pipeline import SerialPipeline
    from ding_lite.run.signals import EXIT_CODES

    numbers: dict[str, Any] = {
        "seed": request.seeds[0] if request.seeds else None,
        "max_env_step": request.max_env_step,
        "max_train_iter": request.max_train_iter,
    }
    display = None if quiet else display_for(sys.stdout, verbose)
    options: dict[str, Any] = {"display": display, "own_process": True}
    if request.resume is None:
        folder, weights = request.exp_name, request.init_from
        pipeline = SerialPipeline(source.read(), folder=folder, init_from=weights, **numbers, **options)
    elif request.exp_name:
        raise ConfigError("--exp-name is for a new run: a resumed run keeps its folder")
    else:
        changes = {key: number for key, number in numbers.items() if number is not None}
        # Beside --resume a config only says which modules the user trusts.
        options["trust"] = [*source.modules, *(source.read().trusted if source else ())]
        changes = parse_overrides(source.overrides) | changes
        pipeline = SerialPipeline.resume(
            request.resume, changes=changes, override=request.override, **options
        )
    try:
        for _ in pipeline:
            pass
    except KeyboardInterrupt:
        if pipeline.stop_reason not in EXIT_CODES:
            raise
    return EXIT_CODES.get(pipeline.stop_reason, 0) if pipeline.status == "interrupted" else 0


def _after_restart(request: Request) -> Request:
    """Returns the request for a resumed run if torchrun has started the ranks again (--max-restarts)."""
    from ding_lite.ranks import kept_before_restart, restarts
    from ding_lite.run.checkpoint import checkpoints_of
    from ding_lite.run.resume import folder_of

    if not restarts():
        return request
    if request.resume:  # not the checkpoint that it began with
        return dataclasses.replace(request, resume=str(folder_of(Path(request.resume))))
    folder = kept_before_restart()
    if folder is not None and checkpoints_of(Path(folder)):
        return dataclasses.replace(request, resume=folder, init_from=None)
    if folder is not None and request.exp_name:  # it failed before its first checkpoint
        return dataclasses.replace(request, exp_name=f"{request.exp_name}_restart{restarts()}")
    return request


def _train_seeds(
    source: Source,
    request: Request,
    quiet: bool,
    jobs: int | None,
    ray: str | None,
    json: bool,
) -> int:
    """Trains one run for each seed; returns the exit code of a signal, or of the first run that failed."""
    from ding_lite.ranks import number_of_processes
    from ding_lite.run.display import score_digits, score_text
    from ding_lite.run.signals import EXIT_CODES, StopSignals
    from ding_lite.tools.parallel import exit_code_of, seed_jobs, seeds_report

    if number_of_processes() > 1:
        raise ConfigError("torchrun trains one run with several processes: give it one seed")
    if any(token.startswith("seed=") for token in source.overrides):
        raise ConfigError("-s and seed= contradict each other: remove one of them")
    limits = {"max_env_step": request.max_env_step, "max_train_iter": request.max_train_iter}
    config = source.read().replaced(**limits)
    is_silent = quiet or json
    arguments = [*source.words(), *source.overrides, *(["--quiet"] if is_silent else [])]
    arguments += given({f"--{name.replace('_', '-')}": limit for name, limit in limits.items()})
    arguments += given({"--init-from": request.init_from})
    prefix = Path(request.resume or request.exp_name or Path("runs") / config.values.exp_name)
    resume = request.resume is not None
    to_do = seed_jobs(request.seeds, prefix, arguments, resume=resume, override=request.override)
    pools = open_pool(config, jobs, ray, (lambda line: None) if is_silent else print_line)
    with pools as pool, StopSignals(pool.stop):
        outcomes = pool.run(list(to_do.values()))
    report = seeds_report(list(to_do), outcomes)
    for run in report["runs"]:
        if run["error"]:
            print(f"ding-lite train: seed {run['seed']} failed: {run['error']}", file=sys.stderr)
    if json:
        print_json(report)
    elif not quiet:
        rows = [
            [str(run["seed"]), run["status"], score_text(run["score"]), f"{run['env_step']:,}"]
            + ["-" if run["wall_time_s"] is None else f"{run['wall_time_s']:,.1f}", run["folder"]]
            for run in report["runs"]
        ]
        print_table(["seed", "status", "score", "env steps", "seconds", "folder"], rows, right=range(5))
        line = f"mean {score_text(report['mean'])} over {report['n']} of {len(rows)} seeds"
        if edges := report["interval"]:
            digits = score_digits(*edges)
            line += f", 95 % bootstrap interval [{edges[0]:.{digits}f}, {edges[1]:.{digits}f}]"
        print(line)
        if pool.stopped_by:
            print(f"to continue: the same command with --resume {prefix}")
    return EXIT_CODES.get(pool.stopped_by, 0) or exit_code_of(outcomes)
