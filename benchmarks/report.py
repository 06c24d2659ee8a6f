"""Writes results: into RESULTS.md between its markers, with commit, machine and date."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "RESULTS.md"


def put(section: str, lines: list[str], document: Path = RESULTS) -> None:
    """Replaces the lines between the markers of a section.

    Raises:
        ValueError: if the document does not have each marker exactly once.
    """
    begin, end = f"<!-- {section}: begin -->", f"<!-- {section}: end -->"
    text = document.read_text()
    if text.count(begin) != 1 or text.count(end) != 1:
        raise ValueError(f"{document.name} must have one {begin!r} and one {end!r}")
    before, after = text.split(begin)[0], text.split(end)[1]
    document.write_text(f"{before}{begin}\n" + "\n".join(lines) + f"\n{end}{after}")


def store(file: Path, measured: dict[str, Any]) -> None:
    """Writes the measurements so far, with the commit, the machine and the date."""
    measured |= {"commit": commit(), "machine": machine(), "date": time.strftime("%Y-%m-%d")}
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(measured, indent=1) + "\n")


def commit() -> str:
    """Returns the short hash of the measured commit."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, cwd=HERE).stdout.strip()


def machine() -> str:
    """Returns a description of the machine."""
    return f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
