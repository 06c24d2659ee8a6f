"""The training loop: collect, learn, and at intervals evaluate.

    envs -> Collector -> rollout -> Learner -> policy
                                    Evaluator ---^   (beside the loop: never changes training)

The pipeline is an iterator, so that a script that embeds it owns the loop.

Under ``torchrun``, every rank runs this loop with its share of environments and samples. They take each
gradient step together (:mod:`ding_lite.rl.ranks`); rank 0 writes the run's folder and shows the progress.
"""

from __future__ import annotations

import atexit
import math
import sys
import time
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import torch

from ding_lite.config.compile import AnyConfig, Config, as_config
from ding_lite.data.evaluator import Evaluator, Scores, evaluation_metrics
from ding_lite.envs.make import EnvSetting
from ding_lite.envs.space_json import space_to_json
from ding_lite.envs.transition import Episode
from ding_lite.errors import CheckpointError, DingLiteError, EnvError, RankError
from ding_lite.policies.base import Policy
from ding_lite.rl.ranks import joined, keep_for_restart, merged_metrics
from ding_lite.run.build import build_collector, build_envs, build_evaluator, build_policy
from ding_lite.run.checkpoint import CheckpointKeeper, checkpoints_of
from ding_lite.run.display import Display, Quiet, display_for, evaluation_line
from ding_lite.run.folder import RunLogger, claim, new_run_folder
from ding_lite.run.health import HealthCheck
from ding_lite.run.hooks import Hooks
from ding_lite.run.learner import Learner
from ding_lite.run.load import as_tensors, refuse_misfit
from ding_lite.run.progress import Progress
from ding_lite.run.rank_states import digest, gathered, of_rank
from ding_lite.run.report import description, metric_names, next_command, results
from ding_lite.run.resources import explained_memory_errors, thread_count, tuned_process
from ding_lite.run.resume import (
    NOT_BIT_EQUAL,
    ResumePoint,
    ResumeRequest,
    find_resume_point,
    run_of,
    versions,
)
from ding_lite.run.shares import share_of
from ding_lite.run.trackers.tracker import TrackedRun
from ding_lite.run.trackers.tracking import Tracking, check_trackers
from ding_lite.run.video import Camera
from ding_lite.run.warm_start import warm_start
from ding_lite.trees import Tree, has_box, map_tree


