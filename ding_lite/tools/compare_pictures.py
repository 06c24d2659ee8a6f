"""Pictures of a comparison: a figure for a paper by matplotlib, a page to zoom into by plotly."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from ding_lite.errors import ConfigError
from ding_lite.tools import statistics
from ding_lite.tools.compare import Comparison, Summary, number, table_of
from ding_lite.tools.plot import (
    PANEL_SIZE,
    X_LABEL,
    Curve,
    add_texts,
    draw_curve,
    format_axes,
    new_figure,
    seeds_curve,
    shortened,
    style_of,
)
from ding_lite.tools.runs import SCORE, points_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LEVELS = 201  # points of a performance profile
PROFILE_RESAMPLES = 2_000
ROW_LABEL = 26  # characters of a group's name beside a plot
PANELS = ("evaluation", "scores", "profile", "improvement")
SCORES_TITLE = "Final score: IQM, 95 % interval"
STYLE = """\
body { font: 15px sans-serif; margin: 2em; max-width: 75em }
table { border-collapse: collapse; margin: 1em 0 }
caption { text-align: left; font-weight: bold }
td, th { padding: 0.2em 0.8em; text-align: left; border-bottom: 1px solid #ddd }
"""
DASHES = {"-": "solid", "--": "dash", "-.": "dashdot", ":": "dot"}  # matplotlib's names, and plotly's


def learning_curves(comparison: Comparison, task: str) -> list[Curve]:
    """Returns the curve of the evaluations of each group in a task: interquartile means."""
    curves = []
    for group in comparison.scores:
        seeds = [points_of(score.run, SCORE)[:2] for score in group[task]]
        curves.append(Curve(*seeds[0]) if len(seeds) == 1 else seeds_curve(seeds, "iqm"))
    return curves


def score_levels(comparison: Comparison) -> np.ndarray:
    """Returns the scores (L,) at which a performance profile is drawn: those of all runs, and beyond."""
    groups = [comparison.values(place) for place in range(len(comparison.labels))]
    every = np.concatenate([task for group in groups for task in group])
    margin = 0.03 * (np.ptp(every) or abs(every[0]) or 1.0)
    return np.linspace(every.min() - margin, every.max() + margin, LEVELS)


# ------------------------------------------------------------------ the figure


def draw_comparison(comparison: Comparison, title: str | None = None, panels: Sequence[str] = ()) -> Figure:
    """Returns the figure: learning curves of each task, final scores, profiles, probabilities of improvement.

    Args:
        comparison: to draw.
        title: of the figure; None: what all runs have in common.
        panels: those of ``PANELS`` to draw; empty: all that there are.

    Raises:
        ConfigError: if there is no such panel, or matplotlib is not installed.
    """
    there = PANELS if len(comparison.labels) > 1 else PANELS[:-1]
    for name in panels:
        if name not in there:
            raise ConfigError(f"there is no panel {name!r}; the panels are: {', '.join(there)}")
    chosen = [panel for panel in there if not panels or panel in panels]
    tasks = comparison.tasks if "evaluation" in chosen else ()
    count = len(tasks) + len(chosen) - ("evaluation" in chosen)
    summaries = comparison.summaries()
    height = max(PANEL_SIZE[1], 1.0 + 0.2 * len(summaries))
    figure, all_axes = new_figure(count, 2 if count <= 4 else 3, (PANEL_SIZE[0], height))
    places = iter(all_axes)
    for task, axes in zip(tasks, places, strict=False):
        for place, curve in enumerate(learning_curves(comparison, task)):
            draw_curve(axes, curve, style_of(place))
        format_axes(axes, f"Evaluation return, {task}", X_LABEL, "Return")
        axes.set_xlim(left=0)
    remaining = iter(all_axes[len(tasks) :])
    if "scores" in chosen:
        axes = next(remaining)
        for place, summary in enumerate(summaries):
            _draw_bar(axes, place, summary.iqm, summary.iqm_interval)
            runs = np.concatenate(comparison.values(place))
            color = style_of(place)["color"]
            axes.plot(
                runs, np.full(len(runs), place + 0.25), "|", color=color, alpha=0.8, markersize=5, zorder=1
            )
        _format_rows(axes, summaries, SCORES_TITLE, comparison.unit)
    if "profile" in chosen:
        axes = next(remaining)
        levels = score_levels(comparison)

        def shares(group: statistics.Scores) -> np.ndarray:
            return statistics.performance_profile(group, levels)

        for place in range(len(summaries)):
            scores, style = comparison.values(place), style_of(place)
            axes.step(levels, shares(scores), where="post", **style, linewidth=1.5)
            band = statistics.interval(shares, scores, resamples=PROFILE_RESAMPLES)
            if band is not None:
                low, high = band
                axes.fill_between(levels, low, high, step="post", color=style["color"], alpha=0.15, lw=0)
        format_axes(axes, "Performance profile", comparison.unit, "Runs above")
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
        axes.set(ylim=(-0.02, 1.02), xlim=(levels[0], levels[-1]))
    if "improvement" in chosen:
        axes = next(remaining)
        for place, summary in enumerate(summaries[1:], start=1):
            _draw_bar(axes, place, summary.improvement or 0.0, summary.improvement_interval)
        axes.axvline(0.5, color="0.5", linewidth=0.8, linestyle=":")
        x_label = f"P(higher score than {shortened(summaries[0].label, ROW_LABEL)})"
        _format_rows(axes, summaries, "Probability of improvement", x_label)
        axes.set(xlim=(-0.03, 1.03), ylim=(len(summaries) - 0.5, 0.5))
    names = [f"{summary.label} (n={summary.seed_count})" for summary in summaries]
    has_rows = bool({"scores", "improvement"}.intersection(chosen))
    add_texts(figure, comparison.title if title is None else title, names, MARKERS if has_rows else ("",))
    return figure


def _draw_bar(axes: Axes, place: int, value: float, edges: tuple[float, float] | None) -> None:
    """Draws a value with its interval in the row of a group."""
    color = style_of(place)["color"]
    if edges is not None:
        axes.plot(edges, [place, place], color=color, linewidth=5, alpha=0.35, solid_capstyle="butt")
    axes.plot([value], [place], color=color, marker=MARKERS[place % len(MARKERS)], markersize=6)


def _format_rows(axes: Axes, summaries: Sequence[Summary], title: str, x_label: str) -> None:
    """Makes the vertical axis one row per group; the legend has the whole of a long label."""
    format_axes(axes, title, x_label)
    names = [shortened(summary.label, ROW_LABEL) for summary in summaries]
    axes.set_yticks(range(len(names)), names, fontsize=7, parse_math=False)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")


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
    runs = [
        [label, task, str(score.run.config.get("seed")), number(score.value), f"{score.env_step:,}"]
        + [score.status, str(score.run.folder)]
        for label, group in zip(comparison.labels, comparison.scores, strict=True)
        for task, scores in group.items()
        for score in scores
    ]
    header = ["group", "env", "seed", "return", "at env step", "status", "folder"]
    parts = [
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{heading}</title>',
        f"<style>{STYLE}</style></head><body><h1>{heading}</h1>",
        *tables,
        *(f"<p>{escape(note)}</p>" for note in comparison.notes),
        _charts(comparison).to_html(full_html=False, include_plotlyjs=True),
        _table("What differs", [["key", *comparison.labels], *differences]),
        _table("Runs", [header, *runs]),
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
                x, y, _ = points_of(score.run, SCORE)
                seed = f"{names[place]}, seed {score.run.config.get('seed')}"
                add(row, place, x, y, mode="lines", opacity=0.3, line={"width": 1}, name=seed)
            if curve.band is not None:
                edge: dict[str, Any] = {"mode": "lines", "hoverinfo": "skip", "line": {"width": 0}}
                add(row, place, curve.x, curve.band[0], **edge)
                add(row, place, curve.x, curve.band[1], **edge, fill="tonexty")
            mode = "lines" if len(curve.x) > 1 else "markers"
            add(row, place, curve.x, curve.y, mode=mode, showlegend=row == 1)
        figure.update_xaxes(title_text=X_LABEL, row=row)
        figure.update_yaxes(title_text="Return", row=row)
    row = len(titles)
    for place, summary in enumerate(comparison.summaries()):
        runs = np.concatenate(comparison.values(place))
        add(row, place, runs, [names[place]] * len(runs), mode="markers", marker={"symbol": "line-ns-open"})
        low, high = summary.iqm_interval or (summary.iqm, summary.iqm)
        bar = {"type": "data", "array": [high - summary.iqm], "arrayminus": [summary.iqm - low]}
        add(row, place, [summary.iqm], [names[place]], mode="markers", marker={"size": 10}, error_x=bar)
    figure.update_xaxes(title_text=comparison.unit, row=row)
    figure.update_yaxes(autorange="reversed", row=row)
    figure.update_layout(height=400 * len(titles), template="plotly_white", legend={"orientation": "h"})
    return figure
