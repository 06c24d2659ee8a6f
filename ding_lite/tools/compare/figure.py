"""The numbers of a comparison's plots, and the figure that matplotlib draws of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ding_lite.tools import statistics
from ding_lite.tools.compare.comparison import Comparison, Summary
from ding_lite.tools.plot import (
    STYLES,
    X_LABELS,
    Curve,
    add_texts,
    curve_notes,
    draw_curve,
    format_axes,
    new_figure,
    seeds_curve,
)
from ding_lite.tools.runs import SCORE, points_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LEVELS = 201  # points of a performance profile
PROFILE_RESAMPLES = 2_000
LONG_LABEL = 14  # characters; beside the rows of a plot, longer labels stand in the legend only
LONG_NAME = 32  # characters; longer names do not fit below a plot
MAX_COLUMNS = 3
SCORES_TITLE = "Final score: interquartile mean, 95 % interval"


class Profile(NamedTuple):
    """The share of runs that score above each level, for each group.

    Attributes:
        levels: (L,).
        shares: (L,) for each group.
        bands: (2, L) for each group; None: too few runs.
    """

    levels: np.ndarray
    shares: list[np.ndarray]
    bands: list[np.ndarray | None]


def learning_curves(comparison: Comparison, task: str) -> list[Curve]:
    """Returns the curve of the evaluations of each group in a task: interquartile means."""
    curves = []
    for group in comparison.scores:
        seeds = [points_of(score.run, SCORE)[:2] for score in group[task]]
        curves.append(Curve(*seeds[0]) if len(seeds) == 1 else seeds_curve(seeds, "iqm"))
    return curves


def profile(comparison: Comparison) -> Profile:
    """Returns the performance profile of each group over all tasks."""
    scores = [comparison.values(place) for place in range(len(comparison.labels))]
    every = np.concatenate([task for group in scores for task in group])
    margin = 0.03 * (np.ptp(every) or abs(every[0]) or 1.0)
    levels = np.linspace(every.min() - margin, every.max() + margin, LEVELS)

    def shares(group: statistics.Scores) -> np.ndarray:
        return statistics.performance_profile(group, levels)

    return Profile(
        levels,
        [shares(group) for group in scores],
        [statistics.interval(shares, group, resamples=PROFILE_RESAMPLES) for group in scores],
    )


def draw_comparison(comparison: Comparison, title: str | None = None) -> Figure:
    """Returns the figure: learning curves of each task, final scores, profiles, probabilities of improvement.

    Raises:
        ConfigError: if matplotlib is not installed.
    """
    count = len(comparison.tasks) + (2 if len(comparison.labels) == 1 else 3)
    columns = 2 if count <= 4 else MAX_COLUMNS
    rows = -(-count // columns)
    figure = new_figure(0.6 + 3.7 * columns, 0.9 + 2.5 * rows)
    panels = iter(range(1, count + 1))

    def next_axes() -> Axes:
        return figure.add_subplot(rows, columns, next(panels), axisbelow=True)

    all_curves: list[Curve] = []
    for task in comparison.tasks:
        axes = next_axes()
        curves = learning_curves(comparison, task)
        for style, curve in zip(_styles(comparison), curves, strict=True):
            draw_curve(axes, curve, style)
        heading = "Evaluation return" + (f", {task}" if len(comparison.tasks) > 1 else "")
        format_axes(axes, heading, X_LABELS["env_step"], "Return")
        axes.set_xlim(left=0)
        all_curves += curves
    summaries = comparison.summaries()
    _draw_scores(next_axes(), comparison, summaries)
    _draw_profile(next_axes(), comparison)
    if len(summaries) > 1:
        _draw_improvement(next_axes(), comparison, summaries)
    notes = curve_notes(all_curves, "iqm")
    if any(summary.iqm_interval for summary in summaries):
        notes.append("Bars and other bands: 95 % stratified bootstrap intervals. Small marks: single runs.")
    add_texts(figure, [_legend(summary) for summary in summaries], notes, title or comparison.title)
    return figure


def _legend(summary: Summary) -> str:
    counts = sorted(set(summary.seeds))
    text = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"{summary.label} (n={text})"


def _styles(comparison: Comparison) -> list[dict[str, Any]]:
    return [STYLES[place % len(STYLES)] for place in range(len(comparison.labels))]


def _draw_scores(axes: Axes, comparison: Comparison, summaries: Sequence[Summary]) -> None:
    for place, summary in enumerate(summaries):
        runs = np.concatenate(comparison.values(place))
        _draw_bar(axes, place, summary.iqm, summary.iqm_interval)
        axes.plot(
            runs,
            np.full(len(runs), place + 0.13),
            linestyle="",
            marker="|",
            color=_color(place),
            alpha=0.8,
            markersize=6,
        )
    format_axes(axes, SCORES_TITLE, comparison.unit)
    _format_rows(axes, [summary.label for summary in summaries])


def _draw_profile(axes: Axes, comparison: Comparison) -> None:
    found = profile(comparison)
    for style, shares, band in zip(_styles(comparison), found.shares, found.bands, strict=True):
        axes.step(found.levels, shares, where="post", **style, linewidth=1.5)
        if band is not None:
            low, high = band
            axes.fill_between(
                found.levels, low, high, step="post", color=style["color"], alpha=0.15, linewidth=0
            )
    format_axes(axes, "Performance profile", comparison.unit, "Runs above")
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    axes.set(ylim=(-0.02, 1.02), xlim=(found.levels[0], found.levels[-1]))


def _draw_improvement(axes: Axes, comparison: Comparison, summaries: Sequence[Summary]) -> None:
    first, *others = summaries
    for place, summary in enumerate(others, start=1):
        _draw_bar(axes, place, summary.improvement or 0.0, summary.improvement_interval)
    axes.axvline(0.5, color="0.5", linewidth=0.8, linestyle=":")
    other = first.label if len(first.label) <= LONG_NAME else "the first group"
    format_axes(axes, "Probability of improvement", f"P(higher score than {other})")
    _format_rows(axes, ["", *(summary.label for summary in others)])
    axes.set(xlim=(-0.03, 1.03), ylim=(len(summaries) - 0.5, 0.5))


def _draw_bar(axes: Axes, place: int, value: float, edges: tuple[float, float] | None) -> None:
    """Draws a value with its interval in the row of a group."""
    if edges is not None:
        axes.plot(edges, [place, place], color=_color(place), linewidth=5, alpha=0.35, solid_capstyle="butt")
    axes.plot([value], [place], color=_color(place), marker=MARKERS[place % len(MARKERS)], markersize=6)


def _color(place: int) -> str:
    return str(STYLES[place % len(STYLES)]["color"])


def _format_rows(axes: Axes, labels: Sequence[str]) -> None:
    """Makes the vertical axis one row per group; long labels stand in the legend only."""
    readable = max(map(len, labels)) <= LONG_LABEL
    axes.set_yticks(range(len(labels)))
    axes.yaxis.set_major_formatter(lambda value, _: labels[int(value)] if readable else "")
    for text in axes.get_yticklabels():
        text.set_parse_math(False)  # a name may contain $
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