class SerialPipeline:
    """Builds the parts of a run from a config, and trains iteration by iteration.

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
        display: shows the progress. If None, nothing is shown.
        own_process: sets torch's threads to ``num_threads`` and keeps freed memory. :meth:`close` restores
            the thread count; glibc's allocator can not be set back. At most one open pipeline at a time may
            own the process. The command line moreover sets variables that are read when NumPy and torch are
            loaded (OPENBLAS_NUM_THREADS, GOMP_SPINCOUNT); a script sets them itself before it imports torch.

    Attributes:
        config: the compiled config, with the source of each value.
        cfg: the values of the config.
        policy, collector, learner, evaluator: the parts of the loop.
        scores: evaluations so far.
        progress: counters of the run and the results of its last iteration.
        health: findings about the training so far.
        folder: folder of the run.
        checkpoints, logger: write to the folder. A thread writes the checkpoints that are due after an
            iteration; ``checkpoints.wait()`` waits for it.
        hooks: code of the user that the run calls.
        tracking: the trackers that the metrics are sent to.
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
        display: Display | None = None,
        own_process: bool = False,
    ) -> None:
        config = as_config(config).replaced(
            max_train_iter=max_train_iter, max_env_step=max_env_step, seed=seed
        )
        self._join()
        try:
            self._build(config, env_setting, model, display, own_process)
            name = self.cfg.exp_name if folder is None else str(folder)
            messages = [*config.notes]
            messages += warm_start(self.policy, init_from) if init_from else []
            messages += self._warm_up()  # if the weights brought no statistics of observations
            with ExitStack() as undo:
                new_folder = new_run_folder(name, exact=folder is not None)
                self.folder = self.ranks.from_first(lambda: undo.enter_context(new_folder))
                self._open_folder(self._claimed(), ["new run", *messages])
                if self.ranks.is_first:
                    keep_for_restart(str(self.folder.absolute()))
        except BaseException as error:
            self.ranks.report_failure(error)
            self._resources.close()
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
            trust: modules of the user that the saved config may import.

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
            log = self._claimed()  # before the checkpoints are read
            point = self._resume_point(Path(run), checkpoint, request)
            self._build(point.config, env_setting, model, display, own_process)
            self._continue_from(point, log)
        except BaseException as error:
            self.ranks.report_failure(error)
            self._resources.close()
            if log is not None:
                log.close()
            raise
        return self

    def _resume_point(self, run: Path, checkpoint: str | None, request: ResumeRequest) -> ResumePoint:
        """Returns the point to continue from; all ranks read the checkpoint that rank 0 finds."""
        points: list[ResumePoint] = []

        def found() -> Path:
            points.append(find_resume_point(run, checkpoint, request))
            return points[0].checkpoint

        place = self.ranks.from_first(found)
        return points[0] if points else find_resume_point(place, None, request)

    def _join(self) -> None:
        """Joins the ranks that train this run; ``_resources`` frees what the pipeline holds."""
        self._resources = ExitStack()
        self.ranks = self._resources.enter_context(joined())

    def _claimed(self) -> TextIO | None:
        """Returns the log of the run's folder, which is then reserved for this run; None but on rank 0."""
        log: TextIO | None = None

        def opened() -> None:
            nonlocal log
            log = claim(self.folder)

        self.ranks.from_first(opened)
        return log

    def _continue_from(self, point: ResumePoint, log: TextIO | None) -> None:
        """Restores the state of a checkpoint and opens the run's folder.

        Changes are saved at once, since an interruption before the next save would lose them.
        """
        weights = point.state.get("policy", {}).get("model")
        if isinstance(weights, Mapping):
            refuse_misfit(point.checkpoint, self.policy.model.state_dict(), weights)
        self.load_state_dict(point.state, new_episodes=point.new_episodes)
        progress_before = self.progress.state_dict()
        point.apply_to(self.progress)
        messages = ["resumed", *point.messages]
        if self._saved_by != self.ranks.size:
            messages.append(
                f"number of ranks {self._saved_by} -> {self.ranks.size}: new episodes, random streams and "
                f"replay buffers; {NOT_BIT_EQUAL}"
            )
        if point.state["collector"].get("envs", True) is None:
            messages.append(f"an environment failed after this checkpoint: new episodes; {NOT_BIT_EQUAL}")
        reached = self.progress.iteration
        is_newest = max(checkpoints_of(self.folder).values()) == reached
        is_exact = not (point.new_episodes or any(NOT_BIT_EQUAL in message for message in messages))
        self._open_folder(log, messages, self.progress.env_step, repeats=is_newest and is_exact)
        moved = (
            [] if self.is_over() else self.ranks.from_first(lambda: self.checkpoints.abandon_after(reached))
        )
        if moved:
            self.say(f"moved to ckpt/abandoned: {', '.join(moved)}")
        if moved or point.changed or self.progress.state_dict() != progress_before:
            self.save("last")

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
        own = share_of(cfg, self.ranks, env_setting)
        self.display = display if display is not None and self.ranks.is_first else Quiet()
        self._lines: list[str] = []  # of the environments of this rank, for the log of rank 0
        self.status = "running"
        self.error = ""
        self._stop_reason = ""
        self._best_before_save = -math.inf  # the best score before the save that is going on
        self._earlier_wall_time = 0.0
        self._started = time.monotonic()
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
            self.policy = build_policy(own, envs, model)
            self.collector = build_collector(own, envs, self.policy)
            self.learner = Learner(self.policy.learn_mode)
            self.evaluator: Evaluator = build_evaluator(own, evaluator_envs, self.policy)
            self.scores = Scores(cfg.env.stop_value)
            self.progress = Progress()
            self.hooks = Hooks(cfg.hooks)
            self.camera = Camera(cfg, own_envs=env_setting is None)
            self.health = HealthCheck(
                cfg.policy, cfg.max_env_step, has_box(envs.action_space), cfg.env.stop_value
            )
        self._own_cfg = own

    def _warm_up(self) -> list[str]:
        """Shows the policy the random steps that it needs before training; returns what to report."""
        steps = self.policy.warm_up_steps
        if not steps:
            return []
        stream = self.ranks.stream
        self.policy.warm_up(self.collector.random_observations(steps, self.cfg.seed, *stream))
        steps = int(self.ranks.total(steps))
        return [f"the statistics of observations are taken from {steps:,} random steps"]

    def _open_folder(
        self,
        log: TextIO | None,
        messages: Sequence[str],
        resume_at: int | None = None,
        repeats: bool = False,
    ) -> None:
        """Opens the files of the run's folder and writes the first lines of the log.

        Args:
            log: the open log of the folder, which reserves the folder for this run; None but on rank 0.
            messages: how the run begins, first in a word or two.
            resume_at: env step that a resumed run continues from.
            repeats: whether it repeats what an interrupted session did after that.
        """
        config = self.config.as_json()
        spaces = {
            "obs": space_to_json(self.policy.obs_space),
            "action": space_to_json(self.policy.action_space),
        }
        saved = {**config, "spaces": spaces, "versions": versions()}
        self.checkpoints = CheckpointKeeper(self.folder, saved, **self.cfg.checkpoint)
        self.logger: RunLogger | None = None
        self.tracking: Tracking | None = None  # as the logger, on rank 0 only

        def opened() -> None:
            assert log is not None
            self.logger = RunLogger(self.folder, log, config, metric_names(self.policy), resume_at)

        self.ranks.from_first(opened)
        beginning, *others = messages
        self.say(f"{beginning}  folder {self.folder}")
        for line in description(self._own_cfg, self.policy, self.collector):
            self.say(line)
        self._connect_envs()
        for line in others:
            self.say(line)
        if self.logger is not None and self.logger.missing:
            self.say(self.logger.missing)
        if self.logger is not None:
            self.logger.write_owner()
            run = TrackedRun(self.folder, config["config"], resume_at, identity={})
            say = _log_and_show(self.logger, self.display)
            self.tracking = Tracking(self.cfg.logger.trackers, self.cfg.logger.freq, run, say, repeats)

    def _connect_envs(self) -> None:
        """Lets the environments report to the log and the display.

        Their callbacks hold no reference to the pipeline. A reference cycle would keep the worker processes
        of a dropped pipeline until the garbage collector runs.
        """
        envs, evaluator_envs = self.collector.envs, self.evaluator.envs
        if self.logger is None:
            say = explain = _to_first(self._lines, self.ranks.rank)
        else:
            say, explain = _log_and_show(self.logger, self.display), self.logger.say
        envs.say = say
        evaluator_envs.say = lambda line: say(f"in evaluation: {line}")
        # Tracebacks of replaced workers go to the log alone.
        envs.explain = evaluator_envs.explain = explain

    def say(self, line: str) -> None:
        """Writes a line to log.txt, and shows it; on rank 0 only, since all ranks say the same."""
        if self.logger is not None:
            _log_and_show(self.logger, self.display)(line)

    def __iter__(self) -> Iterator[Progress]:
        """Trains until a limit is reached or the task is solved; yields after every iteration.

        A ``break`` saves the run, which can then be resumed, and leaves the pipeline open. With several ranks
        it ends the loops of all. The end of the interpreter does the same for a loop that is still open.
        """
        turns = self._turns()
        atexit.register(_close_if_open, weakref.ref(turns))
        return turns

    def _turns(self) -> Generator[Progress, None, None]:
        self._started = time.monotonic()
        self.status = "running"
        try:
            self.hooks.call("before_run", self)
            while not (self.is_over() or self._is_stopped()):
                self.step()
                yield self.progress
            self._conclude()
        except GeneratorExit:
            if self.ranks.size > 1 and not self.is_over():  # the other ranks leave their loops, too
                self._stop_reason = self._stop_reason or f"rank {self.ranks.rank} left the loop"
                self._is_stopped()
            self._conclude()
            raise
        except BaseException as error:
            self._fail(error)
            raise
        self.close()

    def is_over(self) -> bool:
        """Returns whether a limit is reached, or the task is solved."""
        cfg, progress = self.cfg, self.progress
        return bool(
            (progress.solved and not progress.past_solved)
            or progress.env_step >= cfg.max_env_step
            or (cfg.max_train_iter is not None and progress.train_iter >= cfg.max_train_iter)
        )

    def request_stop(self, reason: str) -> None:
        """Requests the run to end at the next iteration boundary; safe to call from a signal handler."""
        self._stop_reason = reason

    def _is_stopped(self) -> bool:
        """Returns whether a rank was requested to stop; a signal does not reach all at the same moment."""
        if self.ranks.size > 1:
            reasons = self.ranks.from_all(self._stop_reason)
            agreed = next(filter(None, reasons), "")
            if agreed:  # else a signal may have set it by now; the next iteration is the last
                self._stop_reason = agreed
            return bool(agreed)
        return bool(self._stop_reason)

    def step(self) -> Progress:
        """Runs one iteration: collects, learns, evaluates and saves where due, and logs the metrics."""
        self.hooks.call("before_iter", self)
        progress = self.progress
        began = time.perf_counter()
        rollout = self.collector.collect()
        collect_seconds = time.perf_counter() - began
        learn_metrics = self.learner.train(rollout)

        of_ranks = self.ranks.from_all(
            Report(
                int(rollout.valid.sum()),
                {
                    **{f"collect/{name}": value for name, value in self.collector.metrics().items()},
                    **{f"learn/{name}": value for name, value in learn_metrics.items()},
                    "time/collect_s": collect_seconds,
                    "time/learn_s": self.learner.seconds,
                },
                self.collector.episodes,
                self._lines[:],
            )
        )
        self._lines.clear()
        new_steps = sum(report.new_steps for report in of_ranks)
        metrics = merged_metrics([report.metrics for report in of_ranks])
        seconds = max(r.metrics["time/collect_s"] + r.metrics["time/learn_s"] for r in of_ranks)
        progress.turn_began = progress.env_step
        progress.env_step += new_steps
        progress.train_iter = self.learner.train_iter
        progress.iteration += 1
        progress.metrics = metrics | {"time/env_steps_per_second": new_steps / seconds}
        for line in (line for report in of_ranks for line in report.lines):
            self.say(line)
        self._check_ranks()
        for finding in self.health.check(progress.metrics, progress.env_step):
            self.say(f"health: {finding}")
        progress.evaluation = None
        episodes = [episode for report in of_ranks for episode in report.episodes]
        if self.is_over() or progress.crossed(self.cfg.policy.eval.eval_freq):
            try:
                self._evaluate()
            except EnvError:  # the iteration is whole without its evaluation
                self._write_row(episodes, rollout)
                raise
        self.hooks.call("after_iter", self)
        # Before the save: every checkpoint has its row.
        self._write_row(episodes, rollout)
        if self.camera.is_due(progress):
            self.ranks.from_first(self._film)
        self._save_due()
        self.display.show(progress, self.cfg.max_env_step)
        return progress

    def _evaluate(self) -> None:
        progress = self.progress
        began = time.perf_counter()
        progress.evaluation, solved = self.scores.evaluate(self.evaluator, progress.iteration)
        progress.solved |= solved
        if self.logger is not None:
            self.logger.say(evaluation_line(progress))
        progress.metrics |= evaluation_metrics(progress.evaluation)
        progress.metrics["time/eval_s"] = time.perf_counter() - began

    def _write_row(self, episodes: Sequence[Episode], rollout: Tree) -> None:
        progress = self.progress
        row = {
            "env_step": progress.env_step,
            "train_iter": progress.train_iter,
            "iteration": progress.iteration,
            **progress.metrics,
            "time/wall_s": self.wall_time,
        }

        def actions() -> Tree:
            return map_tree(lambda leaf: leaf[rollout.valid].cpu().numpy(), rollout.action)

        def written() -> None:
            assert self.logger is not None
            assert self.tracking is not None
            self.logger.write_iteration(progress.env_step, row, episodes)
            self.tracking.write(progress, row, episodes, actions)

        self.ranks.from_first(written)

    def _film(self) -> None:
        """Records an evaluation episode and sends it to the trackers; on rank 0."""
        assert self.tracking is not None
        file = self.camera.film(self.folder / "videos", self.progress, self.policy.eval_mode, self.say)
        if file is not None:
            self.tracking.video(self.progress.env_step, "eval/episode", file)

    def _save_due(self) -> None:
        """Begins to save the checkpoints that are due, after the saves before are finished."""
        keeper, progress, evaluation = self.checkpoints, self.progress, self.progress.evaluation
        self._report_save(finish=evaluation is not None or keeper.is_due(progress, is_best=False))
        best_before = self.scores.best
        is_best = evaluation is not None and self.scores.is_best(evaluation)
        if keeper.is_due(progress, is_best):
            self._best_before_save = best_before
            state = self.state_dict()  # takes all ranks
            self.ranks.from_first(lambda: keeper.begin_due(progress, is_best, state))

    def _report_save(self, finish: bool) -> None:
        """Says it if the last save failed; the best score is then as before it.

        Args:
            finish: whether to wait for a save that is not finished.

        Raises:
            CheckpointError: if it was the last failure that is tolerated.
        """
        try:
            warning = self.ranks.from_first(lambda: self.checkpoints.outcome(finish))
        except DingLiteError:
            self.scores.best = self._best_before_save
            raise
        if warning is not None:
            self.scores.best = self._best_before_save
            self.say(warning)

    def _conclude(self) -> None:
        """Saves a run that has ended in order, and writes its result."""
        if self.is_over():  # even if a stop was requested in the last iteration
            self.status = "solved" if self.progress.solved else "finished"
            self.error = ""
        else:
            self.status = "interrupted"
            self.error = self._stop_reason
        self._report_save(finish=True)
        self.save("last")
        self._write_result()
        for finding in self.health.findings.values():
            self.say(f"health, in this run: {finding}")
        if self.logger is not None:
            self.logger.say(self.summary())
        self.hooks.call("after_run", self)

    def _fail(self, error: BaseException) -> None:
        """Writes the result of a run that an error ended.

        If it was an environment's, the state of the last whole iteration is saved. Otherwise the checkpoints
        stay as they are.
        """
        self.status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        self.ranks.report_failure(error)
        try:
            if self.logger is not None:
                self._finish_save()
                self.checkpoints.dump(error)
                self.error = f"{type(error).__name__}: {error}"
                self.logger.write_traceback(error)
                self.logger.say(self.error)
                if isinstance(error, EnvError):
                    self._save_last_iteration()
                self._write_result()
        except (DingLiteError, OSError) as second_error:
            self.display.say(f"result.json could not be written: {second_error}")
        self.close()

    def _save_last_iteration(self) -> None:
        """Saves the state after the last whole iteration, if no checkpoint has it; with one rank only."""
        newest = max(checkpoints_of(self.folder).values(), default=0)
        if self.ranks.size > 1 or newest >= self.progress.iteration:
            return
        self.save("last")
        self.say(
            f"saved after {self.progress.env_step:,} env steps, at the last whole iteration; to continue: "
            f"{self._command('train --resume')}"
        )

    def _finish_save(self) -> None:
        """Waits for a save, and writes to the log if it fails; the run ends for another reason."""
        try:
            warning = self.checkpoints.outcome(finish=True)
        except CheckpointError as error:
            warning = str(error)
        if warning is not None and self.logger is not None:
            self.scores.best = self._best_before_save
            self.logger.say(warning)

    def _write_result(self) -> None:
        if self.logger is None or self.tracking is None:
            return
        result = {
            "status": self.status,
            **results(self.cfg, self.progress, self.scores, self.wall_time),
            "ranks": self.ranks.size,
            "checkpoint": self.checkpoints.name_of("last"),
            "best_checkpoint": self.checkpoints.name_of("best"),
            "error": self.error or None,
        }
        self.logger.write_result(result)
        self.tracking.result(result)

    def summary(self) -> str:
        """Returns two lines: how the run ended, and the command to type next."""
        progress, last = self.progress, self.scores.last
        evaluation = "" if last is None else f", evaluation {last.mean:.1f} ± {last.std:.1f}"
        command = (
            self._command("train --resume")
            if self.status == "interrupted"
            else self._command("eval", " -n 100")
        )
        return (
            f"{self.status} after {progress.env_step:,} env steps and {self.wall_time:.1f} s{evaluation}\n"
            f"run: {self.folder}   try: {command}"
        )

    def _command(self, arguments: str, options: str = "") -> str:
        """Returns a command about this run as it can be typed."""
        return next_command(arguments, self.folder, self.policy, self.config, options)

    @property
    def wall_time(self) -> float:
        """Seconds of training so far, over all sessions of the run."""
        return self._earlier_wall_time + time.monotonic() - self._started

    def close(self) -> None:
        """Closes environments and files, and restores torch's threads (``own_process``).

        A second call has no effect.
        """
        self._resources.close()
        self.checkpoints.close()
        if self.tracking is not None:
            self.tracking.close()
        if self.logger is not None:
            self.logger.close()

    def save(self, name: str = "last") -> Path:
        """Saves a checkpoint as ``ckpt/<name>`` in the run's folder and returns its path.

        All ranks must call it; rank 0 writes.
        """
        state = self.state_dict()
        return self.ranks.from_first(lambda: self.checkpoints.save(name, state))

    def _stateful_parts(self) -> dict[str, Any]:
        return {
            "policy": self.policy,
            "collector": self.collector,
            "learner": self.learner,
            "progress": self.progress,
            "scores": self.scores,
        }

    def state_dict(self) -> dict[str, Any]:
        """Returns the whole state of the run as a tree; only ``clock`` depends on the machine's speed.

        All ranks must call it. On rank 0 it has the states of all.
        """
        state = {name: part.state_dict() for name, part in self._stateful_parts().items()}
        if of_hooks := self.hooks.state_dict():
            state["hooks"] = of_hooks
        return gathered({**state, "clock": {"wall_time": self.wall_time}}, self.ranks)

    def load_state_dict(self, state: Mapping[str, Any], *, new_episodes: bool = False) -> None:
        """Restores the whole state; the environments continue in the middle of their episodes.

        Args:
            state: from :meth:`state_dict`.
            new_episodes: begin new episodes, since the saved ones do not belong to these environments.

        Raises:
            CheckpointError: if a part is missing or does not fit.
        """
        state, saved_by = of_rank(state, self.ranks)
        new_episodes = new_episodes or saved_by != self.ranks.size
        for name, part in self._stateful_parts().items():
            if name not in state:
                raise CheckpointError(f"the checkpoint has no {name!r}, so no run can be resumed from it")
            options = {"new_episodes": True} if new_episodes and name == "collector" else {}
            try:
                part_state = as_tensors(state[name]) if name == "policy" else state[name]
                part.load_state_dict(part_state, **options)
            except CheckpointError:
                raise
            except Exception as error:  # a forged checkpoint can make any part fail in any way
                raise CheckpointError(
                    f"the checkpoint's {name!r} does not fit: {type(error).__name__}: {error}"
                ) from error
        self.hooks.load_state_dict(state.get("hooks", {}))
        try:
            self._earlier_wall_time = float(state["clock"]["wall_time"])
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"the checkpoint's 'clock' is not complete: {error!r}") from error
        self._saved_by = saved_by
        if saved_by != self.ranks.size:
            self.policy.change_ranks(self.progress.env_step)

    def _check_ranks(self) -> None:
        """Raises RankError if ``policy.check_ranks`` is set and the ranks' parameters differ."""
        if self.ranks.size > 1 and self.cfg.policy.check_ranks:
            found = self.ranks.from_all(digest(self.policy.model.state_dict()))
            others = [rank for rank, checksum in enumerate(found) if checksum != found[0]]
            if others:
                raise RankError(
                    f"policy.check_ranks: after iteration {self.progress.iteration} the parameters of rank "
                    f"{others[0]} differ from those of rank 0. Something changes them beside the optimiser, "
                    "or a loss reaches other parameters on one rank"
                )


