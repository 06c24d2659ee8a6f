"""Tables and pictures of learning: interquartile means with bootstrap intervals (arXiv:2108.13264)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
from harness import table
from rows import Comparison, Row

from ding_lite.tools.statistics import (
    Scores,
    aggregate_iqm,
    curve_interval,
    interquartile_mean,
    interval,
    probability_of_improvement,
)

Seeds = dict[str, list[dict[str, Any]]]  # the results of each row, by its name
Points = tuple[np.ndarray, np.ndarray]  # env steps and returns of one seed during training

ENOUGH = 5  # seeds, below which a cell has their range in place of an interval, and no comparison
COLUMNS = 3  # of panels in a picture
RESAMPLES = 2_000  # of a curve


def rows_table(rows: dict[str, Row], seeds_of: Seeds) -> list[str]:
    """Returns the table of all measured rows."""
    names = ["row", "published", "interquartile mean (interval)", "return of each seed"]
    lines = [[*names, "env steps", "commit"]]
    measured = {name: seeds_of[name] for name in rows if name in seeds_of}
    for name, seeds in measured.items():
        values, steps = _column(seeds, "return"), _column(seeds, "env_step")
        digits, known = 1 if abs(values).max() > 1 else 3, rows[name].published
        cells = [title(name, rows[name]), f"{known[0]:,g} ({known[1]})" if known else ""]
        cells += [score_cell([values], digits), ", ".join(f"{value:,.{digits}f}" for value in values)]
        span = " to ".join(dict.fromkeys(f"{edge:,.0f}" for edge in (min(steps), max(steps))))
        lines.append([*cells, span, _commits(seeds)])
    return [*table(*lines), "", f"{measured_at(measured)}."]


def short_table(rows: dict[str, Row], seeds_of: Seeds) -> list[str]:
    """Returns README's table of some rows: what a user types, and the interquartile mean."""
    lines = [["`ding-lite train -c`", "env steps", "return", "published"]]
    for name, row in rows.items():
        values, steps = (_column(seeds_of[name], column) for column in ("return", "env_step"))
        typed, known = f"`{' '.join([row.config, row.keys]).strip()}`", row.published
        cells = [typed, f"{steps.max():,.0f}", score_cell([values], 0)]
        lines.append([*cells, f"{known[0]:,g} ({known[1]})" if known else ""])
    return table(*lines)


def title(name: str, row: Row) -> str:
    """Returns the name of a row, with its config, the environment, and how many other keys it changes."""
    changes = [change.split("=") for change in row.keys.split()]
    env = [value for key, value in changes if key == "env.env_id"]
    others = len(changes) - len(env)
    parts = [name if name == row.config else f"{name}: {row.config}", *env]
    parts += [f"{others} other key{'s' * (others > 1)}"] if others else []
    return ", ".join(parts + ["best checkpoint"] * (row.checkpoint == "best"))


def comparison_table(comparison: Comparison, seeds_of: Seeds) -> list[str]:
    """Returns the table: a line per arm, a column per group, and one over all groups if they are games.

    A cell has the interquartile mean, its interval, and the probability that a seed of the arm is better than
    one of the baseline.
    """
    measured = {name: seeds_of[name] for name in comparison.arms if name in seeds_of}
    groups = list(dict.fromkeys(name.partition(".")[0] for name in measured))
    base = comparison.baseline
    lines = [[f"{comparison.unit}; the baseline is {base}", *groups]]
    arms = list(dict.fromkeys(name.partition(".")[2] for name in measured))
    has_all = comparison.games and len(measured) == len(groups) * len(
        arms
    )  # else arms are of different games
    lines[0] += [f"all, over the mean of {base}"] if has_all else []
    for arm in arms:
        cells, ratios = [arm], []
        for group in groups:
            seeds = measured.get(f"{group}.{arm}", [])
            if not seeds:
                cells.append("")
                continue
            values = _column(seeds, comparison.measure)
            baseline = _column(measured.get(f"{group}.{base}", []), comparison.measure)
            cells.append(score_cell([values], 1))
            if arm != base:
                cells[-1] += beats(values, baseline, comparison.less_is_better)
            if (elsewhere := _column(seeds, "elsewhere")).size:
                cells[-1] += f"; {comparison.where} {aggregate_iqm([elsewhere]):,.1f}"
            ratios += [values / baseline.mean()] if has_all else []
        lines.append([*cells, *([score_cell(ratios, 2)] if has_all else [])])
    every = [seed for seeds in measured.values() for seed in seeds]
    return [*table(*lines), "", f"{measured_at(measured)}; commits {_commits(every)}."]


