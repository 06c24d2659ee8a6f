"""Learning curves of one run, or of several, as one would put them in a paper.

``read_run`` gives the numbers of a run folder, ``group_runs`` puts the seeds of one config together,
``curve`` makes the line and the band of a panel; ``plot_runs`` draws them. matplotlib is an extra, imported
only then. The figure is an object of its own (no pyplot, no global state), so that plotting works without
a display and in any thread.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ding_lite.errors import ConfigError
from ding_lite.types import RECENT_EPISODES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".pdf", ".svg")
RESAMPLES = 2_000
MAX_GRID = 1_000  # more points cannot be seen, and the resamples of all are held at once

# Colours that the colour-blind can tell apart (Okabe and Ito); the dashes do it in grey.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", "-.", ":")
STYLES: list[dict[str, Any]] = [{"color": COLORS[i % 7], "linestyle": DASHES[i % 4]} for i in range(28)]
X_LABELS = {"env_step": "Env steps", "iteration": "Iterations", "train_iter": "Optimiser steps"}
HEADLINE_KEYS = ("policy.type", "env.env_id")


class Panel(NamedTuple):
    """One of the plots: a column of metrics.csv, and perhaps another with its spread over episodes."""

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
    """The part of a run folder that is drawn. Missing cells are NaN."""

    folder: Path
    config: dict[str, Any]
    x: np.ndarray
    columns: dict[str, np.ndarray]


class Group(NamedTuple):
    """Runs of one config, one for each seed, and what the legend calls them."""

    runs: list[Run]
    label: str


class Curve(NamedTuple):
    """What one group shows in one panel: a line of P points, its band, seeds drawn on their own."""

    x: np.ndarray  # (P,), empty where the seeds share no part of the x axis
    y: np.ndarray  # (P,)
    band: np.ndarray | None = None  # (2, P), the lower and the upper edge
    seeds: tuple[tuple[np.ndarray, np.ndarray], ...] = ()
    n: int = 1  # seeds that have this column
    cut: bool = False  # whether a seed goes on well after the line has ended


Drawn = dict[Panel, list[Curve | None]]  # the panels that have data, with a curve for each group


def read_run(folder: Path, x: str = "env_step") -> Run:
    """Reads the config and the columns that are drawn; raises ConfigError where that cannot be done."""
    if not folder.is_dir():
        raise ConfigError(f"there is no run folder {folder}")
    metrics = folder / "metrics.csv"
    if not metrics.is_file():
        raise ConfigError(f"{folder} is not a run folder: it has no metrics.csv (for all in it: {folder}/*)")
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
    """Reads the ``wanted`` columns that ``path`` has; other columns need not be numbers."""
    # A byte that is no text becomes a replacement character, so that it is reported with its line.
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
                # Two runs in one file: such a curve cannot be interpolated.
                if values[x][-1] < last:
                    raise ValueError(f"{x} goes back from {last:g} to {values[x][-1]:g}")
                last = max(last, values[x][-1])  # stays as it is where the cell is missing
        except (ValueError, csv.Error) as error:
            raise ConfigError(f"{path}, line {reader.line_num}: {error}") from error
    return {name: np.asarray(column, dtype=np.float64) for name, column in values.items()}


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Puts the runs together whose configs differ only in ``seed`` and ``exp_name``, and labels them.

    A seed that comes twice is no second sample, so the runs of such a config are drawn one by one,
    told apart by their folders (say, before and after a change of the code).
    """
    by_config: dict[str, list[Run]] = {}
    for run in runs:
        by_config.setdefault(repr(sorted(_settings(run.config).items())), []).append(run)
    members: list[list[Run]] = []
    for same in by_config.values():
        repeated = len({repr(run.config.get("seed")) for run in same}) < len(same)
        members += [[run] for run in same] if repeated else [same]
    settings = [_settings(each[0].config) for each in members]
    described = _describe(settings) if len(members) > 1 else [_shared(settings)]
    folders = [each[0].folder.resolve() for each in members]
    top = os.path.commonpath([folder.parent for folder in folders])
    groups = []
    for each, parts, folder in zip(members, described, folders, strict=True):
        name = [os.path.relpath(folder, top)] if described.count(parts) > 1 or not parts else []
        seeds = f"n={len(each)} seeds" if len(each) > 1 else f"seed {each[0].config.get('seed')}"
        groups.append(Group(each, ", ".join([*parts, *name, seeds])))
    return groups


