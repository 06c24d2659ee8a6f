"""Draws the learning curves of runs.

``read_run`` reads a run folder, ``group_runs`` groups the seeds of one config, ``curve`` computes the line
and the band of a group in a panel, and ``plot_runs`` draws them to a file.

matplotlib is an optional dependency and is imported only to draw. The figure is made without pyplot and its
global state, so plotting works without a display and in any thread.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ding_lite.envs.transition import RECENT_EPISODES
from ding_lite.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".pdf", ".svg")
RESAMPLES = 2_000
MAX_GRID = 1_000  # points of a mean; more cannot be seen, and the memory of the resamples grows with them

# Colours that colour-blind readers can distinguish (Okabe and Ito); the dashes work without colours.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", "-.", ":")
STYLES: list[dict[str, Any]] = [
    {"color": COLORS[i % len(COLORS)], "linestyle": DASHES[i % len(DASHES)]}
    for i in range(len(COLORS) * len(DASHES))
]
X_LABELS = {"env_step": "Env steps", "iteration": "Iterations", "train_iter": "Optimiser steps"}
HEADLINE_KEYS = ("policy.type", "env.env_id")


class Panel(NamedTuple):
    """One of the plots of the figure.

    Attributes:
        column: of metrics.csv, to draw.
        title: of the plot.
        spread: column with the standard deviation over episodes; "" if there is none.
    """

    column: str
    title: str
    spread: str = ""


PANELS = (
    Panel("collect/episode_return", f"Training return (last {RECENT_EPISODES} episodes)"),
    Panel("collect/episode_length_max", f"Training episode length (max of {RECENT_EPISODES})"),
    Panel("eval/episode_return_mean", "Evaluation return", "eval/episode_return_std"),
    Panel("eval/episode_length_max", "Evaluation episode length (max)"),
)
COLUMNS = {panel.column for panel in PANELS} | {panel.spread for panel in PANELS if panel.spread}


class Run(NamedTuple):
    """The content of a run folder that is needed to draw it.

    Attributes:
        folder: of the run.
        config: its complete config.
        x: (N,) values of the horizontal axis, one for each row of metrics.csv; NaN if missing.
        columns: the columns to draw, by name; each (N,), NaN where a cell is missing.
    """

    folder: Path
    config: dict[str, Any]
    x: np.ndarray
    columns: dict[str, np.ndarray]


class Group(NamedTuple):
    """Runs of one config, one for each seed, with their label in the legend."""

    runs: list[Run]
    label: str


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


PanelCurves = dict[Panel, list[Curve | None]]  # for each panel with data: the curve of each group, or None


def read_run(folder: Path, x: str = "env_step") -> Run:
    """Reads a run folder.

    Args:
        folder: of the run.
        x: column of metrics.csv for the horizontal axis.

    Raises:
        ConfigError: if the folder is not that of a run, cannot be read, or has nothing to draw.
    """
    if not folder.is_dir():
        raise ConfigError(f"there is no run folder {folder}")
    metrics = folder / "metrics.csv"
    if not metrics.is_file():
        raise ConfigError(
            f"{folder} is not a run folder: it has no metrics.csv (for all runs in it: {folder}/*)"
        )
    try:
        config = dict(json.loads((folder / "config.json").read_text(encoding="utf-8"))["config"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"cannot read the config in {folder / 'config.json'}: {error!r}") from error
    columns = _read_columns(metrics, x, COLUMNS | {x})
    run = Run(folder, config, columns[x], columns)
    if all(curve([run], panel) is None for panel in PANELS):
        raise ConfigError(f"{metrics} has nothing to draw: no row has {x} and a return or episode length")
    return run


def _read_columns(path: Path, x: str, wanted: set[str]) -> dict[str, np.ndarray]:
    """Returns the ``wanted`` columns of a CSV file, as far as it has them; other columns may be text."""
    # An invalid byte becomes a replacement character, which is then reported with its line.
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        reader = csv.reader(file)
        header = next(reader, [])
        if x not in header:
            raise ConfigError(f"{path} has no column {x!r}; it has: {', '.join(header) or 'none'}")
        places = {name: place for place, name in enumerate(header) if name in wanted}
        values: dict[str, list[float]] = {name: [] for name in places}
        last = -np.inf
        try:
            for row in filter(None, reader):
                if len(row) != len(header):
                    raise ValueError(f"{len(row)} cells where the header has {len(header)}")
                for name, place in places.items():
                    values[name].append(float(row[place]) if row[place].strip() else np.nan)
                # Two runs in one file; their curve could not be interpolated.
                if values[x][-1] < last:
                    raise ValueError(f"{x} goes back from {last:g} to {values[x][-1]:g}")
                last = max(last, values[x][-1])  # unchanged if the cell is missing (NaN)
        except (ValueError, csv.Error) as error:
            raise ConfigError(f"{path}, line {reader.line_num}: {error}") from error
    return {name: np.asarray(column, dtype=np.float64) for name, column in values.items()}


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Groups the runs whose configs differ only in ``seed`` and ``exp_name``, and labels the groups.

    If two runs of a config have the same seed, they are not independent samples. The runs of this config are
    then drawn one by one and labelled by their folders, for example before and after a change of the code.
    """
    by_config: dict[str, list[Run]] = {}
    for run in runs:
        by_config.setdefault(repr(sorted(_settings(run.config).items())), []).append(run)
    members: list[list[Run]] = []
    for same_config in by_config.values():
        repeated = len({repr(run.config.get("seed")) for run in same_config}) < len(same_config)
        members += [[run] for run in same_config] if repeated else [same_config]
    settings = [_settings(group[0].config) for group in members]
    descriptions = _distinctions(settings) if len(members) > 1 else [_shared(settings)]
    folders = [group[0].folder.resolve() for group in members]
    top = os.path.commonpath([folder.parent for folder in folders])
    groups = []
    for group, parts, folder in zip(members, descriptions, folders, strict=True):
        ambiguous = descriptions.count(parts) > 1 or not parts
        name = [os.path.relpath(folder, top)] if ambiguous else []
        seeds = f"n={len(group)} seeds" if len(group) > 1 else f"seed {group[0].config.get('seed')}"
        groups.append(Group(group, ", ".join([*parts, *name, seeds])))
    return groups


