"""``ding-lite compare``: compares groups of runs, in a table, a figure and a page."""

from __future__ import annotations

from pathlib import Path

import click

from ding_lite.cli import options


def reference_of(text: str) -> tuple[str, tuple[float, float]]:
    """Returns the environment in ENV=LOW:HIGH, and its returns that count as scores 0 and 1."""
    try:
        env, _, edges = text.rpartition("=")
        low, high = map(float, edges.split(":"))
    except ValueError as error:
        raise click.BadParameter(f"expected ENV=LOW:HIGH, such as CartPole-v1=20:500, got {text}") from error
    return env, (low, high)


@options.command()
@options.words(
    "groups",
    "GROUP...",
    "runs, folders with runs in them, or quoted patterns of such; NAME=FOLDER names a group",
    required=True,
)
@options.option(
    "-o --output FILE",
    "write a .html page, a .png, .pdf or .svg figure, or a .md table; may be repeated",
    options.file_of(".html", ".md", *options.PICTURES),
    multiple=True,
)
@options.title_option
@options.option(
    "--reference ENV=LOW:HIGH",
    "the returns of ENV that count as scores 0 and 1; may be repeated (default: the lowest and the "
    "highest evaluation of the runs, if there are several environments)",
    reference_of,
    multiple=True,
)
@options.json_option
def run(
    groups: tuple[str, ...],
    output: tuple[Path, ...],
    title: str | None,
    reference: tuple[tuple[str, tuple[float, float]], ...],
    json: bool,
) -> None:
    """Compares groups of runs: scores with intervals, curves, what differs.

    The runs whose configs differ only in the seed, the name, the limits, checkpoints or logs are a group.
    Runs of several environments are tasks of one group, if the same keys distinguish the groups in each.
    'before=old/run_*' makes a group of the given runs instead.

    The score of a run is the mean return of one evaluation: the nearest to the last step of the shortest run
    that reached its limit; if no run did, its last one. The table has, for each group: the mean, the
    interquartile mean (IQM) with its 95 % stratified bootstrap interval, and the probability that a run
    scores higher than one of the first group. docs/comparing.md explains the statistics. Pictures need
    matplotlib, and a page plotly: pip install "ding_lite[plot]".

    ding-lite compare runs/ppo_* runs/ppg_* -o comparison.html -o table.md
    ding-lite compare runs --reference CartPole-v1=20:500 --reference Pendulum-v1=-1300:-150
    """
    from ding_lite.tools.compare import compare, table_text, tables_of

    comparison = compare(groups, dict(reference))
    for file in output:
        from ding_lite.tools.compare_pictures import draw_comparison, page_of
        from ding_lite.tools.plot import save

        suffix = file.suffix.lower()
        if suffix in options.PICTURES:
            save(draw_comparison(comparison, title), file)
        else:
            text = page_of(comparison, title) if suffix == ".html" else table_text(comparison)
            file.write_text(text, encoding="utf-8", errors="replace")  # names of folders may have any bytes
    if json:
        options.print_json(comparison.as_json())
        return
    if title or comparison.title:
        print(options.shown(f"{title or comparison.title}\n"))
    for title, (header, *rows) in tables_of(comparison).items():
        print(options.shown(title if title == comparison.unit else f"Return, {title}"))
        options.print_table(header, rows, right=range(1, 5))
        print()
    if differences := comparison.differences():
        rows = [[key, *values] for key, values in differences.items()]
        options.print_table(["what differs", *comparison.scores], rows)
        print()
    print(options.shown("\n".join([*comparison.notes, *(f"written: {file}" for file in output)])))
