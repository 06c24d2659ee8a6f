"""Pictures of a comparison: a figure for a paper by matplotlib, a page to zoom into by plotly."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from ding_lite.errors import ConfigError
from ding_lite.tools import statistics
from ding_lite.tools.compare import Comparison, table_of
from ding_lite.tools.plot import (
    PANEL_SIZE,
    X_LABEL,
    Curve,
    add_texts,
    draw_curve,
    format_axes,
    new_figure,
    seeds_curve,
    style_of,
)
from ding_lite.tools.runs import SCORE, points_of, short_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LEVELS = 201  # points of a performance profile
PROFILE_RESAMPLES = 2_000
PROFILE_RUNS = 5  # of each task; the band of fewer covers most of the plot
SCORES_TITLE = "Final score: IQM, 95 % interval"
STYLE = """\
body { font: 15px sans-serif; margin: 2em auto; max-width: min(75em, 92vw) }
table { border-collapse: collapse; margin: 1em 0; display: block; overflow-x: auto }
caption { text-align: left; font-weight: bold }
td, th { padding: 0.2em 0.8em; text-align: left; border-bottom: 1px solid #ddd }
"""
DASHES = {"-": "solid", "--": "dash", "-.": "dashdot", ":": "dot"}  # matplotlib's names, and plotly's


def learning_curves(comparison: Comparison, task: str) -> list[Curve]:
    """Returns the curve of the evaluations of each group in a task: interquartile means."""
    return [
        seeds_curve([points_of(score.run, SCORE) for score in group[task]]) for group in comparison.scores
    ]


def score_levels(comparison: Comparison) -> np.ndarray:
    """Returns the scores (L,) at which a performance profile is drawn: those of all runs, and beyond."""
    groups = [comparison.values(place) for place in range(len(comparison.labels))]
    every = np.concatenate([task for group in groups for task in group])
    margin = 0.03 * (np.ptp(every) or abs(every[0]) or 1.0)
    return np.linspace(every.min() - margin, every.max() + margin, LEVELS)


# ------------------------------------------------------------------ the figure


def draw_comparison(comparison: Comparison, title: str | None = None, width: float | None = None) -> Figure:
    """Returns the figure: learning curves of each task, final scores, and performance profiles.

    Args:
        comparison: to draw.
        title: of the figure; None: what all runs have in common.
        width: of the figure in inches; None: as wide as its plots.

    Raises:
        ConfigError: if matplotlib is not installed.
    """
    tasks, summaries = comparison.tasks, comparison.summaries()
    count = len(tasks) + 2
    height = max(PANEL_SIZE[1], 1.0 + 0.2 * len(summaries))
    figure, all_axes = new_figure(count, 2 if count == 4 else 3, (PANEL_SIZE[0], height), width)
    for task, axes in zip(tasks, all_axes, strict=False):
        for place, curve in enumerate(learning_curves(comparison, task)):
            draw_curve(axes, curve, style_of(place))
        format_axes(axes, f"Evaluation return, {task}", X_LABEL, "Return")
    of_scores, of_profiles = all_axes[-2:]
    levels = score_levels(comparison)

    def shares(group: statistics.Scores) -> np.ndarray:
        return statistics.performance_profile(group, levels)

    for place, summary in enumerate(summaries):
        scores, style = comparison.values(place), style_of(place)
        color, marker = style["color"], MARKERS[place % len(MARKERS)]
        if summary.iqm_interval is not None:
            of_scores.plot(
                summary.iqm_interval, [place, place], color=color, lw=5, alpha=0.35, solid_capstyle="butt"
            )
        of_scores.plot([summary.iqm], [place], color=color, marker=marker, markersize=6)
        runs = np.concatenate(scores)
        of_scores.plot(runs, np.full(len(runs), place + 0.25), "|", color=color, alpha=0.8, markersize=5)
        of_profiles.step(levels, shares(scores), where="post", **style, linewidth=1.5)
        if min(summary.seeds) >= PROFILE_RUNS:
            low, high = statistics.interval(shares, scores, resamples=PROFILE_RESAMPLES)  # type: ignore[misc]
            of_profiles.fill_between(levels, low, high, step="post", color=color, alpha=0.15, lw=0)
    format_axes(of_scores, SCORES_TITLE, comparison.unit)
    of_scores.set(ylim=(len(summaries) - 0.5, -0.5), yticks=[])  # the legend names the rows, in its order
    format_axes(of_profiles, "Performance profile", comparison.unit, "Runs above")
    of_profiles.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    of_profiles.set(ylim=(-0.02, 1.02), xlim=(levels[0], levels[-1]))
    names = [f"{summary.group} (n={summary.seed_count})" for summary in summaries]
    add_texts(figure, comparison.title if title is None else title, names, MARKERS)
    return figure


# ------------------------------------------------------------------ the page


def page_of(comparison: Comparison, title: str | None = None) -> str:
    """Returns a page of one file that needs no network: tables, and charts to zoom into, by plotly.

    Raises:
        ConfigError: if plotly is not installed.
    """
    heading = escape(title or comparison.title or "Comparison of runs")
    tables = [_table(f"{comparison.unit}, all runs", table_of(comparison.summaries()))]
    if len(comparison.tasks) > 1:
        tables += [
            _table(f"Return, {task}", table_of(comparison.summaries(task))) for task in comparison.tasks
        ]
    differences = [[key, *values] for key, values in comparison.differences().items()]
    runs = comparison.as_json()["runs"]
    parts = [
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{heading}</title>',
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head>',
        f"<body><h1>{heading}</h1>",
        *tables,
        *(f"<p>{escape(note)}</p>" for note in comparison.notes),
        _charts(comparison).to_html(full_html=False, include_plotlyjs=True),
        _table("What differs", [["key", *comparison.labels], *differences]),
        _table("Runs", [list(runs[0]), *(list(map(short_text, run.values())) for run in runs)]),
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
    try:
        from plotly.graph_objects import Scatter
        from plotly.subplots import make_subplots
    except ImportError as error:
        raise ConfigError('a page needs plotly: pip install "ding_lite[plot]"') from error
    titles = [f"Evaluation return (IQM), {escape(task)}" for task in comparison.tasks] + [SCORES_TITLE]
    figure = make_subplots(
        rows=len(titles), cols=1, subplot_titles=titles, vertical_spacing=0.3 / len(titles)
    )
    names = [escape(label) for label in comparison.labels]

    def add(row: int, place: int, x: Any, y: Any, **options: Any) -> None:
        """Adds a trace of a group to the chart ``row``; the legend shows and hides a whole group."""
        style = style_of(place)
        line = {"color": style["color"], "dash": DASHES[style["linestyle"]]} | options.pop("line", {})
        fields: dict[str, Any] = {"name": names[place], "legendgroup": str(place), "showlegend": False}
        figure.add_trace(Scatter(x=x, y=y, **{**fields, "line": line, **options}), row=row, col=1)

    for row, task in enumerate(comparison.tasks, start=1):
        for place, curve in enumerate(learning_curves(comparison, task)):
            for score in comparison.scores[place][task]:
                x, y = points_of(score.run, SCORE)
                seed = f"{names[place]}, seed {score.run.config.get('seed')}"
                add(row, place, x, y, mode="lines", opacity=0.3, line={"width": 1}, name=seed)
            if curve.band is not None:
                edge: dict[str, Any] = {"mode": "lines", "hoverinfo": "skip", "line": {"width": 0}}
                add(row, place, curve.x, curve.band[0], **edge)
                add(row, place, curve.x, curve.band[1], **edge, fill="tonexty")
            mode = "lines" if len(curve.x) > 1 else "markers"
            add(row, place, curve.x, curve.y, mode=mode, showlegend=row == 1)
        figure.update_xaxes(title_text=X_LABEL, rangemode="tozero", row=row)
        figure.update_yaxes(title_text="Return", row=row)
    row = len(titles)
    for place, summary in enumerate(comparison.summaries()):
        runs = np.concatenate(comparison.values(place))
        add(row, place, runs, [names[place]] * len(runs), mode="markers", marker={"symbol": "line-ns-open"})
        low, high = summary.iqm_interval or (summary.iqm, summary.iqm)
        bar = {"type": "data", "array": [high - summary.iqm], "arrayminus": [summary.iqm - low]}
        add(row, place, [summary.iqm], [names[place]], mode="markers", marker={"size": 10}, error_x=bar)
    figure.update_xaxes(title_text=comparison.unit, row=row)
    figure.update_yaxes(autorange="reversed", showticklabels=False, row=row)
    height = 400 * len(titles) + 25 * len(names)  # the legend of a narrow page has a row for each
    figure.update_layout(height=height, template="plotly_white", legend={"orientation": "h"})
    return figure