def _settings(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns the config as ``{"path.of.key": value}``, without the keys that may differ inside a group."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict) and value:
            flat |= _settings(value, f"{prefix}{key}.")
        elif prefix + key not in ("seed", "exp_name"):
            flat[prefix + key] = value
    return flat


def _shared(settings: list[dict[str, Any]]) -> list[str]:
    """Returns the policy and the environment; each only if it is the same in all ``settings``."""
    first, *others = settings
    agreed = [key for key in HEADLINE_KEYS if all(other.get(key) == first.get(key) for other in others)]
    return [str(first[key]) for key in agreed if first.get(key)]


def _distinctions(settings: list[dict[str, Any]]) -> list[list[str]]:
    """Returns for each config the values that distinguish it from the others, as ["ppo", "clip_ratio=0.1"].

    The policy and the environment come first, then the first keys that distinguish further configs.
    """
    parts: list[list[str]] = [[] for _ in settings]
    distinct = 1  # number of different descriptions so far
    for key in dict.fromkeys([*HEADLINE_KEYS, *(key for flat in settings for key in flat)]):
        values = [str(flat.get(key, "not set")) for flat in settings]
        name = "" if key in HEADLINE_KEYS else f"{key.rpartition('.')[2]}="
        longer = [[*part, name + value] for part, value in zip(parts, values, strict=True)]
        longer_distinct = len({tuple(part) for part in longer})
        # A key that follows from those before it would only make the labels longer.
        if longer_distinct > distinct or (key in HEADLINE_KEYS and len(set(values)) > 1):
            parts = longer
            distinct = longer_distinct
    return parts


def curve(runs: Sequence[Run], panel: Panel) -> Curve | None:
    """Returns the curve of a group of runs in a panel, or None if they have no data.

    One seed: its values, with a band of one standard deviation over episodes if the panel has a column for
    it. Two seeds: both, and their mean. More: the mean and its 95 % bootstrap interval. Seeds without a
    common range (for example, with one evaluation each, at different steps) are drawn without a mean.
    """
    all_series = [_points(run, panel) for run in runs]
    series = [points for points in all_series if len(points[0])]
    if not series:
        return None
    if len(series) == 1:
        x, y, spread = series[0]
        # Only if the group has one run; otherwise the band would look like an interval over seeds.
        banded = len(runs) == 1 and np.isfinite(spread).any()
        return Curve(x, y, np.stack([y - spread, y + spread]) if banded else None)
    seeds = tuple((x, y) for x, y, _ in series)
    grid = common_grid([x for x, _ in seeds])
    if not grid.size:
        return Curve(grid, grid, seeds=seeds, n=len(series))
    values = np.stack([np.interp(grid, x, y) for x, y in seeds])
    # Differences of up to 5 % between the last steps are not reported.
    cut = any(x[-1] > 1.05 * grid[-1] for x, _ in seeds)
    band = bootstrap_interval(values) if len(series) > 2 else None
    return Curve(grid, values.mean(axis=0), band, seeds if band is None else (), len(series), cut)


def _points(run: Run, panel: Panel) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns x, y and spread of a run in a panel, without the rows where x or y is missing."""
    missing = np.full_like(run.x, np.nan)
    y, spread = (run.columns.get(name, missing) for name in (panel.column, panel.spread))
    there = np.isfinite(run.x) & np.isfinite(y)
    return run.x[there], y[there], spread[there]


def common_grid(xs: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the points of all ``xs`` in their common range; empty if there is none.

    More than ``MAX_GRID`` points are replaced by evenly spaced ones.
    """
    start = max(x[0] for x in xs)
    stop = min(x[-1] for x in xs)
    points = np.unique(np.concatenate(xs))
    points = points[(points >= start) & (points <= stop)]
    return points if len(points) <= MAX_GRID else np.linspace(start, stop, MAX_GRID)


def bootstrap_interval(values: np.ndarray) -> np.ndarray:
    """Returns the 95 % percentile bootstrap interval of the mean over seeds, resampling whole curves.

    Shapes:
        values: (S, P), S seeds at P points
        returns: (2, P), the lower and the upper edge
    """
    count = len(values)
    draws = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), size=RESAMPLES)
    # Differences to the first seed make the width exactly 0 if all seeds are equal.
    means = (draws / count) @ (values - values[0])
    return values[0] + np.quantile(means, [0.025, 0.975], axis=0)


