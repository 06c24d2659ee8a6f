"""The row ``start``: seconds until the command line answers, and of imports, beside torch's."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from statistics import median
from typing import Any

from timing import run

TORCH = "import torch"
COMMANDS = {
    TORCH: ["-c", "import torch"],
    "import ding_lite": ["-c", "import ding_lite"],
    "from ding_lite import SerialPipeline": ["-c", "from ding_lite import SerialPipeline"],
    "import stable_baselines3": ["-c", "import stable_baselines3"],
    "ding-lite --help": ["-m", "ding_lite", "--help"],
}


@dataclass(frozen=True)
class StartRow:
    """Seconds of whole processes."""

    name: str = "start"
    arms: tuple[str, ...] = tuple(COMMANDS)
    rounds: int = 9

    def measure(self, arm: str, number: int) -> dict[str, Any]:
        """Returns seconds and memory; the first process, which reads files from disk, is not counted."""
        command = [sys.executable, *COMMANDS[arm]]
        try:
            if number == 0:
                run(command)
            process = run(command)
        except RuntimeError as error:
            if "ModuleNotFoundError" in str(error):
                return {"skipped": f"not installed: {arm.removeprefix('import ')}"}
            raise
        return {"seconds": process.seconds, "peak_mib": process.peak_mib}

    def say(self, result: dict[str, Any]) -> str:
        """Returns one measurement as text."""
        return f"{result['seconds']:.2f} s"

    def lines(self, stored: dict[str, list[dict[str, Any]]], skipped: dict[str, str]) -> list[str]:
        """Returns the table."""
        lines = [
            "| command | s, median | spread | less import torch | peak memory, MiB |",
            "|---|---|---|---|---|",
        ]
        torch = median(result["seconds"] for result in stored[TORCH]) if stored.get(TORCH) else None
        for arm in self.arms:
            results = stored.get(arm)
            if not results:
                lines.append(f"| `{arm}` | {skipped.get(arm, 'not measured')} | | | |")
                continue
            seconds = [result["seconds"] for result in results]
            less = ""
            if torch is not None and arm != TORCH:
                less = f"{median(seconds) - torch:.2f}" if median(seconds) > torch else "torch is not loaded"
            lines.append(
                f"| `{arm}` | **{median(seconds):.2f}** | {min(seconds):.2f} to {max(seconds):.2f} | {less} "
                f"| {max(result['peak_mib'] for result in results):,.0f} |"
            )
        return lines
