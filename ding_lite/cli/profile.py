"""``ding-lite profile``: shows where the time of training goes, or finds the fastest settings."""

from __future__ import annotations

import contextlib
import shlex

from ding_lite.cli import options
from ding_lite.errors import EnvError


@options.command()
@options.config_options
@options.option(
    "--iterations N",
    "iterations to measure, after 2 for warm-up (default: 10; PPG: rounded up to whole phases)",
    options.POSITIVE,
)
@options.option("--tune", "find the fastest settings, and print the command")
@options.json_option
def run(source: options.Source, iterations: int | None, tune: bool, json: bool) -> None:
    """Shows where the time of training goes, and what to try.

    Trains for some iterations in a temporary folder, and shows how much time each phase takes:

    env          stepping the environments        auxiliary    PPG's auxiliary phase
    act          the policy's actions             eval         evaluation
    store        the rollout, and its checks      other        rows, checkpoints, hooks
    advantages   values and advantages
    updates      gradient steps

    Evaluations, checkpoints and auxiliary phases are measured if they fall due in these iterations.

    --tune finds the fastest settings on this machine instead: env.manager.type with its worker_num and
    double_buffer, num_threads, and the device. It trains for some iterations with each of them, in a process
    of its own, beginning with the config as it is; a setting that is faster by 5 % stays. Keys that change
    what is learned, such as policy.collect.n_sample, stay as they are.
    """
    if tune:
        _tune(source, iterations, json)
        return
    from ding_lite.tools.profile import profile

    report = profile(source.read(), iterations)
    if json:
        options.print_json(report)
        return
    print(
        f"{report['config']} on {report['device']}: {report['backend']}, torch threads: {report['threads']}"
    )
    print(f"{report['iterations']} iterations, {report['env_steps']:,} env steps\n")
    phases = [[name, f"{row['ms']:.2f}", f"{row['percent']:.1f}"] for name, row in report["phases"].items()]
    total = ["iteration", f"{report['iteration_ms']:.2f}", "100.0"]
    options.print_table(["phase", "ms/iteration", "%"], [*phases, total], right=(1, 2))
    print(f"\n{report['env_steps_per_second']:,.0f} env steps/s")
    print(f"{report['largest']} takes the most time; to try: {report['try']}")


def _tune(source: options.Source, iterations: int | None, json: bool) -> None:
    """Prints each setting as soon as it is measured, and at the end the command with the fastest one."""
    from ding_lite.tools.tune import tune, with_setting

    words = options.words_with(overrides=None, iterations=None, tune=None, json=None)[1:]
    trials = []
    with contextlib.suppress(KeyboardInterrupt):  # what was measured so far is shown
        for trial in tune(source.read(), words, source.overrides, iterations):
            trials.append(trial)
            if not json:
                speed = f"{trial.speed or 0:,.0f} env steps/s"
                result = speed if trial.speed else trial.error.partition("\n")[0]
                print(f"{' '.join(with_setting([], trial.setting)) or 'as it is'}: {result}", flush=True)
    ranked = sorted(trials, key=lambda trial: -(trial.speed or 0.0))
    if not ranked or ranked[0].speed is None:
        raise EnvError("no setting was measured; train with the config as it is to see its error")
    best = ranked[0]
    line = shlex.join(["ding-lite", "train", *words, *with_setting(source.overrides, best.setting)])
    if json:
        options.print_json({"tried": [trial._asdict() for trial in ranked], "command": line})
        return
    print(f"\nthe fastest: {line}")
