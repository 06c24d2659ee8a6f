"""The row ``solve``: whole processes until CartPole-v1 is solved, with rl-zoo's settings."""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from timing import HERE, run, run_system
from work import System, Work

CONFIG = HERE / "cartpole_zoo_ppo.py"
MAX_ENV_STEP, EVERY, EPISODES, VALUE = 100_000, 5_120, 16, 475
ZOO = Work("solve", "CartPole-v1", 8, 32, 20, 256, 1e-3)
OURS, SB3 = "ding_lite", "Stable-Baselines3"


def sb3_system(seed: int) -> System:
    """Returns Stable-Baselines3 with one seed and the config's rule for solved."""
    options = dict(seed=seed, every=EVERY, episodes=EPISODES, value=VALUE)
    return System("sb3:solve", ZOO, (MAX_ENV_STEP, MAX_ENV_STEP), options)


@dataclass(frozen=True)
class SolveRow:
    """Seconds and env steps to the same evaluation result; each round is a seed."""

    name: str = "solve"
    arms: tuple[str, ...] = (OURS, SB3)
    rounds: int = 7

    def measure(self, arm: str, number: int) -> dict[str, Any]:
        """Returns seconds, env steps and memory of one seed."""
        if arm == OURS:
            return self._ours(number)
        process, done = run_system(self.name, str(number), MAX_ENV_STEP, ZOO.threads)
        if done is None:
            return {"skipped": process.skipped}
        return _measurement(process.seconds, done.env_steps, done.env_steps < MAX_ENV_STEP, process.peak_mib)

    def _ours(self, seed: int) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as parent:
            folder = Path(parent) / "run"
            command = [sys.executable, "-m", "ding_lite", "train", "-c", str(CONFIG)]
            process = run([*command, "-s", str(seed), "--exp-name", str(folder)])
            result = json.loads((folder / "result.json").read_text())
        return _measurement(process.seconds, result["env_step"], result["solved"], process.peak_mib)

    def say(self, result: dict[str, Any]) -> str:
        """Returns one measurement as text."""
        solved = "solved" if result["solved"] else "not solved"
        return f"{solved} after {result['seconds']:.1f} s, {result['env_steps']:,} env steps"

    def lines(self, stored: dict[str, list[dict[str, Any]]], skipped: dict[str, str]) -> list[str]:
        """Returns the table."""
        lines = [
            "| system | seeds | solved | s, median | s of each seed | env steps, median | peak memory, MiB |",
            "|---|---|---|---|---|---|---|",
        ]
        for arm in self.arms:
            results = stored.get(arm)
            if not results:
                lines.append(f"| {arm} | | {skipped.get(arm, 'not measured')} | | | | |")
                continue
            seconds = [result["seconds"] for result in results]
            lines.append(
                f"| {arm} | {len(results)} | {sum(result['solved'] for result in results)} "
                f"| **{median(seconds):.1f}** "
                f"| {', '.join(f'{s:.1f}' for s in seconds)} "
                f"| {median(result['env_steps'] for result in results):,.0f} "
                f"| {max(result['peak_mib'] for result in results):,.0f} |"
            )
        return lines


def _measurement(seconds: float, env_steps: int, solved: bool, peak_mib: float) -> dict[str, Any]:
    return {"seconds": seconds, "env_steps": env_steps, "solved": solved, "peak_mib": peak_mib}
