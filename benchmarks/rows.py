"""Reads learning.toml: the learning rows with a bar to reach, and the comparisons between arms."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import NamedTuple


class Row(NamedTuple):
    """A config with its keys, as learning.toml describes it; ``published`` is a return and its source."""

    config: str
    keys: str = ""
    published: tuple[float, str] | None = None
    mean: float = float("-inf")
    worst: float = float("-inf")
    seeds: int = 5
    checkpoint: str = "last"
    elsewhere: str = ""
    sampled: bool = False
    init: str = ""


class Comparison(NamedTuple):
    """Arms that differ only in the compared settings; a row's name is "group.arm"."""

    arms: dict[str, Row]
    baseline: str
    measure: str = "return"
    unit: str = "return"
    where: str = ""
    games: bool = False
    less_is_better: bool = False


def _comparison(groups: dict[str, str], arms: dict[str, str], keys: str = "", **fields: object) -> Comparison:
    of_rows = {name: fields.pop(name) for name in Row._fields if name in fields}
    rows = {
        f"{group}.{arm}": Row(keys=f"{keys} {of_group} {of_arm}", **of_rows)
        for group, of_group in groups.items()
        for arm, of_arm in arms.items()
    }
    return Comparison(rows, **fields)


_TABLE = tomllib.loads((Path(__file__).parent / "learning.toml").read_text())
GROUPS = {
    group: {name: Row(**{"config": name, **row}) for name, row in rows.items()}
    for group, rows in _TABLE["rows"].items()
}
ROWS = {name: row for group in GROUPS.values() for name, row in group.items()}
COMPARISONS = {name: _comparison(**fields) for name, fields in _TABLE["comparisons"].items()}
EVERY_ROW = ROWS | {name: row for each in COMPARISONS.values() for name, row in each.arms.items()}
