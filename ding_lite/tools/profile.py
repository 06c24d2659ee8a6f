"""Shows where the time of training goes: the phases that the loop times, over some iterations."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from ding_lite.config.compile import Config
from ding_lite.config.registry import as_choice, name_of
from ding_lite.data.timer import PHASES
from ding_lite.errors import ConfigError
from ding_lite.run.pipeline import SerialPipeline
from ding_lite.run.resources import keep_freed_memory

WARM_UP = 2  # iterations before the measured ones: memory is allocated, kernels are chosen
LOCAL = ("tensorboard",)  # trackers that write to the run's folder, which is removed
NO_LIMIT = 10**15  # env steps: the run does not end while it is measured
# What to try if a phase takes the most time.
ADVICE = {
    "env": "env.manager.type=subprocess for slow environments, base for fast ones (check-env says which); "
    "more collector_env_num",
    "act": "a higher env.collector_env_num: each call of the policy serves more environments",
    "store": "a higher env.collector_env_num, or policy.collect.n_sample: fewer and longer writes",
    "advantages": "policy.recompute_adv=False: once an iteration; for large networks policy.device=cuda",
    "updates": "a larger policy.learn.batch_size, fewer epochs, or for large networks policy.device=cuda",
    "auxiliary": "a larger policy.learn.aux_batch_size, a higher aux_freq, or fewer aux_train_epoch",
    "eval": "a higher policy.eval.eval_freq, fewer env.n_evaluator_episode, a higher evaluator_env_num",
    "other": "rows, checkpoints and hooks: a higher logger.freq and checkpoint.freq, hooks that do less",
}


def profile(config: Config, iterations: int | None = None) -> dict[str, Any]:
    """Trains for some iterations in a temporary folder, and returns where the time went, as JSON data.

    Evaluations, checkpoints and auxiliary phases are included if they fall due in these iterations.

    Args:
        config: of the run.
        iterations: to measure, after ``WARM_UP``; None: 10, in PPG rounded up to whole auxiliary cycles.

    Raises:
        DingLiteError: as in the run itself.
    """
    if iterations is None:
        cycle = config.values.policy.learn.get("aux_freq", 1)
        iterations = -(-10 // cycle) * cycle
    # A tracker on a server would record the profile as a run; a solved task or a limit would end it early.
    local = [item for item in config.values.logger.trackers if name_of(as_choice(item)["type"]) in LOCAL]
    config = config.replaced({"logger.trackers": local, "env.stop_value": None, "max_train_iter": None})
    seconds: Counter[str] = Counter()
    keep_freed_memory()  # as the command ``train`` does
    with (
        tempfile.TemporaryDirectory(prefix="ding_lite_profile_") as folder,
        SerialPipeline(config, max_env_step=NO_LIMIT, folder=Path(folder) / "run") as pipeline,
    ):
        device, envs, threads = pipeline.policy.device, pipeline.collector.envs, torch.get_num_threads()

        def now() -> float:
            """Returns the time, after the device has finished its work."""
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            return time.perf_counter()

        pipeline.policy.timer.now = now
        for progress in islice(pipeline, WARM_UP + iterations):
            if progress.iteration <= WARM_UP:
                env_step = progress.env_step
            else:
                seconds.update({phase: progress.metrics.get(f"time/{phase}_s", 0.0) for phase in PHASES})
        env_steps, iterations = progress.env_step - env_step, progress.iteration - WARM_UP
    if iterations < 1:
        raise ConfigError(f"the run ended in the {WARM_UP} iterations of the warm-up: {pipeline.stop_reason}")
    total = seconds.total()
    largest = max(seconds, key=lambda phase: seconds[phase])
    return {
        "config": config.values.exp_name,
        "device": str(device),
        "backend": envs.backend,
        "threads": threads,
        "iterations": iterations,
        "env_steps": env_steps,
        "env_steps_per_second": env_steps / total,
        "iteration_ms": 1000 * total / iterations,
        "phases": {
            phase: {"ms": 1000 * value / iterations, "percent": 100 * value / total}
            for phase, value in seconds.items()
        },
        "largest": largest,
        "try": ADVICE[largest],
    }
