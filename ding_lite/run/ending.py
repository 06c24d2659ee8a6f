"""What is said of a run that ends: its result, its last lines, and the command to type next."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from ding_lite.config.registry import env_name
from ding_lite.config.values import encode
from ding_lite.run.progress import Progress
from ding_lite.run.score_text import score_text
from ding_lite.run.scores import Scores

RESUME, EVALUATE = "resume", "evaluate"  # what a command does with a run


def results(cfg: Any, progress: Progress, scores: Scores, wall_time: float) -> dict[str, Any]:
    """Returns the results of a run for result.json; None stands for what was not measured.

    Args:
        cfg: a complete config.
        progress: of the run.
        scores: evaluations of the run.
        wall_time: seconds of training, over all sessions of the run.
    """
    last = scores.last
    return {
        "solved": progress.solved,
        "eval_value": None if last is None else last.mean,
        "eval_value_std": None if last is None else last.std,
        "best_eval_value": scores.state_dict()["best"],
        "env_step": progress.env_step,
        "train_iter": progress.train_iter,
        "iterations": progress.iteration,
        "wall_time_s": wall_time,
        "env_steps_per_second": progress.env_step / wall_time if wall_time else None,
        "seed": cfg.seed,
        "policy": encode(cfg.policy.type, "policy.type"),
        "env_id": env_name(cfg.env),
    }


def last_lines(
    status: str, reason: str, progress: Progress, scores: Scores, wall_time: float, folder: Path, command: str
) -> str:
    """Returns two lines: how the run ended, and the command to type next.

    Args:
        status: of the run.
        reason: why it was interrupted; "" if its status says it.
        progress, scores, folder: of the run.
        wall_time: seconds of training, over all sessions of the run.
        command: from :func:`command_of`.
    """
    ending = f"{status} ({reason})" if status == "interrupted" and reason else status
    last = scores.last
    evaluation = "" if last is None else f", evaluation {score_text(last.mean, last.std)}"
    return (
        f"{ending} after {progress.env_step:,} env steps and {wall_time:.1f} s{evaluation}\n"
        f"run: {folder}   try: {command}"
    )


def kept_after_interrupt(saved: Collection[int], iteration: int, command: str) -> str:
    """Returns what is left of a run that was stopped at once.

    Args:
        saved: the iterations of the checkpoints.
        iteration: that the run had reached.
        command: that resumes it.
    """
    if not saved:
        return "stopped at once; nothing was saved"
    return f"stopped at once; saved up to iteration {max(saved)} of {iteration}; to continue: {command}"


def command_of(action: str, folder: Path, given: Collection[str], imports: Sequence[str] | None) -> str:
    """Returns a command about a run as it can be typed, with what finds the user's classes.

    The command line cannot make what a script gave the run, nor import what has no name; then it is a call in
    Python.

    Args:
        action: RESUME or EVALUATE.
        folder: of the run.
        given: names of the objects that a script gave the run.
        imports: options that find the user's classes (``run.imports``); None if there are none that do.
    """
    if given or imports is None:
        again = "".join(f", {name}=..." for name in given if action == RESUME or name == "model")
        call = "SerialPipeline.resume" if action == RESUME else "load_policy"
        return f"{call}({str(folder)!r}{again})"
    run, options = shlex.quote(str(folder)), shlex.join(imports)
    arguments = f"train --resume {run}" if action == RESUME else f"eval {run} -n 100"
    return f"ding-lite {arguments} {options}".rstrip()
