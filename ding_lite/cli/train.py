"""``ding-lite train``: trains a policy from a config, or resumes a run."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ding_lite.cli.common import (
    Once,
    add_config_options,
    add_limits,
    add_parallel,
    add_seeds,
    config_of,
    open_crew,
    overrides_of,
    parallel_options,
    path_text,
    run_options,
    seeds_of,
)
from ding_lite.cli.process import warnings_as_lines
from ding_lite.errors import ConfigError

if TYPE_CHECKING:
    from ding_lite.run.hooks import Hook
    from ding_lite.run.pipeline import SerialPipeline

SUMMARY = "train a policy, or resume a run"
DESCRIPTION = """\
Trains a policy, and writes metrics, checkpoints and a log to a run folder:
runs/EXP_NAME, where EXP_NAME is a key of the config. If that folder exists, the run is
runs/EXP_NAME_2, and so on; --exp-name DIR refuses a folder that exists.

A run ends after the first iteration that reaches max_env_step steps of the environments
(1,000,000 by default), or when an evaluation reaches env.stop_value and a second one confirms
it. Ctrl-C ends it after the current iteration and saves it; a second Ctrl-C ends it at once.
--resume continues a run that was ended in any way.

With several seeds (-s 0 1 2 3) each one is a process with a run folder of its own:
runs/EXP_NAME_s0, runs/EXP_NAME_s1, ... (--exp-name DIR: DIR_s0, DIR_s1, ...). A seed that fails
does not end the others. --resume continues all that are not finished.
"""
EXAMPLES = """\
examples:
  ding-lite train -c cartpole_ppo                         a shipped config
  ding-lite train -c my.py -s 3 policy.learn.batch_size=128
                                                          a file, seed 3, another minibatch size
  ding-lite train --env Pendulum-v1 --policy ppg          no config file
  ding-lite train -c cartpole_ppo --exp-name /tmp/try     another run folder
  ding-lite train -c cartpole_ppo -s 0 1 2 3              four seeds, and their mean
  ding-lite train --resume runs/cartpole_ppo              continue a run
  ding-lite train --resume runs/cartpole_ppo --max-env-step 500000
                                                          continue a finished run up to 500,000 steps
  ding-lite train -c my.py --init-from runs/cartpole_ppo  a new run, with the weights of another one
"""
PRELOAD = ("ding_lite.run.pipeline",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``ding-lite train``."""
    add_config_options(parser)
    run = parser.add_argument_group("run")
    add_seeds(
        run, "seed of the run (default: the config's seed); several, such as -s 0 1 2 3, train one run each"
    )
    run.add_argument(
        "--exp-name",
        action=Once,
        type=path_text,
        metavar="DIR",
        help="the run's folder, as a path; a new run needs a folder that does not exist. With several seeds, "
        "the beginning of their folders: DIR_s0, DIR_s1, ...",
    )
    add_limits(run)
    run.add_argument(
        "-q", "--quiet", action="store_true", help="print nothing; log.txt in the run's folder has everything"
    )
    add_parallel(parser)
    parser.add_argument(
        "--json", action="store_true", help="with several seeds: print one JSON object and nothing else"
    )
    start = parser.add_argument_group("starting from saved weights")
    start.add_argument(
        "--resume",
        action=Once,
        type=path_text,
        nargs="?",
        const=False,  # given without a value; None: not given
        metavar="RUN|CKPT",
        help="continue a run from its newest intact checkpoint, or from the given checkpoint; without a "
        "value, the run of --exp-name or of the config. With several seeds, the beginning of their "
        "folders, as for --exp-name",
    )
    start.add_argument(
        "--override",
        action="store_true",
        help="with --resume: accept changes that the saved state does not fit, such as another number of "
        "environments; episodes then start anew",
    )
    start.add_argument(
        "--init-from",
        action=Once,
        type=path_text,
        metavar="RUN|CKPT",
        help="start a new run with the weights and the normalisation statistics of a run's best checkpoint, "
        "or of the given checkpoint",
    )


def run(args: argparse.Namespace) -> int:
    """Trains; returns 0, or the exit code of the signal that ended the run."""
    if args.resume is None and args.override:
        raise ConfigError("--override needs --resume; a new run accepts any key.path=value")
    seeds = seeds_of(args)
    if len(seeds) > 1:
        return _train_seeds(args, seeds)
    for option in ("jobs", "ray", "json"):
        if getattr(args, option) not in (None, False):
            raise ConfigError(f"--{option} is for several seeds, such as -s 0 1 2 3")
    args.seed = seeds[0] if seeds else None
    return _train_one(args)


