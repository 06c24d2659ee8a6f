"""``ding-lite compare``: compares groups of runs, in a table, a figure and a page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ding_lite.cli.options import (
    PATH,
    command,
    json_option,
    option,
    picture_options,
    print_json,
    print_table,
)
from ding_lite.errors import ConfigError

if TYPE_CHECKING:
    from ding_lite.tools.compare import Comparison, Summary

SUFFIXES = (".html", ".png", ".pdf", ".svg")
SCALES = "Several tasks, such as: --reference CartPole-v1=20:500 --reference Pendulum-v1=-1300:-150"
PICTURES = "Pictures and pages, such as: -o comparison.html -o comparison.png"


class Reference(click.ParamType[tuple[str, tuple[float, float]]]):
    """The returns of an environment that count as scores 0 and 1."""

    name = "ENV=LOW:HIGH"

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, tuple[float, float]]:
        try:
            env, _, edges = value.rpartition("=")
            low, high = map(float, edges.split(":"))
        except ValueError:
            self.fail(f"expected ENV=LOW:HIGH, such as CartPole-v1=20:500, got {value!r}", param, ctx)
        return env, (low, high)


@command()
@click.argument(
    "groups",
    nargs=-1,
    required=True,
    metavar="GROUP...",
    help="runs, folders with runs in them, or quoted patterns of such; NAME=FOLDER names a group",
)
@option(
    *("-o", "--output"),
    multiple=True,
    type=PATH,
    metavar="FILE",
    group=PICTURES,
    help="write a .html page or a .png, .pdf or .svg figure; may be repeated",
)
@picture_options(PICTURES, "evaluation, scores, profile, improvement")
@option(
    "--reference",
    multiple=True,
    type=Reference(),
    metavar="ENV=LOW:HIGH",
    group=SCALES,
    help="the returns of ENV that count as scores 0 and 1; may be repeated (default: the lowest and the "
    "highest evaluation of the runs, if there are several environments)",
)
@json_option
def run(
    groups: tuple[str, ...],
    output: tuple[str, ...],
    title: str | None,
    panels: list[str],
    width: float | None,
    reference: tuple[tuple[str, tuple[float, float]], ...],
    json: bool,
) -> None:
    """Compares groups of runs: scores with intervals, curves, what differs.

    The runs whose configs differ only in the seed, the name, the limits, checkpoints or logs are a group.
    Runs of several environments are tasks of one group, if the same keys distinguish the groups in each.
    'before=old/run_*' makes a group of the given runs instead.

    The score of a run is the mean return of one evaluation: the one nearest to where the shortest run that
    reached its limit ends; without such a run, its last. The table has, for each group: the mean, the
    interquartile mean (IQM) with its 95 % stratified bootstrap interval, and the probability that a run
    scores higher than one of the first group. docs/comparing.md explains the statistics. Pictures need
    matplotlib: pip install "ding_lite[plot]"; a page does not.
    """
    from ding_lite.tools.compare import compare
    from ding_lite.tools.plot import check_output

    outputs = [Path(name) for name in output]
    for file in outputs:
        check_output(file, SUFFIXES)
    comparison = compare(groups, dict(reference))
    for file in outputs:
        _write(comparison, file, title, panels, width)
    if json:
        print_json(comparison.as_json())
    else:
        _print(comparison)
        for file in outputs:
            print(f"written: {file}")


def _write(
    comparison: Comparison, output: Path, title: str | None, panels: list[str], width: float | None
) -> None:
    from ding_lite.tools.compare import draw_comparison, page_of
    from ding_lite.tools.plot import save

    if output.suffix.lower() != ".html":
        figure = draw_comparison(comparison, title, panels, width)
        save(figure, output, tight=width is None)
        return
    try:
        # Names of folders may have bytes that are no text.
        output.write_text(page_of(comparison, title), encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(f"cannot write {output}: {error}") from error


def _print(comparison: Comparison) -> None:
    if comparison.title:
        print(f"{comparison.title}\n")
    _print_summaries(comparison.summaries(), comparison.unit)
    if len(comparison.tasks) > 1:
        for task in comparison.tasks:
            _print_summaries(comparison.summaries_of(task), f"\nReturn, {task}")
    if comparison.differences:
        differences, folded = comparison.folded_differences()
        print()
        print_table(
            ["what differs", *comparison.labels], [[key, *values] for key, values in differences.items()]
        )
        for line in folded:
            print(f"{line} (a .html page and --json list them)")
    if comparison.notes:
        print("\n".join(["", *comparison.notes]))


def _print_summaries(summaries: list[Summary], unit: str) -> None:
    from ding_lite.tools.compare import table_of

    print(unit)
    header, rows = table_of(summaries)
    print_table(header, rows, right=range(1, 7))