def plot_runs(
    folders: Sequence[Path], output: Path, *, x: str = "env_step", title: str | None = None
) -> Path:
    """Draws the learning curves of runs to a file.

    Args:
        folders: of the runs. Runs whose configs differ only in the seed become one mean with its interval.
        output: file to write; the suffix .png, .pdf or .svg chooses its format.
        x: column of metrics.csv for the horizontal axis.
        title: of the figure; None: the policy and environment that all runs have in common.

    Returns:
        ``output``.

    Raises:
        ConfigError: if a folder cannot be read or drawn, the file cannot be written, or matplotlib is not
            installed.
    """
    output = Path(output)
    if output.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"cannot write {output}: its name must end in one of {', '.join(SUFFIXES)}")
    if not output.parent.is_dir():
        raise ConfigError(f"cannot write {output}: there is no folder {output.parent}")
    unique = {Path(folder).resolve(): Path(folder) for folder in folders}
    if not unique:
        raise ConfigError("plotting needs at least one run folder")
    figure = draw(group_runs([read_run(folder, x) for folder in unique.values()]), x=x, title=title)
    try:
        figure.savefig(output, dpi=200, bbox_inches="tight", pad_inches=0.08)
    except OSError as error:
        raise ConfigError(f"cannot write {output}: {error}") from error
    return output


