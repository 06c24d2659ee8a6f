"""Tries every PPO and PPG config of an installed DI-engine: two iterations of each, as processes.

    pip download --no-deps DI-engine==0.5.3 && unzip DI_engine-0.5.3-py3-none-any.whl -d FOLDER
    python benchmarks/di_engine_configs.py FOLDER [WORD ...]

Only files whose path has one of the words are tried, if there are any. Without words, the table is written
into ``docs/di_engine.md``. Evaluations are one episode of at most 50 steps, since the question is whether
a config trains.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from report import machine, put

from ding_lite.config.compile import Config, load_config
from ding_lite.errors import ConfigError

DOCUMENT = Path(__file__).parents[1] / "docs" / "di_engine.md"
IS_CONFIG = re.compile(r"policy=dict\(\s*type='pp[og]")
SHORT_EVALUATION = ("env.evaluator_env_num=1", "env.n_evaluator_episode=1", "env.max_eval_steps=50")
# For configs with images: IMPALA networks that learn from 16,384 images at once need more memory than most
# machines have, and 20 passes over 3,200 images take long on two cores.
SMALL_ROLLOUT = ("policy.collect.n_sample=512", "policy.learn.batch_size=128")
TIMEOUT = 900  # seconds for one config


def config_files(folder: Path) -> list[Path]:
    """Returns the config files of DI-engine whose policy is a PPO or a PPG."""
    return sorted(file for file in folder.rglob("*_config.py") if IS_CONFIG.search(file.read_text()))


def outcome(file: Path) -> str:
    """Returns what became of one config."""
    try:
        config = load_config(file)
    except ConfigError as error:
        faults = str(error).splitlines()[1:] or [str(error)]
        return f"refused: {'; '.join(fault.strip().split('. ')[0] for fault in faults)}"
    return _trained(file, config)


def _trained(file: Path, config: Config) -> str:
    has_images = bool(config.values.policy.model.get("encoder"))
    smaller = SMALL_ROLLOUT if has_images else ()
    samples = 512 if has_images else config.values.policy.collect.n_sample
    last = samples + config.values.env.collector_env_num  # past the first iteration, within the second
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as parent:
        run = Path(parent) / "run"
        options = ["-q", "-c", str(file), "--exp-name", str(run), "--max-env-step", str(last)]
        command = [sys.executable, "-m", "ding_lite", "train", *options, *SHORT_EVALUATION, *smaller]
        try:
            process = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            return f"did not end in {TIMEOUT} s"
        if process.returncode:
            return f"failed: {process.stderr.strip()}"
        result: dict[str, Any] = json.loads((run / "result.json").read_text())
    seconds = time.perf_counter() - began
    with_fewer = f", with {' '.join(smaller)}" if smaller else ""
    return f"ran {result['iterations']} iterations{with_fewer} ({result['env_id']}, {seconds:.0f} s)"


def main(folder: Path, words: list[str]) -> None:
    """Tries the configs, and writes the table if all were tried."""
    lines = ["| config | here |", "|---|---|"]
    for file in config_files(folder):
        if words and not any(word in str(file) for word in words):
            continue
        said = outcome(file).replace("|", "/").replace("\n", " ").replace(f"{folder}/", "")
        lines.append(f"| `{file.relative_to(folder)}` | {said} |")
        print(lines[-1], flush=True)
    if not words:
        put("configs", [f"Measured on {machine()}.", "", *lines], DOCUMENT)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
