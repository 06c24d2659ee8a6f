"""Runs one system once: ``python -m systems module:function WORK STEPS``, with the work as JSON.

Prints ``Done`` as JSON, or the reason for skipping it.
"""

from __future__ import annotations

import importlib
import json
import sys

from systems import Skipped, Work

if __name__ == "__main__":
    system, work, steps = sys.argv[1:]
    module, function = system.split(":")
    try:
        run = getattr(importlib.import_module(f"systems.{module}"), function)
        answer = run(Work(**json.loads(work)), int(steps))._asdict()
    except (Skipped, ImportError) as reason:
        answer = {"skipped": str(reason)}
    print(json.dumps(answer), flush=True)
