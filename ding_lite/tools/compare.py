"""Compares the final scores of groups of runs.

A group is a config with its seeds. Its runs of several environments are its tasks. The score of a run is the
mean return of one evaluation, at the same number of steps for all: the best one would be the higher, the more
often a run is evaluated. The statistics are those of :mod:`ding_lite.tools.statistics`;
:mod:`ding_lite.tools.compare_pictures` draws a comparison.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ding_lite.errors import ConfigError, counted
from ding_lite.run.folder import ENDED
from ding_lite.tools import statistics
from ding_lite.tools.runs import (
    NOT_SET,
    SCORE,
    Run,
    env_of,
    grouped,
    last_step,
    points_of,
    settings_of,
    shared,
)

FAR_FROM_END = 0.05  # share of the steps by which an evaluation may miss the end without a note

Range = tuple[float, float]


class Score(NamedTuple):
    """The score of a run: the mean return of its evaluation at ``env_step``."""

    run: Run
    value: float
    env_step: int


class Summary(NamedTuple):
    """A line of the table; None where there are too few runs or nothing to compare with.

    Attributes:
        group: its label.
        seeds: number of its runs in each task.
        mean: mean over tasks of the mean over runs.
        iqm: interquartile mean over the runs of all tasks.
        iqm_interval: its 95 % interval.
        improvement: probability that a run of this group scores higher than one of the first group.
        improvement_interval: its 95 % interval.
    """

    group: str
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
        notes: sentences about runs that were left out, and about what to keep in mind.
    """

    title: str
    labels: tuple[str, ...]
    tasks: tuple[str, ...]
    scores: tuple[dict[str, list[Score]], ...]
    ends: dict[str, int | None]
    ranges: dict[str, Range]
    notes: tuple[str, ...]

    @property
    def unit(self) -> str:
        """Returns the name of the scores that are compared over all tasks."""
        return "Normalised score" if self.ranges else "Return"

    def values(self, group: int) -> list[np.ndarray]:
        """Returns the scores of a group as arrays, one per task, normalised if there are ranges."""
        arrays = []
        for task in self.tasks:
            returns = np.array([score.value for score in self.scores[group][task]])
            low, high = self.ranges.get(task, (0.0, 1.0))
            arrays.append((returns - low) / (high - low))
        return arrays

    def summaries(self, task: str | None = None) -> list[Summary]:
        """Returns the lines of the table over all tasks, or of one task, in returns."""
        if task is None:
            groups = [self.values(place) for place in range(len(self.labels))]
        else:
            groups = [[np.array([score.value for score in group[task]])] for group in self.scores]
        lines = []
        for label, scores in zip(self.labels, groups, strict=True):
            improvement = improvement_interval = None
            if scores is not groups[0]:
                better = statistics.probability_of_improvement
                improvement = float(better(scores, groups[0]))
                improvement_interval = statistics.as_range(statistics.interval(better, scores, groups[0]))
            iqm = statistics.aggregate_iqm
            lines.append(
                Summary(
                    group=label,
                    seeds=tuple(len(of_task) for of_task in scores),
                    mean=float(statistics.mean(scores)),
                    iqm=float(iqm(scores)),
                    iqm_interval=statistics.as_range(statistics.interval(iqm, scores)),
                    improvement=improvement,
                    improvement_interval=improvement_interval,
                )
            )
        return lines

    def differences(self) -> dict[str, tuple[str, ...]]:
        """Returns the keys in which the groups differ on some task, with the values of each group."""
        flat = [
            {task: [settings_of(score.run.config) for score in group[task]] for task in self.tasks}
            for group in self.scores
        ]

        def values(group: dict[str, list[dict[str, Any]]], key: str, tasks: Sequence[str]) -> str:
            found = (str(settings.get(key, NOT_SET)) for task in tasks for settings in group[task])
            return " / ".join(dict.fromkeys(found))

        keys = {key for group in flat for task in group.values() for settings in task for key in settings}
        return {
            key: tuple(values(group, key, self.tasks) for group in flat)
            for key in sorted(keys)
            if any(len({values(group, key, [task]) for group in flat}) > 1 for task in self.tasks)
        }

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
                    "groups": [summary._asdict() for summary in self.summaries(task)],
                }
                for task in self.tasks
            },
            "differences": {
                key: dict(zip(self.labels, values, strict=True)) for key, values in self.differences().items()
            },
            "runs": [
                {
                    "folder": str(score.run.folder),
                    "group": label,
                    "task": task,
                    "seed": score.run.config.get("seed"),
                    "status": score.run.status,
                    "score": score.value,
                    "env_step": score.env_step,
                }
                for label, group in zip(self.labels, self.scores, strict=True)
                for task in self.tasks
                for score in group[task]
            ],
            "notes": list(self.notes),
        }


