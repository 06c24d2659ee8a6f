"""Tables and curves: interquartile means with bootstrap intervals (arXiv:2108.13264)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rows import Comparison, Row

from ding_lite.tools.plot import (
    X_LABEL,
    Curve,
    add_texts,
    draw_curve,
    format_axes,
    new_figure,
    save,
    seeds_curve,
    style_of,
)
from ding_lite.tools.statistics import Scores, aggregate_iqm, interval, probability_of_improvement

Seeds = dict[str, list[dict[str, Any]]]

ELSEWHERE = "mean_elsewhere"  # of a seed's result: the mean return of the second evaluation
WINDOW = 3  # evaluations
COLUMNS = 3  # of panels in a picture of rows
LINE: dict[str, Any] = {"color": "0.35", "linestyle": ":", "linewidth": 1.2}  # a published figure


def comparison_lines(comparison: Comparison, seeds_of: Seeds) -> list[str]:
    """Returns the table: one line per arm of each group, and over all groups if there are several.

    The column "beats" has the probability that a seed of the arm is better than one of the baseline.
    """
    measured = {name: seeds for name, seeds in seeds_of.items() if seeds}
    has_elsewhere = any(ELSEWHERE in seed for seeds in measured.values() for seed in seeds)
    columns = ["group", "arm", "seeds", f"{comparison.unit}, interquartile mean", "95 % interval"]
    columns += [f"beats {comparison.baseline}", "each seed"]
    columns += ["on unseen levels"] if has_elsewhere else []
    columns += [f"env steps to the last return of {comparison.baseline}"] if comparison.race else []
    columns += ["s a run"]
    lines = [_cells(columns), "|" + "---|" * len(columns)]
    groups = {name.split(".")[0] for name in measured}
    relative: dict[str, list[np.ndarray]] = {}
    for name, seeds in measured.items():
        group, arm = name.split(".")
        of_baseline = seeds_of[f"{group}.{comparison.baseline}"]
        values, baseline = (np.array([seed[comparison.measure] for seed in x]) for x in (seeds, of_baseline))
        beats = ""
        if baseline.size and arm != comparison.baseline:
            better, other = (values, baseline) if comparison.more_is_better else (baseline, values)
            beats = f"{probability_of_improvement([better], [other]):.2f}"
        cells = [group, arm, str(len(seeds)), middle_and_interval([values], 1), beats, _each(values)]
        if has_elsewhere:
            cells.append(_each(np.array([seed[ELSEWHERE] for seed in seeds if ELSEWHERE in seed])))
        if comparison.race:
            cells.append(_steps_to_last_return(seeds, of_baseline))
        lines.append(_cells([*cells, _seconds(seeds)]))
        if baseline.size and len(groups) > 1:
            relative.setdefault(arm, []).append(values / baseline.mean())
    for arm, ratios in relative.items():
        over_all = f"all, over the mean of {comparison.baseline}"
        cells = [over_all, arm, str(sum(map(len, ratios))), middle_and_interval(ratios, 2)]
        lines.append(_cells(cells) + " |" * (len(columns) - 5))
    return lines


def _cells(texts: Sequence[str]) -> str:
    return f"| {' | '.join(texts)} |"


def _each(values: np.ndarray) -> str:
    return ", ".join(f"{value:,.4g}" if value < 1e4 else f"{value:,.0f}" for value in values)


def _seconds(seeds: list[dict[str, Any]]) -> str:
    devices = {seed.get("device", "cpu") for seed in seeds} - {"cpu"}
    return " on ".join([f"{np.mean([seed['wall_time_s'] for seed in seeds]):.0f}", *devices])


def _steps_to_last_return(seeds: list[dict[str, Any]], of_baseline: list[dict[str, Any]]) -> str:
    """Returns the env steps after which the mean over ``seeds`` has the last return of the baseline.

    Both are means over ``WINDOW`` evaluations in a row: one of a few episodes has a wide spread.
    """
    if not of_baseline:
        return ""
    _, returns = _mean_curve(of_baseline)
    x, y = _mean_curve(seeds)
    reached = np.flatnonzero(y >= returns[-1])
    return f"{x[reached[0]]:,.0f}" if reached.size else "not reached"


def _mean_curve(seeds: list[dict[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
    """Returns env steps and returns: means over the seeds and over ``WINDOW`` evaluations up to each."""
    count = min(len(seed["curve"]) for seed in seeds)
    x, y = np.mean([seed["curve"][:count] for seed in seeds], axis=0).T
    window = min(WINDOW, count)
    return x[window - 1 :], np.convolve(y, np.full(window, 1 / window), "valid")


def middle_and_interval(scores: Scores, digits: int) -> str:
    """Returns two cells: the interquartile mean, and its interval if there are enough seeds."""
    edges = interval(aggregate_iqm, scores)
    span = "" if edges is None else f"{edges[0]:,.{digits}f} to {edges[1]:,.{digits}f}"
    return f"**{aggregate_iqm(scores):,.{digits}f}** | {span}"


def draw_curves(comparison: Comparison, seeds_of: Seeds, file: Path) -> None:
    """Draws the evaluations of each arm during training, one panel per group, with intervals over seeds."""
    if not comparison.curves:
        return
    groups = sorted({name.split(".")[0] for name, seeds in seeds_of.items() if seeds})
    arms = list(dict.fromkeys(name.split(".")[1] for name in seeds_of))
    figure, all_axes = new_figure(len(groups), len(groups))
    for axes, group in zip(all_axes, groups, strict=True):
        for order, arm in enumerate(arms):
            series = [_evaluations(seed) for seed in seeds_of[f"{group}.{arm}"]]
            if series:
                curve = seeds_curve(series) if len(series) > 1 else Curve(*series[0])
                draw_curve(axes, curve, style_of(order))
        format_axes(axes, group, X_LABEL, comparison.unit)
    add_texts(figure, "", arms)
    file.parent.mkdir(exist_ok=True)
    save(figure, file)


def draw_rows(rows: dict[str, Row], seeds_of: Seeds, file: Path) -> bool:
    """Draws the evaluations of each row during training, one panel per row, with its published figure.

    Returns:
        Whether any row has the two seeds that a curve needs; otherwise no file is written.
    """
    measured = {name: seeds for name, seeds in seeds_of.items() if len(seeds) > 1}
    if not measured:
        return False
    figure, all_axes = new_figure(len(measured), COLUMNS)
    for axes, (name, seeds) in zip(all_axes, measured.items(), strict=True):
        draw_curve(axes, curve_of_row(seeds), style_of(0))
        published = rows[name].published
        if published is not None:
            axes.axhline(published.value, **LINE, zorder=3)
            at_the_right = {"transform": axes.get_yaxis_transform(), "ha": "right", "va": "bottom"}
            who = published.source.partition(",")[0]
            axes.text(1, published.value, who, **at_the_right, fontsize=7, color=LINE["color"])
        format_axes(axes, name, X_LABEL, "return")
    notes = "A seed that stopped when it was solved keeps its last value. Dotted: the published figure."
    figure.supxlabel(notes, fontsize=7, color="0.35")
    file.parent.mkdir(exist_ok=True)
    save(figure, file)
    return True


def curve_of_row(seeds: list[dict[str, Any]]) -> Curve:
    """Returns the curve over the seeds; a seed that stopped when it was solved keeps its last value."""
    series = [_evaluations(seed) for seed in seeds]
    end = max(x[-1] for x, _ in series)
    return seeds_curve([(np.append(x, end), np.append(y, y[-1])) for x, y in series])


def _evaluations(seed: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the env steps and the mean returns of the evaluations during training."""
    x, y = np.array(seed["curve"]).T
    return x, y
