"""One process, one loop: collect, learn, and now and then evaluate.

    envs -> Collector -> rollout -> Learner -> policy
                                    Evaluator ---^   (beside the loop, never inside it)

The pipeline is an iterator: a script that embeds it owns its loop.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TextIO

import torch

from ding_lite.assembly import Parts
from ding_lite.checkpoint import CheckpointKeeper
from ding_lite.config import Config, as_config
from ding_lite.display import Display, Quiet, display_for, evaluation_line
from ding_lite.envs.make import EnvSetting
from ding_lite.errors import CheckpointError, DingLiteError
from ding_lite.evaluator import evaluation_metrics
from ding_lite.logger import RunLogger, claim, new_run_folder
from ding_lite.policies.base import Policy
from ding_lite.policies.warm_start import warm_start
from ding_lite.resuming import Wishes, find_resume_point, run_of, versions
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
        init_from: a run (its best) or a checkpoint whose weights and scales are begun with.
        display: shows how it goes; nothing is shown when None.

    Raises:
        ConfigError: for any fault of the config, before an environment steps.
        EnvError: if the environments cannot be made.
        CheckpointError: if the weights to begin with do not fit. None of these leaves a folder behind.
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
        init_from: str | Path | None = None,
        display: Display | None = None,
    ) -> None:
        config = as_config(config).replaced(
            max_train_iter=max_train_iter, max_env_step=max_env_step, seed=seed
        )
        self._build(config, env_setting, model, display or Quiet())
        name = self.cfg.exp_name if folder is None else str(folder)
        try:
            told = warm_start(self.policy, init_from) if init_from else []
            told += self.parts.warm_up()  # where the weights brought no statistics of observations
            with new_run_folder(name, exact=folder is not None) as self.folder:
                self._open(claim(self.folder), "new run", told)
        except BaseException:
            self.parts.close()
            raise

    @classmethod
    def resume(
        cls,
        run: str | Path,
        *,
        checkpoint: str | None = None,
        config: Mapping[str, Any] | str | Path | Config | None = None,
        changes: Mapping[str, Any] | None = None,
        override: bool = False,
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
            checkpoint: the name of one of a run; None is the newest that is whole.
            config: compared with the saved one, which rules (:mod:`ding_lite.resuming` says how).
            changes: of the saved config, such as ``{"checkpoint.freq": 10_000}``.
            override: begins new episodes, and makes also those changes that the saved state does not fit.
            max_train_iter, max_env_step: new limits, where not None. One that is still ahead also takes a
                solved run further.
            env_setting, model, display: as for a new pipeline.
            trust: modules of your own that the saved config may import.

        Raises:
            CheckpointError: if there is none, or it does not fit.
            ConfigError: if a change is refused, or another process writes to the run's folder.
        """
        limits = {"max_train_iter": max_train_iter, "max_env_step": max_env_step}
        typed = {**(changes or {}), **{name: n for name, n in limits.items() if n is not None}}
        wishes = Wishes(typed, None if config is None else as_config(config), override, trust)
        self = cls.__new__(cls)
        self.folder = run_of(Path(run))
        with ExitStack() as undo:
            log = undo.enter_context(claim(self.folder))  # before its checkpoints are looked at
            point = find_resume_point(Path(run), checkpoint, wishes)
            self._build(point.config, env_setting, model, display or Quiet())
            undo.callback(self.parts.close)
            self.load_state_dict(point.state, new_episodes=point.new_episodes)
            before = self.progress.state_dict()
            point.tell(self.progress, typed)
            self._open(log, "resumed", point.said, resume_at=self.progress.env_step)
            gone = [] if self.is_over() else self.checkpoints.abandon_after(self.progress.iteration)
            self.say(f"moved to ckpt/abandoned: {', '.join(gone)}") if gone else None
            if gone or point.changed or self.progress.state_dict() != before:
                self.save("last")  # an interruption before the next save must not lose these wishes
            undo.pop_all()
        return self

    def _build(
        self, config: Config, env_setting: EnvSetting | None, model: torch.nn.Module | None, display: Display
    ) -> None:
        self.config, self.cfg, self.display = config, config.values, display
        self.status, self.error, self._stop_requested = "running", "", ""
        self._earlier_wall_time, self._started = 0.0, time.monotonic()
        self.parts = parts = Parts(self.cfg, env_setting, model)
        self.policy, self.collector, self.learner = parts.policy, parts.collector, parts.learner
        self.evaluator, self.scores, self.progress = parts.evaluator, parts.scores, parts.progress

    def _open(self, log: TextIO, what: str, told: Sequence[str], resume_at: int | None = None) -> None:
        """Opens the files of the run's folder, which ``log`` makes ours, and says what this run is."""
        config = self.config.as_json()
        saved = {**config, "spaces": self.parts.spaces(), "versions": versions()}
        self.checkpoints = CheckpointKeeper(self.folder, saved, **self.cfg.checkpoint)
        self.logger = RunLogger(self.folder, log, config, self.parts.metric_names(), resume_at)
        self.say(f"{what}  folder {self.folder}")
        self.parts.report_to(self.logger.say, self.display.say)
        for line in told:
            self.say(line)
        self.logger.sign()

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
            while not (self.is_over() or self._stop_requested):
                self.step()
                yield self.progress
            self._conclude()
        except GeneratorExit:
            self._conclude()
            raise
        except BaseException as error:
            self._fail(error)
            raise
        self.close()

    def is_over(self) -> bool:
        """Returns whether a limit is reached, or the task is solved."""
        cfg, done = self.cfg, self.progress
        return bool(
            (done.solved and not done.past_solved)
            or done.env_step >= cfg.max_env_step
            or (cfg.max_train_iter is not None and done.train_iter >= cfg.max_train_iter)
        )

    def request_stop(self, reason: str) -> None:
        """Asks the run to end at the next iteration boundary; safe to call from a signal handler."""
        self._stop_requested = reason

    def step(self) -> Progress:
        """Takes one turn: collect, learn, perhaps evaluate, and write it down."""
        progress, began = self.progress, time.perf_counter()
        rollout = self.collector.collect()
        collected = time.perf_counter()
        learned = self.learner.train(rollout)
        done = time.perf_counter()

        fresh = int(rollout.valid.sum())
        progress.turn_began = progress.env_step
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
        self.parts.health.look(progress.metrics, progress.env_step)
        progress.evaluation = None
        if self.is_over() or progress.crossed(self.cfg.policy.eval.eval_freq):
            self._evaluate()
        self._write_row()  # first: every checkpoint has its row
        self._save()
        self.display.show(progress, self.cfg.max_env_step)
        return progress

    def _evaluate(self) -> None:
        progress, began = self.progress, time.perf_counter()
        progress.evaluation, solved = self.scores.evaluate(self.evaluator, progress.iteration)
        progress.solved |= solved
        self.logger.say(evaluation_line(progress))
        progress.metrics |= evaluation_metrics(progress.evaluation)
        progress.metrics["time/eval_s"] = time.perf_counter() - began

    def _save(self) -> None:
        found, best, warning = self.progress.evaluation, self.scores.best, "failed"
        is_best = found is not None and self.scores.is_best(found)
        try:
            warning = self.checkpoints.save_due(self.progress, is_best, self.state_dict)
        finally:
            self.scores.best = best if warning else self.scores.best
        if warning:
            self.say(warning)

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

    def _conclude(self) -> None:
        if self.is_over():  # perhaps just as it was asked to stop
            self.status, self.error = "solved" if self.progress.solved else "finished", ""
        else:
            self.status, self.error = "interrupted", self._stop_requested
        self.save("last")
        self._write_result()
        self.parts.health.remind()
        self.logger.say(self.summary())

    def _fail(self, error: BaseException) -> None:
        """Notes how a run died; its last checkpoint stays the one from before."""
        self.status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        try:
            self.checkpoints.dump(error)
            self.error = f"{type(error).__name__}: {error}"
            self.logger.explain(error)
            self.logger.say(self.error)
            self._write_result()
        except (DingLiteError, OSError) as second:
            self.display.say(f"result.json could not be written: {second}")
        self.close()

    def _write_result(self) -> None:
        names = {"checkpoint": "last", "best_checkpoint": "best"}
        kept = {key: self.checkpoints.name_of(name) for key, name in names.items()}
        told = {"status": self.status, **self.parts.results(self.wall_time), **kept}
        self.logger.result({**told, "error": self.error or None})

    def summary(self) -> str:
        """Returns two lines for people: how it ended, and what to do next."""
        told = f", evaluation {last.mean:.1f} ± {last.std:.1f}" if (last := self.scores.last) else ""
        then = "train --resume {}" if self.status == "interrupted" else "eval {} -n 100"
        return (
            f"{self.status} after {self.progress.env_step:,} env steps and {self.wall_time:.1f} s{told}\n"
            f"run: {self.folder}   try: ding-lite {then.format(self.folder)}{self.parts.import_option()}"
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

    def load_state_dict(self, state: Mapping[str, Any], *, new_episodes: bool = False) -> None:
        """Takes over the whole state; the environments go on in the middle of their episodes.

        Raises:
            CheckpointError: if it lacks a part, or a part does not fit.
        """
        self.parts.load_state_dict(state, new_episodes=new_episodes)
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