def number(value: float) -> str:
    """Returns a score as text, with as many digits as are of use: 1,234.5, 0.93 and 0.0042."""
    if 0 < abs(value) < 0.1:
        return f"{value:.2g}"
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.2f}"


def table_of(summaries: Sequence[Summary]) -> list[list[str]]:
    """Returns the rows of the table as texts, the header first; "-" where there is no number."""

    def cell(value: float | None, edges: Range | None) -> str:
        text = "-" if value is None else number(value)
        return text if edges is None else f"{text} [{number(edges[0])}, {number(edges[1])}]"

    rows = [["group", "seeds", "mean", "IQM [95 %]", "improvement [95 %]"]]
    for s in summaries:
        scores = [number(s.mean), cell(s.iqm, s.iqm_interval)]
        rows.append([s.group, s.seed_count, *scores, cell(s.improvement, s.improvement_interval)])
    return rows


def table_text(comparison: Comparison, suffix: str) -> str:
    """Returns the tables of all tasks as one, in Markdown (".md") or for LaTeX's booktabs (".tex")."""
    tasks = [None, *comparison.tasks] if len(comparison.tasks) > 1 else list(comparison.tasks)
    tables = {task or comparison.unit: table_of(comparison.summaries(task)) for task in tasks}
    head = ["task", *next(iter(tables.values()))[0]]
    body = [[task, *row] for task, table in tables.items() for row in table[1:]]
    if suffix == ".md":
        rows = [[cell.replace("|", r"\|") for cell in row] for row in (head, ["---"] * len(head), *body)]
        return "\n".join([*(f"| {' | '.join(row)} |" for row in rows), "", *comparison.notes, ""])
    begin = [rf"\begin{{tabular}}{{ll{'r' * (len(head) - 2)}}}", r"\toprule"]
    header, *lines = (" & ".join(map(_tex, row)) + r" \\" for row in [head, *body])
    notes = [f"% {note}" for note in comparison.notes]
    return "\n".join([*notes, *begin, header, r"\midrule", *lines, r"\bottomrule", r"\end{tabular}", ""])


def _tex(text: str) -> str:
    """Returns a text for LaTeX: signs escaped, numbers with a minus."""
    text = re.sub(r"[&%$#_{}]", r"\\\g<0>", text.replace("\\", "/"))
    return re.sub(r"(?<![\w.])-(?=\d)", "$-$", text).replace("~", r"\textasciitilde{}").replace("^", r"\^{}")


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
    notes: list[str] = []
    groups: dict[str, dict[str, list[Run]]] = {}  # by label and task
    for label, runs in grouped(arguments, [SCORE], notes, by_task=True):
        for run in runs:
            groups.setdefault(label, {}).setdefault(env_of(run.config), []).append(run)
    if not groups:
        raise ConfigError("\n  ".join(["there is no run to compare.", *notes]))
    tasks = _common_tasks(groups, notes)
    ends: dict[str, int | None] = {}
    for task in tasks:
        runs = [run for group in groups.values() for run in group[task]]
        at_limit = (run for run in runs if _reached_limit(run))
        ends[task] = min(map(last_step, at_limit), default=None)
    scores = tuple(
        {task: [_score(run, ends[task]) for run in group[task]] for task in tasks}
        for group in groups.values()
    )
    every = [score for group in scores for of_task in group.values() for score in of_task]
    ranges = _ranges(tasks, every, references or {})
    notes += _notes(tuple(groups), scores, ends, ranges)
    title = shared([settings_of(score.run.config) for score in every])
    return Comparison(title, tuple(groups), tasks, scores, ends, ranges, tuple(notes))