def draw(groups: Sequence[Group], *, x: str = "env_step", title: str | None = None) -> Figure:
    """Returns the figure, with one plot for each of ``PANELS`` that has data."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError('plotting needs matplotlib: pip install "ding_lite[plot]"') from error
    all_curves = {panel: [curve(group.runs, panel) for group in groups] for panel in PANELS}
    drawn = {panel: row for panel, row in all_curves.items() if any(row)}
    rows = (len(drawn) + 1) // 2
    cols = min(len(drawn), 2)
    figure = Figure(figsize=(0.6 + 3.7 * cols, 0.9 + 2.4 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    for place, (panel, row) in enumerate(drawn.items()):
        shared = figure.axes[0] if place else None
        axes = figure.add_subplot(rows, cols, place + 1, sharex=shared, axisbelow=True)
        for index, data in enumerate(row):
            if data is not None:
                _draw_curve(axes, data, STYLES[index % len(STYLES)])
        # The plots share the horizontal axis; the lowest one of each column has its label.
        _format_axes(axes, panel, X_LABELS.get(x, x) if place + cols >= len(drawn) else "")
    _add_texts(figure, groups, drawn, title)
    return figure


def _draw_curve(axes: Axes, data: Curve, style: dict[str, Any]) -> None:
    for x, y in data.seeds:
        axes.plot(x, y, **style, linewidth=0.7, alpha=0.6, marker="o" if len(x) == 1 else "", markersize=3)
    if len(data.x) == 1:  # a line or an area of one point would be invisible
        bars = None if data.band is None else np.abs(data.band - data.y)
        axes.errorbar(data.x, data.y, bars, fmt="o", color=style["color"], markersize=4, capsize=3)
    elif data.x.size:
        axes.plot(data.x, data.y, **style, linewidth=1.5)
        if data.band is not None:
            axes.fill_between(data.x, *data.band, color=style["color"], alpha=0.2, linewidth=0)


def _format_axes(axes: Axes, panel: Panel, x_label: str) -> None:
    axes.set_title(panel.title, fontsize=10, loc="left")
    axes.set_xlabel(x_label, fontsize=9, parse_math=False)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: format_count(value))
    axes.tick_params(labelsize=8, length=3)
    axes.grid(color="0.9", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    if "length" in panel.column:
        axes.set_ylim(bottom=0)


def format_count(value: float) -> str:
    """Returns ``value`` as text for a tick: 500, 20k, 1.5M."""
    factor, unit = (1e6, "M") if abs(value) >= 1e6 else (1e3, "k") if abs(value) >= 1e3 else (1.0, "")
    return f"{value / factor:.8g}{unit}".replace("-", "\N{MINUS SIGN}")


def _add_texts(figure: Figure, groups: Sequence[Group], drawn: PanelCurves, title: str | None) -> None:
    """Adds the title, the legend, and notes on the bands and lines below the plots."""
    from matplotlib.lines import Line2D

    curves = [data for row in drawn.values() for data in row if data is not None]
    bands = {data.n > 1 for data in curves if data.band is not None}
    notes = {
        "Band: 95 % bootstrap interval of the mean over seeds.": True in bands,
        "Evaluation band of one seed: one standard deviation over episodes.": False in bands,
        "Thick: mean; thin: the two seeds.": any(data.seeds and data.x.size for data in curves),
        "No mean where seeds share no step.": any(not data.x.size for data in curves),
        "A mean ends where the first of its seeds ends.": any(data.cut for data in curves),
    }
    for panel, row in drawn.items():
        for group, data in zip(groups, row, strict=True):
            if data is not None and data.n < len(group.runs):
                notes[f"{panel.title}: {data.n} of {len(group.runs)} seeds ({group.label})."] = True
    figure.supxlabel("\n".join(filter(notes.get, notes)), fontsize=7, color="0.35", parse_math=False)
    shared = ", ".join(_shared([_settings(group.runs[0].config) for group in groups]))
    # A single group needs no legend: its label is the title, unless another title is given.
    entries = [] if len(groups) == 1 and title is None else [group.label for group in groups]
    handles = [Line2D([], [], **STYLES[index % len(STYLES)], linewidth=1.5) for index in range(len(entries))]
    cols = min(len(groups), 3) if max(len(group.label) for group in groups) <= 40 else 1
    legend = figure.legend(handles, ["-"] * len(entries), loc="outside upper center", ncols=cols, title="-")
    legend.set(frame_on=False)
    # The texts are set afterwards, without math: the name of a folder may contain $ or start with _.
    heading = title if title is not None else shared if entries else groups[0].label
    legend.get_title().set(parse_math=False, text=heading, fontsize=11)
    for text, entry in zip(legend.get_texts(), entries, strict=True):
        text.set(parse_math=False, text=entry, fontsize=8)
