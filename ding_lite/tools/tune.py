"""Finds the settings with which a training runs fastest, without changing what is learned.

Each setting is profiled for a few iterations in a process of its own, because thread pools and the allocator
keep their first settings. The search is greedy: a setting that is faster is kept.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from ding_lite.config.compile import Config
from ding_lite.config.schema import leaves
from ding_lite.envs.make import backend_of
from ding_lite.envs.workers.cores import cores
from ding_lite.tools.parallel import error_of, python_path

LEAST_GAIN = 0.05  # a smaller gain may be noise, and is not worth a key in a config
WORKERS_PER_CORE = 8  # at most
# Evaluations and checkpoints, which occur in some iterations only, would distort the comparison.
NO_INTERRUPTIONS = {"policy.eval.eval_freq": 0, "checkpoint.freq": 0, "checkpoint.keep_freq": 0}

Setting = dict[str, Any]  # overrides, such as {"num_threads": 1}


class Trial(NamedTuple):
    """The speed with a setting.

    Attributes:
        setting: overrides, including the settings that were found to be faster before.
        speed: env steps a second; None if the training failed.
        error: why it failed.
        is_kept: whether it is faster by ``LEAST_GAIN`` than all before it.
    """

    setting: Setting
    speed: float | None
    error: str = ""
    is_kept: bool = False


def settings(config: Config) -> list[Setting]:
    """Returns the settings to try one after the other."""
    env = config.values.env
    # Environments that wait (for a server, for files) gain from many more workers than cores.
    powers = [2**power for power in range(cores().bit_length() + 1)] + [WORKERS_PER_CORE * cores()]
    counts = sorted({min(env.collector_env_num, count) for count in powers})
    candidates: list[Setting] = []
    backend = backend_of(env)
    if backend not in ("vector", "env_pool"):  # no other backend has the same environments and resets
        candidates.append({"env.manager.type": "base"})
        for count in counts:
            candidates.append({"env.manager.type": "subprocess", "env.manager.worker_num": count})
        if env.collector_env_num > 1:
            candidates.append({"env.manager.type": "subprocess", "env.manager.double_buffer": True})
    candidates += [{"num_threads": 2**power} for power in range(cores().bit_length())]
    if torch.cuda.is_available():
        candidates += [{"policy.device": device} for device in ("cpu", "cuda")]
    values = dict(leaves(config.values)) | {"env.manager.type": backend}
    return [setting for setting in candidates if any(values.get(key) != setting[key] for key in setting)]


def tune(
    config: Config, words: Sequence[str], overrides: Sequence[str], iterations: int | None
) -> Iterator[Trial]:
    """Profiles the config as it is, then with each of :func:`settings` on top of the fastest so far.

    Args:
        config: of the run.
        words: options of ``ding-lite`` that name the config and its seed.
        overrides: of the command line.
        iterations: of each profile; None: the default of ``profile``.
    """

    def profiled(setting: Setting) -> Trial:
        command = ["profile", *words, *with_setting(overrides, {**NO_INTERRUPTIONS, **setting}), "--json"]
        command += [] if iterations is None else ["--iterations", str(iterations)]
        done = subprocess.run(
            [sys.executable, "-m", "ding_lite", *command],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": python_path()},
        )
        if done.returncode:
            return Trial(setting, None, error_of(done.stderr, done.returncode))
        return Trial(setting, json.loads(done.stdout)["env_steps_per_second"])

    best = Trial({}, None)
    for setting in ({}, *settings(config)):
        trial = profiled({**best.setting, **setting})
        if (trial.speed or 0.0) > (1 + LEAST_GAIN) * (best.speed or 0.0):
            best = trial = trial._replace(is_kept=True)
        yield trial


def with_setting(overrides: Sequence[str], setting: Setting) -> list[str]:
    """Returns overrides of a command line, with the keys of ``setting`` replaced or added."""
    kept = [token for token in overrides if token.partition("=")[0] not in setting]
    return kept + [f"{key}={value}" for key, value in setting.items()]
