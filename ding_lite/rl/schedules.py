"""How a coefficient changes over training: functions of saved progress, so a resumed run goes on."""

from __future__ import annotations

import math

KINDS = ("constant", "linear", "cosine")


def schedule(kind: str, progress: float, final: float = 0.0) -> float:
    """Returns the factor of the initial value at ``progress``, from 1 at 0 to ``final`` at 1.

    Args:
        kind: ``"constant"``, ``"linear"`` or ``"cosine"`` (half a period, arXiv:1608.03983, eq. 5
            without restarts).
        progress: share of the schedule that is done; past 1 it stays at ``final``.
        final: the factor at the end.
    """
    progress = min(max(progress, 0.0), 1.0)
    if kind == "constant":
        return 1.0
    if kind == "linear":
        return 1.0 + (final - 1.0) * progress
    if kind == "cosine":
        return final + (1.0 - final) * 0.5 * (1.0 + math.cos(math.pi * progress))
    raise ValueError(f"schedule is one of {', '.join(KINDS)}, got {kind!r}")
