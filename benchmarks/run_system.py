"""Runs one system once, in this process: ``run_system.py ROW SYSTEM STEPS``; prints its work as JSON."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import asdict

from solving import sb3_system
from speed_rows import GPU_ROWS, SPEED_ROWS
from work import Skipped


def main() -> None:
    """Runs it; the last line of the output is ``Done`` as JSON, or the reason for skipping it."""
    row, name, steps = sys.argv[1:]
    system = sb3_system(int(name)) if row == "solve" else (SPEED_ROWS | GPU_ROWS)[row].systems[name]
    module, function = system.function.split(":")
    try:
        run = getattr(importlib.import_module(f"systems.{module}"), function)
        output = asdict(run(system.work, int(steps), **system.options))
    except Skipped as reason:
        output = {"skipped": str(reason)}
    except ModuleNotFoundError as error:
        output = {"skipped": f"not installed: {error.name}"}
    except Exception as error:
        if type(error).__name__ != "DependencyNotInstalled":  # gymnasium's
            raise
        output = {"skipped": str(error)}
    print(json.dumps(output))


if __name__ == "__main__":
    main()
