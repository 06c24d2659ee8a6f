"""Tables and curves of a comparison: interquartile means with bootstrap intervals (arXiv:2108.13264)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from rows import Comparison

RESAMPLES = 10_000
Seeds = dict[str, list[dict[str, Any]]]


def interquartile_mean(values: np.ndarray) -> np.ndarray:
    """Returns the mean of the middle half along the last dim; values on its edges count in part.

    Shapes:
        (..., n) -> (...)
    """
    n = values.shape[-1]
    place = np.arange(n)
    weight = np.minimum(place + 1, 0.75 * n) - np.maximum(place, 0.25 * n)
    weight = np.clip(weight, 0.0, 1.0)
    return np.asarray(np.sort(values, axis=-1) @ weight / weight.sum())


def interval(values: np.ndarray, rng: np.random.Generator) -> tuple[float, float, float]:
    """Returns the interquartile mean of ``values`` (n,) and its 95 % bootstrap interval."""
    drawn = values[rng.integers(0, len(values), (RESAMPLES, len(values)))]
    low, high = np.percentile(interquartile_mean(drawn), [2.5, 97.5])
    return float(interquartile_mean(values)), float(low), float(high)


def comparison_lines(comparison: Comparison, seeds_of: Seeds) -> list[str]:
    """Returns the table: one line per arm of each group, and over all groups if there are several."""
    rng = np.random.default_rng(0)
    lines = [
        f"| group | arm | seeds | {comparison.unit}, interquartile mean | 95 % interval | each seed "
        "| s a run |",
        "|---|---|---|---|---|---|---|",
    ]
    groups = {name.split(".")[0] for name, seeds in seeds_of.items() if seeds}
    relative: dict[str, list[float]] = {}
    for name, seeds in seeds_of.items():
        if not seeds:
            continue
        group, arm = name.split(".")
        values = np.array([seed[comparison.measure] for seed in seeds])
        middle, low, high = interval(values, rng)
        each = ", ".join(f"{value:,.4g}" if value < 1e4 else f"{value:,.0f}" for value in values)
        took = np.mean([seed["wall_time_s"] for seed in seeds])
        lines.append(
            f"| {group} | {arm} | {len(seeds)} | **{middle:,.1f}** | {low:,.1f} to {high:,.1f} | {each} "
            f"| {took:.0f} |"
        )
        baseline = seeds_of[f"{group}.{comparison.baseline}"]
        if baseline and len(groups) > 1:
            mean = np.mean([seed[comparison.measure] for seed in baseline])
            relative.setdefault(arm, []).extend(values / mean)
    for arm, ratios in relative.items():
        middle, low, high = interval(np.array(ratios), rng)
        lines.append(
            f"| all, over the mean of {comparison.baseline} | {arm} | {len(ratios)} | **{middle:.2f}** "
            f"| {low:.2f} to {high:.2f} | | |"
        )
    return lines


def draw_curves(comparison: Comparison, seeds_of: Seeds, file: Path) -> None:
    """Draws the evaluations of each arm during training, one panel per group, with the range of the seeds."""
    if not comparison.curves:
        return
    import matplotlib.pyplot as plt

    groups = sorted({name.split(".")[0] for name, seeds in seeds_of.items() if seeds})
    figure, panels = plt.subplots(1, len(groups), figsize=(4.5 * len(groups), 3.6), squeeze=False)
    for group, panel in zip(groups, panels[0], strict=True):
        for name, seeds in seeds_of.items():
            if not seeds or not name.startswith(f"{group}."):
                continue
            shortest = min(len(seed["curve"]) for seed in seeds)
            steps = np.array([point[0] for point in seeds[0]["curve"][:shortest]])
            values = np.array([[point[1] for point in seed["curve"][:shortest]] for seed in seeds])
            panel.plot(steps, interquartile_mean(values.T), label=f"{name.split('.')[1]} ({len(seeds)})")
            panel.fill_between(steps, values.min(0), values.max(0), alpha=0.15)
        panel.set(title=group, xlabel="env steps", ylabel=comparison.unit)
        panel.legend(fontsize=7)
    figure.tight_layout()
    file.parent.mkdir(exist_ok=True)
    figure.savefig(file, dpi=110)
    plt.close(figure)
