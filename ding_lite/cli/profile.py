"""``ding-lite profile``: shows where the time of training goes, or finds the fastest settings."""

from __future__ import annotations

import contextlib
import json as json_module
import math
import shlex
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from ding_lite.cli.options import (
    POSITIVE,
    Source,
    WholeNumber,
    command,
    config_options,
    given,
    json_option,
    option,
    print_json,
    print_table,
    stdout_to_stderr,
)
from ding_lite.errors import ConfigError

if TYPE_CHECKING:
    from ding_lite.config.compile import Config
    from ding_lite.tools.profile import Profile
    from ding_lite.tools.tune import Setting, SettingTrial, Tuner

RARE_PHASES = ("auxiliary", "evaluation", "checkpoint")  # not in every iteration
# What falls due in one slice of training but not in the next would distort the comparison of settings.
NO_INTERRUPTIONS = {"policy.eval.eval_freq": 0, "checkpoint.freq": 0, "checkpoint.keep_freq": 0}
SETTING_WIDTH = 33  # characters of the column with the settings
DEFAULT_MINUTES = 1.0
MEASURE = "Measure, such as: --iterations 20"
TUNE = "Find the fastest settings, such as: --tune --minutes 5"


@command(preload="ding_lite.tools.tune")
@config_options
@option(*("-s", "--seed"), type=WholeNumber(min=0), metavar="SEED", group=MEASURE, help="seed of the run")
@option(
    "--iterations",
    type=POSITIVE,
    metavar="N",
    group=MEASURE,
    help="iterations to measure, after 2 for warm-up (default: 10; PPG: rounded up to whole phases)",
)
@option("--tune", is_flag=True, group=TUNE, help="find the fastest settings, and print the command")
@option(
    "--minutes",
    type=click.FloatRange(0, 1e6, min_open=True),
    metavar="M",
    group=TUNE,
    help="time limit of --tune (default: 1)",
)
@option(
    "--contestant", is_flag=True, hidden=True
)  # for the processes that --tune starts: see _train_on_request
@json_option
def run(
    source: Source,
    seed: int | None,
    iterations: int | None,
    tune: bool,
    minutes: float | None,
    contestant: bool,
    json: bool,
) -> None:
    """Shows where the time of training goes, and which keys to try.

    Trains for some iterations in a temporary folder, and shows how much time each phase takes and which
    keys of the config to try:

    env          stepping the environments        gradient     losses, backward, clipping
    act          the policy's actions             optimiser    Adam's steps
    store        the rollout, and its checks      auxiliary    PPG's auxiliary phase
    advantages   values and advantages            logging, evaluation, checkpoint
    minibatches  drawing them from the samples    other        everything else

    Evaluations, checkpoints and auxiliary phases are measured if they fall due in these iterations.

    --tune finds the fastest settings on this machine instead. It tries env.manager.type with its
    worker_num and double_buffer, num_threads and policy.learn.compile, one after the other, beginning with
    those that affect the slowest phase, compiling last. Each setting trains in a process of its own, in
    turns with the best setting so far, and replaces it only if it is faster by more than the measurements
    vary. Keys that change what is learned, such as policy.collect.n_sample, env.collector_env_num and
    policy.learn.batch_size, stay as they are.
    """
    if tune and iterations is not None:
        raise ConfigError("--iterations cannot be used with --tune; set the time limit with --minutes")
    if minutes is not None and not tune:
        raise ConfigError("--minutes is for --tune; without it, set the number of --iterations")
    config = source.read()
    if contestant:
        _train_on_request(config, seed)
    elif tune:
        _tune(config, source, seed, minutes or DEFAULT_MINUTES, json)
    else:
        _show_phases(config, iterations, seed, json)


# ------------------------------------------------------------------ the table of phases


def _show_phases(config: Config, iterations: int | None, seed: int | None, json: bool) -> None:
    from ding_lite.tools.profile import profile

    report = _report(profile(config, iterations=iterations, seed=seed), config)
    if json:
        print_json(report)
    else:
        _print_phases(report)


