"""Compares the final scores of groups of runs.

A group is a config with its seeds. Its runs of several environments are its tasks. The score of a run is the
mean return of its last evaluation. The statistics are those of :mod:`ding_lite.tools.statistics`.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ding_lite.errors import ConfigError
from ding_lite.run.folder import ENDED
from ding_lite.tools import statistics
from ding_lite.tools.runs import (
    HEADLINE_KEYS,
    SCORE,
    Run,
    describe,
    distinguishing_keys,
    env_of,
    first_line,
    independent,
    last_step,
    names_of_groups,
    other_keys,
    points_of,
    read_run,
    repeated_seeds,
    runs_of,
    same_config,
    settings_of,
    shared,
    status_of,
    without_files,
)

NAMED = re.compile(r"([^=/\\]+)=(.+)", re.DOTALL)
FAR_FROM_END = 0.05  # share of the steps by which an evaluation may miss the end without a note
NOT_SET = "-"
FEW_KEYS = 3  # more keys that the same groups lack are a line in place of rows
COMMIT = re.compile(r"[0-9a-f]{40}\n")

Range = tuple[float, float]


class Score(NamedTuple):
    """The score of a run.

    Attributes:
        run: that has it.
        status: of the run, as in :class:`ding_lite.tools.runs.ListedRun`.
        value: mean return of an evaluation.
        env_step: of that evaluation.
    """

    run: Run
    status: str
    value: float
    env_step: int

    @property
    def reached_limit(self) -> bool:
        """Returns whether the run has reached its limit."""
        return reached_limit(self.run, self.status)


class Summary(NamedTuple):
    """A line of the table; None where there are too few runs or nothing to compare with.

    Attributes:
        label: of the group.
        seeds: number of its runs in each task.
        mean: mean over tasks of the mean over runs.
        iqm: interquartile mean over the runs of all tasks.
        iqm_interval: its 95 % interval.
        improvement: probability that a run of this group scores higher than one of the first group.
        improvement_interval: its 95 % interval.
    """

    label: str
    seeds: tuple[int, ...]
    mean: float
    iqm: float
    iqm_interval: Range | None
    improvement: float | None
    improvement_interval: Range | None

    @property
    def seed_count(self) -> str:
        """Returns the number of runs in a task as text: "3", or "1 to 3" if it differs between tasks."""
        least, most = min(self.seeds), max(self.seeds)
        return str(least) if least == most else f"{least} to {most}"


@dataclass(frozen=True)
class Comparison:
    """Groups of runs and their scores.

    Attributes:
        title: what all runs have in common.
        labels: of the groups.
        tasks: the environments that all groups have runs of.
        scores: of each group, for each task.
        ends: for each task, the env steps at which scores are taken; None: at each run's last evaluation.
        ranges: for each task, the scores that count 0 and 1; empty: scores are returns.
        differences: for each key in which the groups differ, its value in each group.
        notes: sentences about runs that were left out, and about what to keep in mind.
    """

    title: str
    labels: tuple[str, ...]
    tasks: tuple[str, ...]
    scores: tuple[dict[str, list[Score]], ...]
    ends: dict[str, int | None]
    ranges: dict[str, Range]
    differences: dict[str, tuple[str, ...]]
    notes: tuple[str, ...]

    @property
    def unit(self) -> str:
        """Returns the name of the scores that are compared over all tasks."""
        return "Normalised score" if self.ranges else "Return"

    def values(self, group: int) -> list[np.ndarray]:
        """Returns the scores of a group as arrays, one per task, normalised if there are ranges.

        Args:
            group: its place.
        """
        arrays = []
        for task in self.tasks:
            returns = np.array([score.value for score in self.scores[group][task]])
            low, high = self.ranges.get(task, (0.0, 1.0))
            arrays.append((returns - low) / (high - low))
        return arrays

    def summaries(self) -> list[Summary]:
        """Returns the lines of the table over all tasks."""
        return _summaries(self.labels, [self.values(place) for place in range(len(self.labels))])

    def summaries_of(self, task: str) -> list[Summary]:
        """Returns the lines of the table for one task, in returns."""
        returns = [[np.array([score.value for score in group[task]])] for group in self.scores]
        return _summaries(self.labels, returns)

    def folded_differences(self) -> tuple[dict[str, tuple[str, ...]], list[str]]:
        """Returns the differences without the many keys that the same groups lack, and a line about those.

        Such keys follow from the type of a policy or a model.
        """
        owners = {
            key: tuple(label for label, value in zip(self.labels, values, strict=True) if value != NOT_SET)
            for key, values in self.differences.items()
        }
        counts = Counter(having for having in owners.values() if len(having) < len(self.labels))
        folded = {having: count for having, count in counts.items() if count > FEW_KEYS}
        rows = {key: values for key, values in self.differences.items() if owners[key] not in folded}
        lines = [
            f"{count} keys that only {'; '.join(having)} {'has' if len(having) == 1 else 'have'}"
            for having, count in folded.items()
        ]
        return rows, lines

    def as_json(self) -> dict[str, Any]:
        """Returns everything as JSON data."""
        return {
            "title": self.title,
            "score": "normalised" if self.ranges else "return",
            "groups": [summary._asdict() for summary in self.summaries()],
            "tasks": {
                task: {
                    "env_step": self.ends[task],
                    "range": self.ranges.get(task),
                    "groups": [summary._asdict() for summary in self.summaries_of(task)],
                }
                for task in self.tasks
            },
            "differences": {
                key: dict(zip(self.labels, values, strict=True)) for key, values in self.differences.items()
            },
            "runs": [
                {
                    "folder": str(score.run.folder),
                    "group": label,
                    "task": task,
                    "seed": score.run.config.get("seed"),
                    "status": score.status,
                    "score": score.value,
                    "env_step": score.env_step,
                }
                for label, group in zip(self.labels, self.scores, strict=True)
                for task in self.tasks
                for score in group[task]
            ],
            "notes": list(self.notes),
        }


def _summaries(labels: Sequence[str], groups: Sequence[statistics.Scores]) -> list[Summary]:
    lines = []
    for label, scores in zip(labels, groups, strict=True):
        improvement = improvement_interval = None
        if scores is not groups[0]:
            better = statistics.probability_of_improvement
            improvement = float(better(scores, groups[0]))
            improvement_interval = statistics.as_range(statistics.interval(better, scores, groups[0]))
        lines.append(
            Summary(
                label=label,
                seeds=tuple(len(task) for task in scores),
                mean=float(statistics.mean(scores)),
                iqm=float(statistics.aggregate_iqm(scores)),
                iqm_interval=statistics.as_range(statistics.interval(statistics.aggregate_iqm, scores)),
                improvement=improvement,
                improvement_interval=improvement_interval,
            )
        )
    return lines


def number(value: float) -> str:
    """Returns a score as text, with as many digits as are of use: 1,234.5, 0.93 and 0.0042."""
    if 0 < abs(value) < 0.1:
        return f"{value:.2g}"
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.2f}"


def table_of(summaries: Sequence[Summary]) -> tuple[list[str], list[list[str]]]:
    """Returns the header of the table, and a row of texts for each group; "-" where there is no number."""
    header = ["group", "seeds", "mean", "IQM", "95 % interval"]
    rows = [
        [s.label, s.seed_count, number(s.mean), number(s.iqm), _interval(s.iqm_interval)] for s in summaries
    ]
    if len(summaries) > 1:
        header += [f"P(higher than {summaries[0].label})", "95 % interval"]
        for row, s in zip(rows, summaries, strict=True):
            better = "-" if s.improvement is None else number(s.improvement)
            row += [better, _interval(s.improvement_interval)]
    return header, rows


def _interval(edges: Range | None) -> str:
    return "-" if edges is None else f"{number(edges[0])} to {number(edges[1])}"


# ------------------------------------------------------------------ from folders


def compare(arguments: Sequence[str | Path], references: Mapping[str, Range] | None = None) -> Comparison:
    """Compares groups of runs.

    Args:
        arguments: run folders, folders with runs in them, or patterns of such, whose runs are grouped by
            config. ``NAME=FOLDER`` puts the runs into the group NAME instead; a name may occur repeatedly.
        references: for each environment, the returns that count as 0 and as 1.

    Raises:
        ConfigError: if there is nothing to compare, or a reference is missing or empty.
    """
    named: dict[str, list[Path]] = {}
    unnamed: list[Path] = []
    for argument in map(str, without_files(arguments)):
        match = None if Path(argument).exists() else NAMED.fullmatch(argument)
        if match:
            named.setdefault(match[1], []).extend(runs_of(match[2]))
        else:
            unnamed += runs_of(argument, "; expected NAME=FOLDER" if "=" in argument else "")
    reader = _Reader()
    groups = {label: _by_task(label, reader.read(folders)) for label, folders in named.items()}
    by_config = _grouped_by_config(reader.read(unnamed))
    if taken := groups.keys() & by_config.keys():
        raise ConfigError(f"another group is {min(taken)} already, by its config: choose another name")
    groups |= by_config
    groups = {label: tasks for label, tasks in groups.items() if tasks}
    if not groups:
        raise ConfigError("\n  ".join(["there is no run to compare.", *reader.notes]))
    _check_references(references or {}, groups)
    tasks = _common_tasks(groups, reader.notes)
    ends = {task: _end([run for of in groups.values() for run in of[task]], reader) for task in tasks}
    scores = tuple(
        {task: [reader.score(run, ends[task]) for run in group[task]] for task in tasks}
        for group in groups.values()
    )
    ranges = _ranges(tasks, scores, references)
    reader.notes += _notes(tuple(groups), scores, ends, ranges)
    runs = [score.run for group in scores for task in group.values() for score in task]
    return Comparison(
        title=", ".join(shared([settings_of(run.config) for run in runs])),
        labels=tuple(groups),
        tasks=tasks,
        scores=scores,
        ends=ends,
        ranges=ranges,
        differences=_differences(scores, tasks),
        notes=tuple(reader.notes),
    )


class _Reader:
    """Reads runs, and notes which ones are left out."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.statuses: dict[Path, str] = {}

    def read(self, folders: Sequence[Path]) -> list[Run]:
        """Returns the runs that can be read and have an evaluation; each folder once."""
        runs = []
        for path in {folder.resolve(): folder for folder in folders}.values():
            try:
                run = read_run(path)
                self.statuses[path], _ = status_of(run)
            except ConfigError as error:
                self.notes.append(f"Left out, since it cannot be read: {error}.")
                continue
            if len(points_of(run, SCORE)[0]):
                runs.append(run)
            else:
                self.notes.append(f"Left out, since it has no evaluation: {path} ({self.statuses[path]}).")
        return runs

    def score(self, run: Run, end: int | None) -> Score:
        """Returns the score of a run by the evaluation that is closest to ``end``, or by its last one."""
        steps, values, _ = points_of(run, SCORE)
        place = len(steps) - 1 if end is None else int(np.argmin(np.abs(steps - end)))
        return Score(run, self.statuses[run.folder], float(values[place]), int(steps[place]))


