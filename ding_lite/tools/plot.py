"""Draws the learning curves of runs.

``curve`` computes the line and the band of a group of runs in a panel; ``plot_runs`` draws them to a file.

matplotlib is an optional dependency and is imported only to draw. The figure is made without pyplot and its
global state, so plotting works without a display and in any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ding_lite.envs.vector import RECENT_EPISODES
from ding_lite.errors import ConfigError
from ding_lite.tools.runs import (
    SCORE,
    Run,
    env_of,
    grouped,
    points_of,
    settings_of,
    shared,
)
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
TEXT: Any = {"text.parse_math": False, "pdf.fonttype": 42}  # names may contain $; fonts in a PDF are TrueType


class Panel(NamedTuple):
    """One of the plots of the figure.

    Attributes:
        name: by which it is chosen.
        column: of metrics.csv, to draw.
        title: of the plot.
        y_label: of its vertical axis.
    """

    name: str
    column: str
    title: str
    y_label: str


RETURNS = (
    Panel("training", "collect/episode_return", f"Training return (last {RECENT_EPISODES})", "Return"),
    Panel("evaluation", SCORE, "Evaluation return", "Return"),
)


class Curve(NamedTuple):
    """The line of one group in one panel.

    Attributes:
        x: (P,); empty if the seeds have no common range.
        y: (P,).
        band: (2, P), its lower and upper edge; None: no band.
        seeds: ``(x, y)`` of each seed that is drawn as a line of its own.
        n: number of seeds that have this column.
    """

    x: np.ndarray
    y: np.ndarray
    band: np.ndarray | None = None
    seeds: tuple[tuple[np.ndarray, np.ndarray], ...] = ()
    n: int = 1


def curve(runs: Sequence[Run], panel: Panel) -> Curve | None:
    """Returns the curve of a group of runs in a panel, or None if they have no data."""
    series = [points for run in runs if len((points := points_of(run, panel.column))[0])]
    return seeds_curve(series) if series else None


def seeds_curve(seeds: Sequence[tuple[np.ndarray, np.ndarray]]) -> Curve:
    """Returns the curve of some seeds, on the range of steps that all of them have.

    One seed: its values. Two: both, and their mean. More: the interquartile mean and its 95 % bootstrap
    interval. Seeds without a common range (for example, with one evaluation each, at different steps) are
    drawn one by one.

    Args:
        seeds: ``(x, y)`` of each.
    """
    if len(seeds) == 1:
        return Curve(*seeds[0])
    grid = common_grid([x for x, _ in seeds])
    if not grid.size:
        return Curve(grid, grid, seeds=tuple(seeds), n=len(seeds))
    values = np.stack([np.interp(grid, x, y) for x, y in seeds])
    band = curve_interval(values, interquartile_mean, CURVE_RESAMPLES)
    drawn = tuple(seeds) if band is None else ()
    return Curve(grid, interquartile_mean(values.T), band, drawn, len(seeds))


def common_grid(xs: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the points of all ``xs`` in their common range; empty if there is none.

    More than ``MAX_GRID`` points are replaced by evenly spaced ones.
    """
    start = max(x[0] for x in xs)
    stop = min(x[-1] for x in xs)
    points = np.unique(np.concatenate(xs))
    points = points[(points >= start) & (points <= stop)]
    return points if len(points) <= MAX_GRID else np.linspace(start, stop, MAX_GRID)


def plot_runs(
    folders: Sequence[str | Path],
    output: Path,
    *,
    title: str | None = None,
    panels: Sequence[str] = (),
    width: float | None = None,
    note: Callable[[str], Any] = lambda line: None,
) -> None:
    """Draws the learning curves of runs to a file.

    Args:
        folders: of runs, or with runs in them, or patterns of such. Runs whose configs differ only in the
            seed or the limits become one curve with its interval, and so do the runs of ``NAME=FOLDER``.
        output: file to write; the suffix .png, .pdf or .svg chooses its format.
        title: of the figure; None: the policy and environment that all runs have in common.
        panels: names of panels, or columns of metrics.csv, to draw in this order; empty: ``RETURNS``, as far
            as they have data.
        width: of the figure in inches; None: as wide as its plots.
        note: called with a line about what is drawn, and for each run that is left out.

    Raises:
        ConfigError: if no folder can be read and drawn, or matplotlib is not installed.
        OSError: if the file cannot be written.
    """
    left_out: list[str] = []
    groups = dict(grouped(folders, [panel.column for panel in panels_of(panels)], left_out))
    if not groups:
        raise ConfigError("\n  ".join(["there is no run to draw.", *left_out]))
    figure, notes = draw(groups, title=title, panels=panels, width=width)
    for line in [*left_out, *notes]:
        note(line)
    save(figure, output, width)


def panels_of(names: Sequence[str]) -> list[Panel]:
    """Returns the panels of these names, or of these columns of metrics.csv; ``RETURNS`` for none."""
    known = {panel.name: panel for panel in RETURNS}
    return [known.get(name, Panel(name, name, name, "")) for name in names] or list(RETURNS)


