"""Pictures of a comparison: a figure for a paper by matplotlib, an interactive page by plotly."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from ding_lite.errors import require
from ding_lite.tools import statistics
from ding_lite.tools.compare import Comparison, Summary, tables_of
from ding_lite.tools.plot import (
    PANEL_SIZE,
    X_LABEL,
    add_texts,
    curve,
    draw_curve,
    drawing,
    label_steps,
    new_figure,
    style_of,
)
from ding_lite.tools.runs import SCORE, points_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEVELS = 201  # points of a performance profile
PROFILE_RESAMPLES = 2_000
PROFILE_RUNS = 5  # of each task; with fewer, the band covers most of the plot
SCORES_TITLE = "Final score: IQM, 95 % interval"
STYLE = """\
body { font: 15px sans-serif; margin: 2em auto; max-width: min(75em, 92vw) }
table { border-collapse: collapse; margin: 1em 0; display: block; overflow-x: auto }
caption { text-align: left; font-weight: bold }
td, th { padding: 0.2em 0.8em; text-align: left; border-bottom: 1px solid #ddd }
"""


# ------------------------------------------------------------------ the figure


@drawing()
def draw_comparison(comparison: Comparison, title: str | None = None) -> Figure:
    """Returns the figure: learning curves of each task, final scores, and performance profiles.

    Args:
        comparison: to draw.
        title: of the figure; None: what all runs have in common.

    Raises:
        ConfigError: if matplotlib is not installed.
    """
    summaries, scores = comparison.summaries(), list(map(comparison.values, comparison.scores))
    flat = np.concatenate([task for group in scores for task in group])
    margin = 0.03 * (np.ptp(flat) or abs(flat[0]) or 1.0)
    levels = np.linspace(flat.min() - margin, flat.max() + margin, LEVELS)
    profile = functools.partial(statistics.performance_profile, levels=levels)

    count = len(comparison.ends) + 2
    height = max(PANEL_SIZE[1], 1.0 + 0.2 * len(summaries))
    figure, all_axes = new_figure(count, 2 if count == 4 else 3, (PANEL_SIZE[0], height))
    *of_tasks, of_scores, of_profiles = all_axes
    for task, axes in zip(comparison.ends, of_tasks, strict=True):
        for index, group in enumerate(comparison.scores.values()):
            draw_curve(axes, curve([score.run for score in group[task]], SCORE), style_of(index))
        label_steps(axes, f"Evaluation return, {task}")
    for index, (summary, values) in enumerate(zip(summaries, scores, strict=True)):
        style, runs = style_of(index), np.concatenate(values)
        of_scores.errorbar(
            summary.iqm, index, xerr=_bar(summary), fmt="o", color=style["color"], elinewidth=4
        )
        of_scores.plot(runs, np.full(len(runs), index + 0.25), "|", color=style["color"], alpha=0.8)
        of_profiles.step(levels, profile(values), where="post", **style)
        if min(summary.seeds) >= PROFILE_RUNS:
            low, high = statistics.interval(profile, values, resamples=PROFILE_RESAMPLES)  # type: ignore[misc]
            of_profiles.fill_between(levels, low, high, step="post", color=style["color"], alpha=0.15, lw=0)
    # The rows need no labels: they are in the order of the legend.
    of_scores.set(title=SCORES_TITLE, xlabel=comparison.unit, ylim=(len(summaries) - 0.5, -0.5), yticks=[])
    of_profiles.set(title="Performance profile", xlabel=comparison.unit, ylabel="Share of runs above")
    names = [f"{summary.group} (n={summary.seed_count})" for summary in summaries]
    add_texts(figure, comparison.title if title is None else title, names)
    return figure


def _bar(summary: Summary) -> list[list[float]]:
    """Returns the distances from the interquartile mean to both ends of its interval, as error bars."""
    low, high = summary.iqm_interval or (summary.iqm, summary.iqm)
    return [[summary.iqm - low], [high - summary.iqm]]


# ------------------------------------------------------------------ the page


def page_of(comparison: Comparison, title: str | None = None) -> str:
    """Returns an HTML page that needs no network: tables, and interactive charts by plotly.

    Raises:
        ConfigError: if plotly is not installed.
    """
    heading = escape(title or comparison.title or "Comparison of runs")
    differences = [[key, *values] for key, values in comparison.differences().items()]
    parts = [
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{heading}</title>',
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head>',
        f"<body><h1>{heading}</h1>",
        *map(_table, *zip(*tables_of(comparison).items(), strict=True)),
        *(f"<p>{escape(note)}</p>" for note in comparison.notes),
        _charts(comparison).to_html(full_html=False, include_plotlyjs=True),
        _table("What differs", [["key", *comparison.scores], *differences]),
        "</body></html>",
    ]
    return "\n".join(parts)


def _table(caption: str, rows: Sequence[Sequence[str]]) -> str:
    header, *others = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)
    body = "".join(f"<tr>{row}</tr>" for row in others)
    head = header.replace("<td>", "<th>").replace("</td>", "</th>")
    return f"<table><caption>{escape(caption)}</caption><tr>{head}</tr>{body}</table>"


def _charts(comparison: Comparison) -> Any:
    """Returns plotly's figure: one chart below the other, with one legend."""
    require("plotly", "a page", "plot")
    from plotly.graph_objects import Scatter
    from plotly.subplots import make_subplots

    tasks, names = list(comparison.ends), list(map(escape, comparison.scores))
    titles = [f"Evaluation return (IQM), {escape(task)}" for task in tasks] + [SCORES_TITLE]
    figure = make_subplots(rows=len(titles), cols=1, subplot_titles=titles)

    def add(row: int, index: int, x: Any, y: Any, **options: Any) -> None:
        """Adds a trace of a group to the chart ``row``; the legend shows and hides a whole group."""
        fields = {"name": names[index], "legendgroup": index, "showlegend": False}
        color = {"line_color": style_of(index)["color"], "marker_color": style_of(index)["color"]}
        figure.add_trace(Scatter(x=x, y=y, **{**fields, **color, **options}), row=row, col=1)

    for index, (group, summary) in enumerate(zip(comparison.scores, comparison.summaries(), strict=True)):
        for row, task in enumerate(tasks, start=1):
            runs = [score.run for score in comparison.scores[group][task]]
            for run in runs:
                seed = f"{names[index]}, seed {run.config.get('seed')}"
                add(row, index, *points_of(run, SCORE), mode="lines", opacity=0.3, line_width=1, name=seed)
            data = curve(runs, SCORE)
            if data.band is not None:
                edge: dict[str, Any] = {"mode": "lines", "hoverinfo": "skip", "line_width": 0}
                add(row, index, data.x, data.band[0], **edge)
                add(row, index, data.x, data.band[1], **edge, fill="tonexty")
            add(row, index, data.x, data.y, mode="lines+markers", showlegend=row == 1)
        last, scores = len(titles), np.concatenate(comparison.values(group))
        add(last, index, scores, [names[index]] * len(scores), mode="markers", marker_symbol="line-ns-open")
        (below,), (above,) = _bar(summary)
        bar = {"array": [above], "arrayminus": [below]}
        add(last, index, [summary.iqm], [names[index]], mode="markers", marker_size=10, error_x=bar)
    figure.update_xaxes(title_text=X_LABEL, rangemode="tozero")
    figure.update_xaxes(title_text=comparison.unit, rangemode="normal", row=len(titles))
    figure.update_yaxes(autorange="reversed", showticklabels=False, row=len(titles))
    height = 400 * len(titles) + 25 * len(names)  # the legend of a narrow page has a row for each group
    figure.update_layout(height=height, template="plotly_white", legend={"orientation": "h"})
    return figure
