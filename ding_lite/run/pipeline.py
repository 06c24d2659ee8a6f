"""The training loop: collect, learn, and at intervals evaluate.

    envs -> Collector -> rollout -> Learner -> policy
                                    Evaluator ---^   (beside the loop: never changes training)

A loop over the pipeline trains, so that a script that embeds it owns the loop.

Under ``torchrun``, every rank runs this loop with its share of environments and samples. They take each
gradient step together (:mod:`ding_lite.ranks`); rank 0 writes the run's folder and shows the progress.
"""

from __future__ import annotations

import atexit
import dataclasses
import inspect
import math
import shlex
import sys
import warnings
import weakref
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import torch

from ding_lite.config.compile import AnyConfig, Config, as_config
from ding_lite.config.near_names import near_name_warnings
from ding_lite.config.user_modules import refuse_training
from ding_lite.data.episodes import EvaluationStopped, Evaluator
from ding_lite.data.rollout import Rollout
from ding_lite.envs.make import EnvSetting, check_env_setting
from ding_lite.errors import (
    CheckpointError,
    ContractError,
    EnvError,
    StopTimedOut,
    error_text,
)
from ding_lite.policies.base import Policy
from ding_lite.ranks import joined, keep_for_restart
from ding_lite.run.build import build_collector, build_envs, build_policy
from ding_lite.run.checkpoint import checkpoints_of
from ding_lite.run.display import Display, display_for, evaluation_line
from ding_lite.run.ending import EVALUATE, RESUME, command_of, kept_after_interrupt, last_lines, results
from ding_lite.run.folder import claim, new_run_folder
from ding_lite.run.given import GIVEN, given, refuse_other_envs, refuse_other_model, replaced_keys
from ding_lite.run.health import HealthCheck
from ding_lite.run.hooks import Hooks
from ding_lite.run.imports import import_options, not_importable
from ding_lite.run.interrupt import HeldInterrupt
from ding_lite.run.learner import Learner
from ding_lite.run.load import as_tensors, refuse_misfit
from ding_lite.run.progress import Clock, Progress
from ding_lite.run.rank_reports import Report, merged_report
from ding_lite.run.rank_states import gathered, of_rank
from ding_lite.run.recorder import Recorder
from ding_lite.run.report import auxiliary_notes, description, schedule_notes
from ding_lite.run.resources import explained_memory_errors, thread_count, tuned_process
from ding_lite.run.resume import ResumePoint, ResumeRequest, find_resume_point, run_of
from ding_lite.run.saves import Saves
from ding_lite.run.scores import Scores, evaluation_metrics
from ding_lite.run.shares import share_of
from ding_lite.run.stopping import Stopping
from ding_lite.run.trackers.tracking import check_trackers
from ding_lite.run.video import Camera
from ding_lite.run.warm_start import warm_start


