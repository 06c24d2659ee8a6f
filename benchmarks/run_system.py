"""Runs one system once, in this process: ``run_system.py ROW SYSTEM STEPS``; prints its work as JSON."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import asdict

from speed_rows import SPEED_ROWS
from systems import Skipped


def main() -> None:
    """Runs it; the last line of the output is ``Done`` as JSON, or the reason for skipping it."""
    row, name, steps = sys.argv[1:]
    system = SPEED_ROWS[row].systems[name]
    module, function = system.function.split(":")
    try:
        run = getattr(importlib.import_module(f"systems.{module}"), function)
        output = asdict(run(system.work, int(steps), **system.options))
    except (Skipped, ModuleNotFoundError) as reason:
        output = {"skipped": str(reason)}
    print(json.dumps(output), flush=True)


if __name__ == "__main__":
    main()