def _settings(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns the config as ``{"path.of.key": value}``, without what may differ inside a group."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict) and value:
            flat |= _settings(value, f"{prefix}{key}.")
        elif prefix + key not in ("seed", "exp_name"):
            flat[prefix + key] = value
    return flat


def _shared(settings: list[dict[str, Any]]) -> list[str]:
    """Returns the policy and the environment, as far as all ``settings`` agree on them."""
    first, *others = settings
    agreed = [key for key in HEADLINE_KEYS if all(other.get(key) == first.get(key) for other in others)]
    return [str(first[key]) for key in agreed if first.get(key)]


def _describe(settings: list[dict[str, Any]]) -> list[list[str]]:
    """Returns what tells each config from the others: policy, environment, then the first keys needed."""
    parts: list[list[str]] = [[] for _ in settings]
    told = 1
    for key in dict.fromkeys([*HEADLINE_KEYS, *(key for flat in settings for key in flat)]):
        values = [str(flat.get(key, "not set")) for flat in settings]
        name = "" if key in HEADLINE_KEYS else f"{key.rpartition('.')[2]}="
        longer = [[*part, name + value] for part, value in zip(parts, values, strict=True)]
        tells = len({tuple(part) for part in longer})
        # A key that only follows from those before it would make the labels longer and say nothing.
        if tells > told or (key in HEADLINE_KEYS and len(set(values)) > 1):
            parts, told = longer, tells
    return parts


def curve(runs: Sequence[Run], panel: Panel) -> Curve | None:
    """Returns what the seeds in ``runs`` show in ``panel``, or None where they have no data.

    One seed: its numbers, with a band of one standard deviation over episodes where the panel has one.
    Two: both, and their mean. More: the mean and its 95 % bootstrap interval. Seeds that share no part of
    the x axis (one evaluation each, at the step where it ended) have no mean and are drawn alone.
    """
    series = [points for run in runs if len((points := _points(run, panel))[0])]
    if not series:
        return None
    if len(series) == 1:
        x, y, spread = series[0]
        # Only for a lone run: beside other seeds it would look like an interval over seeds.
        banded = len(runs) == 1 and np.isfinite(spread).any()
        return Curve(x, y, np.stack([y - spread, y + spread]) if banded else None)
    seeds = tuple((x, y) for x, y, _ in series)
    grid = common_grid([x for x, _ in seeds])
    if not grid.size:
        return Curve(grid, grid, seeds=seeds, n=len(series))
    values = np.stack([np.interp(grid, x, y) for x, y in seeds])
    # Where only the last steps differ by a little, it is not worth a word.
    cut = any(x[-1] > 1.05 * grid[-1] for x, _ in seeds)
    band = bootstrap_interval(values) if len(series) > 2 else None
    return Curve(grid, values.mean(axis=0), band, seeds if band is None else (), len(series), cut)


def _points(run: Run, panel: Panel) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    missing = np.full_like(run.x, np.nan)
    y, spread = (run.columns.get(name, missing) for name in (panel.column, panel.spread))
    there = np.isfinite(run.x) & np.isfinite(y)
    return run.x[there], y[there], spread[there]


def common_grid(xs: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the points of all ``xs`` in the range that each of them covers; empty if there is none."""
    start, stop = max(x[0] for x in xs), min(x[-1] for x in xs)
    points = np.unique(np.concatenate(xs))
    points = points[(points >= start) & (points <= stop)]
    return points if len(points) <= MAX_GRID else np.linspace(start, stop, MAX_GRID)


def bootstrap_interval(values: np.ndarray) -> np.ndarray:
    """Returns the 95 % percentile bootstrap interval of the mean over seeds. Whole curves are resampled.

    Shapes:
        values: (S, P), S seeds at P points. Returns (2, P): the lower and the upper edge
    """
    count = len(values)
    picks = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), size=RESAMPLES)
    # Of the differences to one seed: equal seeds then have a width of exactly 0.
    means = (picks / count) @ (values - values[0])
    return values[0] + np.quantile(means, [0.025, 0.975], axis=0)


def plot_runs(
    folders: Sequence[Path], output: Path, *, x: str = "env_step", title: str | None = None
) -> Path:
    """Draws the learning curves of the runs in ``folders``, writes them to ``output`` and returns it.

    Runs whose configs differ only in the seed become one mean and its interval. ``output`` is PNG, PDF or
    SVG by its suffix. ``x`` is the column of metrics.csv for the horizontal axis. Without a ``title`` the
    figure is headed by what all runs have in common. Raises ConfigError where a folder cannot be read or
    drawn, ``output`` cannot be written, or matplotlib is missing.
    """
    output = Path(output)
    if output.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"cannot write {output}: its name must end in one of {', '.join(SUFFIXES)}")
    if not output.parent.is_dir():
        raise ConfigError(f"cannot write {output}: there is no folder {output.parent}")
    once = {Path(folder).resolve(): Path(folder) for folder in folders}  # two names are still one run
    if not once:
        raise ConfigError("no run folder is given to plot")
    figure = draw(group_runs([read_run(folder, x) for folder in once.values()]), x=x, title=title)
    try:
        figure.savefig(output, dpi=200, bbox_inches="tight", pad_inches=0.08)
    except OSError as error:
        raise ConfigError(f"cannot write {output}: {error}") from error
    return output


def draw(groups: Sequence[Group], *, x: str = "env_step", title: str | None = None) -> Figure:
    """Returns the figure of ``groups``: one panel for each of ``PANELS`` that has data."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError('plotting needs matplotlib: pip install "ding_lite[plot]"') from error
    drawn = {panel: row for panel in PANELS if any(row := [curve(group.runs, panel) for group in groups])}
    rows, cols = (len(drawn) + 1) // 2, min(len(drawn), 2)
    figure = Figure(figsize=(0.6 + 3.7 * cols, 0.9 + 2.4 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    for place, (panel, row) in enumerate(drawn.items()):
        shared = figure.axes[0] if place else None
        axes = figure.add_subplot(rows, cols, place + 1, sharex=shared, axisbelow=True)
        for index, data in enumerate(row):
            if data is not None:
                _draw_curve(axes, data, STYLES[index % len(STYLES)])
        # The lowest panel of each column carries the label of the axis that all share.
        _dress(axes, panel, X_LABELS.get(x, x) if place + cols >= len(drawn) else "")
    _write_around(figure, groups, drawn, title)
    return figure


def _draw_curve(axes: Axes, data: Curve, style: dict[str, Any]) -> None:
    for x, y in data.seeds:
        axes.plot(x, y, **style, linewidth=0.7, alpha=0.6, marker="o" if len(x) == 1 else "", markersize=3)
    if len(data.x) == 1:  # one point has no line and no area
        bars = None if data.band is None else np.abs(data.band - data.y)
        axes.errorbar(data.x, data.y, bars, fmt="o", color=style["color"], markersize=4, capsize=3)
    elif data.x.size:
        axes.plot(data.x, data.y, **style, linewidth=1.5)
        if data.band is not None:
            axes.fill_between(data.x, *data.band, color=style["color"], alpha=0.2, linewidth=0)


def _dress(axes: Axes, panel: Panel, x_label: str) -> None:
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
    """Returns ``value`` as the ticks show it: 500, 20k, 1.5M."""
    factor, unit = (1e6, "M") if abs(value) >= 1e6 else (1e3, "k") if abs(value) >= 1e3 else (1.0, "")
    return f"{value / factor:.8g}{unit}".replace("-", "\N{MINUS SIGN}")


def _write_around(figure: Figure, groups: Sequence[Group], drawn: Drawn, title: str | None) -> None:
    """Adds the title, the legend, and what the caption in a paper would say of the bands."""
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
    # One group needs no legend: its label is the title, unless that is given.
    entries = [] if len(groups) == 1 and title is None else [group.label for group in groups]
    handles = [Line2D([], [], **STYLES[index % len(STYLES)], linewidth=1.5) for index in range(len(entries))]
    cols = min(len(groups), 3) if max(len(group.label) for group in groups) <= 40 else 1
    legend = figure.legend(handles, ["-"] * len(entries), loc="outside upper center", ncols=cols, title="-")
    legend.set(frame_on=False)
    # The words come after, as plain text: the name of a folder may hold a $ or start with _.
    heading = title if title is not None else shared if entries else groups[0].label
    legend.get_title().set(parse_math=False, text=heading, fontsize=11)
    for text, entry in zip(legend.get_texts(), entries, strict=True):
        text.set(parse_math=False, text=entry, fontsize=8)