def _by_task(label: str, runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Returns the runs of a named group by environment.

    Raises:
        ConfigError: if a seed occurs twice in a task, since equal seeds are not independent.
    """
    tasks: dict[str, list[Run]] = {}
    for run in runs:
        tasks.setdefault(env_of(run.config), []).append(run)
    for task, of_task in tasks.items():
        for alike in same_config(of_task):
            if repeated_seeds(alike):
                folders = ", ".join(str(run.folder) for run in alike)
                raise ConfigError(
                    f"group {label}: two runs of {task} have the same config and seed, so they are not "
                    f"independent samples: {folders}. Put them into groups of different names"
                )
    return tasks


def _grouped_by_config(runs: Sequence[Run]) -> dict[str, dict[str, list[Run]]]:
    """Groups runs by config; configs of several environments with the same label are one group."""
    cells = independent(runs)
    by_task: dict[str, list[dict[str, Any]]] = {}
    for cell in cells:
        by_task.setdefault(env_of(cell[0].config), []).append(settings_of(cell[0].config))
    tasks = list(by_task.values())
    keys = [key for key in distinguishing_keys(tasks) if key != "env.env_id"]
    others = other_keys(tasks, keys)
    settings = [settings_of(cell[0].config) for cell in cells]
    headline = ", ".join(shared(settings)[:1]) if settings else ""
    labels = [", ".join([*describe(flat, keys), *others]) or headline for flat in settings]
    places = [(label, env_of(cell[0].config)) for label, cell in zip(labels, cells, strict=True)]
    names = names_of_groups(cells) if cells else []
    groups: dict[str, dict[str, list[Run]]] = {}
    for place, cell, name in zip(places, cells, names, strict=True):
        label, task = place
        # Launches of the same config and seeds: they are told apart by their folders.
        groups.setdefault(f"{label}, {name}" if places.count(place) > 1 else label, {})[task] = cell
    return groups


def _check_references(references: Mapping[str, Range], groups: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises ConfigError for a reference of an environment that no run has."""
    every = dict.fromkeys(task for tasks in groups.values() for task in tasks)
    for task in references:
        if task not in every:
            raise ConfigError(
                f"reference of {task}: no run has this environment; there are {', '.join(every)}"
            )


def _common_tasks(groups: Mapping[str, Mapping[str, Any]], notes: list[str]) -> tuple[str, ...]:
    """Returns the tasks of all groups, and notes which others are left out."""
    every = dict.fromkeys(task for tasks in groups.values() for task in tasks)
    common = tuple(task for task in every if all(task in tasks for tasks in groups.values()))
    if not common:
        counts = Counter(task for tasks in groups.values() for task in tasks)
        each = [f"{task} in {n} of {len(groups)} groups" for task, n in counts.most_common()]
        raise ConfigError(
            f"the groups have no environment in common: {', '.join(each)}. Name runs of one environment; if "
            "runs of different configs belong together, name their group: ding-lite compare 'mine=runs/a*' "
            "'mine=runs/b*' 'other=runs/c*'"
        )
    for task in every:
        if task not in common:
            without = [label for label, tasks in groups.items() if task not in tasks]
            notes.append(f"{task} is left out: there is no run of it in {'; '.join(without)}.")
    return common


def _end(runs: Sequence[Run], reader: _Reader) -> int | None:
    """Returns the env steps of the shortest run of a task that has reached its limit; None if none has."""
    at_limit = (run for run in runs if reached_limit(run, reader.statuses[run.folder]))
    return min(map(last_step, at_limit), default=None)


def reached_limit(run: Run, status: str) -> bool:
    """Returns whether a run has reached its limit: one that trains on past solved is "solved" there, too."""
    return status == "finished" or (
        status == "solved" and last_step(run) >= run.config.get("max_env_step", math.inf)
    )


def _ranges(
    tasks: Sequence[str], scores: Sequence[dict[str, list[Score]]], references: Mapping[str, Range] | None
) -> dict[str, Range]:
    """Returns the returns that count as 0 and 1 in each task; empty if there is one task and no reference."""
    if references:
        missing = [task for task in tasks if task not in references]
        if missing:
            raise ConfigError(f"there is no reference for {', '.join(missing)}: add {missing[0]}=LOW:HIGH")
        for task in tasks:
            low, high = references[task]
            if not (np.isfinite([low, high]).all() and low < high):
                raise ConfigError(f"reference of {task}: expected LOW below HIGH, got {low:g}:{high:g}")
        return {task: references[task] for task in tasks}
    if len(tasks) == 1:
        return {}
    ranges = {}
    for task in tasks:
        values = np.concatenate([points_of(score.run, SCORE)[1] for group in scores for score in group[task]])
        low, high = float(values.min()), float(values.max())
        ranges[task] = (low, high) if low < high else (low - 1.0, low)  # all are equal: all count as 1
    return ranges


def _notes(
    labels: Sequence[str],
    scores: Sequence[dict[str, list[Score]]],
    ends: Mapping[str, int | None],
    ranges: Mapping[str, Range],
) -> list[str]:
    notes = []
    for task, end in ends.items():
        every = [(label, score) for label, group in zip(labels, scores, strict=True) for score in group[task]]
        for label, score in every:
            if score.status not in ENDED:
                notes.append(
                    f"{score.run.folder} ({label}) is {score.status}: its evaluation at "
                    f"{score.env_step:,} env steps counts."
                )
            elif end is not None and score.reached_limit and abs(score.env_step - end) > FAR_FROM_END * end:
                notes.append(
                    f"{score.run.folder} ({label}) has no evaluation at {end:,} env steps, where the scores "
                    f"of {task} are taken: that at {score.env_step:,} counts."
                )
        notes += _solved_note(task, [score for _, score in every])
        if end is not None and any(last_step(score.run) > (1 + FAR_FROM_END) * end for _, score in every):
            shortest = next(
                score.run.folder for _, score in every if score.reached_limit and last_step(score.run) == end
            )
            notes.append(
                f"Scores of {task} are taken at {end:,} env steps, where {shortest} ends, the shortest "
                "finished run; without it they are taken later."
            )
    few = [
        label
        for label, group in zip(labels, scores, strict=True)
        if any(len(of_task) < statistics.MIN_RUNS for of_task in group.values())
    ]
    if few:
        notes.append(
            f"An interval needs {statistics.MIN_RUNS} runs of each environment; fewer: {'; '.join(few)}."
        )
    for task, (low, high) in ranges.items():
        notes.append(f"{task}: a return of {number(low)} counts as 0, one of {number(high)} as 1.")
    return notes


def _solved_note(task: str, scores: Sequence[Score]) -> list[str]:
    """Returns a sentence if runs of a task ended at its stop_value, at other steps than the others."""
    solved = [score for score in scores if score.status == "solved" and not score.reached_limit]
    steps = sorted(last_step(score.run) for score in scores)
    if not solved or steps[0] == steps[-1]:
        return []
    return [
        f"{len(solved)} of {len(scores)} runs of {task} ended early, at env.stop_value (status solved); the "
        f"runs end at {steps[0]:,} to {steps[-1]:,} env steps. Such scores say little: train with "
        "env.stop_value=None for a comparison."
    ]


def _differences(
    scores: Sequence[dict[str, list[Score]]], tasks: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    """Returns the values of the keys in which the groups differ on some task, and of the commit."""
    flat = [
        {
            task: [
                {"git commit": _commit(score.run), **settings_of(score.run.config)} for score in group[task]
            ]
            for task in tasks
        }
        for group in scores
    ]

    def values(group: dict[str, list[dict[str, Any]]], key: str, chosen: Sequence[str]) -> tuple[str, ...]:
        runs = [settings for task in chosen for settings in group[task]]
        return tuple(dict.fromkeys(str(settings.get(key, NOT_SET)) for settings in runs))

    keys = dict.fromkeys(key for group in flat for task in group.values() for run in task for key in run)
    found = {}
    for key in dict.fromkeys([*HEADLINE_KEYS, *keys]):
        if any(len({values(group, key, [task]) for group in flat}) > 1 for task in tasks):
            found[key] = tuple(" / ".join(values(group, key, tasks)) for group in flat)
    # Keys that a policy or a model of one group lacks follow from its type: they come last.
    return dict(sorted(found.items(), key=lambda item: NOT_SET in item[1]))


def _commit(run: Run) -> str:
    """Returns the commit that git.txt names, in short; "" without one."""
    first = first_line(run.folder / "git.txt")
    return first[:9] if COMMIT.fullmatch(first) else ""