def _report(result: Profile, config: Config) -> dict[str, Any]:
    from ding_lite.tools.profile import advice

    largest, share = result.largest()
    return {
        "config": config.values.exp_name,
        "device": result.device,
        "iterations": result.iterations,
        "env_steps": result.env_steps,
        "iteration_ms": 1000 * result.seconds / result.iterations,
        "env_steps_per_second": result.env_steps_per_second,
        "phases": {
            phase.name: {
                "ms": 1000 * phase.seconds / result.iterations,
                "percent": 100 * phase.seconds / result.seconds,
                "calls": phase.calls,
            }
            for phase in result.phases
        },
        "largest": largest,
        "largest_percent": 100 * share,
        "try": {key: {"now": value, "hint": hint} for key, value, hint in advice(largest, config)},
    }


def _print_phases(report: dict[str, Any]) -> None:
    from ding_lite.tools.profile import group_title

    iterations = report["iterations"]
    measured = f"{iterations} iterations, {report['env_steps']:,} env steps"
    print(f"{report['config']} on {report['device']}: {measured}\n")
    rows = [
        [name, f"{row['ms']:.2f}", f"{row['percent']:.1f}", str(row["calls"]) if name in RARE_PHASES else ""]
        for name, row in report["phases"].items()
    ]
    rows.append(["iteration", f"{report['iteration_ms']:.2f}", "100.0", ""])
    print_table(["phase", "ms/iteration", "%", "times"], rows, right=(1, 2, 3))
    largest = group_title(report["largest"])
    print(f"\n{report['env_steps_per_second']:,.0f} env steps/s")
    print(f"The largest share of the time, {report['largest_percent']:.0f} %: {largest}. To try:\n")
    print_table(
        ["key", "now", "hint"], [[key, repr(row["now"]), row["hint"]] for key, row in report["try"].items()]
    )


# ------------------------------------------------------------------ --tune


def _train_on_request(config: Config, seed: int | None) -> None:
    """Trains for as many iterations as each line of standard input has, and prints their profile as JSON.

    ``--tune`` starts this command once for each setting (:class:`ding_lite.tools.tune.TrainingProcess`).
    """
    from ding_lite.tools.profile import training

    with contextlib.ExitStack() as stack:
        with stdout_to_stderr():
            measure = stack.enter_context(training(config, seed))
        for line in sys.stdin:
            with stdout_to_stderr():
                result = measure(int(line))
            print(json_module.dumps(result._asdict()), flush=True)


def _tune(config: Config, source: Source, seed: int | None, minutes: float, json: bool) -> None:
    """Prints each trial as soon as it is done, and at the end the command with the fastest setting."""
    from ding_lite.tools.profile import profile
    from ding_lite.tools.tune import TrainingProcess, Tuner

    began = time.monotonic()
    deadline = began + 60 * minutes
    present = profile(config, iterations=2, warm_up=1, seed=seed)
    profiled = time.monotonic() - began
    options = [*source.words(), *given({"-s": seed})]

    def start(setting: Setting) -> TrainingProcess:
        overrides = _overrides(source, {**setting, **NO_INTERRUPTIONS})
        return TrainingProcess(["profile", "--contestant", *options, *overrides], deadline)

    tuner = Tuner(config, present, start, deadline - time.monotonic())
    if not json:
        print("\n".join(_heading(config, present)), flush=True)
    trials = []
    for trial in tuner.trials():
        trials.append(trial)
        if not json:
            print("\n".join(_trial_lines(trial)), flush=True)
    command = shlex.join(["ding-lite", "train", *options, *_overrides(source, tuner.best)])
    needed = _minutes_needed(tuner, trials, profiled)
    if json:
        report = {
            "overrides": tuner.best,
            "gain": tuner.gain - 1,
            "command": command,
            "tried": [_trial_report(trial) for trial in trials],
            "minutes_needed": needed and needed[1],
        }
        print_json(report)
    else:
        print("\n".join(_verdict(tuner, trials, command, needed)))