class SerialPipeline:
    """Builds the parts of a run from a config, and trains iteration by iteration.

    A ``with`` block closes the pipeline at its end, whatever ends it; :meth:`close` does so, too.

    A pipeline leaves the process of the script that embeds it as it is: torch's thread count, the memory
    allocator and the environment variables. With ``own_process=True`` it applies the config's
    ``num_threads`` and makes glibc keep freed memory, as the command line does. Small networks train several
    times faster on one thread than on torch's default number of threads.

    Args:
        config: a dict, a file, the name of a shipped config, a compiled config, or DI-engine's
            ``(main_config, create_config)``.
        seed: replaces the config's seed.
        env_setting: ``(make, collector_cfgs, evaluator_cfgs)``: one environment ``make(cfg)`` for each cfg,
            used instead of the environments that the config describes.
        model: trained as it is, instead of a model built from the config.
        max_train_iter, max_env_step: stop at the first iteration boundary at or past these limits.
        folder: folder of the run, which must not exist. If None, ``runs/<exp_name>``, with a suffix ``_2``,
            ``_3``, ... where it exists.
        init_from: a run (its best checkpoint) or a checkpoint whose weights and scales the run starts with.
        trust: your own modules, beside those that the config names, that the checkpoint at
            ``policy.learn.pretrained_model_path`` may import.
        display: shows the progress. If None, nothing is shown.
        own_process: sets torch's threads to ``num_threads`` and keeps freed memory. :meth:`close` restores
            the thread count, the last one if there are several; glibc's allocator can not be set back. The
            command line moreover sets variables that are read when NumPy and torch are
            loaded (OPENBLAS_NUM_THREADS, GOMP_SPINCOUNT); a script sets them itself before it imports torch.

    Attributes:
        config: the compiled config, with the source of each value.
        cfg: the values of the config.
        policy, collector, learner, evaluator: the parts of the loop.
        scores: evaluations so far.
        progress: counters of the run and the results of its last iteration.
        health: findings about the training so far.
        folder: folder of the run.
        recorder: writes to the folder and to the trackers.
        checkpoints: the recorder's part that writes checkpoints. A thread writes those that are due after an
            iteration; ``checkpoints.wait()`` waits for it.
        saves: which checkpoints are due.
        stopping: what ends the run before its limits.
        clock: seconds of training.
        hooks: code of the user that the run calls.
        display: shows the progress.
        status: "running", "solved", "finished", "interrupted" or "failed".
        error: why the run was interrupted or failed; "" otherwise.
        ranks: the processes that train this run together.

    Raises:
        ConfigError: for any fault of the config, before an environment steps.
        EnvError: if the environments cannot be made.
        CheckpointError: if the weights to start with do not fit. None of these errors leaves a folder.
    """

    def __init__(
        self,
        config: AnyConfig,
        *,
        seed: int | None = None,
        env_setting: EnvSetting | None = None,
        model: torch.nn.Module | None = None,
        max_train_iter: int | None = None,
        max_env_step: int | None = None,
        folder: str | Path | None = None,
        init_from: str | Path | None = None,
        trust: Sequence[str] = (),
        display: Display | None = None,
        own_process: bool = False,
    ) -> None:
        config = as_config(config).replaced(
            max_train_iter=max_train_iter, max_env_step=max_env_step, seed=seed
        )
        config = dataclasses.replace(config, imports=(*config.imports, *trust))
        self._join()
        log: TextIO | None = None
        here = Path.cwd()
        try:
            self._build(config, env_setting, model, display, own_process)
            name = self.cfg.exp_name if folder is None else str(folder)
            messages = [*config.notes, *schedule_notes(config), *auxiliary_notes(config)]
            messages += replaced_keys(config, env_setting, model)
            if init_from:
                messages += warm_start(self.policy, init_from, model_is_given=model is not None)
            messages += self._warm_up()  # if the weights brought no statistics of observations
            with ExitStack() as undo:
                new_folder = new_run_folder(name, exact=folder is not None, base=_moved_from(here))
                self.folder = self.ranks.from_first(lambda: undo.enter_context(new_folder))
                if folder is None and self.folder.name != Path(name).name:
                    messages.append(f"runs/{name} exists: this run is {self.folder}")
                log = self.ranks.on_first(lambda: claim(self.folder))
                self._record(log, "new run", messages)
                if self.ranks.is_first:
                    keep_for_restart(str(self.folder.absolute()))
        except BaseException as error:
            self._abandon(error, log)
            raise

    @classmethod
    def resume(
        cls,
        run: str | Path,
        *,
        checkpoint: str | None = None,
        config: AnyConfig | None = None,
        changes: Mapping[str, Any] | None = None,
        override: bool = False,
        max_train_iter: int | None = None,
        max_env_step: int | None = None,
        env_setting: EnvSetting | None = None,
        model: torch.nn.Module | None = None,
        display: Display | None = None,
        trust: Sequence[str] = (),
        own_process: bool = False,
    ) -> SerialPipeline:
        """Returns the pipeline of a saved run, ready to continue from its checkpoint.

        Args:
            run: a run's folder, or one of its checkpoints.
            checkpoint: the name of a checkpoint of the run. If None, the newest undamaged one.
            config: compared with the saved config, which takes precedence (:mod:`ding_lite.run.resume`
                gives the rules).
            changes: of the saved config, such as ``{"checkpoint.freq": 10_000}``.
            override: begin new episodes, and apply also the changes that do not fit the saved state.
            max_train_iter, max_env_step: new limits, if not None. A limit that the run has not reached also
                lets a solved run continue.
            env_setting, model, display, own_process: as for a new pipeline.
            trust: modules of the user, which are imported before the saved config is read.

        Raises:
            CheckpointError: if there is no checkpoint, or it does not fit.
            ConfigError: if a change is refused, or another process writes to the run's folder.
        """
        limits = {"max_train_iter": max_train_iter, "max_env_step": max_env_step}
        request = ResumeRequest(
            changes={**(changes or {}), **{key: limit for key, limit in limits.items() if limit is not None}},
            config=None if config is None else as_config(config),
            override=override,
            trust=trust,
        )
        self = cls.__new__(cls)
        self._join()
        log: TextIO | None = None
        try:
            self.folder = run_of(Path(run))
            log = self.ranks.on_first(lambda: claim(self.folder))  # before the checkpoints are read
            point = self._resume_point(Path(run), checkpoint, request)
            if env_setting is None:
                advice = "Give them again: SerialPipeline.resume(RUN, env_setting=...)"
                refuse_other_envs(point.checkpoint, point.saved, request.changes, advice)
            refuse_other_model(point.checkpoint, point.saved, model)
            here = Path.cwd()
            self._build(point.config, env_setting, model, display, own_process)
            self.folder = _moved_from(here) / self.folder
            self._continue_from(point, log)
        except BaseException as error:
            self._abandon(error, log)
            raise
        return self

    def _abandon(self, error: BaseException, log: TextIO | None) -> None:
        """Closes what a pipeline has that cannot be built."""
        self.ranks.report_failure(error)
        self._resources.close()
        if log is not None:
            log.close()

    def _resume_point(self, run: Path, checkpoint: str | None, request: ResumeRequest) -> ResumePoint:
        """Returns the point to continue from; all ranks read the checkpoint that rank 0 finds."""
        point = self.ranks.on_first(lambda: find_resume_point(run, checkpoint, request))
        place = self.ranks.from_all(point and point.checkpoint)[0]
        return point or find_resume_point(place, None, request)

    def _join(self) -> None:
        """Joins the ranks that train this run; ``_resources`` frees what the pipeline holds.

        Raises:
            ConfigError: if the caller is a module that is only imported, such as for its classes.
        """
        refuse_training()
        self._resources = ExitStack()
        self.ranks = self._resources.enter_context(joined())

    def _continue_from(self, point: ResumePoint, log: TextIO | None) -> None:
        """Restores the state of a checkpoint and opens the run's folder.

        Changes are saved at once, since an interruption before the next save would lose them.
        """
        weights = point.state.get("policy", {}).get("model")
        if isinstance(weights, Mapping):
            refuse_misfit(point.checkpoint, self.policy.model.state_dict(), weights)
        has_episodes = self._restore(point)
        if point.observations_differ(self.policy.obs_space) or point.has_other_reference:
            self._dropped += self.policy.forget_stored()
        progress_before = self.progress.state_dict()
        point.apply_to(self.progress)
        lost = point.lost(has_episodes, self._saved_by, self.policy, self._dropped)
        reached = self.progress.iteration
        is_newest = max(checkpoints_of(self.folder).values()) == reached
        beginning = f"resumed at {self.progress.env_step:,} env steps"
        repeats = is_newest and point.is_exact and not lost
        messages = [*point.messages, *lost, *schedule_notes(point.config)]
        self._record(log, beginning, messages, self.progress.env_step, repeats)
        moved = (
            [] if self.is_over() else self.ranks.from_first(lambda: self.checkpoints.abandon_after(reached))
        )
        if moved:
            self.say(f"moved below ckpt: {', '.join(moved)}")
        # No checkpoint has the best policy of this run then, or it is the best one of another task.
        if any(Path(name).name == "best" for name in moved) or point.changes_task:
            self.scores.best = -math.inf
        if moved or point.changed or self.progress.state_dict() != progress_before:
            self.save("last")
        if not self.is_over():
            self.recorder.forget_result()

    def _restore(self, point: ResumePoint) -> bool:
        """Restores the state of a checkpoint; returns False if the environments lost their open episodes.

        Only a run that is over may lose them: it does not need them any more.
        """
        try:
            self.load_state_dict(point.state, new_episodes=point.new_episodes)
        except CheckpointError:
            point.apply_to(self.progress)
            if not self.is_over():
                raise
            self.load_state_dict(point.state, new_episodes=True)
            return False
        return True

    def _build(
        self,
        config: Config,
        env_setting: EnvSetting | None,
        model: torch.nn.Module | None,
        display: Display | None,
        own_process: bool,
    ) -> None:
        """Builds all parts of the run but its folder."""
        self.config = config
        self.cfg = cfg = config.values
        if env_setting is not None:
            check_env_setting(env_setting)
        own = share_of(cfg, self.ranks, env_setting)
        self.display = display if display is not None and self.ranks.is_first else Display()
        self.status = "running"
        self.error = ""
        self._is_closed = False
        self._open_loop: weakref.ref[Generator[Progress, None, None]] | None = None
        self._error_of_break: BaseException | None = None  # which close() raises
        self._is_concluded = False
        self._saved_by = self.ranks.size  # number of ranks that saved the state
        self._dropped: list[str] = []  # what the policy has forgotten of that state
        self.clock = Clock()
        memory_advice = (
            f"Lower the sizes under policy.model, policy.collect.n_sample ({cfg.policy.collect.n_sample:,}) "
            f"or env.collector_env_num ({cfg.env.collector_env_num:,})"
        )
        check_trackers(cfg.logger.trackers)
        with explained_memory_errors("building the run", memory_advice):
            envs, evaluator_envs = build_envs(cfg, own, env_setting, self.ranks, self._resources)
            if own_process:
                threads = thread_count(cfg.num_threads, envs.obs_space)
                self._resources.enter_context(tuned_process(threads))
            self.policy = build_policy(own, envs, model, config.trusted)
            self.collector = build_collector(own, envs, self.policy)
            self.learner = Learner(self.policy.learn_mode)
            n_episode, max_steps = own.env.n_evaluator_episode, own.env.max_eval_steps
            self.evaluator = Evaluator(
                evaluator_envs, self.policy.eval_mode, n_episode, max_steps, self.ranks
            )
            self.stopping = Stopping(cfg.stop_timeout, self.collector, self.evaluator, self.ranks)
            self.scores = Scores(cfg.env.stop_value)
            self.progress = Progress()
            self.hooks = Hooks(cfg.hooks)
            self.camera = Camera(cfg, own_envs=env_setting is None)
            self.health = HealthCheck(
                cfg.policy,
                cfg.max_env_step,
                envs.obs_space,
                envs.action_space,
                cfg.env.stop_value,
                cfg.env.info_keys,
            )
        self._own_cfg = own
        self._given = given(env_setting, model)

    def _warm_up(self) -> list[str]:
        """Shows the policy the random steps that it needs before training; returns what to report."""
        steps = self.policy.warm_up_steps
        if not steps:
            return []
        stream = self.ranks.stream
        self.policy.warm_up(self.collector.random_observations(steps, self.cfg.seed, *stream))
        steps = int(self.ranks.total(steps))
        return [f"the statistics of observations are taken from {steps:,} random steps"]

    def _record(
        self,
        log: TextIO | None,
        beginning: str,
        messages: Sequence[str],
        resume_at: int | None = None,
        repeats: bool = False,
    ) -> None:
        """Opens the files of the run's folder and writes the first lines of the log.

        Args:
            log: the open log of the folder, which reserves the folder for this run; None but on rank 0.
            beginning: "new run" or "resumed at ...", in the first line of the log.
            messages: further lines.
            resume_at: env step that a resumed run continues from.
            repeats: whether a resumed run first repeats what an earlier session did after that step.
        """
        imports = import_options(self.policy, self.config)
        self._not_importable = not_importable(self.policy, self.config)
        lines = [
            f"{beginning}  folder {self.folder}",
            *([f"modules of yours: {shlex.join(imports)}"] if imports else []),
            *(
                f"{name} is not found by `ding-lite eval` and `--resume`: they need a class or a function at "
                "the top of a file"
                for name in self._not_importable
            ),
            *description(self._own_cfg, self.policy, self.collector),
            *near_name_warnings(self.cfg, map(type, self.policy.model.modules())),
            *messages,
        ]
        self.recorder = Recorder(
            self.folder,
            log=log,
            config=self.config,
            given=self._given,
            imports=imports,
            policy=self.policy,
            camera=self.camera,
            ranks=self.ranks,
            display=self.display,
            lines=lines,
            resume_at=resume_at,
            repeats=repeats,
        )
        self.checkpoints = self.recorder.checkpoints
        self.saves = Saves(self.recorder, self.scores, self.ranks)
        self.recorder.connect(self.collector.envs, self.evaluator.envs)

    def say(self, line: str) -> None:
        """Writes a line to log.txt, and shows it; on rank 0 only, since all ranks say the same."""
        self.recorder.say(line)

    def __iter__(self) -> Iterator[Progress]:
        """Trains until a limit is reached or the task is solved; yields after every iteration.

        A ``break`` saves the run, which can then be resumed, and leaves the pipeline open. With several ranks
        it ends the loops of all. A second loop, or the end of the interpreter, does the same for a loop that
        is still open.

        Ctrl-C lets the iteration end, saves the run and raises KeyboardInterrupt, unless the program has a
        handler of its own for it. A second Ctrl-C stops at once.

        Raises:
            ContractError: if the pipeline is closed and the run is not over.
        """
        if self._open_loop is not None:
            _close_if_open(self._open_loop)
        if self._error_of_break is not None:
            self.close()
        if self._is_closed and not self.is_over():
            raise ContractError(
                f"this pipeline is closed: its run ended ({self.status}) or it was closed. "
                f"SerialPipeline.resume({str(self.folder)!r}) continues the run"
            )
        turns = self._turns()
        self._open_loop = weakref.ref(turns)
        at_exit = atexit.register(partial(_close_if_open, self._open_loop))
        weakref.finalize(turns, atexit.unregister, at_exit).atexit = False
        return turns

    def _turns(self) -> Generator[Progress, None, None]:
        self.clock.start()
        self.stopping.begin_loop()
        self.status, self._is_concluded = "running", False
        interrupt = HeldInterrupt(lambda: self.request_stop("SIGINT"))
        try:
            self.hooks.call("before_run", self)
            self.hooks.state_dict()  # one that cannot be saved is told before the training
            if self.is_over() and self.progress.owes_evaluation:  # there is no next iteration
                self._evaluate()
                self.recorder.write_evaluation(self.progress, self.wall_time)
                self.saves.begin_due(self.progress, self.state_dict)
            while not (self.is_over() or self.stopping.agree()):
                with interrupt:
                    progress = self.step()
                if not interrupt.received:
                    yield progress
            self._conclude()
        except GeneratorExit:
            if self.ranks.size > 1 and not self.is_over():  # the other ranks leave their loops, too
                self.stopping.leave_loop()
            try:
                self._conclude()
            except BaseException as error:  # close() raises it: Python ignores errors of a loop that is left
                self._fail(error)
                self._error_of_break = error
                warnings.warn(
                    f"the run that a loop has left could not be saved: {error_text(error)}. The end of the "
                    "pipeline, close() or that of `with`, raises this error",
                    RuntimeWarning,
                    stacklevel=2,
                )
            self.clock.pause()
            raise
        except BaseException as error:
            self._fail(error)
            raise
        self.close()
        if interrupt.received:
            raise KeyboardInterrupt(self.summary())

    def is_over(self) -> bool:
        """Returns whether a limit is reached, or the task is solved."""
        cfg, progress = self.cfg, self.progress
        return bool(
            (progress.solved and not progress.past_solved)
            or progress.env_step >= cfg.max_env_step
            or (cfg.max_train_iter is not None and progress.train_iter >= cfg.max_train_iter)
        )

    def request_stop(self, reason: str) -> None:
        """Requests the run to end at the next iteration boundary; safe to call from a signal handler.

        Args:
            reason: for result.json, and for the summary unless it is the name of a signal. For a signal, an
                evaluation is given up that takes longer than half of ``stop_timeout``.
        """
        self.stopping.request(reason)

    def give_up(self) -> None:
        """Ends what waits for environments; called from a signal handler when ``stop_timeout`` is over.

        A rollout is left out, and the state before it is saved. Learning and saving are not disturbed.

        Raises:
            StopTimedOut: while environments collect, evaluate or close.
        """
        self.stopping.give_up()

    def step(self) -> Progress:
        """Runs one iteration: collects, learns, evaluates and saves where due, and logs the metrics."""
        self.hooks.call("before_iter", self)
        progress = self.progress
        with self.stopping.during("collecting"):
            rollout = self.collector.collect()
        with self.stopping.during("learning"):
            self.policy.timer("updates")
            learn_metrics = self.learner.train(rollout)
            self.policy.timer("other")
            report = self._report(rollout, learn_metrics)
            progress.turn_began = progress.env_step
            progress.env_step += report.new_steps
            progress.train_iter = self.learner.train_iter
            progress.iteration += 1
            progress.metrics = report.metrics
        for line in report.lines:
            self.say(line)
        for finding in self.health.check(progress.metrics, progress.env_step):
            self.say(f"health: {finding}")
        progress.evaluation = None
        try:
            if self.is_over() or progress.owes_evaluation or progress.crossed(self.cfg.policy.eval.eval_freq):
                self._evaluate()
            self.hooks.call("after_iter", self)
        except Exception:  # the iteration is whole without its evaluation and its hooks
            if self.ranks.size == 1:  # other ranks wait for this one
                self.recorder.write_iteration(progress, self.wall_time, report.episodes, rollout)
            raise
        # Before the save: every checkpoint has its row.
        self.recorder.write_iteration(progress, self.wall_time, report.episodes, rollout)
        self.recorder.film(progress)
        self.saves.begin_due(progress, self.state_dict)
        self.display.show(progress, self.cfg.max_env_step)
        return dataclasses.replace(progress)

    def _report(self, rollout: Rollout, learn_metrics: Mapping[str, float]) -> Report:
        """Returns the steps, metrics, episodes and lines of this iteration, of all ranks together."""
        own = Report(
            new_steps=int(rollout.valid.sum()),
            metrics={
                **{f"collect/{name}": value for name, value in self.collector.metrics().items()},
                **{f"learn/{name}": value for name, value in learn_metrics.items()},
                **{f"time/{phase}_s": seconds for phase, seconds in self.policy.timer.take().items()},
            },
            episodes=self.collector.episodes,
            lines=self.recorder.pending_lines[:],
        )
        self.recorder.pending_lines.clear()
        return merged_report(self.ranks.from_all(own))

    def _evaluate(self) -> None:
        progress, timer = self.progress, self.policy.timer
        timer("eval")
        progress.owes_evaluation = True
        with self.stopping.during("evaluating"):
            try:
                evaluation, solved = self.scores.evaluate(self.evaluator, progress.iteration)
            except (EvaluationStopped, StopTimedOut):
                if self.ranks.size > 1:  # they wait for the episodes of this one
                    raise
                self.say(
                    "an evaluation was given up after the signal; the next iteration of the run makes it"
                )
                return
        progress.evaluation = evaluation
        progress.owes_evaluation = False
        asked = self.cfg.env.n_evaluator_episode
        progress.confirming = asked if len(progress.evaluation.returns) > asked else 0
        progress.solved |= solved
        self.recorder.log(evaluation_line(progress))
        progress.metrics |= evaluation_metrics(progress.evaluation)
        timer("other")
        progress.metrics["time/eval_s"] = timer.seconds.pop("eval")

    def _conclude(self) -> None:
        """Saves a run that has ended in order, and writes its result."""
        # Even if a stop was requested in the last iteration.
        if self.is_over() and not self.progress.owes_evaluation:
            self.status = "solved" if self.progress.solved else "finished"
            self.error = ""
        else:
            self.status = "interrupted"
            self.error = self.stopping.reason
        self.saves.finish()
        self.save("last")
        self._write_result()
        for finding in self.health.findings.values():
            self.say(f"health, in this run: {finding}")
        self.recorder.log(self.summary())
        self._is_concluded = True
        self.hooks.call("after_run", self)

    def _fail(self, error: BaseException) -> None:
        """Writes the result of a run that an error ended.

        The state of the last whole iteration is saved if it is known: not after an error of a gradient step.
        A second Ctrl-C, or a save that failed, leaves the checkpoints as they are.
        """
        if self._is_concluded:  # an error of ``after_run``: the run has its result and its last checkpoint
            self.recorder.fail(error)
            self.close()
            return
        self.status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        try:
            with self.stopping.held():  # a further signal does not end the save
                self._save_after(error)
        finally:
            self.close()

    def _save_after(self, error: BaseException) -> None:
        self.ranks.report_failure(error)
        if self.ranks.is_first:
            timed_out = isinstance(error, StopTimedOut)
            self.error = str(error) if timed_out else f"{type(error).__name__}: {error}"
            if timed_out:
                self.say(self.error)
            with self._failures_shown("the last iteration could not be saved"):
                self.saves.finish_after_error()
                if not (timed_out and error.__cause__):  # else its traceback is that of an exchange of ranks
                    self.recorder.fail(error)
                if timed_out or (isinstance(error, Exception) and not isinstance(error, OSError)):
                    self._save_last_iteration()
                if isinstance(error, KeyboardInterrupt):
                    saved = self.checkpoints.saved().values()
                    command = self._command(RESUME)
                    self.display.say(kept_after_interrupt(saved, self.progress.iteration, command))
            with self._failures_shown("result.json could not be written"):
                self._write_result()

    @contextmanager
    def _failures_shown(self, what: str) -> Iterator[None]:
        """Shows an error of the block, which follows another one that ends the run."""
        try:
            yield
        except Exception as error:  # the state may be that of a user's class
            self.display.say(f"{what}: {error_text(error)}")

    def _save_last_iteration(self) -> None:
        """Saves the state after the last whole iteration, if no checkpoint has it; with one rank only."""
        if self.ranks.size > 1 or self._is_saved or not self.stopping.is_between_steps:
            return
        try:
            self.save("last")
        except EnvError:  # the environments of training have failed, too
            self.collector.abandon_episodes()
            self.save("last")
        self.say(
            f"saved after {self.progress.env_step:,} env steps, at the last whole iteration; to continue: "
            f"{self._command(RESUME)}"
        )

    @property
    def _is_saved(self) -> bool:
        """Whether a checkpoint has the last iteration."""
        return max(self.checkpoints.saved().values(), default=0) >= self.progress.iteration

    def _write_result(self) -> None:
        result = {
            "status": self.status,
            **results(self.cfg, self.progress, self.scores, self.wall_time),
            "ranks": self.ranks.size,
            "checkpoint": self.checkpoints.name_of("last"),
            "best_checkpoint": self.checkpoints.name_of("best"),
            "error": self.error or None,
        }
        self.recorder.write_result(result)

    def summary(self) -> str:
        """Returns two lines: how the run ended, and the command to type next."""
        reason = "" if self.stopping.is_by_signal else self.stopping.reason
        command = self._command(RESUME if self.status == "interrupted" else EVALUATE)
        return last_lines(
            self.status, reason, self.progress, self.scores, self.wall_time, self.folder, command
        )

    def _command(self, action: str) -> str:
        """Returns the command that resumes the run, or the one that evaluates it."""
        imports = None if self._not_importable else import_options(self.policy, self.config)
        return command_of(action, self.folder, self._given.get(GIVEN, {}), imports)

    @property
    def wall_time(self) -> float:
        """Seconds of training so far, over all sessions of the run."""
        return self.clock.seconds

    def close(self) -> None:
        """Closes environments and files, and restores torch's threads (``own_process``).

        A loop over the pipeline that is still open ends first, as by ``break``. Iterations of :meth:`step`
        alone are not saved: `result.json` then says "interrupted". A second call has no effect.

        Raises:
            BaseException: the error by which the run could not be saved when a loop was left.
        """
        if self._open_loop is not None:
            _close_if_open(self._open_loop)
        self._is_closed = True
        self.clock.pause()
        try:
            if self.status == "running":  # no loop has ended
                self._conclude_steps()
        finally:
            try:
                with self.stopping.closing():
                    self._resources.close()
            finally:
                self.recorder.close()
        error, self._error_of_break = self._error_of_break, None
        if error is not None:
            raise error

    def _conclude_steps(self) -> None:
        """Writes the result of a run of which only :meth:`step` was called, if it is not saved."""
        self.saves.finish_after_error()
        if not self._is_saved:
            self.status, self.error = "interrupted", "closed before its end, without a save"
            self._write_result()

    def __enter__(self) -> SerialPipeline:
        """Returns the pipeline, which the end of the ``with`` block closes."""
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def save(self, name: str = "last") -> Path:
        """Saves a checkpoint as ``ckpt/<name>`` in the run's folder and returns its path.

        All ranks must call it; rank 0 writes.

        Raises:
            CheckpointError: if it cannot be written, or an iteration was cut before its end.
        """
        state = self.state_dict()  # of all ranks
        return self.ranks.from_first(lambda: self.checkpoints.save(name, state))

    def _stateful_parts(self) -> dict[str, Any]:
        return {
            "policy": self.policy,
            "learner": self.learner,
            "progress": self.progress,
            "scores": self.scores,
            "clock": self.clock,
            "collector": self.collector,  # the last one: it may fail where an environment has changed
        }

    def state_dict(self) -> dict[str, Any]:
        """Returns the whole state of the run as a tree; only ``clock`` depends on the machine's speed.

        All ranks must call it. On rank 0 it has the states of all.

        Raises:
            CheckpointError: if an iteration was cut before its end: the weights may have learned from steps
                that are not counted.
        """
        if not self.stopping.is_between_steps:
            raise CheckpointError(
                "the last iteration did not end, so the weights belong to no number of env steps. Its "
                f"checkpoints are whole: SerialPipeline.resume({str(self.folder)!r}) continues the run"
            )
        state = {name: part.state_dict() for name, part in self._stateful_parts().items()}
        of_few_runs = {"hooks": self.hooks.state_dict(), "evaluator": self.evaluator.state_dict()}
        state |= {name: of_part for name, of_part in of_few_runs.items() if of_part}
        return gathered(state, self.ranks)

    def load_state_dict(self, state: Mapping[str, Any], *, new_episodes: bool = False) -> None:
        """Restores the whole state; the environments continue in the middle of their episodes.

        Args:
            state: from :meth:`state_dict`.
            new_episodes: begin new episodes, since the saved ones do not belong to these environments.

        Raises:
            CheckpointError: if a part is missing or does not fit.
        """
        state, saved_by = of_rank(state, self.ranks)
        has_other_ranks = saved_by != self.ranks.size
        new_episodes = new_episodes or has_other_ranks
        for name, part in self._stateful_parts().items():
            if name not in state:
                raise CheckpointError(f"the checkpoint has no {name!r}, so no run can be resumed from it")
            options: dict[str, Any] = {}
            if new_episodes and name == "collector":
                options["new_episodes"] = True
                if has_other_ranks:  # all but rank 0 count episodes from 0, whichever resume this is
                    options["stream"] = "step", self.progress.env_step
            try:
                part_state = as_tensors(state[name]) if name == "policy" else state[name]
                part.load_state_dict(part_state, **options)
            except CheckpointError:
                raise
            except Exception as error:  # a forged checkpoint can make any part fail in any way
                raise CheckpointError(
                    f"the checkpoint's {name!r} does not fit: {type(error).__name__}: {error}"
                ) from error
        has_new_episodes = new_episodes or not self.collector.envs.restorable
        if has_new_episodes or state["collector"].get("envs", True) is None:
            self.policy.forget_open_episodes()
        self.hooks.load_state_dict(state.get("hooks", {}))
        self.evaluator.load_state_dict(state.get("evaluator", {}))
        self._saved_by = saved_by
        self._dropped = self.policy.forget_stored() if has_other_ranks else []
        if has_other_ranks:
            self.policy.change_ranks(self.progress.env_step)


