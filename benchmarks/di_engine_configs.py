"""Tries every PPO and PPG config of DI-engine for two iterations.

    pip download --no-deps DI-engine==0.5.3 && unzip DI_engine-0.5.3-py3-none-any.whl -d FOLDER
    python benchmarks/di_engine_configs.py FOLDER [WORD ...]

Only files whose path has one of the words are tried, if there are any. Without words, the table is written
into ``docs/di_engine.md``. Evaluations are one episode of at most 50 steps, since the question is whether
a config trains.
"""

from __future__ import annotations

import contextlib
import re
import sys
import tempfile
import time
from pathlib import Path

from report import machine, put

from ding_lite import SerialPipeline
from ding_lite.config.compile import Config, load_config
from ding_lite.errors import ConfigError, DingLiteError

DOCUMENT = Path(__file__).parents[1] / "docs" / "di_engine.md"
IS_CONFIG = re.compile(r"policy=dict\(\s*type='pp[og]")
SHORT_EVALUATION = ["env.evaluator_env_num=1", "env.n_evaluator_episode=1", "env.max_eval_steps=50"]
# For configs with images: IMPALA networks that learn from 16,384 images at once need more memory than most
# machines have, and 20 passes over 3,200 images take long on two cores.
SMALL_ROLLOUT = ["policy.collect.n_sample=64", "policy.learn.batch_size=32", "policy.learn.compile=false"]


def config_files(folder: Path) -> list[Path]:
    """Returns the config files of DI-engine whose policy is a PPO or a PPG."""
    return sorted(file for file in folder.rglob("*_config.py") if IS_CONFIG.search(file.read_text()))


def outcome(file: Path) -> str:
    """Returns what became of one config."""
    try:
        config = load_config(file, SHORT_EVALUATION)
        has_images = bool(config.values.policy.model.get("encoder"))
        if has_images:
            workers = ["env.manager=base"] if config.values.env.manager.type == "subprocess" else []
            config = load_config(file, [*SHORT_EVALUATION, *SMALL_ROLLOUT, *workers])
        began = time.perf_counter()
        iterations = _iterations(config)
    except ConfigError as error:
        faults = str(error).splitlines()[1:] or [str(error)]
        return f"refused: {'; '.join(fault.strip().split('. ')[0] for fault in faults)}"
    except DingLiteError as error:
        return f"failed: {error}"
    smaller = f" with {' '.join(SMALL_ROLLOUT)}" if has_images else ""
    seconds = time.perf_counter() - began
    return f"ran {iterations} iterations of {config.values.env.env_id}{smaller}, {seconds:.0f} s"


def _iterations(config: Config) -> int:
    """Trains for two iterations, and returns the number of iterations that it trained for."""
    rows = config.values.policy.collect.n_sample
    last = rows + config.values.env.collector_env_num  # past the first iteration, within the second
    with tempfile.TemporaryDirectory() as parent:
        pipeline = SerialPipeline(config, folder=Path(parent) / "run", max_env_step=last, own_process=True)
        with contextlib.closing(pipeline):
            return [progress.iteration for progress in pipeline][-1]


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
