"""Draws the learning curves of runs.

``curve`` computes the line and the band of a group of runs in a panel; ``plot_runs`` draws them to a file.

matplotlib is an optional dependency and is imported only to draw. The figure is made without pyplot and its
global state, so plotting works without a display and in any thread.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ding_lite.envs.vector import RECENT_EPISODES
from ding_lite.errors import ConfigError
from ding_lite.tools.runs import (
    ENV_STEP,
    SCORE,
    SPREAD,
    Group,
    Run,
    env_of,
    group_runs,
    points_of,
    read_run,
    runs_of,
    settings_of,
    shared,
    without_files,
)
from ding_lite.tools.statistics import MIN_RUNS, Statistic, curve_interval, interquartile_mean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".pdf", ".svg")
CURVE_RESAMPLES = 2_000
MAX_GRID = 1_000  # points of a curve over seeds; more cannot be seen
STATISTICS: dict[str, Statistic] = {
    "mean": lambda values: np.asarray(values.mean(axis=-1)),
    "iqm": interquartile_mean,
}
STATISTIC_NAMES = {"mean": "mean", "iqm": "interquartile mean"}

# Colours that colour-blind readers can distinguish (Okabe and Ito); the dashes work without colours.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", "-.", ":")
PANEL_WIDTH, NARROWEST = 3.7, 2.7  # inches of a plot with its labels: by default, and at least
PANEL_HEIGHT = 2.4
TEXTS_HEIGHT = 0.9  # inches of the texts above and below the plots; more lines of the legend need more
CHARACTERS = 14  # of a title, in an inch
TICK_STEPS = (1, 2, 5, 10)  # not 2.5: 5k, 10k, 15k, and not 7.5k, 12.5k
X_LABEL = "Env steps"


class Panel(NamedTuple):
    """One of the plots of the figure.

    Attributes:
        name: by which it is chosen.
        column: of metrics.csv, to draw.
        title: of the plot.
        y_label: of its vertical axis.
        spread: column with the standard deviation over episodes; "" if there is none.
        extremes: columns with the lowest and the highest value of an episode, which the band stays between.
    """

    name: str
    column: str
    title: str
    y_label: str
    spread: str = ""
    extremes: tuple[str, ...] = ()

    @property
    def columns(self) -> set[str]:
        """Returns the columns of metrics.csv that are drawn."""
        return {self.column, *self.extremes, *filter(None, [self.spread])}


PANELS = (
    Panel(
        "training", "collect/episode_return", f"Training return (last {RECENT_EPISODES} episodes)", "Return"
    ),
    Panel(
        "training-length",
        "collect/episode_length_max",
        f"Training episode length (max of {RECENT_EPISODES})",
        "Steps",
    ),
    Panel(
        "evaluation",
        SCORE,
        "Evaluation return",
        "Return",
        spread=SPREAD,
        extremes=("eval/episode_return_min", "eval/episode_return_max"),
    ),
    Panel("evaluation-length", "eval/episode_length_max", "Evaluation episode length (max)", "Steps"),
)


class Curve(NamedTuple):
    """The line of one group in one panel.

    Attributes:
        x: (P,); empty if the seeds have no common range.
        y: (P,).
        band: (2, P), its lower and upper edge; None: no band.
        seeds: ``(x, y)`` of each seed that is drawn as a line of its own.
        n: number of seeds that have this column.
        cut: whether a seed has data well beyond the end of the line.
    """

    x: np.ndarray
    y: np.ndarray
    band: np.ndarray | None = None
    seeds: tuple[tuple[np.ndarray, np.ndarray], ...] = ()
    n: int = 1
    cut: bool = False


def curve(runs: Sequence[Run], panel: Panel, statistic: str = "mean") -> Curve | None:
    """Returns the curve of a group of runs in a panel, or None if they have no data.

    One seed: its values, with a band of one standard deviation over episodes if the panel has a column for
    it; no further than the episodes reach. Several seeds: see :func:`seeds_curve`.
    """
    all_series = [points_of(run, panel.column, panel.spread) for run in runs]
    series = [points for points in all_series if len(points[0])]
    if not series:
        return None
    if len(series) == 1:
        x, y, spread = series[0]
        # Only if the group has one run; otherwise the band would look like an interval over seeds.
        banded = len(runs) == 1 and np.isfinite(spread).any()
        return Curve(x, y, _band(runs[0], panel, y, spread) if banded else None)
    return seeds_curve([(x, y) for x, y, _ in series], statistic)


def _band(run: Run, panel: Panel, y: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """Returns (2, P): one standard deviation around the mean, between the extremes that are known."""
    band = np.stack([y - spread, y + spread])
    if panel.extremes:
        low, high = (points_of(run, panel.column, column)[2] for column in panel.extremes)
        band = np.fmin(np.fmax(band, low), high)
    return band


def seeds_curve(seeds: Sequence[tuple[np.ndarray, np.ndarray]], statistic: str) -> Curve:
    """Returns the curve of several seeds.

    Two seeds: both, and their mean. More: the statistic and its 95 % bootstrap interval. Seeds without a
    common range (for example, with one evaluation each, at different steps) are drawn one by one.

    Args:
        seeds: ``(x, y)`` of each; at least two.
        statistic: of ``STATISTICS``.
    """
    grid = common_grid([x for x, _ in seeds])
    if not grid.size:
        return Curve(grid, grid, seeds=tuple(seeds), n=len(seeds))
    values = np.stack([np.interp(grid, x, y) for x, y in seeds])
    # Differences of up to 5 % between the last steps are not reported.
    cut = any(x[-1] > 1.05 * grid[-1] for x, _ in seeds)
    middle = STATISTICS[statistic]
    band = curve_interval(values, middle, CURVE_RESAMPLES) if len(seeds) >= MIN_RUNS else None
    return Curve(grid, middle(values.T), band, tuple(seeds) if band is None else (), len(seeds), cut)


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
    statistic: str = "mean",
    title: str | None = None,
    panels: Sequence[str] = (),
    width: float | None = None,
    note: Callable[[str], Any] = lambda line: None,
) -> Path:
    """Draws the learning curves of runs to a file.

    Args:
        folders: of runs, or with runs in them, or patterns of such. Runs whose configs differ only in the
            seed or the limits become one curve with its interval.
        output: file to write; the suffix .png, .pdf or .svg chooses its format.
        statistic: of the seeds: "mean" or "iqm", the interquartile mean.
        title: of the figure; None: the policy and environment that all runs have in common.
        panels: names of ``PANELS``, or columns of metrics.csv, to draw in this order; empty: all of
            ``PANELS`` that have data.
        width: of the picture in inches; None: as the panels need it.
        note: called with a line for each run that is left out, since it cannot be read or has no row yet.

    Returns:
        ``output``.

    Raises:
        ConfigError: if no folder can be read and drawn, the file cannot be written, or matplotlib is not
            installed.
    """
    output = Path(output)
    check_output(output, SUFFIXES)
    chosen = panels_of(panels)
    check_width(width)
    unique = {run.resolve(): run for folder in without_files(folders) for run in runs_of(folder)}
    if not unique:
        raise ConfigError("plotting needs at least one run folder")
    what = " or ".join(panels) or "a return or episode length"
    runs, left_out = _drawable(unique.values(), chosen, what)
    if not runs:
        raise ConfigError("\n  ".join(["there is no run to draw.", *left_out]))
    for line in left_out:
        note(line)
    figure = draw(group_runs(runs), statistic=statistic, title=title, panels=panels, width=width)
    save(figure, output, tight=width is None)
    return output


def _drawable(folders: Iterable[Path], panels: Sequence[Panel], what: str) -> tuple[list[Run], list[str]]:
    """Returns the runs that have data for one of the panels, and a line for each other one.

    Args:
        folders: of the runs.
        panels: to draw.
        what: they show, for the lines.
    """
    runs, left_out = [], []
    columns = {column for panel in panels for column in panel.columns}
    for folder in folders:
        try:
            run = read_run(folder, columns)
        except ConfigError as error:
            left_out.append(f"left out, since it cannot be read: {error}")
            continue
        if all(curve([run], panel) is None for panel in panels):
            left_out.append(
                f"left out: {folder / 'metrics.csv'} has nothing to draw: no row has {ENV_STEP} and {what}"
            )
        else:
            runs.append(run)
    return runs, left_out


def panels_of(names: Sequence[str]) -> list[Panel]:
    """Returns the panels of these names, each that of ``PANELS`` or of a column; all of ``PANELS`` for none.

    Raises:
        ConfigError: if a name is neither of ``PANELS`` nor looks like a column, which has a "/".
    """
    known = {panel.name: panel for panel in PANELS}
    unknown = [name for name in names if name not in known and "/" not in name]
    if unknown:
        raise ConfigError(
            f"there is no panel {unknown[0]!r}; the panels are: {', '.join(known)}, and any column of "
            "metrics.csv, such as learn/approx_kl"
        )
    return [known.get(name, Panel(name, name, name, "")) for name in names] or list(PANELS)


def check_width(width: float | None) -> None:
    """Raises ConfigError if a picture cannot be so wide, in inches."""
    if width is not None and not 2 <= width <= 50:
        raise ConfigError(f"width of the picture: expected 2 to 50 inches, got {width:g}")


def check_output(output: Path, suffixes: Sequence[str]) -> None:
    """Raises ConfigError if a file cannot be written since its suffix is another one, or it has no folder."""
    if output.suffix.lower() not in suffixes:
        raise ConfigError(f"cannot write {output}: its name must end in one of {', '.join(suffixes)}")
    if not output.parent.is_dir():
        raise ConfigError(f"cannot write {output}: there is no folder {output.parent}")


def save(figure: Figure, output: Path, *, tight: bool = True) -> None:
    """Writes a figure to a file.

    Args:
        figure: to write.
        output: the file.
        tight: fit the picture to its content; without it, the picture is as wide as the figure.

    Raises:
        ConfigError: if it cannot be written.
    """
    try:
        figure.savefig(output, dpi=200, bbox_inches="tight" if tight else None, pad_inches=0.08)
    except OSError as error:
        raise ConfigError(f"cannot write {output}: {error}") from error


def new_figure(width: float, height: float) -> Figure:
    """Returns an empty figure of a size in inches.

    Raises:
        ConfigError: if matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError('plotting needs matplotlib: pip install "ding_lite[plot]"') from error
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def grid_of(count: int, most: int, width: float | None) -> tuple[Figure, int, int]:
    """Returns an empty figure for so many plots, and how many rows and columns they stand in.

    Args:
        count: number of plots.
        most: number of columns.
        width: of the figure in inches; None: as wide as its columns.
    """
    cols = min(count, most if width is None else max(1, min(most, int(width / NARROWEST))))
    rows = -(-count // cols)
    inches = 0.6 + PANEL_WIDTH * cols if width is None else width
    height = PANEL_HEIGHT * min(1.0, inches / cols / PANEL_WIDTH)
    return new_figure(inches, TEXTS_HEIGHT + height * rows), rows, cols


def draw(
    groups: Sequence[Group],
    *,
    statistic: str = "mean",
    title: str | None = None,
    panels: Sequence[str] = (),
    width: float | None = None,
) -> Figure:
    """Returns the figure, with one plot for each panel that has data; see :func:`plot_runs`.

    Raises:
        ConfigError: if none of them has data, or matplotlib is not installed.
    """
    chosen = panels_of(panels)
    all_curves = {panel: [curve(group.runs, panel, statistic) for group in groups] for panel in chosen}
    drawn = {panel: row for panel, row in all_curves.items() if any(row)}
    without = [panel.name for panel in chosen if panel not in drawn]
    if without and (panels or not drawn):
        raise ConfigError(f"no run has data for the panels {', '.join(without)}")
    figure, rows, cols = grid_of(len(drawn), 2, width)
    for place, (panel, row) in enumerate(drawn.items()):
        shared_axes = figure.axes[0] if place else None
        axes = figure.add_subplot(rows, cols, place + 1, sharex=shared_axes, axisbelow=True)
        for index, data in enumerate(row):
            if data is not None:
                draw_curve(axes, data, style_of(index))
        # The plots share the horizontal axis; the lowest one of each column has its label.
        x_label = X_LABEL if place + cols >= len(drawn) else ""
        format_axes(axes, panel.title, x_label, panel.y_label)
        if "length" in panel.column:
            axes.set_ylim(bottom=0)
    notes = curve_notes([data for row in drawn.values() for data in row if data is not None], statistic)
    notes += group_notes(groups, drawn)
    # A single group needs no legend: its label is the title, unless another title is given.
    labels = [] if len(groups) == 1 and title is None else [group.label for group in groups]
    if title is None:
        agreed = ", ".join(shared([settings_of(group.runs[0].config) for group in groups]))
        title = agreed if labels else groups[0].label
    add_texts(figure, labels, notes, title)
    return figure


def style_of(place: int) -> dict[str, Any]:
    """Returns the colour and the dashes of a group, by its place among the groups."""
    return {"color": COLORS[place % len(COLORS)], "linestyle": DASHES[place % len(DASHES)]}


def draw_curve(axes: Axes, data: Curve, style: dict[str, Any]) -> None:
    """Draws a line and its band in the style of its group."""
    for x, y in data.seeds:
        axes.plot(x, y, **style, linewidth=0.7, alpha=0.6, marker="o" if len(x) == 1 else "", markersize=3)
    if len(data.x) == 1:  # a line or an area of one point would be invisible
        bars = None if data.band is None else np.abs(data.band - data.y)
        axes.errorbar(data.x, data.y, bars, fmt="o", color=style["color"], markersize=4, capsize=3)
    elif data.x.size:
        axes.plot(data.x, data.y, **style, linewidth=1.5)
        if data.band is not None:
            axes.fill_between(data.x, *data.band, color=style["color"], alpha=0.2, linewidth=0)


def format_axes(axes: Axes, title: str, x_label: str, y_label: str = "", beside: float = 0.7) -> None:
    """Sets the title and the labels, short round numbers at the ticks, and a light grid.

    Args:
        axes: of a plot of a grid.
        title: of the plot; it is broken into lines as wide as the plot, as is the label below it.
        x_label: of the horizontal axis.
        y_label: of the vertical axis.
        beside: inches that the labels of the vertical axis need.
    """
    from matplotlib.ticker import MaxNLocator

    axes.set_title(_wrapped(axes, title, beside), fontsize=10, loc="left", parse_math=False)
    axes.set_xlabel(_wrapped(axes, x_label, beside), fontsize=9, parse_math=False)
    axes.set_ylabel(y_label, fontsize=9, parse_math=False)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator("auto", steps=TICK_STEPS))
        axis.set_major_formatter(lambda value, _: format_count(value))
    axes.tick_params(labelsize=8, length=3)
    axes.grid(color="0.9", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _wrapped(axes: Axes, text: str, beside: float) -> str:
    """Returns a text in lines that are no wider than a plot without the labels of its vertical axis."""
    figure, spec = axes.get_figure(root=True), axes.get_subplotspec()
    assert figure is not None
    assert spec is not None
    inches = figure.get_figwidth() / spec.get_gridspec().ncols - beside
    joined = text.replace(" %", "\N{NO-BREAK SPACE}%")  # a number stays with its unit
    return textwrap.fill(joined, max(10, int(CHARACTERS * inches))).replace("\N{NO-BREAK SPACE}", " ")


def format_count(value: float) -> str:
    """Returns ``value`` as text for a tick: 500, 20k, 1.5M."""
    factor, unit = (1e6, "M") if abs(value) >= 1e6 else (1e3, "k") if abs(value) >= 1e3 else (1.0, "")
    return f"{value / factor:.8g}{unit}".replace("-", "\N{MINUS SIGN}")


def curve_notes(curves: Sequence[Curve], statistic: str) -> list[str]:
    """Returns a sentence about each kind of band and line among the curves."""
    name = STATISTIC_NAMES[statistic]
    bands = {data.n > 1 for data in curves if data.band is not None}
    notes = {
        f"Band: 95 % bootstrap interval of the {name} over seeds.": True in bands,
        "Evaluation band of one seed: one standard deviation over episodes, within their range.": False
        in bands,
        "Thick: mean; thin: the two seeds.": any(data.seeds and data.x.size for data in curves),
        "No mean where seeds share no step.": any(not data.x.size for data in curves),
        f"A curve of several seeds ({name}) ends where the first of its seeds ends.": any(
            data.cut for data in curves
        ),
    }
    return [note for note, applies in notes.items() if applies]


def group_notes(groups: Sequence[Group], curves: Mapping[Panel, Sequence[Curve | None]]) -> list[str]:
    """Returns a sentence about each group that lacks seeds in a panel, and one if environments differ.

    Args:
        groups: that are drawn.
        curves: of the groups in each panel; None: no data.
    """
    notes = [
        f"{panel.title}: {data.n} of {len(group.runs)} seeds ({group.label})."
        for panel, row in curves.items()
        for group, data in zip(groups, row, strict=True)
        if data is not None and data.n < len(group.runs)
    ]
    envs = dict.fromkeys(env_of(run.config) for group in groups for run in group.runs)
    if len(envs) > 1:
        notes.append(f"The environments differ, so the curves do not compare: {', '.join(envs)}.")
    return notes


def add_texts(
    figure: Figure, labels: Sequence[str], notes: Sequence[str], title: str, markers: Sequence[str] = ()
) -> None:
    """Adds the title and the legend above the plots, and the notes below them.

    Args:
        figure: to add them to.
        labels: of the legend, each in the :func:`style_of` its place.
        notes: sentences.
        title: of the figure.
        markers: of the labels, beside the styles of their lines; empty: none.
    """
    from matplotlib.lines import Line2D

    width = figure.get_figwidth()
    notes = [textwrap.fill(note, int(20 * width)) for note in notes]  # so many characters fit in an inch
    figure.supxlabel("\n".join(notes), fontsize=7, color="0.35", parse_math=False)
    handles = [
        Line2D(
            [],
            [],
            **style_of(index),
            linewidth=1.5,
            marker=markers[index % len(markers)] if markers else "",
            markersize=5,
        )
        for index in range(len(labels))
    ]
    labels = [textwrap.fill(label, int(15 * width)) for label in labels]
    title = textwrap.fill(title, int(11 * width))
    longest = max(map(len, labels), default=0)
    cols = max(1, min(len(labels), 4, int(width / (0.6 + 0.07 * longest))))
    if not (labels or title):
        return
    lines = sum(label.count("\n") + 1 for label in labels) // cols + title.count("\n")
    figure.set_figheight(figure.get_figheight() + 0.18 * max(0, lines - 2))
    legend = figure.legend(
        handles,
        ["-"] * len(labels),
        loc="outside upper center",
        ncols=cols,
        title=title and "-",
        frameon=False,
    )
    # The texts are set afterwards, without math: the name of a folder may contain $ or start with _.
    if title:
        legend.get_title().set(parse_math=False, text=title, fontsize=11)
    for text, label in zip(legend.get_texts(), labels, strict=True):
        text.set(parse_math=False, text=label, fontsize=8)
