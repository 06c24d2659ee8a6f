"""The numbers of a comparison's plots, and the figure that matplotlib draws of them."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ding_lite.errors import ConfigError
from ding_lite.tools import statistics
from ding_lite.tools.compare.comparison import Comparison, Summary
from ding_lite.tools.plot import (
    X_LABEL,
    Curve,
    add_texts,
    check_width,
    curve_notes,
    draw_curve,
    format_axes,
    grid_of,
    seeds_curve,
    style_of,
)
from ding_lite.tools.runs import SCORE, points_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LEVELS = 201  # points of a performance profile
PROFILE_RESAMPLES = 2_000
LINE = 24  # characters of a line of a label beside the rows of a plot
MANY_ROWS = 6  # labels of more rows than these have one line each, and small letters
LONG_NAME = 32  # characters; longer names do not fit below a plot
MAX_COLUMNS = 3
PANELS = ("evaluation", "scores", "profile", "improvement")
SCORES_TITLE = "Final score: interquartile mean, 95 % interval"


class ScoreProfile(NamedTuple):
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


def score_profile(comparison: Comparison) -> ScoreProfile:
    """Returns the performance profile of each group over all tasks."""
    scores = [comparison.values(place) for place in range(len(comparison.labels))]
    every = np.concatenate([task for group in scores for task in group])
    margin = 0.03 * (np.ptp(every) or abs(every[0]) or 1.0)
    levels = np.linspace(every.min() - margin, every.max() + margin, LEVELS)

    def shares(group: statistics.Scores) -> np.ndarray:
        return statistics.performance_profile(group, levels)

    return ScoreProfile(
        levels,
        [shares(group) for group in scores],
        [statistics.interval(shares, group, resamples=PROFILE_RESAMPLES) for group in scores],
    )


def _check_panels(names: Sequence[str]) -> None:
    for name in names:
        if name not in PANELS:
            raise ConfigError(f"there is no panel {name!r}; the panels are: {', '.join(PANELS)}")


def draw_comparison(
    comparison: Comparison, title: str | None = None, panels: Sequence[str] = (), width: float | None = None
) -> Figure:
    """Returns the figure: learning curves of each task, final scores, profiles, probabilities of improvement.

    Args:
        comparison: to draw.
        title: of the figure; None: what all runs have in common.
        panels: those of ``PANELS`` to draw; empty: all.
        width: of the figure in inches; None: as the panels need it.

    Raises:
        ConfigError: if there is no such panel or width, or matplotlib is not installed.
    """
    _check_panels(panels)
    check_width(width)
    chosen = [panel for panel in PANELS if not panels or panel in panels]
    if len(comparison.labels) == 1 and "improvement" in chosen:
        chosen.remove("improvement")
        if not chosen:
            raise ConfigError("the panel improvement needs two groups, got 1: name another group")
    tasks = comparison.tasks if "evaluation" in chosen else ()
    count = len(tasks) + len(chosen) - ("evaluation" in chosen)
    figure, rows, columns = grid_of(count, 2 if count <= 4 else MAX_COLUMNS, width)
    places = iter(range(1, count + 1))

    def next_axes() -> Axes:
        return figure.add_subplot(rows, columns, next(places), axisbelow=True)

    curves = [curve for task in tasks for curve in _draw_learning(next_axes(), comparison, task)]
    summaries = comparison.summaries()
    if "scores" in chosen:
        _draw_scores(next_axes(), comparison, summaries)
    if "profile" in chosen:
        _draw_profile(next_axes(), comparison)
    if "improvement" in chosen:
        _draw_improvement(next_axes(), comparison, summaries)
    notes = curve_notes(curves, "iqm")
    if any(summary.iqm_interval for summary in summaries) and chosen != ["evaluation"]:
        notes.append("Bars and other bands: 95 % stratified bootstrap intervals. Small marks: single runs.")
    labels = [f"{summary.label} (n={summary.seed_count})" for summary in summaries]
    has_rows = bool({"scores", "improvement"}.intersection(chosen))
    add_texts(figure, labels, notes, title or comparison.title, MARKERS if has_rows else ())
    return figure


def _draw_learning(axes: Axes, comparison: Comparison, task: str) -> list[Curve]:
    """Draws the learning curves of a task, and returns them."""
    curves = learning_curves(comparison, task)
    for place, curve in enumerate(curves):
        draw_curve(axes, curve, style_of(place))
    heading = "Evaluation return" + (f", {task}" if len(comparison.tasks) > 1 else "")
    format_axes(axes, heading, X_LABEL, "Return")
    axes.set_xlim(left=0)
    return curves


def _draw_scores(axes: Axes, comparison: Comparison, summaries: Sequence[Summary]) -> None:
    for place, summary in enumerate(summaries):
        runs = np.concatenate(comparison.values(place))
        _draw_bar(axes, place, summary.iqm, summary.iqm_interval)
        axes.plot(
            runs,
            np.full(len(runs), place + 0.13),
            linestyle="",
            marker="|",
            color=style_of(place)["color"],
            alpha=0.8,
            markersize=6,
        )
    _format_rows(axes, [summary.label for summary in summaries], SCORES_TITLE, comparison.unit)


def _draw_profile(axes: Axes, comparison: Comparison) -> None:
    found = score_profile(comparison)
    for place, (shares, band) in enumerate(zip(found.shares, found.bands, strict=True)):
        style = style_of(place)
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
    labels = ["", *(summary.label for summary in others)]
    _format_rows(axes, labels, "Probability of improvement", f"P(higher score than {other})")
    axes.set(xlim=(-0.03, 1.03), ylim=(len(summaries) - 0.5, 0.5))


def _draw_bar(axes: Axes, place: int, value: float, edges: tuple[float, float] | None) -> None:
    """Draws a value with its interval in the row of a group."""
    color = style_of(place)["color"]
    if edges is not None:
        axes.plot(edges, [place, place], color=color, linewidth=5, alpha=0.35, solid_capstyle="butt")
    axes.plot([value], [place], color=color, marker=MARKERS[place % len(MARKERS)], markersize=6)


def _format_rows(axes: Axes, labels: Sequence[str], title: str, x_label: str) -> None:
    """Makes the vertical axis one row per group; the legend has the whole of a long label."""
    many = len(labels) > MANY_ROWS
    texts = [row_label(label, 1 if many else 2) for label in labels]
    longest = max(len(line) for text in texts for line in text.split("\n"))
    format_axes(axes, title, x_label, beside=0.3 + 0.055 * longest)
    axes.set_yticks(range(len(labels)))
    axes.yaxis.set_major_formatter(lambda value, _: texts[int(value)])
    axes.tick_params(axis="y", labelsize=6 if many else 7)
    for text in axes.get_yticklabels():
        text.set_parse_math(False)  # a name may contain $
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")


def row_label(label: str, lines: int) -> str:
    """Returns a label in at most so many short lines; a longer one has dots in its middle."""
    room = LINE * lines
    if len(label) > room:
        half = (room - 3) // 2
        label = f"{label[:half]}...{label[-half:]}"
    if lines == 1:
        return label
    # A word that is longer than a line may be broken behind an equals sign.
    words = [word if len(word) <= LINE else word.replace("=", "= ") for word in label.split()]
    wrapped = textwrap.wrap(" ".join(words), LINE, max_lines=lines, placeholder="...")
    return "\n".join(wrapped).replace("= ", "=")