def _common_tasks(groups: Mapping[str, Mapping[str, Any]], notes: list[str]) -> tuple[str, ...]:
    """Returns the tasks of all groups, and notes which others are left out."""
    every = dict.fromkeys(task for tasks in groups.values() for task in tasks)
    lacking = {task: [label for label, tasks in groups.items() if task not in tasks] for task in every}
    common = tuple(task for task in every if not lacking[task])
    if not common:
        raise ConfigError(
            f"the groups have no environment in common: {', '.join(every)}. If runs of different configs "
            "belong together, name their groups: ding-lite compare 'mine=runs/a*' 'other=runs/b*'"
        )
    notes += [
        f"{task} is left out: there is no run of it in {'; '.join(without)}."
        for task, without in lacking.items()
        if without
    ]
    return common


def _reached_limit(run: Run) -> bool:
    """Returns whether a run has reached its limit: one that trains on past solved is "solved" there, too."""
    at_limit = last_step(run) >= run.config.get("max_env_step", math.inf)
    return run.status == "finished" or (run.status == "solved" and at_limit)


def _score(run: Run, end: int | None) -> Score:
    """Returns the score of a run by the evaluation that is closest to ``end``, or by its last one."""
    steps, values = points_of(run, SCORE)
    place = len(steps) - 1 if end is None else int(np.argmin(np.abs(steps - end)))
    return Score(run, float(values[place]), int(steps[place]))


def _ranges(
    tasks: Sequence[str], scores: Sequence[Score], references: Mapping[str, Range]
) -> dict[str, Range]:
    """Returns the returns that count as 0 and 1 in each task; empty if there is one task and no reference."""
    if references and set(references) != set(tasks):
        raise ConfigError(f"references are needed for {', '.join(tasks)}, got {', '.join(references)}")
    for task, (low, high) in references.items():
        if not low < high:
            raise ConfigError(f"reference of {task}: expected LOW below HIGH, got {low:g}:{high:g}")
    if references or len(tasks) == 1:
        return dict(references)
    ranges = {}
    for task in tasks:
        runs = [score.run for score in scores if env_of(score.run.config) == task]
        values = np.concatenate([points_of(run, SCORE)[1] for run in runs])
        low, high = float(values.min()), float(values.max())
        ranges[task] = (low, high) if low < high else (low - 1.0, low)  # all are equal: all count as 1
    return ranges


def _notes(
    names: Sequence[str],
    scores: Sequence[dict[str, list[Score]]],
    ends: Mapping[str, int | None],
    ranges: Mapping[str, Range],
) -> list[str]:
    """Returns what to keep in mind about the scores."""
    notes = []
    if len(names) > 1:
        notes.append(f"Improvement: the probability that a run scores higher than one of {names[0]}.")
    for task, end in ends.items():
        at = end or max(score.env_step for group in scores for score in group[task])
        notes.append(f"Scores of {task} are taken at {at:,} env steps.")
        for name, group in zip(names, scores, strict=True):
            elsewhere = [
                f"{score.run.folder} ({score.run.status}) at {score.env_step:,}"
                for score in group[task]
                if score.run.status not in ENDED or abs(score.env_step - at) > FAR_FROM_END * at
            ]
            if elsewhere:
                notes.append(
                    f"Elsewhere, {counted(len(elsewhere), 'run')} of {name}: {', '.join(elsewhere)}."
                )
    few = [
        name
        for name, group in zip(names, scores, strict=True)
        if any(len(of_task) < statistics.MIN_RUNS for of_task in group.values())
    ]
    if few:
        notes.append(
            f"An interval needs {statistics.MIN_RUNS} runs of each environment; fewer: {'; '.join(few)}."
        )
    for task, (low, high) in ranges.items():
        notes.append(f"{task}: a return of {number(low)} counts as 0, one of {number(high)} as 1.")
    return notes
