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
    matplotlib, and a page plotly: pip install "ding_lite[plot]".
    """
    from ding_lite.tools.compare import compare
    from ding_lite.tools.plot import check_output

    outputs = [Path(name) for name in output]
    for file in outputs:
        check_output(file, SUFFIXES)
    comparison = compare(groups, dict(reference))
    for file in outputs:
        if file.suffix.lower() == ".html":
            _write_page(comparison, file, title)
        else:
            from ding_lite.tools.compare_pictures import draw_comparison
            from ding_lite.tools.plot import save

            save(draw_comparison(comparison, title, panels), file)
    if json:
        print_json(comparison.as_json())
    else:
        _print(comparison)
        for file in outputs:
            print(f"written: {file}")


def _write_page(comparison: Comparison, file: Path, title: str | None) -> None:
    from ding_lite.tools.compare_pictures import page_of

    page = page_of(comparison, title)
    try:
        file.write_text(page, encoding="utf-8", errors="replace")  # names of folders may be no text
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {error}") from error


def _print(comparison: Comparison) -> None:
    from ding_lite.tools.runs import NOT_SET

    if comparison.title:
        print(f"{comparison.title}\n")
    print(comparison.unit)
    _print_summaries(comparison.summaries())
    if len(comparison.tasks) > 1:
        for task in comparison.tasks:
            print(f"\nReturn, {task}")
            _print_summaries(comparison.summaries(task))
    differences = comparison.differences()
    of_all = {key: values for key, values in differences.items() if NOT_SET not in values}
    if of_all:
        print()
        print_table(["what differs", *comparison.labels], [[key, *values] for key, values in of_all.items()])
    if others := len(differences) - len(of_all):
        print(f"{others} keys that some groups lack (a .html page and --json list them)")
    print("\n".join(["", *comparison.notes]))


def _print_summaries(summaries: list[Summary]) -> None:
    from ding_lite.tools.compare import table_of

    header, *rows = table_of(summaries)
    print_table(header, rows, right=range(1, 7))
