"""Tables of plain text."""

from ding_lite.tools.table import aligned


def test_columns_are_aligned():
    rows = [["a", "bb", "c"], ["aaa", "b", "c c"]]
    assert aligned(rows) == ["a    bb  c", "aaa  b   c c"]
    assert aligned(rows, right=[1]) == ["a    bb  c", "aaa   b  c c"]
