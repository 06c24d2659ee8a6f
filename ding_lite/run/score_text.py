"""Returns as the terminal shows them."""

from __future__ import annotations


def score_digits(*scores: float) -> int:
    """Returns the decimals of returns in one line: one, or three where all are small, as from 0 to 1."""
    return 1 if max(map(abs, scores)) >= 9.9995 else 3


def score_text(value: float | None, spread: float | None = None) -> str:
    """Returns a return for the terminal, with its standard deviation if given; "-" for None."""
    if value is None:
        return "-"
    digits = score_digits(value, spread or 0.0)
    return f"{value:.{digits}f}" + ("" if spread is None else f" ± {spread:.{digits}f}")