def draw(
    groups: Mapping[str, Sequence[Run]],
    *,
    title: str | None = None,
    panels: Sequence[str] = (),
    width: float | None = None,
) -> tuple[Figure, list[str]]:
    """Returns the figure, with one plot for each panel that has data, and notes on it; see :func:`plot_runs`.

    Args:
        groups: each is a curve, with its name.
        title, panels, width: as for :func:`plot_runs`.

    Raises:
        ConfigError: if none of them has data, or matplotlib is not installed.
    """
    chosen = panels_of(panels)
    all_curves = {panel: [curve(group, panel) for group in groups.values()] for panel in chosen}
    drawn = {panel: row for panel, row in all_curves.items() if any(row)}
    without = [panel.name for panel in chosen if panel not in drawn]
    if without and (panels or not drawn):
        raise ConfigError(f"no run has data for the panels {', '.join(without)}")
    names = [f"{label} ({seeds_text(group)})" for label, group in groups.items()]
    figure, all_axes = new_figure(len(drawn), 2, width=width)
    notes = []
    for axes, (panel, row) in zip(all_axes, drawn.items(), strict=True):
        for place, (data, name, group) in enumerate(zip(row, names, groups.values(), strict=True)):
            if data is not None:
                draw_curve(axes, data, style_of(place))
                if data.n < len(group):
                    notes.append(f"{panel.title}: {data.n} of {len(group)} seeds: {name}")
                if not data.x.size:
                    notes.append(f"{panel.title}: no mean, since the seeds share no step: {name}")
        format_axes(axes, panel.title, X_LABEL, panel.y_label)
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


def new_figure(
    count: int, most: int, size: tuple[float, float] = PANEL_SIZE, width: float | None = None
) -> tuple[Figure, list[Axes]]:
    """Returns a figure with so many plots, at most ``most`` in a row, each of a size in inches.

    With a ``width`` of the figure, as many stand in a row as fit with half of their width.

    Raises:
        ConfigError: if matplotlib is not installed.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError('plotting needs matplotlib: pip install "ding_lite[plot]"') from error
    cols = min(count, most)
    if width is not None:
        cols = max(1, min(cols, int(width / (size[0] / 2))))
    rows = -(-count // cols)
    panel = size[0] if width is None else width / cols
    height = size[1] * min(1.0, 0.3 + 0.7 * panel / size[0])
    with matplotlib.rc_context(TEXT):
        figure = Figure(figsize=(panel * cols, height * rows), layout="constrained")
        return figure, [figure.add_subplot(rows, cols, place + 1, axisbelow=True) for place in range(count)]


def save(figure: Figure, output: Path, width: float | None = None) -> None:
    """Writes a figure to a file; without a given width it is as wide as its legend needs."""
    import matplotlib

    with matplotlib.rc_context(TEXT):
        figure.savefig(output, dpi=200 if width is None else 300, bbox_inches=None if width else "tight")


def style_of(place: int) -> dict[str, Any]:
    """Returns the colour and the dashes of a group, by its place among the groups."""
    return {"color": COLORS[place % len(COLORS)], "linestyle": DASHES[place % len(DASHES)]}


def draw_curve(axes: Axes, data: Curve, style: dict[str, Any]) -> None:
    """Draws a line and its band in the style of its group."""
    for x, y in data.seeds:
        axes.plot(x, y, **style, linewidth=0.7, alpha=0.6, marker="o" if len(x) == 1 else "", markersize=3)
    axes.plot(data.x, data.y, **style, linewidth=1.5, marker="o" if len(data.x) == 1 else "")
    if data.band is not None:
        axes.fill_between(data.x, *data.band, color=style["color"], alpha=0.2, linewidth=0)


def format_axes(axes: Axes, title: str, x_label: str, y_label: str = "") -> None:
    """Sets the title and the labels, short numbers at the ticks (20k), and a light grid."""
    axes.set_title(title, fontsize=10, loc="left", parse_math=False)
    axes.set_xlabel(x_label, fontsize=9, parse_math=False)
    if x_label == X_LABEL:
        axes.set_xlim(left=0)
    axes.set_ylabel(y_label, fontsize=9, parse_math=False)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: format_count(value))
    axes.tick_params(labelsize=8, length=3)
    axes.grid(color="0.9", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def format_count(value: float) -> str:
    """Returns ``value`` as text for a tick: 500, 20k, 1.5M."""
    factor, unit = (1e6, "M") if abs(value) >= 1e6 else (1e3, "k") if abs(value) >= 1e3 else (1.0, "")
    return f"{value / factor:.8g}{unit}".replace("-", "\N{MINUS SIGN}")


def add_texts(figure: Figure, title: str, names: Sequence[str], markers: Sequence[str] = ("",)) -> None:
    """Adds a title above the plots, and a legend below them, where it covers no curve.

    Args:
        figure: to add them to.
        title: of the figure; may be empty.
        names: of the groups, each in the :func:`style_of` its place; none: no legend.
        markers: of the groups, in turn.
    """
    from matplotlib.lines import Line2D

    if title:
        figure.suptitle(title, fontsize=11, parse_math=False)
    if not names:
        return
    handles = [
        Line2D([], [], **style_of(place), linewidth=1.5, marker=markers[place % len(markers)], markersize=5)
        for place in range(len(names))
    ]
    characters = 15 * figure.get_figwidth()  # that fit in a row
    columns = max(1, min(len(names), 4, int(characters / (8 + max(map(len, names))))))
    figure.set_figheight(figure.get_figheight() + LEGEND_ROW * -(-len(names) // columns))
    place: Any = {"loc": "outside lower center", "ncols": columns, "handlelength": 3}
    legend = figure.legend(handles, ["-"] * len(names), frameon=False, fontsize=8, **place)
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set(parse_math=False, text=name)  # afterwards: a name may start with _, which hides it
