"""Draws the learning curves of runs.

``curve`` computes the line and the band of a group of runs; ``draw_runs`` draws them.

matplotlib is an optional dependency and is imported only to draw. The figure is made without pyplot and its
global state, so plotting works without a display and in any thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ding_lite.envs.vector import RECENT_EPISODES
from ding_lite.errors import ConfigError, require
from ding_lite.tools.runs import SCORE, Run, env_of, grouped, points_of, settings_of, shared
from ding_lite.tools.statistics import curve_interval, interquartile_mean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CURVE_RESAMPLES = 2_000
MAX_GRID = 1_000  # points of a curve over seeds; more cannot be seen

# Colours that colour-blind readers can distinguish (Okabe and Ito); the dashes work without colours.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", "-.", ":")
PANEL_SIZE = (4.0, 2.6)  # inches of a plot with its labels
LEGEND_ROW = 0.17  # inches of a row of a legend below the plots
X_LABEL = "Env steps"
# Settings of matplotlib.
STYLE: Any = {
    "text.parse_math": False,  # names may contain $
    "pdf.fonttype": 42,  # TrueType, as publishers want
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "0.9",
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "font.size": 8,  # titles are larger
    "legend.frameon": False,
}
# Plots with a name: their columns of metrics.csv, and their titles.
PANELS = {"training": "collect/episode_return", "evaluation": SCORE}
TITLES = {
    "collect/episode_return": f"Training return (last {RECENT_EPISODES})",
    SCORE: "Evaluation return",
}


class Curve(NamedTuple):
    """The line of one group in one plot.

    Attributes:
        x: (P,); empty if the seeds have no common range, or no data.
        y: (P,).
        band: (2, P), its lower and upper edge; None: no band.
        seeds: ``(x, y)`` of each seed that is drawn as a line of its own.
        n: number of seeds that have this column.
        end: last step that any seed reached; the curve ends where the first seed ends. 0: one seed.
    """

    x: np.ndarray
    y: np.ndarray
    band: Any = None
    seeds: Sequence[tuple[np.ndarray, np.ndarray]] = ()
    n: int = 1
    end: float = 0.0


def curve(runs: Sequence[Run], column: str) -> Curve:
    """Returns the curve of a column of metrics.csv, on the range of steps that all seeds have.

    One seed: its values. Two: both, and their mean. More: the interquartile mean and its 95 % bootstrap
    interval. Seeds without a common range (for example, with one evaluation each, at different steps) are
    drawn one by one.
    """
    seeds = [points for run in runs if len((points := points_of(run, column))[0])]
    if len(seeds) == 1:
        return Curve(*seeds[0])
    grid = common_grid([x for x, _ in seeds]) if seeds else np.array([])
    if not grid.size:
        return Curve(grid, grid, seeds=seeds, n=len(seeds))
    values = np.stack([np.interp(grid, x, y) for x, y in seeds])
    band = curve_interval(values, interquartile_mean, CURVE_RESAMPLES)
    lines = seeds if band is None else ()
    return Curve(grid, interquartile_mean(values.T), band, lines, len(seeds), max(x[-1] for x, _ in seeds))


def common_grid(xs: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the points of all ``xs`` in their common range; empty if there is none.

    More than ``MAX_GRID`` points are replaced by evenly spaced ones.
    """
    start = max(x[0] for x in xs)
    stop = min(x[-1] for x in xs)
    points = np.unique(np.concatenate(xs))
    points = points[(points >= start) & (points <= stop)]
    return points if len(points) <= MAX_GRID else np.linspace(start, stop, MAX_GRID)


@contextlib.contextmanager
def drawing() -> Iterator[None]:
    """Applies :data:`STYLE` to the drawing in a block; also a decorator of functions.

    Raises:
        ConfigError: if matplotlib is not installed.
    """
    require("matplotlib", "a figure", "plot")
    import matplotlib

    with matplotlib.rc_context(STYLE):
        yield