def _minutes_needed(tuner: Tuner, trials: list[SettingTrial], profiled: float) -> tuple[int, int] | None:
    """Returns about how many minutes the first setting and all of them take; None if one was compared.

    Args:
        tuner: that has tried them.
        trials: its results.
        profiled: seconds that the profile of the present setting took.
    """
    if not trials or any(trial.verdict != "not tried" for trial in trials):
        return None
    seconds = tuner.seconds_per_trial(start=profiled)
    first, every = (math.ceil((profiled + count * seconds) / 60) for count in (1, len(trials)))
    return first, every


def _overrides(source: Source, setting: Mapping[str, Any]) -> list[str]:
    """Returns the overrides of this command, with the keys of ``setting`` replaced or added."""
    from ding_lite.config.compile import parse_overrides

    kept = [token for token in source.overrides if not parse_overrides([token]).keys() & setting.keys()]
    return kept + _tokens(setting)


def _tokens(setting: Mapping[str, Any]) -> list[str]:
    return [f"{key}={value}" for key, value in setting.items()]


def _heading(config: Config, present: Profile) -> list[str]:
    from ding_lite.tools.profile import group_title

    threads = "1 thread" if present.threads == 1 else f"{present.threads} threads"
    steps = "compiled steps" if present.compiled else "no compiled steps"
    return [
        f"{config.values.exp_name} on {present.device}: {present.backend}, {threads}, {steps}",
        f"The largest share of the time: {group_title(present.largest()[0])}",
        "",
        f"{'setting':<{SETTING_WIDTH}} {'steps/s':>9} {'best so far':>11} {'gain':>7}",
    ]


def _trial_lines(trial: SettingTrial) -> list[str]:
    """Returns a line for each key of the setting, the last one with the result, and one about compiling."""
    if trial.gain is None:
        reason = f": {trial.reason}" if trial.reason else ""
        result = f"{'':>29} {trial.verdict}{reason}"
    else:
        gain = f"{100 * trial.gain:>+5.0f} % \N{PLUS-MINUS SIGN} {100 * (trial.spread or 0):.0f}"
        result = f"{trial.speed:>9,.0f} {trial.present:>11,.0f} {gain:<12} {trial.verdict}"
    first, *others = _tokens(trial.setting)
    lines = [first, *(f"  {key}" for key in others)]
    lines[-1] = f"{lines[-1]:<{SETTING_WIDTH}} {result}"
    if trial.compilation is not None:
        cost = trial.compilation
        if math.isinf(cost.pays_after):
            pays = "no gain is certain"
        else:
            pays = f"pays after {cost.pays_after:,.0f} updates, and this run plans {cost.planned:,.0f}"
        lines.append(f"  compiling takes {cost.seconds:.1f} s: {pays}")
    return lines


def _verdict(
    tuner: Tuner, trials: list[SettingTrial], command: str, needed: tuple[int, int] | None
) -> list[str]:
    if needed:
        first, every = needed
        alone = f" (the first setting alone takes about {first})" if first < every else ""
        return ["", f"Nothing could be measured in this time: try --minutes {every}{alone}."]
    lines = [""]
    verdicts = {trial.verdict for trial in trials}
    if "not tried" in verdicts:
        lines.append("The time was up before all settings were tried: increase --minutes.")
    if tuner.best:
        lines += [f"{100 * (tuner.gain - 1):+.0f} % env steps/s with", f"  {command}"]
    elif "not clear" in verdicts:
        lines.append("The speed of the machine varies too much for a verdict: increase --minutes.")
    elif not trials:
        lines.append("There is no other setting to try: keep the config as it is.")
    elif all(trial.gain is None for trial in trials):
        why = "increase --minutes" if "not tried" in verdicts else "no setting could train, as said above"
        lines.append(f"Nothing was measured: {why}.")
    else:
        lines.append("No setting that was tried is faster: keep the config as it is.")
    return lines


def _trial_report(trial: SettingTrial) -> dict[str, Any]:
    """Returns a trial as JSON data; JSON has no infinity, so ``pays_after`` is then None."""
    report = trial._asdict()
    if trial.compilation is not None:
        report["compilation"] = trial.compilation._asdict()
        if math.isinf(trial.compilation.pays_after):
            report["compilation"]["pays_after"] = None
    return report