def _train_one(args: argparse.Namespace) -> int:
    from ding_lite.run.display import display_for
    from ding_lite.run.signals import EXIT_CODES

    _continue_after_restart(args)
    display = None if args.quiet else display_for(sys.stdout)
    pipeline = _new_run(args, display) if args.resume is None else _resumed_run(args, display)
    with warnings_as_lines(pipeline.log):
        try:
            for _ in pipeline:
                pass
        except (KeyboardInterrupt, SystemExit):
            if pipeline.stop_reason not in EXIT_CODES:
                raise
    return EXIT_CODES.get(pipeline.stop_reason, 0) if pipeline.status == "interrupted" else 0


def _continue_after_restart(args: argparse.Namespace) -> None:
    """Makes this a resumed run if torchrun has started the ranks again after a failure (--max-restarts)."""
    from ding_lite.ranks import kept_before_restart, restarts
    from ding_lite.run.checkpoint import checkpoints_of
    from ding_lite.run.resume import folder_of

    if not restarts():
        return
    if args.resume:
        args.resume = str(folder_of(Path(args.resume)))  # not the checkpoint that it began with
    elif args.resume is None and (folder := kept_before_restart()) is not None:
        if checkpoints_of(Path(folder)):
            args.resume, args.init_from = folder, None
        elif args.exp_name:  # the folder of a run that failed before its first checkpoint
            args.exp_name = f"{args.exp_name}_restart{restarts()}"


def _new_run(args: argparse.Namespace, display: Hook | None) -> SerialPipeline:
    from ding_lite.run.pipeline import SerialPipeline

    return SerialPipeline(
        config_of(args),
        seed=args.seed,
        max_env_step=args.max_env_step,
        max_train_iter=args.max_train_iter,
        folder=args.exp_name,
        init_from=args.init_from,
        display=display,
        own_process=True,
    )


def _resumed_run(args: argparse.Namespace, display: Hook | None) -> SerialPipeline:
    from ding_lite.run.pipeline import SerialPipeline

    _refuse_init_from(args)
    if not args.resume:
        raise ConfigError("--resume: name the folder of the run")
    if args.exp_name:
        raise ConfigError("--exp-name is for a new run: a resumed run keeps its folder")
    # Beside --resume a config only says which modules the user trusts.
    modules = config_of(args).trusted if args.config or args.env else []
    changes = overrides_of(args, args.overrides)
    limits = {name: getattr(args, name) for name in ("seed", "max_env_step", "max_train_iter")}
    changes |= {name: value for name, value in limits.items() if value is not None}
    return SerialPipeline.resume(
        args.resume,
        changes=changes,
        override=args.override,
        display=display,
        own_process=True,
        trust=[*args.modules, *modules],
    )


def _refuse_init_from(args: argparse.Namespace) -> None:
    if args.init_from:
        raise ConfigError("--resume and --init-from exclude each other: a resumed run has weights of its own")


def _train_seeds(args: argparse.Namespace, seeds: list[int]) -> int:
    """Trains one run for each seed; returns the exit code of a signal, or of the first run that failed."""
    from ding_lite.ranks import number_of_processes
    from ding_lite.run.display import Lines
    from ding_lite.run.signals import EXIT_CODES, StopSignals
    from ding_lite.tools.seeds import seed_trainings, seeds_report, seeds_table

    if number_of_processes() > 1:
        raise ConfigError("torchrun trains one run with several processes: give it one seed")
    if args.resume is not None and not (args.config or args.env):
        raise ConfigError(
            "--resume with several seeds needs the config that they were started with: give -c (or --env) "
            "again"
        )
    config = config_of(args).replaced(max_env_step=args.max_env_step, max_train_iter=args.max_train_iter)
    arguments = ["train", "--quiet", *run_options(args)]
    if args.resume is not None:
        _refuse_init_from(args)
    elif args.init_from:
        arguments += ["--init-from", args.init_from]
    prefix = Path(args.resume or args.exp_name or Path("runs") / config.values.exp_name)
    limit = config.values.max_env_step
    trainings = seed_trainings(
        seeds, prefix, arguments, limit, resume=args.resume is not None, override=args.override
    )
    with open_crew(args, config, len(seeds)) as crew, StopSignals(crew.request_stop):
        crew.train(trainings)
    if args.quiet or args.json:
        for training in trainings:
            if training.status == "failed":
                print(f"ding-lite train: {training.name} failed: {training.error}", file=sys.stderr)
    if args.json:
        print(json.dumps(seeds_report(trainings)))
    elif not args.quiet:
        Lines(sys.stdout).say(seeds_table(trainings, parallel_options(args)))  # a closed pipe is no error
    return EXIT_CODES.get(crew.stopped_by, 0) or crew.exit_code
