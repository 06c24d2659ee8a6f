"""Compares the final scores of groups of runs.

A group is a config with its seeds; its environments are its tasks. The score of a run is the mean return of
one evaluation, at the same number of env steps for all runs. The best evaluation would not be a fair score:
it grows with the number of evaluations. :mod:`ding_lite.tools.statistics` computes the statistics, and
:mod:`ding_lite.tools.compare_pictures` draws a comparison.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ding_lite.errors import ConfigError
from ding_lite.run.display import score_text
from ding_lite.run.folder import ENDED
from ding_lite.tools import statistics
from ding_lite.tools.runs import (
    HEADLINE_KEYS,
    SCORE,
    Run,
    differing,
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
    """A row of the table; intervals of too few runs are None, and so is the improvement of the first group.

    Attributes:
        group: its label.
        seeds: number of its runs in each task.
        mean: mean over tasks of the mean over runs.
        iqm: interquartile mean over the runs of all tasks.
        iqm_interval: its 95 % interval.
        improvement: probability that a run of this group scores higher than a run of the first group.
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
        scores: by label of the group, then by task: the environments that all groups have runs of.
        ends: for each task, the env steps at which scores are taken; None: at each run's last evaluation.
        ranges: for each task, the returns that count as 0 and as 1; empty: scores are returns.
        notes: sentences about runs that were left out, and about limits of the comparison.
    """

    title: str
    scores: dict[str, dict[str, list[Score]]]
    ends: dict[str, int | None]
    ranges: dict[str, Range]
    notes: list[str]

    @property
    def unit(self) -> str:
        """Returns the name of the scores that are compared over all tasks."""
        return "Normalised score" if self.ranges else "Return"

    def values(self, group: str, task: str | None = None) -> list[np.ndarray]:
        """Returns a group's returns in ``task``; None: in each task, normalised if there are ranges."""
        arrays = []
        for name in self.ends if task is None else [task]:
            low, high = self.ranges.get(name, (0.0, 1.0)) if task is None else (0.0, 1.0)
            returns = np.array([score.value for score in self.scores[group][name]])
            arrays.append((returns - low) / (high - low))
        return arrays

    def summaries(self, task: str | None = None) -> list[Summary]:
        """Returns the rows of the table over all tasks, or, with ``task``, of its table of returns."""
        iqm, better = statistics.aggregate_iqm, statistics.probability_of_improvement
        groups = {label: self.values(label, task) for label in self.scores}
        first, *_ = groups.values()
        return [
            Summary(
                group=label,
                seeds=tuple(map(len, scores)),
                mean=float(statistics.mean(scores)),
                iqm=float(iqm(scores)),
                iqm_interval=statistics.interval(iqm, scores),
                improvement=None if scores is first else float(better(scores, first)),
                improvement_interval=None if scores is first else statistics.interval(better, scores, first),
            )
            for label, scores in groups.items()
        ]

    def differences(self) -> dict[str, list[str]]:
        """Returns the keys in which the groups differ, with the values of each group."""
        return differing(
            [
                [settings_of(score.run.config) for task in self.ends for score in group[task]]
                for group in self.scores.values()
            ]
        )

    def as_json(self) -> dict[str, Any]:
        """Returns everything as JSON data."""
        return {
            "title": self.title,
            "score": "normalised" if self.ranges else "return",
            "groups": [summary._asdict() for summary in self.summaries()],
            "tasks": {
                task: {
                    "env_step": end,
                    "range": self.ranges.get(task),
                    "groups": [summary._asdict() for summary in self.summaries(task)],
                }
                for task, end in self.ends.items()
            },
            "differences": {
                key: dict(zip(self.scores, values, strict=True)) for key, values in self.differences().items()
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
                for label, group in self.scores.items()
                for task in self.ends
                for score in group[task]
            ],
            "notes": self.notes,
        }


def tables_of(comparison: Comparison) -> dict[str, list[list[str]]]:
    """Returns tables by title: one of normalised scores, if there are any, and one of returns for each task.

    Cells are texts, "-" where there is no number. The first row is the header.
    """

    def cell(value: float | None, edges: Range | None = None) -> str:
        return score_text(value) + (f" [{', '.join(map(score_text, edges))}]" if edges else "")

    tables = {}
    for task in [*([None] if comparison.ranges else []), *comparison.ends]:
        rows = [["group", "seeds", "mean", "IQM [95 %]", "improvement [95 %]"]]
        for s in comparison.summaries(task):
            scores = cell(s.mean), cell(s.iqm, s.iqm_interval), cell(s.improvement, s.improvement_interval)
            rows.append([s.group, s.seed_count, *scores])
        tables[task or comparison.unit] = rows
    return tables


