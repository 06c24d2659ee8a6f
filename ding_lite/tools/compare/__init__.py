"""Compares groups of runs: a table with intervals, a figure for a paper, and a page to look around in."""

from ding_lite.tools.compare.comparison import Comparison, Score, Summary, compare, number, table_of
from ding_lite.tools.compare.figure import draw_comparison
from ding_lite.tools.compare.page import page_of

__all__ = ["Comparison", "Score", "Summary", "compare", "draw_comparison", "number", "page_of", "table_of"]