@drawing()
def draw_runs(
    arguments: Sequence[str | Path],
    *,
    title: str | None = None,
    panels: Sequence[str] = (),
) -> tuple[Figure, list[str]]:
    """Returns a figure with the learning curves of runs, and notes on the curves and on left-out runs.

    Args:
        arguments: run folders, folders with runs in them, or glob patterns. Runs whose configs differ only
            in the seed or the limits become one curve with its interval; so do the runs of ``NAME=FOLDER``.
        title: of the figure; None: the policy and environment that all runs have in common.
        panels: "training", "evaluation", or columns of metrics.csv, to draw in this order; empty: the first
            two, as far as they have data.

    Raises:
        ConfigError: if there is no data to draw, or matplotlib is not installed.
    """
    columns, notes = [PANELS.get(name, name) for name in panels or PANELS], list[str]()
    groups = grouped(arguments, columns, notes)
    all_curves = {column: [curve(group, column) for group in groups.values()] for column in columns}
    without = [column for column, curves in all_curves.items() if not any(data.n for data in curves)]
    if without and panels:
        raise ConfigError(f"no run has data for the panels {', '.join(without)}")
    plots = {column: curves for column, curves in all_curves.items() if column not in without}
    names = [f"{label} ({seeds_text(group)})" for label, group in groups.items()]
    figure, all_axes = new_figure(len(plots), 2)
    for axes, (column, curves) in zip(all_axes, plots.items(), strict=True):
        panel = TITLES.get(column, column)
        for index, (data, name, group) in enumerate(zip(curves, names, groups.values(), strict=True)):
            draw_curve(axes, data, style_of(index))
            if data.n < len(group):
                notes.append(f"{panel}: {data.n} of {len(group)} seeds: {name}")
            if data.n and not data.x.size:
                notes.append(f"{panel}: no mean, since the seeds share no step: {name}")
            if data.x.size and data.end > 1.1 * (last := data.x[-1]):
                notes.append(
                    f"{panel}: ends at {last:,.0f} of {data.end:,.0f}, with the shortest run: {name}"
                )
        label_steps(axes, panel)
    configs = [run.config for group in groups.values() for run in group]
    if len(envs := dict.fromkeys(map(env_of, configs))) > 1:
        notes.append(f"the environments differ, so the curves do not compare: {', '.join(envs)}")
    if title is None:
        title = shared([settings_of(config) for config in configs]) if len(groups) > 1 else names.pop()
    add_texts(figure, title, names)
    return figure, notes


def seeds_text(group: Sequence[Run]) -> str:
    """Returns the number of seeds of a group, or its seed."""
    return f"n={len(group)}" if len(group) > 1 else f"seed {group[0].config.get('seed')}"


# ------------------------------------------------------------------ the picture


def new_figure(count: int, most: int, size: tuple[float, float] = PANEL_SIZE) -> tuple[Figure, list[Axes]]:
    """Returns a figure with ``count`` plots, at most ``most`` in a row, each of ``size`` in inches."""
    from matplotlib.figure import Figure

    cols = min(count, most)
    rows = -(-count // cols)
    figure = Figure(figsize=(size[0] * cols, size[1] * rows), layout="constrained")
    return figure, [figure.add_subplot(rows, cols, index + 1) for index in range(count)]


@drawing()
def save(figure: Figure, output: Path) -> None:
    """Writes a figure to a file, as wide as the plots and the legend need.

    Raises:
        OSError: if the file cannot be written.
    """
    figure.savefig(output, dpi=200, bbox_inches="tight")


def style_of(index: int) -> dict[str, Any]:
    """Returns the colour and the dashes of a group, by its index."""
    return {"color": COLORS[index % len(COLORS)], "linestyle": DASHES[index % len(DASHES)]}


def draw_curve(axes: Axes, data: Curve, style: dict[str, Any]) -> None:
    """Draws a line and its band in the style of its group."""
    for x, y in data.seeds:
        axes.plot(x, y, **style, linewidth=0.7, alpha=0.6, marker="o" if len(x) == 1 else "", markersize=3)
    axes.plot(data.x, data.y, **style, marker="o" if len(data.x) == 1 else "")
    if data.band is not None:
        axes.fill_between(data.x, *data.band, color=style["color"], alpha=0.2, linewidth=0)


def label_steps(axes: Axes, title: str) -> None:
    """Sets the title of a plot, and labels its horizontal axis: env steps from 0, such as 20k."""
    from matplotlib.ticker import EngFormatter

    axes.set(title=title, xlabel=X_LABEL, xlim=(0, None))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def add_texts(figure: Figure, title: str, names: Sequence[str]) -> None:
    """Adds a title above the plots, and a legend below them, where it covers no curve.

    Args:
        figure: to add them to.
        title: of the figure; may be empty.
        names: of the groups, in the order of their :func:`style_of`; empty: no legend.
    """
    from matplotlib.lines import Line2D

    if title:
        figure.suptitle(title)
    if not names:
        return
    handles = [Line2D([], [], **style_of(index)) for index in range(len(names))]
    characters = 15 * figure.get_figwidth()  # that fit in a row of the legend
    columns = max(1, min(len(names), 4, int(characters / (8 + max(map(len, names))))))
    figure.set_figheight(figure.get_figheight() + LEGEND_ROW * -(-len(names) // columns))
    figure.legend(handles, names, loc="outside lower center", ncols=columns, handlelength=3)