def table_text(comparison: Comparison) -> str:
    """Returns the tables of all tasks as one, in Markdown."""
    tables = tables_of(comparison)
    head = ["task", *next(iter(tables.values()))[0]]
    body = [[title, *row] for title, (_, *rows) in tables.items() for row in rows]
    escaped = [[cell.replace("|", r"\|") for cell in row] for row in (head, ["---"] * len(head), *body)]
    return "\n".join([*(f"| {' | '.join(row)} |" for row in escaped), "", *comparison.notes, ""])


# ------------------------------------------------------------------ from folders


def compare(arguments: Sequence[str | Path], references: Mapping[str, Range] | None = None) -> Comparison:
    """Compares groups of runs.

    Args:
        arguments: run folders, folders with runs in them, or glob patterns. Their runs are grouped by
            config. ``NAME=FOLDER`` puts the runs into the group NAME instead; a name may occur repeatedly.
        references: for each environment, the returns that count as 0 and as 1.

    Raises:
        ConfigError: if there is nothing to compare, a reference is missing, or its LOW is not below HIGH.
    """
    notes: list[str] = []
    groups: dict[str, dict[str, list[Run]]] = {}  # by label and task
    for label, runs in grouped(arguments, [SCORE], notes, HEADLINE_KEYS[:1]).items():
        for run in runs:
            groups.setdefault(label, {}).setdefault(env_of(run.config), []).append(run)
    tasks = dict.fromkeys(task for group in groups.values() for task in group)
    for task in list(tasks):
        if lacking := [label for label, group in groups.items() if task not in group]:
            del tasks[task]
            notes.append(f"{task} is left out: there is no run of it in {'; '.join(lacking)}.")
    if not tasks:
        raise ConfigError(
            "the groups have no environment in common. If runs of different configs belong together, name "
            "their groups: ding-lite compare 'mine=runs/a*' 'other=runs/b*'"
        )
    runs_of = {task: [run for group in groups.values() for run in group[task]] for task in tasks}
    ranges = _ranges(runs_of, references or {})
    if len(groups) > 1:
        first = next(iter(groups))
        notes.append(f"Improvement: the probability that a run scores higher than a run of {first}.")
    ends: dict[str, int | None] = {}
    scores: dict[str, dict[str, list[Score]]] = {label: {} for label in groups}
    for task, runs in runs_of.items():
        end = ends[task] = min(map(last_step, filter(_reached_limit, runs)), default=None)
        for label, group in groups.items():
            scores[label][task] = [_score(run, end) for run in group[task]]
        of_task = [score for group in scores.values() for score in group[task]]
        common_step = end or max(score.env_step for score in of_task)
        notes.append(f"Scores of {task} are taken at {common_step:,} env steps.")
        if elsewhere := [
            f"{score.run.folder} ({score.run.status}) at {score.env_step:,}"
            for score in of_task
            if score.run.status not in ENDED or abs(score.env_step - common_step) > FAR_FROM_END * common_step
        ]:
            notes.append(f"Scores at other steps, or of unfinished runs: {', '.join(elsewhere)}.")
    few = [label for label, group in scores.items() if min(map(len, group.values())) < statistics.MIN_RUNS]
    if few:
        notes.append(
            f"An interval needs {statistics.MIN_RUNS} runs of each environment; fewer: {'; '.join(few)}."
        )
    for task, (low, high) in ranges.items():
        notes.append(f"{task}: a return of {score_text(low)} counts as 0, one of {score_text(high)} as 1.")
    title = shared([settings_of(run.config) for runs in runs_of.values() for run in runs])
    return Comparison(title, scores, ends, ranges, notes)


def _reached_limit(run: Run) -> bool:
    """Returns whether a run has reached its limit; a solved run may have been trained further, up to it."""
    at_limit = last_step(run) >= run.config.get("max_env_step", math.inf)
    return run.status == "finished" or (run.status == "solved" and at_limit)


def _score(run: Run, end: int | None) -> Score:
    """Returns the score of a run by the evaluation that is closest to ``end``, or by its last one."""
    steps, values = points_of(run, SCORE)
    index = len(steps) - 1 if end is None else int(np.argmin(np.abs(steps - end)))
    return Score(run, float(values[index]), int(steps[index]))


def _ranges(runs_of: Mapping[str, Sequence[Run]], references: Mapping[str, Range]) -> dict[str, Range]:
    """Returns the returns that count as 0 and 1 in each task; empty if there is one task and no reference."""
    if references and set(references) != set(runs_of):
        raise ConfigError(f"references are needed for {', '.join(runs_of)}, got {', '.join(references)}")
    for task, (low, high) in references.items():
        if not low < high:
            raise ConfigError(f"reference of {task}: expected LOW below HIGH, got {low:g}:{high:g}")
    if references or len(runs_of) == 1:
        return dict(references)
    ranges = {}
    for task, runs in runs_of.items():
        values = np.concatenate([points_of(run, SCORE)[1] for run in runs])
        low, high = float(values.min()), float(values.max())
        ranges[task] = (low, high) if low < high else (low - 1.0, low)  # all are equal: all count as 1
    return ranges
