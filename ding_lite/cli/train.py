"""``ding-lite train``: a run from a config, or more of one that was saved."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from ding_lite.cli.sources import config_of, overrides_of
from ding_lite.display import Display, display_for
from ding_lite.errors import ConfigError
from ding_lite.pipeline import SerialPipeline

STDERR = 2


def run(args: argparse.Namespace) -> int:
    """Trains, and returns 0, or what the signal that ended it calls for."""
    if args.resume is None and args.override:
        raise ConfigError("--override belongs to --resume; a new run takes any key.path=value")
    with display_for(sys.stdout, args.quiet) as display:
        pipeline = _new(args, display) if args.resume is None else _resumed(args, display)
        args.signals.hand_over(lambda name: _ask_to_stop(pipeline, name))
        if args.resume is not None and pipeline.is_over() and _is_concluded(pipeline.folder):
            display.say(_finished(pipeline))
            pipeline.close()
            return 0
        for _ in pipeline:
            pass
        display.say(pipeline.summary())
    return int(args.signals.exit_code)


def _ask_to_stop(pipeline: SerialPipeline, signal: str) -> None:
    pipeline.request_stop(signal)
    with contextlib.suppress(OSError):
        if os.isatty(STDERR):  # an iteration may take long, and who sees nothing presses again
            # Not print: a signal may come in the middle of one, whose buffer it cannot enter.
            os.write(STDERR, b"\nending after this iteration, then saving; Ctrl-C again stops at once\n")


def _new(args: argparse.Namespace, display: Display) -> SerialPipeline:
    return SerialPipeline(
        config_of(args),
        seed=args.seed,
        max_env_step=args.max_env_step,
        max_train_iter=args.max_train_iter,
        folder=args.exp_name,
        init_from=args.init_from,
        display=display,
    )


def _resumed(args: argparse.Namespace, display: Display) -> SerialPipeline:
    named = config_of(args) if args.config or args.env else None
    run_folder = args.resume or args.exp_name or (named and str(Path("runs") / named.values.exp_name))
    if not run_folder:
        raise ConfigError("--resume: which run? Name its folder: --resume DIR, or --exp-name, or -c")
    if args.init_from:
        raise ConfigError("--resume goes on with the weights of the run itself; leave --init-from out")
    seed: dict[str, Any] = {} if args.seed is None else {"seed": args.seed}
    return SerialPipeline.resume(
        run_folder,
        config=named,
        changes={**overrides_of(args, args.overrides), **seed},
        override=args.override,
        max_env_step=args.max_env_step,
        max_train_iter=args.max_train_iter,
        display=display,
        # What the user has named in this very call.
        trust=[*args.imports, *(named.modules() if named else ())],
    )


def _is_concluded(folder: Path) -> bool:
    """Returns whether result.json says that the run is done; one that was killed may not have got there."""
    try:
        return json.loads((folder / "result.json").read_text())["status"] in ("solved", "finished")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _finished(pipeline: SerialPipeline) -> str:
    progress, cfg = pipeline.progress, pipeline.cfg
    solved = ", solved" if progress.solved else ""
    return (
        f"{pipeline.folder} is finished: {progress.env_step:,} of {cfg.max_env_step:,} env steps{solved}. "
        "A --max-env-step or a --max-train-iter beyond what it has done takes it further"
    )
