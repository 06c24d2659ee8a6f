"""``ding-lite train``: a run from a config, or more of one that was saved."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ding_lite.cli.sources import config_of
from ding_lite.config import Config, differences
from ding_lite.display import Display, display_for
from ding_lite.errors import ConfigError
from ding_lite.pipeline import SerialPipeline

SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")
EXIT_CODES = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 143}


def run(args: argparse.Namespace) -> int:
    """Trains, and returns 0, or 130 or 143 where a signal ended it."""
    with display_for(sys.stdout, args.quiet) as display:
        pipeline = _new(args, display) if args.resume is None else _resumed(args, display)
        if pipeline is None:
            return 0
        with stopping_on_signals(pipeline) as caught:
            for _ in pipeline:
                pass
        display.say(pipeline.summary())
    return EXIT_CODES[caught[0]] if caught else 0


def _new(args: argparse.Namespace, display: Display) -> SerialPipeline:
    config = config_of(args)
    return SerialPipeline(
        config,
        seed=args.seed,
        max_env_step=args.max_env_step,
        max_train_iter=args.max_train_iter,
        folder=args.exp_name,
        display=display,
    )


def _resumed(args: argparse.Namespace, display: Display) -> SerialPipeline | None:
    named = config_of(args) if args.config or args.env else None
    run_folder = args.resume or args.exp_name or (named and str(Path("runs") / named.values.exp_name))
    if not run_folder:
        raise ConfigError("--resume: which run? Name its folder: --resume DIR, or --exp-name, or -c")
    if args.seed is not None:
        raise ConfigError("--resume goes on with the run's own seed; leave -s out")
    if args.overrides:
        raise ConfigError(
            f"--resume goes on with the run's own config; leave {args.overrides[0]!r} out. "
            "The limits --max-env-step and --max-train-iter can be changed"
        )
    pipeline = SerialPipeline.resume(
        run_folder,
        max_env_step=args.max_env_step,
        max_train_iter=args.max_train_iter,
        display=display,
        trust=_trusted(args, named),
    )
    if named is not None:
        for line in differences(pipeline.config.values, named.values):
            display.say(f"the run's own config rules: {line}")
    if pipeline.is_over():
        display.say(
            f"{run_folder} is finished: {pipeline.progress.env_step:,} of {pipeline.cfg.max_env_step:,} env "
            "steps"
            + (", solved" if pipeline.progress.solved else "")
            + ". A --max-env-step beyond that takes it further"
        )
        pipeline.close()
        return None
    return pipeline


def _trusted(args: argparse.Namespace, named: Config | None) -> list[str]:
    """Returns the modules that the user has named in this very call."""
    modules = list(args.imports)
    if named is not None:
        modules += named.modules()
    return modules


@contextmanager
def stopping_on_signals(pipeline: SerialPipeline) -> Iterator[list[str]]:
    """Ends the run at an iteration boundary on the first signal, at once on a second Ctrl-C.

    Yields the list that the name of the signal is put into. Handlers only set a flag, and the ones
    from before come back at the end; outside the main thread nothing is installed.
    """
    caught: list[str] = []
    previous: dict[int, Any] = {}

    def handle(number: int, frame: Any) -> None:
        name = signal.Signals(number).name
        if caught and name == "SIGINT":
            raise KeyboardInterrupt
        caught.append(name)
        pipeline.request_stop(name)

    if threading.current_thread() is threading.main_thread():
        for name in SIGNALS:
            number = getattr(signal, name, None)
            if number is not None:
                previous[number] = signal.signal(number, handle)
    try:
        yield caught
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