def measured_at(measured: Seeds) -> str:
    """Returns how many seeds a table has for each row, and where and when they were measured."""
    every = [seed for seeds in measured.values() for seed in seeds]
    counts, dates = Counter(seed["row"] for seed in every).values(), [seed["date"] for seed in every]
    machines = dict.fromkeys(seed["machine"] for seed in every)
    return f"{_span(counts)} seeds, {_span(dates)}, {' and '.join(machines)}"


def _span(values: Collection[Any]) -> str:
    return " to ".join(dict.fromkeys(map(str, (min(values), max(values)))))


def beats(values: np.ndarray, others: np.ndarray, less_is_better: bool = False) -> str:
    """Returns the probability that a seed is better than one of the others, as the end of a cell."""
    if min(len(values), len(others)) < ENOUGH:
        return ""
    better = float(probability_of_improvement([values], [others]))
    return f", beats {1 - better if less_is_better else better:.2f}"


def score_cell(scores: Scores, digits: int) -> str:
    """Returns the interquartile mean with its interval in (), or with the range of too few seeds in []."""
    text = f"{aggregate_iqm(scores):,.{digits}f}"
    if min(map(len, scores)) >= ENOUGH:
        low, high = interval(aggregate_iqm, scores) or ()
        return f"**{text}** ({low:,.{digits}f} to {high:,.{digits}f})"
    if len(scores) > 1 or len(scores[0]) == 1:
        return text
    return f"{text} [{min(scores[0]):,.{digits}f} to {max(scores[0]):,.{digits}f}]"


def _column(seeds: list[dict[str, Any]], name: str) -> np.ndarray:
    return np.array([seed[name] for seed in seeds if name in seed])


def _commits(seeds: list[dict[str, Any]]) -> str:
    return ", ".join(dict.fromkeys(seed["commit"] for seed in seeds))


def draw(
    panels: dict[str, dict[str, list[Points]]],
    file: Path,
    marks: dict[str, Any] | None = None,
    x_label: str = "env steps",
) -> None:
    """Draws a panel per group with a line per arm: the interquartile mean over the seeds and its interval.

    A seed that stopped when it was solved keeps its last value.

    Args:
        panels: the points of each seed, by group and arm.
        file: of the picture.
        marks: the published figure of a group, which is dotted.
        x_label: the name of what the points are over.
    """
    if not panels:
        return
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import EngFormatter

    names = dict.fromkeys(arm for arms in panels.values() for arm in arms)
    colors = {arm: f"C{place}" for place, arm in enumerate(names)}
    columns = min(COLUMNS, len(panels))
    lines = -(-len(panels) // columns)
    figure, grid = plt.subplots(lines, columns, figsize=(4 * columns, 3 * lines), squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    for axes, (group, arms) in zip(grid.flat, panels.items(), strict=False):
        for arm, seeds in arms.items():
            x, values = _on_one_grid(seeds)
            axes.plot(x, interquartile_mean(values.T), label=arm, color=colors[arm])
            if len(seeds) > 2:
                band = curve_interval(values, interquartile_mean, RESAMPLES)
                axes.fill_between(x, *band, alpha=0.2, color=colors[arm], linewidth=0)
        if mark := (marks or {}).get(group):
            axes.axhline(mark[0], color="0.35", linestyle=":", linewidth=1.2)
        axes.set_title(group, fontsize=9)
        axes.set_xlabel(x_label, fontsize=8)
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.tick_params(labelsize=7)
        axes.grid(alpha=0.3)
        if len(names) > 1:
            axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(file, dpi=100, metadata={"Software": None})
    plt.close(figure)


def _on_one_grid(seeds: list[Points]) -> Points:
    """Returns the env steps (P,) and the returns (S, P) of all seeds at them."""
    end, start = max(x[-1] for x, _ in seeds), max(x[0] for x, _ in seeds)
    grid = np.unique(np.concatenate([[end], *(x for x, _ in seeds)]))
    grid = grid[grid >= start]
    return grid, np.stack([np.interp(grid, x, y) for x, y in seeds])
