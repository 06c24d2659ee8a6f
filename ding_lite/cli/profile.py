"""``ding-lite profile``: shows where the time of training goes, or finds the fastest settings."""

from __future__ import annotations

import functools
import shlex
import sys
import time
from typing import TYPE_CHECKING

from ding_lite.cli import options
from ding_lite.errors import EnvError, counted

if TYPE_CHECKING:
    from ding_lite.config.compile import Config


@options.command()
@options.config_options
@options.option(
    "--iterations N",
    "iterations to measure, after 2 for warm-up (default: 10; PPG: rounded up to whole phases)",
    options.POSITIVE,
)
@options.option("--tune", "find the fastest settings, and print the command")
@options.json_option
def run(source: options.Source, iterations: int | None, tune: bool, json: bool) -> int:
    """Shows where the time of training goes, and what to try.

    Trains for some iterations in a temporary folder, and shows how much time each phase takes:

    env          stepping the environments        auxiliary    PPG's auxiliary phase
    act          the policy's actions             eval         evaluation
    store        the rollout, and its checks      other        rows, checkpoints, hooks
    advantages   values and advantages
    updates      gradient steps

    Evaluations, checkpoints and auxiliary phases are measured if they fall due in these iterations.

    --tune finds the fastest settings on this machine instead: env.manager.type with its worker_num and
    double_buffer, num_threads, and the device. It trains for some iterations with each setting, in a separate
    process, first with the config as it is, and keeps a setting that is 5 % faster. Keys that change what is
    learned, such as policy.collect.n_sample, stay as they are. Ctrl-C ends the search: the command with the
    fastest setting so far is printed, and the exit code is 130.
    """
    config = source.read()
    for note in config.notes:
        print(note, file=sys.stderr)
    if tune:
        return _tune(source, config, iterations, json)
    from ding_lite.tools.profile import profile

    report = profile(config, iterations)
    if json:
        options.print_json(report)
        return 0
    print(
        f"{report['config']} on {report['device']}: {report['backend']}, torch threads: {report['threads']}"
    )
    print(f"{report['iterations']} iterations, {report['env_steps']:,} env steps\n")
    phases = [[name, f"{row['ms']:.2f}", f"{row['percent']:.1f}"] for name, row in report["phases"].items()]
    total = ["iteration", f"{report['iteration_ms']:.2f}", "100.0"]
    options.print_table(["phase", "ms/iteration", "%"], [*phases, total], right=(1, 2))
    print(f"\n{report['env_steps_per_second']:,.0f} env steps/s")
    print(f"{report['largest']} takes the most time; to try: {report['try']}")
    return 0


def _tune(source: options.Source, config: Config, iterations: int | None, json: bool) -> int:
    """Prints each setting as soon as it is measured, and the command with the fastest; returns the exit code.

    A signal ends the search with what is measured so far.
    """
    from ding_lite.run.signals import EXIT_CODES
    from ding_lite.tools.tune import settings, tune, with_setting

    words = options.words_with(overrides=None, iterations=None, tune=None, json=None)[1:]
    count, trials, code = len(settings(config)), [], 0
    say = (lambda line: None) if json else functools.partial(print, flush=True)
    say(f"{counted(count, 'setting')} to try beside the present one")
    began = time.monotonic()
    try:
        for trial in tune(config, words, source.overrides, iterations):
            trials.append(trial)
            speed = f"{trial.speed or 0:,.0f} env steps/s"
            result = speed if trial.speed else trial.error.partition("\n")[0]
            say(f"{' '.join(with_setting([], trial.setting)) or 'as it is'}: {result}")
            if len(trials) == 1:
                say(f"about {count * (time.monotonic() - began):,.0f} s are left")
    except KeyboardInterrupt as signal:
        code = EXIT_CODES.get(str(signal), EXIT_CODES["SIGINT"])
        say(f"ended after {max(0, len(trials) - 1)} of {counted(count, 'setting')}")
    kept = [trial for trial in trials if trial.is_kept]
    if not kept:
        if code:
            return code
        raise EnvError("no setting was measured; train with the config as it is to see its error")
    line = shlex.join(["ding-lite", "train", *words, *with_setting(source.overrides, kept[-1].setting)])
    if json:
        options.print_json(
            {"tried": [trial._asdict() for trial in trials], "left": 1 + count - len(trials), "command": line}
        )
    say(f"\nthe fastest{' so far' if code else ''}: {line}")
    return code
