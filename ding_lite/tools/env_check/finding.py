"""The result of a check, and the error for an environment that cannot be checked further."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ding_lite.errors import EnvError

OK, WARN, FAIL = "OK", "WARN", "FAIL"


class Finding(NamedTuple):
    """The result of one check.

    Attributes:
        check: its name.
        verdict: "OK"; "WARN": it works here, but may cause trouble; "FAIL": it does not work.
        seen: the observation behind the verdict, as text.
        advice: what to do, as text; "" if there is nothing to do.
    """

    check: str
    verdict: str
    seen: str
    advice: str = ""


class Fault(EnvError):
    """Raised when ``reset`` or ``step`` fails, so that later checks are impossible.

    Attributes:
        finding: what failed.
        result: the five values of a step whose info is no dict; () otherwise.
    """

    def __init__(self, finding: Finding, result: Sequence[Any] = ()) -> None:
        super().__init__(finding.seen)
        self.finding = finding
        self.result = result
