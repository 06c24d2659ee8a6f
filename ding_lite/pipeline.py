"""One process, one loop: collect, learn, and now and then evaluate.

    envs -> Collector -> rollout -> Learner -> policy
                                    Evaluator ---^   (beside the loop, never inside it)

The pipeline is an iterator: a script that embeds it owns its loop.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ding_lite.assembly import Parts
from ding_lite.checkpoint import CheckpointKeeper, find_checkpoint, load_checkpoint
from ding_lite.config import Config, as_config, compile_config, foreign_modules, plain, refuse_untrusted
from ding_lite.display import Display, Quiet, display_for, evaluation_line
from ding_lite.envs.make import EnvSetting
from ding_lite.errors import CheckpointError, DingLiteError
from ding_lite.evaluator import evaluation_metrics
from ding_lite.logger import RunLogger, new_run_folder
from ding_lite.policies.base import Policy
from ding_lite.types import Progress


class SerialPipeline:
    """Builds the parts of a run from a config, and turns the crank.

    Args:
        config: a dict, a file, the name of a shipped config, or a compiled one.
        seed: replaces the config's.
        env_setting: ``(make, collector_cfgs, evaluator_cfgs)``: environments made by ``make(cfg)``, one
            for each cfg, instead of those that the config describes.
        model: trained as it is, instead of one built from the config.
        max_train_iter, max_env_step: stop at the first iteration boundary at or past them.
        folder: of the run, which must not exist; ``runs/<exp_name>`` (or ``_2``, ...) when None.
        display: shows how it goes; nothing is shown when None.

    Raises:
        ConfigError: for any fault of the config, before an environment steps.
        EnvError: if the environments cannot be made. Neither leaves a folder behind.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | str | Path | Config,
        *,
        seed: int | None = None,
        env_setting: EnvSetting | None = None,
        model: torch.nn.Module | None = None,
        max_train_iter: int | None = None,
        max_env_step: int | None = None,
        folder: str | Path | None = None,
        display: Display | None = None,
    ) -> None:
        config = as_config(config).replaced(
            max_train_iter=max_train_iter, max_env_step=max_env_step, seed=seed
        )
        self._build(config, env_setting, model, display or Quiet())
        name = self.cfg.exp_name if folder is None else str(folder)
        self._open(new_run_folder(name, exact=folder is not None))
        steps = self.parts.warm_up()
        if steps:
            self.say(f"observations are scaled by the statistics of {steps:,} random steps")

    @classmethod
    def resume(
        cls,
        run: str | Path,
        *,
        checkpoint: str = "last",
        max_train_iter: int | None = None,
        max_env_step: int | None = None,
        env_setting: EnvSetting | None = None,
        model: torch.nn.Module | None = None,
        display: Display | None = None,
        trust: Sequence[str] = (),
    ) -> SerialPipeline:
        """Returns the pipeline of a saved run, ready to go on where its checkpoint was made.

        Args:
            run: a run's folder, or one of its checkpoints.
            checkpoint: which one of a run.
            max_train_iter, max_env_step: new limits; the saved ones when None. A step limit still ahead
                also takes a solved run further, to that limit.
            env_setting, model, display: as for a new pipeline.
            trust: modules of your own that the saved config may import.

        Raises:
            CheckpointError: if there is none, or it does not fit.
        """
        folder = find_checkpoint(Path(run), checkpoint)
        state, saved = load_checkpoint(folder)
        refuse_untrusted(foreign_modules(saved["config"]), trust)
        self = cls.__new__(cls)
        config = compile_config({name: saved[name] for name in ("config", "source")})
        config = config.replaced(max_train_iter=max_train_iter, max_env_step=max_env_step)
        self._build(config, env_setting, model, display or Quiet())
        try:
            self.load_state_dict(state)
        except BaseException:
            self.parts.close()
            raise
        self._past_solved = max_env_step is not None and max_env_step > self.progress.env_step
        self._open(folder.parent.parent, resume_at=self.progress.env_step)
        return self

    def _build(
        self, config: Config, env_setting: EnvSetting | None, model: torch.nn.Module | None, display: Display
    ) -> None:
        self.config, self.cfg, self.display = config, config.values, display
        self.status, self.error, self._stop_requested = "running", "", ""
        self._past_solved = False  # a solved run that was told to train on
        self._earlier_wall_time, self._started = 0.0, time.monotonic()
        self.parts = parts = Parts(self.cfg, env_setting, model)
        self.policy, self.collector, self.learner = parts.policy, parts.collector, parts.learner
        self.evaluator, self.scores, self.progress = parts.evaluator, parts.scores, parts.progress

    def _open(self, folder: Path, resume_at: int | None = None) -> None:
        self.folder = folder
        config = self.config.as_json()
        saved = {**config, "spaces": self.parts.spaces()}
        self.checkpoints = CheckpointKeeper(folder, saved, self.cfg.checkpoint.keep)
        try:
            self.logger = RunLogger(folder, config, self.parts.metric_names(), resume_at)
        except BaseException:
            self.parts.close()
            raise
        self.say(f"{'new run' if resume_at is None else 'resumed'}  folder {folder}")
        self.parts.report_to(self.logger.say, self.display.say)

    def say(self, line: str) -> None:
        """Writes a line to log.txt, and shows it."""
        self.logger.say(line)
        self.display.say(line)

    def __iter__(self) -> Iterator[Progress]:
        """Trains until a limit is reached or the task is solved, yielding after every turn.

        A ``break`` saves the run and leaves it ready to be resumed.
        """
        self._started = time.monotonic()
        self.status = "running"
        try:
            while not self.is_over():
                self.step()
                yield self.progress
            self._finish()
        except GeneratorExit:
            self._conclude("interrupted")
            raise
        except BaseException as error:
            self._fail(error)
            raise
        self.close()

    def is_over(self) -> bool:
        """Returns whether a limit is reached, the task is solved, or a stop was asked for."""
        cfg, done = self.cfg, self.progress
        return bool(
            self._stop_requested
            or (done.solved and not self._past_solved)
            or done.env_step >= cfg.max_env_step
            or (cfg.max_train_iter is not None and done.train_iter >= cfg.max_train_iter)
        )

    def request_stop(self, reason: str) -> None:
        """Asks the run to end at the next iteration boundary; safe to call from a signal handler."""
        self._stop_requested = reason

    def step(self) -> Progress:
        """Takes one turn: collect, learn, perhaps evaluate, and write it down."""
        progress, before, began = self.progress, self.progress.env_step, time.perf_counter()
        rollout = self.collector.collect()
        collected = time.perf_counter()
        learned = self.learner.train(rollout)
        done = time.perf_counter()

        fresh = int(rollout.valid.sum())
        progress.env_step += fresh
        progress.train_iter = self.learner.train_iter
        progress.iteration += 1
        progress.metrics = {
            **{f"collect/{name}": value for name, value in self.collector.metrics().items()},
            **{f"learn/{name}": value for name, value in learned.items()},
            "time/env_steps_per_second": fresh / (done - began),
            "time/collect_s": collected - began,
            "time/learn_s": done - collected,
        }
        progress.evaluation = None
        at_the_limit = self.is_over() and not self._stop_requested
        if at_the_limit or _crosses(before, progress.env_step, self.cfg.policy.eval.eval_freq):
            self._evaluate()
        self._write_row()
        if _crosses(before, progress.env_step, self.cfg.checkpoint.freq):
            self.save("last")
        if _crosses(before, progress.env_step, self.cfg.checkpoint.keep_freq):
            self.checkpoints.snapshot(progress.iteration, self.state_dict())
        self.display.show(progress, self.cfg.max_env_step)
        return progress

    def _evaluate(self) -> None:
        """Evaluates, and keeps the best as a checkpoint."""
        progress, began = self.progress, time.perf_counter()
        progress.evaluation, solved = self.scores.evaluate(self.evaluator, progress.iteration)
        progress.solved |= solved
        self.logger.say(evaluation_line(progress))
        progress.metrics |= evaluation_metrics(progress.evaluation)
        progress.metrics["time/eval_s"] = time.perf_counter() - began
        if self.scores.is_best(progress.evaluation):
            self.save("best")

    def _write_row(self) -> None:
        progress = self.progress
        row = {
            "env_step": progress.env_step,
            "train_iter": progress.train_iter,
            "iteration": progress.iteration,
            **progress.metrics,
            "time/wall_s": self.wall_time,
        }
        self.logger.write(progress.env_step, row, self.collector.episodes)

    def _finish(self) -> None:
        if self._stop_requested:
            self._conclude("interrupted", self._stop_requested)
        else:
            self._conclude("solved" if self.progress.solved else "finished")

    def _conclude(self, status: str, error: str = "") -> None:
        self.status, self.error = status, error
        self.save("last")
        self._write_result()
        self.logger.say(self.summary())

    def _fail(self, error: BaseException) -> None:
        """Notes how a run died; its last checkpoint stays the one from before."""
        interrupted = isinstance(error, KeyboardInterrupt)
        self.status = "interrupted" if interrupted else "failed"
        self.error = f"{type(error).__name__}: {error}"
        try:
            self.logger.say(self.error)
            self._write_result()
        except (DingLiteError, OSError) as second:
            self.display.say(f"result.json could not be written: {second}")
        self.close()

    def _write_result(self) -> None:
        last, progress, cfg = self.scores.last, self.progress, self.cfg
        self.logger.result(
            {
                "status": self.status,
                "solved": progress.solved,
                "eval_value": None if last is None else last.mean,
                "eval_value_std": None if last is None else last.std,
                "best_eval_value": self.scores.state_dict()["best"],
                "env_step": progress.env_step,
                "train_iter": progress.train_iter,
                "iterations": progress.iteration,
                "wall_time_s": self.wall_time,
                "env_steps_per_second": progress.env_step / self.wall_time if self.wall_time else None,
                "seed": cfg.seed,
                "policy": plain(cfg.policy.type),
                "env_id": cfg.env.env_id or plain(cfg.env.type),
                "checkpoint": self.checkpoints.name_of("last"),
                "best_checkpoint": self.checkpoints.name_of("best"),
                "error": self.error or None,
            }
        )

    def summary(self) -> str:
        """Returns two lines for people: how it ended, and what to do next."""
        last = self.scores.last
        told = "" if last is None else f", evaluation {last.mean:.1f} ± {last.std:.1f}"
        return (
            f"{self.status} after {self.progress.env_step:,} env steps and {self.wall_time:.1f} s{told}\n"
            f"run: {self.folder}   try: ding-lite eval {self.folder} -n 100{self.parts.import_option()}"
        )

    @property
    def wall_time(self) -> float:
        """Seconds of training so far, over all sessions of the run."""
        return self._earlier_wall_time + time.monotonic() - self._started

    def close(self) -> None:
        """Frees environments and files; calling it twice is fine."""
        self.parts.close()
        self.logger.close()

    def save(self, name: str = "last") -> Path:
        """Saves a checkpoint as ``ckpt/<name>`` of the run's folder and returns its path."""
        return self.checkpoints.save(name, self.state_dict())

    def state_dict(self) -> dict[str, Any]:
        """Returns the whole state of the run as one tree; ``clock`` is not part of what is compared."""
        return {**self.parts.state_dict(), "clock": {"wall_time": self.wall_time}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over the whole state; the environments go on in the middle of their episodes.

        Raises:
            CheckpointError: if it lacks a part, or a part does not fit.
        """
        self.parts.load_state_dict(state)
        try:
            self._earlier_wall_time = float(state["clock"]["wall_time"])
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"the checkpoint's clock is not complete: {error!r}") from error


def serial_pipeline(
    config: Mapping[str, Any] | str | Path | Config,
    seed: int | None = None,
    env_setting: EnvSetting | None = None,
    model: torch.nn.Module | None = None,
    max_train_iter: int | None = None,
    max_env_step: int | None = None,
) -> Policy:
    """Trains what ``config`` describes until it is done, shows how it goes, and returns the policy.

    The arguments are those of :class:`SerialPipeline`; ``seed=None`` is the config's own.
    """
    with display_for(sys.stdout) as display:
        pipeline = SerialPipeline(
            config,
            seed=seed,
            env_setting=env_setting,
            model=model,
            max_train_iter=max_train_iter,
            max_env_step=max_env_step,
            display=display,
        )
        for _ in pipeline:
            pass
        display.say(pipeline.summary())
    return pipeline.policy


serial_pipeline_onpolicy = serial_pipeline  # the name that DI-engine's users know


def _crosses(before: int, after: int, freq: int) -> bool:
    """Returns whether a multiple of ``freq`` lies past ``before`` and not past ``after``."""
    return freq > 0 and after // freq > before // freq
