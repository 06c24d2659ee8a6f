"""The seeds of one config: their run folders, the mean of their scores, and a table of them."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ding_lite.errors import ConfigError
from ding_lite.run.checkpoint import checkpoints_of
from ding_lite.run.display import score_digits, score_text
from ding_lite.tools import statistics
from ding_lite.tools.several import Training
from ding_lite.tools.table import aligned


def seed_trainings(
    seeds: Sequence[int],
    prefix: Path,
    arguments: Sequence[str],
    max_env_step: int,
    *,
    resume: bool = False,
    override: bool = False,
) -> list[Training]:
    """Returns one run for each seed, in the folders ``<prefix>_s<seed>``.

    Args:
        seeds: of the runs.
        prefix: of their folders.
        arguments: of ``ding-lite``, beginning with ``train``, without seed and folder.
        max_env_step: of the runs.
        resume: continue the runs whose folders exist.
        override: continue them with ``--override``, which a new run refuses.

    Raises:
        ConfigError: if a folder exists; with ``resume``, if none does or one has no checkpoint. Then no run
            has been started.
    """
    if not prefix.name:
        raise ConfigError(
            f"--exp-name {prefix}: expected the beginning of the folders' names, such as runs/mine"
        )
    folders = {seed: prefix.with_name(f"{prefix.name}_s{seed}") for seed in seeds}
    existing = {seed: folder for seed, folder in folders.items() if folder.exists()}
    if existing and not resume:
        raise ConfigError(
            f"these run folders exist: {', '.join(map(str, existing.values()))}; choose another --exp-name, "
            "continue the runs with --resume, or remove the folders"
        )
    if resume and not existing:
        raise ConfigError(
            f"--resume: there is no run to continue: {', '.join(map(str, folders.values()))} do not exist"
        )
    lost = [str(folder) for folder in existing.values() if not checkpoints_of(folder)]
    if lost:
        raise ConfigError(
            f"--resume: without a checkpoint to continue from: {', '.join(lost)}; remove such a folder, and "
            "its seed begins anew"
        )
    trainings = []
    for seed, folder in folders.items():
        option = "--resume" if seed in existing else "--exp-name"
        overriding = ["--override"] if override and seed in existing else []
        words = [*arguments, *overriding, "-s", str(seed), option, str(folder)]
        trainings.append(Training(f"seed {seed}", seed, folder, words, max_env_step))
    return trainings


class SeedsSummary(NamedTuple):
    """The scores of several seeds.

    Attributes:
        n: number of seeds that have a score.
        mean: of the scores; None without one.
        interval: 95 % bootstrap interval of the mean over seeds; None for fewer than three.
    """

    n: int
    mean: float | None
    interval: tuple[float, float] | None


def summary_of(scores: Iterable[float | None]) -> SeedsSummary:
    """Returns mean and interval of the scores that are not None."""
    known = [score for score in scores if score is not None]
    if not known:
        return SeedsSummary(0, None, None)
    interval = statistics.as_range(statistics.interval(statistics.mean, [np.array(known)]))
    return SeedsSummary(len(known), sum(known) / len(known), interval)


def seeds_report(trainings: Sequence[Training]) -> dict[str, Any]:
    """Returns what became of the seeds, as JSON data."""
    summary = summary_of(training.score for training in trainings)
    return {
        "n": summary.n,
        "mean": summary.mean,
        "interval": summary.interval,
        "runs": [
            {
                "seed": training.seed,
                "status": training.status,
                "score": training.score,
                "last_evaluation": training.last_evaluation,
                "env_step": training.env_step,
                "wall_time_s": training.result.get("wall_time_s"),
                "folder": str(training.folder),
                "exit_code": training.code,
                "error": training.error or None,
            }
            for training in trainings
        ],
    }


def seeds_table(trainings: Sequence[Training], parallel: Sequence[str] = ()) -> str:
    """Returns a table with a line for each seed, the mean below, and the commands that continue the seeds.

    The last evaluation of a seed that has not ended in order stands in brackets, since it is no score.

    Args:
        trainings: the seeds.
        parallel: options of several seeds, for the commands.
    """
    rows = [["seed", "status", "score", "env steps", "seconds", "folder"]]
    for training in trainings:
        seconds = training.result.get("wall_time_s")
        rows.append(
            [
                str(training.seed),
                training.status,
                _score(training),
                f"{training.env_step:,}",
                one_digit(seconds),
                str(training.folder),
            ]
        )
    table = aligned(rows, right=range(1, len(rows[0]) - 1))
    summary = summary_of(training.score for training in trainings)
    has_brackets = any(row[2].startswith("(") for row in rows)
    note = ["(in brackets: the last evaluation of a seed that has not ended; no part of a mean)"]
    commands = [f"try: {command}" for command in commands_to_continue(trainings, parallel)]
    means = summary_lines(summary, len(trainings))
    return "\n".join([*table, *(note if has_brackets else []), *means, *commands])


def commands_to_continue(trainings: Sequence[Training], parallel: Sequence[str] = ()) -> list[str]:
    """Returns the commands that continue the seeds of :func:`seed_trainings` which a signal has ended.

    There is none if there is no such seed. A resumed run refuses ``--init-from``: with it, the seeds that
    have not started need a command of their own.
    """
    if all(training.is_complete or training.status == "failed" for training in trainings):
        return []
    has_weights = "--init-from" in trainings[0].arguments
    new = [training for training in trainings if has_weights and training.status == "not started"]
    begun = [training for training in trainings if training not in new]
    has_run = any(training.status != "not started" or training.folder.exists() for training in begun)
    commands = [_command(begun, "--resume" if has_run else "--exp-name", parallel)] if begun else []
    return [*commands, _command(new, "--exp-name", parallel)] if new else commands


def _command(trainings: Sequence[Training], option: str, parallel: Sequence[str]) -> str:
    """Returns the command that trains the seeds in their folders; ``option`` names these."""
    first = trainings[0]
    # Without seed and folder.
    words = [word for word in first.arguments[:-4] if word not in ("--quiet", "--override")]
    if any("--override" in training.arguments for training in trainings):
        words.append("--override")
    if option == "--resume" and "--init-from" in words:
        place = words.index("--init-from")
        del words[place : place + 2]
    name = first.folder.name
    if len(trainings) > 1:  # a seed alone is given its own folder, several the beginning of their folders
        name = name.removesuffix(f"_s{first.seed}")
        words += parallel
    seeds = ["-s", ",".join(str(training.seed) for training in trainings)]
    return shlex.join(["ding-lite", *words, *seeds, option, str(first.folder.with_name(name))])


def _score(training: Training) -> str:
    last = training.last_evaluation
    if training.score is not None or last is None:
        return score_text(training.score)
    return f"({score_text(last)})"


def summary_lines(summary: SeedsSummary, of: int) -> list[str]:
    """Returns a line with the mean and the interval over seeds; none if there is no score."""
    if summary.mean is None:
        return []
    line = f"mean {score_text(summary.mean)} over {summary.n} of {of} seeds"
    if summary.interval is not None:
        digits = score_digits(*summary.interval)
        ends = ", ".join(f"{end:.{digits}f}" for end in summary.interval)
        line += f", 95 % bootstrap interval [{ends}]"
    return [line]


def one_digit(value: float | None) -> str:
    """Returns a number with one digit for a table, or "-" for None."""
    return "-" if value is None else f"{value:,.1f}"
