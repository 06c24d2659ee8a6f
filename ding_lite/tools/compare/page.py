"""The page of a comparison: one HTML file with tables, and with curves to zoom into, that needs no network.

``page.html`` is the template, with its style and its script. The script draws the charts, whose numbers are
in the page as JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np

from ding_lite.tools.compare.comparison import Comparison, Range, Summary, number, table_of
from ding_lite.tools.compare.figure import SCORES_TITLE, learning_curves, score_profile
from ding_lite.tools.plot import X_LABEL
from ding_lite.tools.runs import SCORE, points_of

PLACE = re.compile(r"\{\{(\w+)\}\}")


def page_of(comparison: Comparison, title: str | None = None) -> str:
    """Returns the page as HTML.

    Args:
        comparison: to show.
        title: of the page; None: what all runs have in common.
    """
    heading = title or comparison.title or "Comparison of runs"
    parts = {
        "title": escape(heading),
        "tables": "\n".join(_tables(comparison)),
        "differences": _differences(comparison),
        "notes": "".join(f"<li>{escape(note)}</li>" for note in comparison.notes),
        "runs": _runs(comparison),
        "data": _json({"groups": comparison.labels, "charts": list(_charts(comparison))}),
    }
    template = files("ding_lite.tools.compare").joinpath("page.html").read_text(encoding="utf-8")
    return PLACE.sub(lambda match: parts[match[1]], template)


def _json(data: Any) -> str:
    """Returns JSON that cannot end the script element that it stands in."""
    return json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _numbers(values: np.ndarray) -> list[float]:
    """Returns numbers with six digits, which is more than a screen shows."""
    return [float(f"{value:.6g}") for value in values]


# ------------------------------------------------------------------ charts


def _charts(comparison: Comparison) -> Iterable[dict[str, Any]]:
    for task in comparison.tasks:
        yield _learning_chart(comparison, task)
    summaries = comparison.summaries()
    yield {
        "kind": "rows",
        "title": SCORES_TITLE,
        "xLabel": comparison.unit,
        "rows": [
            _row(place, summary.iqm, summary.iqm_interval, np.concatenate(comparison.values(place)))
            for place, summary in enumerate(summaries)
        ],
    }
    found = score_profile(comparison)
    yield {
        "kind": "lines",
        "title": "Performance profile: share of runs above a score",
        "xLabel": comparison.unit,
        "yLabel": "Runs",
        "percent": True,
        "steps": True,
        "lines": [
            _line(place, found.levels, share, band)
            for place, (share, band) in enumerate(zip(found.shares, found.bands, strict=True))
        ],
    }
    if len(summaries) > 1:
        yield {
            "kind": "rows",
            "title": f"Probability of a higher score than {summaries[0].label}",
            "xLabel": "Probability",
            "range": [0, 1],
            "mark": 0.5,
            "rows": [
                _row(place, summary.improvement or 0.0, summary.improvement_interval, np.empty(0))
                for place, summary in enumerate(summaries)
                if place
            ],
        }


def _learning_chart(comparison: Comparison, task: str) -> dict[str, Any]:
    lines = []
    for place, curve in enumerate(learning_curves(comparison, task)):
        line = _line(place, curve.x, curve.y, curve.band)
        line["seeds"] = []
        for score in comparison.scores[place][task]:
            x, y, _ = points_of(score.run, SCORE)
            line["seeds"].append({"x": _numbers(x), "y": _numbers(y)})
        lines.append(line)
    return {
        "kind": "lines",
        "title": f"Evaluation return, {task}",
        "xLabel": X_LABEL,
        "yLabel": "Return, interquartile mean",
        "from": 0,
        "lines": lines,
    }


def _line(group: int, x: np.ndarray, y: np.ndarray, band: np.ndarray | None) -> dict[str, Any]:
    edges = None if band is None else [_numbers(edge) for edge in band]
    return {"group": group, "x": _numbers(x), "y": _numbers(y), "band": edges}


def _row(group: int, value: float, edges: Range | None, runs: np.ndarray) -> dict[str, Any]:
    return {"group": group, "value": value, "band": edges, "runs": _numbers(runs)}


# ------------------------------------------------------------------ tables


def _tables(comparison: Comparison) -> Iterable[str]:
    yield _table_of(comparison.summaries(), comparison.unit)
    if len(comparison.tasks) > 1:
        for task in comparison.tasks:
            yield _table_of(comparison.summaries_of(task), f"Return, {task}")


def _table_of(summaries: Sequence[Summary], caption: str) -> str:
    header, rows = table_of(summaries)
    swatch = '<svg class="swatch" data-group="{}"></svg>'
    cells = [
        f'<th scope="row">{swatch.format(place)} {escape(label)}</th>' + "".join(map(_cell, numbers))
        for place, (label, *numbers) in enumerate(rows)
    ]
    return _table(caption, header, cells)


def _differences(comparison: Comparison) -> str:
    if not comparison.differences:
        return "<p>The configs of the groups do not differ.</p>"
    rows = [
        "".join([f'<th scope="row"><code>{escape(key)}</code></th>', *map(_cell, values)])
        for key, values in comparison.differences.items()
    ]
    return _table("", ["key", *comparison.labels], rows)


def _runs(comparison: Comparison) -> str:
    rows = [
        "".join(
            _cell(cell)
            for cell in (
                label,
                task,
                str(score.run.config.get("seed")),
                number(score.value),
                f"{score.env_step:,}",
                score.status,
                str(score.run.folder),
            )
        )
        for label, group in zip(comparison.labels, comparison.scores, strict=True)
        for task, scores in group.items()
        for score in scores
    ]
    return _table("", ["group", "env", "seed", "return", "at env step", "status", "folder"], rows)


def _table(caption: str, header: Sequence[str], rows: Sequence[str]) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in header)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    return (
        f'<div class="scroll"><table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _cell(text: str) -> str:
    return f"<td>{escape(text)}</td>"
