"""``ding-lite compare``: compares groups of runs, in a table, a figure and a page."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from ding_lite.cli.common import add_json, add_picture_options, path_text
from ding_lite.errors import ConfigError

if TYPE_CHECKING:
    from ding_lite.tools.compare import Comparison, Summary

SUMMARY = "compare groups of runs: scores with intervals, curves, what differs"
DESCRIPTION = """\
Compares the final scores of groups of runs, and shows in which keys of the config they differ.

The runs whose configs differ only in the seed, the name, the limits, checkpoints or logs are a
group. Runs of several environments are tasks of one group, if the same keys distinguish the groups in
each. NAME=FOLDER makes a group of the given runs instead.

The score of a run is the mean return of one evaluation: the one nearest to where the shortest
run that reached its limit ends; without such a run, its last. The table has, for each group:
the mean, the interquartile mean (IQM) with its 95 % stratified bootstrap interval, and the
probability that a run scores higher than one of the first group. docs/comparing.md explains
the statistics. Pictures need matplotlib: pip install "ding_lite[plot]"; a page does not.
"""
EXAMPLES = """\
examples:
  ding-lite compare runs/cartpole_ppo* runs/cartpole_ppg*       a table
  ding-lite compare runs -o comparison.html                     all runs in a folder, and a page
  ding-lite compare runs/ppo* runs/ppg* -o a.png -o a.html      a figure and a page
  ding-lite compare runs -o a.pdf --panels scores --width 3.3   one plot, as wide as a column
  ding-lite compare 'before=old/run_*' 'after=new/run_*'        groups by name
  ding-lite compare runs --reference CartPole-v1=20:500 --reference Pendulum-v1=-1300:-150
                                                                several tasks, with fixed scales
"""
SUFFIXES = (".html", ".png", ".pdf", ".svg")
REFERENCE = re.compile(r"(.+)=([^=:]+):([^=:]+)")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``ding-lite compare``."""
    parser.add_argument(
        "groups",
        nargs="+",
        metavar="GROUP",
        help="runs, folders with runs in them, or quoted patterns of such; NAME=FOLDER names a group",
    )
    parser.add_argument(
        "-o",
        "--output",
        action="append",
        type=path_text,
        default=[],
        metavar="FILE",
        help="write a .html page or a .png, .pdf or .svg figure; may be repeated",
    )
    parser.add_argument(
        "--reference",
        action="append",
        default=[],
        metavar="ENV=LOW:HIGH",
        help="the returns of ENV that count as scores 0 and 1; may be repeated (default: the lowest and the "
        "highest evaluation of the runs, if there are several environments)",
    )
    parser.add_argument("--title", metavar="TEXT", help="title (default: what the runs have in common)")
    add_picture_options(parser, "evaluation, scores, profile, improvement")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Prints the comparison and writes the files."""
    from ding_lite.tools.compare import compare
    from ding_lite.tools.plot import check_output

    outputs = [Path(name) for name in args.output]
    for output in outputs:
        check_output(output, SUFFIXES)
    if (args.panels or args.width is not None) and not any(map(_is_figure, outputs)):
        raise ConfigError("--panels and --width are of a figure: add -o FILE.png (a page has all plots)")
    if args.title and not outputs:
        raise ConfigError("--title is of a figure or a page: add -o FILE.png or -o FILE.html")
    comparison = compare(args.groups, dict(map(_reference, args.reference)))
    for output in outputs:
        _write(comparison, output, args)
    if args.json:
        print(json.dumps(comparison.as_json()))
    else:
        print("\n".join([*_report(comparison), *(f"written: {output}" for output in outputs)]))
    return 0


def _reference(text: str) -> tuple[str, tuple[float, float]]:
    """Returns the environment, and the returns that count as 0 and 1."""
    match = REFERENCE.fullmatch(text)
    try:
        if match:
            return match[1], (float(match[2]), float(match[3]))
    except ValueError:
        pass
    raise ConfigError(f"--reference: expected ENV=LOW:HIGH, such as CartPole-v1=20:500, got {text}")


def _is_figure(output: Path) -> bool:
    return output.suffix.lower() != ".html"


def _write(comparison: Comparison, output: Path, args: argparse.Namespace) -> None:
    from ding_lite.tools.compare import draw_comparison, page_of
    from ding_lite.tools.plot import save

    if _is_figure(output):
        figure = draw_comparison(comparison, args.title, args.panels, args.width)
        save(figure, output, tight=args.width is None)
        return
    try:
        # Names of folders may have bytes that are no text.
        output.write_text(page_of(comparison, args.title), encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(f"cannot write {output}: {error}") from error


def _report(comparison: Comparison) -> list[str]:
    from ding_lite.tools.table import aligned

    lines = [comparison.title, ""] if comparison.title else []
    lines += _table(comparison.summaries(), comparison.unit)
    if len(comparison.tasks) > 1:
        for task in comparison.tasks:
            lines += ["", *_table(comparison.summaries_of(task), f"Return, {task}")]
    if comparison.differences:
        differences, folded = comparison.folded_differences()
        rows = [["what differs", *comparison.labels]]
        rows += [[key, *values] for key, values in differences.items()]
        lines += ["", *aligned(rows), *(f"{line} (a .html page and --json list them)" for line in folded)]
    if comparison.notes:
        lines += ["", *comparison.notes]
    return lines


def _table(summaries: list[Summary], unit: str) -> list[str]:
    from ding_lite.tools.compare import table_of
    from ding_lite.tools.table import aligned

    header, rows = table_of(summaries)
    return [unit, *aligned([header, *rows], right=range(1, 7))]
