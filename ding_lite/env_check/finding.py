"""A finding: one row of the verdict table, and the fault that an environment's call ends a check with."""

from __future__ import annotations

from typing import NamedTuple

from ding_lite.errors import EnvError

OK, WARN, FAIL = "OK", "WARN", "FAIL"


class Finding(NamedTuple):
    """What one check saw.

    Attributes:
        check: its name.
        verdict: "OK"; "WARN", it works here, and costs something; "FAIL", it does not work.
        seen: in words and numbers.
        advice: what to do; empty if nothing.
    """

    check: str
    verdict: str
    seen: str
    advice: str = ""


class Fault(EnvError):
    """Raised where an environment's own call fails, so that nothing after it can be checked."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.seen)
        self.finding = finding
