"""Run folders with known numbers, written without training."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

HEADER = ["env_step", "iteration", "collect/episode_return", "collect/episode_length_max", "time/note"]
EVAL_HEADER = ["eval/episode_return_mean", "eval/episode_return_std", "eval/episode_length_max"]


def write_run(
    folder: Path, *, seed: int = 0, returns: list[float] | None = None, every: int = 2, step: int = 1000,
    policy: str = "ppo", env_id: str = "CartPole-v1", learn: dict[str, Any] | None = None,
    limit: int = 4000, status: str | None = "finished", env: dict[str, Any] | None = None,
) -> Path:  # fmt: skip
    """Writes a run whose iteration i ends at (i + 1) * step, evaluated ``every`` iterations (0: never).

    An evaluation has a return of 5 more than training. Without a ``status`` there is no result.json.
    """
    folder.mkdir(parents=True)
    config = {
        "seed": seed,
        "max_env_step": limit,
        "env": {"env_id": env_id, "type": "gymnasium", **(env or {})},
        "policy": {"type": policy, "learn": learn or {"learning_rate": 0.001}},
    }
    (folder / "config.json").write_text(json.dumps({"config": config, "source": {}}))
    returns = returns or [10.0, 20.0, 15.0, 40.0]
    with (folder / "metrics.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(HEADER + EVAL_HEADER)
        for index, value in enumerate(returns):
            evaluated = every and (index + 1) % every == 0
            cells = [value + 5, 2.5, 2 * value] if evaluated else ["", "", ""]
            writer.writerow([(index + 1) * step, index, value, 3 * value, "not a number", *cells])
    (folder / "log.txt").write_text("2030-01-02 03:04:05  new run\n")
    if status:
        result = {"status": status, "error": None, "env_step": len(returns) * step}
        (folder / "result.json").write_text(json.dumps(result))
    return folder