def _moved_from(here: Path) -> Path:
    """Returns ``here`` if an environment has changed the working directory since, else an empty path."""
    return Path() if Path.cwd() == here else here


def _close_if_open(turns: weakref.ref[Generator[Progress, None, None]]) -> None:
    generator = turns()
    if generator is not None and inspect.getgeneratorstate(generator) != inspect.GEN_RUNNING:
        generator.close()


def serial_pipeline(
    config: AnyConfig,
    seed: int | None = None,
    env_setting: EnvSetting | None = None,
    model: torch.nn.Module | None = None,
    max_train_iter: int | None = None,
    max_env_step: int | None = None,
    *,
    folder: str | Path | None = None,
    init_from: str | Path | None = None,
    trust: Sequence[str] = (),
    own_process: bool = False,
) -> Policy:
    """Trains what ``config`` describes to its end, shows the progress, and returns the policy.

    The arguments are those of :class:`SerialPipeline`; ``seed=None`` keeps the config's seed.
    """
    with display_for(sys.stdout) as display:
        pipeline = SerialPipeline(
            config,
            seed=seed,
            env_setting=env_setting,
            model=model,
            max_train_iter=max_train_iter,
            max_env_step=max_env_step,
            folder=folder,
            init_from=init_from,
            trust=trust,
            display=display,
            own_process=own_process,
        )
        for _ in pipeline:
            pass
        pipeline.display.say(pipeline.summary())
    return pipeline.policy


serial_pipeline_onpolicy = serial_pipeline  # the name that DI-engine's users know
