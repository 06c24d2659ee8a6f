"""Pictures of a comparison: a figure for a paper by matplotlib, a page to zoom into by plotly."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

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
        found = score_profile(comparison)
        for place, (shares, band) in enumerate(zip(found.shares, found.bands, strict=True)):
            style = style_of(place)
            axes.step(found.levels, shares, where="post", **style, linewidth=1.5)
            if band is not None:
                options: dict[str, Any] = {"color": style["color"], "alpha": 0.15, "linewidth": 0}
                axes.fill_between(found.levels, *band, step="post", **options)
        format_axes(axes, "Performance profile", comparison.unit, "Runs above")
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
        axes.set(ylim=(-0.02, 1.02), xlim=(found.levels[0], found.levels[-1]))
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
    summaries = comparison.summaries()
    titles = [f"Evaluation return (IQM), {task}" for task in comparison.tasks]
    titles += [SCORES_TITLE, "Performance profile: share of runs above a score"]
    titles += [f"Probability of a higher score than {summaries[0].label}"] if len(summaries) > 1 else []
    figure = make_subplots(
        rows=len(titles),
        cols=1,
        subplot_titles=[escape(t) for t in titles],
        vertical_spacing=0.3 / len(titles),
    )
    names = [escape(label) for label in comparison.labels]

    def add(row: int, place: int, x: Any, y: Any, **options: Any) -> None:
        """Adds a trace of a group to the chart ``row``; groups are shown and hidden as one."""
        style = style_of(place)
        line = {"color": style["color"], "dash": DASHES[style["linestyle"]]} | options.pop("line", {})
        fields: dict[str, Any] = {"name": names[place], "legendgroup": str(place), "showlegend": False}
        figure.add_trace(Scatter(x=x, y=y, **{**fields, "line": line, **options}), row=row, col=1)

    def add_line(row: int, place: int, x: Any, y: Any, band: Any, shape: str = "linear") -> None:
        if band is not None:
            edge: dict[str, Any] = {"mode": "lines", "hoverinfo": "skip"}
            edge["line"] = {"width": 0, "shape": shape}
            add(row, place, x, band[0], **edge)
            add(row, place, x, band[1], **edge, fill="tonexty")
        mode = "lines" if len(x) > 1 else "markers"
        add(row, place, x, y, mode=mode, line={"shape": shape}, showlegend=row == 1)

    for row, task in enumerate(comparison.tasks, start=1):
        for place, curve in enumerate(learning_curves(comparison, task)):
            for score in comparison.scores[place][task]:
                x, y, _ = points_of(score.run, SCORE)
                seed = f"{names[place]}, seed {score.run.config.get('seed')}"
                add(row, place, x, y, mode="lines", opacity=0.3, line={"width": 1}, name=seed)
            add_line(row, place, curve.x, curve.y, curve.band)
        figure.update_xaxes(title_text=X_LABEL, row=row)
        figure.update_yaxes(title_text="Return", row=row)
    row = len(comparison.tasks) + 1
    found = score_profile(comparison)
    for place, summary in enumerate(summaries):
        runs = np.concatenate(comparison.values(place))
        add(row, place, runs, [names[place]] * len(runs), mode="markers", marker={"symbol": "line-ns-open"})
        values = [(row, summary.iqm, summary.iqm_interval)]
        if place:
            values.append((row + 2, summary.improvement, summary.improvement_interval))
        for at, value, edges in values:
            low, high = edges or (value, value)
            error = {"type": "data", "array": [high - value], "arrayminus": [value - low]}
            add(at, place, [value], [names[place]], mode="markers", marker={"size": 10}, error_x=error)
        add_line(row + 1, place, found.levels, found.shares[place], found.bands[place], "hv")
    figure.update_xaxes(title_text=comparison.unit, row=row)
    figure.update_xaxes(title_text=comparison.unit, row=row + 1)
    figure.update_yaxes(tickformat=".0%", row=row + 1)
    figure.update_yaxes(autorange="reversed", row=row)
    if len(summaries) > 1:
        figure.update_xaxes(title_text="Probability", range=[-0.02, 1.02], row=row + 2)
        figure.update_yaxes(autorange="reversed", row=row + 2)
    figure.update_layout(height=380 * len(titles), template="plotly_white", legend={"orientation": "h"})
    return figure
