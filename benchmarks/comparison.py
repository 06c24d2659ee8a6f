"""Tables and curves of a comparison: interquartile means with bootstrap intervals (arXiv:2108.13264)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from rows import Comparison

from ding_lite.tools.plot import (
    STYLES,
    X_LABELS,
    add_texts,
    curve_notes,
    draw_curve,
    format_axes,
    new_figure,
    save,
    seeds_curve,
)
from ding_lite.tools.statistics import Scores, aggregate_iqm, interval

Seeds = dict[str, list[dict[str, Any]]]


def comparison_lines(comparison: Comparison, seeds_of: Seeds) -> list[str]:
    """Returns the table: one line per arm of each group, and over all groups if there are several."""
    lines = [
        f"| group | arm | seeds | {comparison.unit}, interquartile mean | 95 % interval | each seed "
        "| s a run |",
        "|---|---|---|---|---|---|---|",
    ]
    groups = {name.split(".")[0] for name, seeds in seeds_of.items() if seeds}
    relative: dict[str, list[np.ndarray]] = {}
    for name, seeds in seeds_of.items():
        if not seeds:
            continue
        group, arm = name.split(".")
        values = np.array([seed[comparison.measure] for seed in seeds])
        each = ", ".join(f"{value:,.4g}" if value < 1e4 else f"{value:,.0f}" for value in values)
        took = np.mean([seed["wall_time_s"] for seed in seeds])
        lines.append(
            f"| {group} | {arm} | {len(seeds)} | {_middle_and_interval([values], 1)} | {each} | {took:.0f} |"
        )
        baseline = seeds_of[f"{group}.{comparison.baseline}"]
        if baseline and len(groups) > 1:
            mean = np.mean([seed[comparison.measure] for seed in baseline])
            relative.setdefault(arm, []).append(values / mean)
    for arm, ratios in relative.items():
        lines.append(
            f"| all, over the mean of {comparison.baseline} | {arm} | {sum(map(len, ratios))} "
            f"| {_middle_and_interval(ratios, 2)} | | |"
        )
    return lines


def _middle_and_interval(scores: Scores, digits: int) -> str:
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
    figure = new_figure(0.6 + 3.7 * len(groups), 3.6)
    curves = []
    for place, group in enumerate(groups):
        axes = figure.add_subplot(1, len(groups), place + 1, axisbelow=True)
        for arm, style in zip(arms, STYLES, strict=False):
            seeds = [np.array(seed["curve"]).T for seed in seeds_of[f"{group}.{arm}"]]
            if len(seeds) > 1:
                curves.append(seeds_curve([(x, y) for x, y in seeds], "iqm"))
                draw_curve(axes, curves[-1], style)
        format_axes(axes, group, X_LABELS["env_step"], comparison.unit if not place else "")
    add_texts(figure, arms, curve_notes(curves, "iqm"), "")
    file.parent.mkdir(exist_ok=True)
    save(figure, file)