class Report(NamedTuple):
    """What a rank tells the others about an iteration."""

    new_steps: int  # valid transitions
    metrics: dict[str, float]
    episodes: list[Episode]
    lines: list[str]  # for the log


def _to_first(lines: list[str], rank: int) -> Callable[[str], None]:
    """Returns a function that keeps a line until the ranks exchange their reports."""
    return lambda line: lines.append(f"rank {rank}: {line}")


def _log_and_show(logger: RunLogger, display: Display) -> Callable[[str], None]:
    """Returns a function that writes a line to log.txt and shows it."""

    def say(line: str) -> None:
        logger.say(line)
        display.say(line)

    return say


def _close_if_open(turns: weakref.ref[Generator[Progress, None, None]]) -> None:
    if (generator := turns()) is not None:
        generator.close()


def serial_pipeline(
    config: AnyConfig,
    seed: int | None = None,
    env_setting: EnvSetting | None = None,
    model: torch.nn.Module | None = None,
    max_train_iter: int | None = None,
    max_env_step: int | None = None,
    *,
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
            display=display,
            own_process=own_process,
        )
        for _ in pipeline:
            pass
        pipeline.display.say(pipeline.summary())
    return pipeline.policy


serial_pipeline_onpolicy = serial_pipeline  # the name that DI-engine's users know
