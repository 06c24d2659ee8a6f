"""The training loop: collect, learn, and at intervals evaluate.

    envs -> Collector -> rollout -> policy.learn_mode
    evaluator_envs -> Evaluator    (beside the loop: never changes training)

Iterating over the pipeline trains, so a script that embeds it controls the loop. The loop over minibatches is
in the policy, so that ``learn_mode.forward(rollout)`` works without a pipeline. The parts that only observe
the run are hooks (:mod:`ding_lite.run.hooks`): its folder, trackers, health and display.

Under ``torchrun``, every rank runs this loop with its share of environments and samples. All take each
gradient step together (:mod:`ding_lite.ranks`); rank 0 writes the run's folder and shows the progress.
"""

from __future__ import annotations

import atexit
import dataclasses
import math
import shlex
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from ding_lite.config.compile import AnyConfig, Config, as_config, differences
from ding_lite.config.registry import HOOK_REGISTRY, SCRIPT, env_name, importing_only
from ding_lite.config.values import encode
from ding_lite.data.episodes import Evaluation
from ding_lite.envs.make import EnvSetting
from ding_lite.envs.space_json import spaces_to_json
from ding_lite.errors import CheckpointError, ContractError, counted, error_text
from ding_lite.policies.base import Policy
from ding_lite.ranks import joined, keep_for_restart
from ding_lite.run.build import build, description, with_env_setting
from ding_lite.run.checkpoint import SNAPSHOT, checkpoints_of, map_state, newest_of_run, on_host
from ding_lite.run.display import display_for, score_text
from ding_lite.run.folder import RunFolder, locked, new_run_folder
from ding_lite.run.health import HealthCheck
from ding_lite.run.hooks import Hook
from ding_lite.run.load import as_tensor, refuse_without, refusing, warm_start
from ding_lite.run.progress import VALUES, Progress
from ding_lite.run.resume import (
    FREE,
    NOT_BIT_EQUAL,
    changed_config,
    config_of,
    folder_of,
    schedules_from_here,
)
from ding_lite.run.signals import stop_signals
from ding_lite.run.trackers import TrackedRun, Trackers


class SerialPipeline:
    """Builds the parts of a run from a config, and trains iteration by iteration.

    A ``with`` block closes the pipeline at its end, whatever ends it; :meth:`close` does so, too.

    Until :meth:`close` torch uses the CPU threads of the key ``num_threads``, and NumPy uses one.

    Args:
        config: a dict, a file, the name of a shipped config, a compiled config, or DI-engine's
            ``(main_config, create_config)``.
        seed: replaces the config's seed.
        env_setting: ``(make, collector_cfgs, evaluator_cfgs)``: one environment ``make(cfg)`` for each cfg,
            used instead of the environments that the config describes.
        model: trained as it is, instead of a model built from the config; its values are raw returns.
        max_train_iter, max_env_step: stop at the first iteration boundary at or past these limits.
        folder: folder of the run, which must not exist, unless its run ended before its first checkpoint.
            If None, ``runs/<exp_name>``, with a suffix ``_2``, ``_3``, ... if that exists.
        init_from: a run (its best checkpoint), a checkpoint, or a file of weights that the run starts with.
        trust: your own modules that the checkpoint at ``policy.learn.pretrained_model_path`` may import, in
            addition to the modules that the config names.
        display: a hook that shows the progress. If None, nothing is shown.

    Attributes:
        config: the compiled config, with the source of each value; ``cfg`` has its values.
        given: what a script passed in place of parts of the config: "env_setting", "model".
        policy, collector, evaluator: the parts of the loop; ``evaluator`` is None without environments to
            evaluate on.
        progress: counters of the run, the results of its last iteration, and its evaluations.
        hooks: the hooks of the config, by their names.
        ranks: the processes that train this run together.
        folder: folder of the run.
        files: the hook that writes the folder, on rank 0; None on other ranks.
        status: "running", "solved", "finished", "interrupted" or "failed".
        stop_reason: why the run ends before its limits; "" if it does not.
        error: the exception that ended the run, or None.

    Raises:
        ConfigError: for any fault of the config, before an environment steps.
        EnvError: if the environments cannot be made.
        CheckpointError: if the weights to start with do not fit. None of these errors leaves a folder.
    """

    def __init__(
        self,
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
        display: Hook | None = None,
    ) -> None:
        changes = {"seed": seed, "init_from": None if init_from is None else str(init_from)}
        config = as_config(config).replaced({key: x for key, x in changes.items() if x is not None})
        config = config.limited({"max_train_iter": max_train_iter, "max_env_step": max_env_step})
        config = dataclasses.replace(config, trusted=(*config.trusted, *trust))
        with ExitStack() as undo:
            self.ranks = undo.enter_context(joined())
            self._build(undo, config, env_setting, model)
            lines = list(config.notes)
            if self.cfg.init_from is not None:
                lines += warm_start(self.policy, self.cfg.init_from)
            lines += schedules_from_here(self.policy, self.cfg.max_env_step)
            if steps := self.policy.warm_up_steps:
                stream = self.ranks.stream
                self.policy.warm_up(self.collector.random_observations(steps, self.cfg.seed, *stream))
            place = Path("runs", self.cfg.exp_name) if folder is None else Path(folder)
            with ExitStack() as new:  # removes the folder after an error
                is_named = folder is not None
                self.folder = self.ranks.from_first(lambda: new_run_folder(place, is_named, lines, new))
                self.ranks.from_first(lambda: undo.enter_context(locked(self.folder)))
                self._open(undo, display, uuid.uuid4().hex[:12], None, lines)
                new.pop_all()
            self._resources = undo.pop_all()

    @classmethod
    def resume(
        cls,
        run: str | Path,
        *,
        changes: Mapping[str, Any] | None = None,
        max_train_iter: int | None = None,
        max_env_step: int | None = None,
        override: bool = False,
        env_setting: EnvSetting | None = None,
        model: torch.nn.Module | None = None,
        display: Hook | None = None,
        trust: Sequence[str] = (),
    ) -> SerialPipeline:
        """Returns the pipeline of a saved run, ready to continue from its checkpoint.

        Args:
            run: a run's folder, whose newest undamaged checkpoint is used, or one of its checkpoints.
            changes: of the saved config, such as ``{"max_env_step": 500_000}``, which also stretches the
                schedules; :mod:`ding_lite.run.resume` says which are possible.
            max_train_iter, max_env_step: stop here; the schedules keep their length.
            override: begin new episodes, and apply also the changes that do not fit the saved state.
            env_setting, model, display: as for a new pipeline.
            trust: modules of the user, which are imported before the saved config is read.

        Raises:
            CheckpointError: if there is no checkpoint, or it does not fit.
            ConfigError: if a change is refused, or another pipeline writes to the run's folder.
        """
        self = cls.__new__(cls)
        with ExitStack() as undo, ExitStack() as building:
            self.folder = folder_of(Path(run))
            self.ranks = undo.enter_context(joined())
            # The folder is locked before its checkpoints are read.
            self.ranks.from_first(lambda: undo.enter_context(locked(self.folder)))
            checkpoint, lines = newest_of_run(Path(run))
            file, state, saved = checkpoint
            limits = {"max_train_iter": max_train_iter, "max_env_step": max_env_step}
            old = config_of(checkpoint, trust)
            config, changed, change_lines = changed_config(old, changes or {}, limits, override)
            building.enter_context(importing_only(config.trusted))
            refuse_without(checkpoint, env_setting=env_setting, model=model)
            self._build(undo, config, env_setting, model)
            with refusing("the saved state does not fit"):
                lines += change_lines + self.load_state_dict(state, new_episodes=override)
            lines += schedules_from_here(self.policy, self.cfg.max_env_step)
            if "env.stop_value" in changed:
                self.progress.solved = False
            if self.progress.solved:
                lines.append("the run is solved: it takes no step; env.stop_value=None lets it go on")
            elif self.is_over():
                lines.append("the run is at a limit, a total: it takes no step; a higher limit lets it go on")
            if "env.max_eval_steps" in changed or any(
                key.startswith("env.") and effect != FREE for key, effect in changed.items()
            ):
                self.progress.best_eval_value = None  # the saved returns are of another task
            begins = f"resumed from {file} at {self.progress.env_step:,} env steps"
            self._former = dict(saved.get("former", {}))
            for key, before, _ in differences(old.values, config.values):
                if changed.get(key, FREE) != FREE:
                    name = f"{key} before"
                    self._former[name] = [*self._former.get(name, []), repr(before)]
            self._open(undo, display, str(saved.get("id")), self.progress.env_step, [begins, *lines])
            if self.ranks.from_first(lambda: self.files.checkpoints.remove_after(self.progress.iteration)):
                self.progress.best_eval_value = None
                self.say("ckpt/best was saved after this checkpoint: it is removed")
            if changed or file.stem != "last":
                self.save()  # else an interruption before the next save would lose the changes
            self._resources = undo.pop_all()
        return self

    def _build(
        self, undo: ExitStack, config: Config, env_setting: EnvSetting | None, model: torch.nn.Module | None
    ) -> None:
        """Builds all parts of the run but its folder. A checkpoint does not contain what a script passed."""
        passed = {"env_setting": env_setting, "model": model}
        self.given = [name for name, value in passed.items() if value is not None]
        self.config, self.cfg = config, with_env_setting(config.values, env_setting)
        self.policy, self.collector, self.evaluator = build(config, self.cfg, self.ranks, model, undo)
        self.progress = Progress()
        choices = HOOK_REGISTRY.named_choices(self.cfg.hooks)
        self.hooks: dict[str, Hook] = {name: cls(**arguments) for name, cls, arguments in choices}
        self._all_hooks = [*self.hooks.values()]
        self._former: dict[str, list[str]] = {}  # earlier values of keys that a resumed run has changed
        self._stateful: dict[str, Any] = {n: x for n, x in self.hooks.items() if hasattr(x, "state_dict")}
        self.files: Any = None  # a RunFolder on rank 0
        # The value of --import that a command needs for each module of the user; a notebook has none.
        self._imports = {module: _import_value(module) for module in config.trusted if module != SCRIPT}
        self.status, self.stop_reason = "running", ""
        self.error: BaseException | None = None
        self._saved_time = time.monotonic()
        self._is_learning = False  # True: the weights belong to no number of env steps

    def _open(
        self, undo: ExitStack, display: Hook | None, run_id: str, resume_at: int | None, lines: list[str]
    ) -> None:
        """Opens the run's folder, which ``undo`` closes, and adds the library's hooks, on rank 0."""
        if self.ranks.is_first:
            cfg, policy = self.cfg, self.policy
            weights = sum(tensor.numel() for tensor in policy.model.state_dict().values())
            spaces = spaces_to_json(weights, obs=policy.obs_space, action=policy.action_space)
            maps = [action_map.as_json() for action_map in policy.action_maps]
            others = {"spaces": spaces, "action_maps": maps, "given": self.given, "id": run_id}
            parts = {"env_setting": env_name(cfg.env), "model": type(policy.model).__name__}
            # `compare` groups runs by their configs, which say nothing about the parts of a script.
            others["former"] = self._former | {name: [parts[name]] for name in self.given}
            saved = {**self.config.as_json(), **others, "imports": self._imports}
            tracked = TrackedRun(self.folder.absolute(), saved["config"], resume_at, run_id)
            trackers = Trackers(cfg.logger.trackers, cfg.logger.freq, tracked)
            self.files = RunFolder(self.folder, saved, cfg.checkpoint.keep, resume_at)
            undo.callback(self.files.close)
            self._all_hooks += [HealthCheck(), self.files, trackers, display or Hook()]
            keep_for_restart(str(self.folder.absolute()))
            # The tracebacks of replaced workers go to log.txt only.
            self.collector.envs.explain = self.files.say
        if self.evaluator is not None:
            self.evaluator.envs.say = lambda line: self.say(f"in evaluation: {line}")
            self.evaluator.envs.explain = self.collector.envs.explain
        self.collector.envs.say = self.say  # last: both may be the same environments
        given = [f"a script passes {x}: the keys of the config for it have no effect" for x in self.given]
        lines = [f"run {self.folder}", *given, *lines]
        for line in lines + description(self.config, env_name(self.cfg.env), self.policy, self.collector):
            self.say(line)

    def say(self, line: str) -> None:
        """Passes a line to all hooks; only rank 0 has the hooks that write it to log.txt and show it."""
        for hook in self._all_hooks:
            hook.say(line)

    def _call(self, method: str) -> None:
        """Calls a method of all hooks: those of the config first; at the end of the run in reverse order."""
        for hook in reversed(self._all_hooks) if method == "after_run" else self._all_hooks:
            getattr(hook, method)(self)

    def __iter__(self) -> Iterator[Progress]:
        """Trains until a limit is reached or the task is solved; yields after every iteration.

        A ``break`` saves the run and closes the pipeline; :meth:`resume` continues it. With several ranks,
        all leave the loop after the same iteration.

        The first Ctrl-C, or SIGTERM, lets the iteration end, saves the run, and is then delivered to
        the program's own handler, which by default raises KeyboardInterrupt. A second Ctrl-C stops at once.

        Raises:
            ContractError: if the run has ended before its limits and must be resumed.
        """
        if self.status != "running":
            if self.is_over():
                return
            raise ContractError(f"this run has ended: SerialPipeline.resume({str(self.folder)!r}) goes on")
        deliver_signal = self._resources.enter_context(stop_signals(self.request_stop))
        atexit.register(self.finish)  # a script may exit within the loop
        self._resources.callback(atexit.unregister, self.finish)
        try:
            self._call("before_run")
            while not (self.is_over() or self._is_asked_to_stop()):
                yield self.step()
            self.finish()
        except BaseException as error:  # a loop that is left by ``break`` gets GeneratorExit
            self.finish(error)
            raise
        if self.status == "interrupted":
            deliver_signal()

    def is_over(self) -> bool:
        """Returns whether a limit is reached, or the task is solved."""
        progress, max_train_iter = self.progress, self.cfg.max_train_iter
        has_learned = max_train_iter is not None and progress.train_iter >= max_train_iter
        return progress.solved or has_learned or progress.env_step >= self.cfg.max_env_step

    def request_stop(self, reason: str) -> None:
        """Requests the run to end after the iteration, with a reason; safe to call from a signal handler."""
        self.stop_reason = self.stop_reason or reason

    def _is_asked_to_stop(self) -> bool:
        """Returns whether any rank is requested to stop: a signal does not reach all at the same moment."""
        reasons = [*filter(None, self.ranks.from_all(self.stop_reason))]
        if reasons:  # otherwise a signal may set it now: the next iteration is then the last
            self.stop_reason = reasons[0]
        return bool(reasons)

    def step(self) -> Progress:
        """Runs one iteration: collects, learns, evaluates and saves where due, and logs the metrics."""
        progress, timer = self.progress, self.policy.timer
        began, cpu_began = time.monotonic() - progress.wall_time, time.process_time()
        self._call("before_iter")
        rollout = self.collector.collect()
        self._is_learning = True
        timer("updates")
        learned = self.policy.learn_mode.forward(rollout)
        timer("other")
        if not (isinstance(learned, Mapping) and "updates" in learned):
            raise ContractError(f"_forward_learn returned no 'updates', its optimiser steps: {learned!r:.80}")
        metrics = {
            **{f"collect/{name}": value for name, value in self.collector.metrics().items()},
            **{f"learn/{name}": value for name, value in learned.items()},
            **{f"time/{phase}_s": seconds for phase, seconds in timer.take().items()},
            "time/cpu_s": time.process_time() - cpu_began,
        }
        turn = int(rollout.valid.sum()), int(learned["updates"]), metrics, self.collector.episodes
        progress.advance(self.ranks.from_all(turn))
        self._is_learning = False
        is_due = self.is_over() or progress.crossed(self.cfg.policy.eval.eval_freq)
        if is_due and self.evaluator is not None:
            timer("eval")
            progress.evaluate(self.evaluator, self.cfg.env.stop_value)
            timer("other")
            progress.metrics["time/eval_s"] = timer.seconds.pop("eval")
            if progress.evaluation is not None:
                self.say(self._line_about(progress.evaluation))
        progress.wall_time = progress.metrics["time/wall_s"] = time.monotonic() - began
        self._call("after_iter")
        self._save_what_is_due()  # last, so that every checkpoint has its row
        progress.wall_time = time.monotonic() - began
        return dataclasses.replace(progress)

    def _line_about(self, evaluation: Evaluation) -> str:
        progress, episodes = self.progress, counted(len(evaluation.returns), "episode")
        score = score_text(evaluation.mean, evaluation.std)
        line = f"{progress.env_step:>9,} steps  evaluation {score} over {episodes}"
        if "eval/is_success" in progress.metrics:
            line += f"  success {progress.metrics['eval/is_success']:.0%}"
        if evaluation.cut_short:
            line += f"  ({evaluation.cut_short} cut short)"
        return line + ("  solved" if progress.solved else "")

    def _save_what_is_due(self) -> None:
        progress, due = self.progress, self.cfg.checkpoint
        next_save = self._saved_time + 60 * (due.minutes or math.inf)
        is_late = self.ranks.from_first(lambda: time.monotonic() > next_save)
        names = ["best"] if progress.update_best() else []
        names += [f"{SNAPSHOT}{progress.iteration:08d}"] if progress.crossed(due.keep_freq) else []
        # With each of them, since a resumed run begins from "last" and deletes newer checkpoints.
        names += ["last"] if names or is_late or progress.crossed(due.freq) else []
        if names:
            self._save(names)

    def save(self, name: str = "last") -> Path:
        """Saves ``ckpt/<name>.safetensors`` in the run's folder, and returns its path when it is written.

        All ranks must call it; rank 0 writes.

        Raises:
            CheckpointError: if it cannot be written, or if the last iteration did not end.
        """
        self._save([name], wait=True)
        return self.folder / "ckpt" / f"{name}.safetensors"

    def _save(self, names: Sequence[str], wait: bool = False) -> None:
        state = self.state_dict()  # of all ranks
        self.ranks.from_first(lambda: self.files.checkpoints.save(names, state, wait))
        if "last" in names:
            self.progress.saved_at, self._saved_time = self.progress.iteration, time.monotonic()

    def finish(self, error: BaseException | None = None) -> None:
        """Ends the run: saves it, writes its result, and closes all its parts. A second call has no effect.

        The last whole iteration is saved, except after an error in learning, a second Ctrl-C, or, with
        several ranks, an error of one.

        Args:
            error: the exception that ends the run; GeneratorExit is no error.
        """
        if self.status != "running":
            return
        stopped = error is None or isinstance(error, GeneratorExit)
        at_once = isinstance(error, (KeyboardInterrupt, SystemExit))
        self.error = None if stopped else error
        if stopped and self.is_over():
            self.status = "solved" if self.progress.solved else "finished"
        else:
            self.status = "interrupted" if stopped or at_once else "failed"
        is_new = self.progress.iteration > self.progress.saved_at
        with self._resources:
            try:
                if is_new and not (self._is_learning or at_once) and (stopped or self.ranks.size == 1):
                    self._save(["last"], wait=True)
                if self.files is not None:
                    self.files.checkpoints.wait()
            except BaseException as second:  # the first error counts
                self.status, self.error = "failed", self.error or second
                if stopped:
                    raise
                self.say(f"the last iteration could not be saved: {error_text(second)}")
            finally:
                self.say(self.summary())
                self._call("after_run")

    def close(self) -> None:
        """Ends the run if it has not ended, and closes environments and files; see :meth:`finish`."""
        self.finish()

    def __enter__(self) -> SerialPipeline:
        """Returns the pipeline, which the end of the ``with`` block closes."""
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, Exception) and self.status == "interrupted":
            # Python has closed the iterator of the loop first, to which an error is like a ``break``.
            self.status, self.error = "failed", error
            if self.files is not None:
                self.files.after_run(self)
        self.finish(error)
        if error is None and isinstance(self.error, CheckpointError):  # a ``break`` does not raise it
            raise self.error

    def result(self) -> dict[str, Any]:
        """Returns the results of the run for result.json; a value that was not measured is None."""
        progress, wall_time = self.progress, self.progress.wall_time
        checkpoints = {file.stem: f"ckpt/{file.name}" for file in checkpoints_of(self.folder)}
        error = self.stop_reason if self.error is None else f"{type(self.error).__name__}: {self.error}"
        return {
            "status": self.status,
            **{name: getattr(progress, name) for name in ("solved", *VALUES, "env_step", "train_iter")},
            "iterations": progress.iteration,
            "wall_time_s": wall_time,
            "env_steps_per_second": progress.env_step / wall_time if wall_time else None,
            "seed": self.cfg.seed,
            "policy": encode(self.cfg.policy.type, "policy.type"),
            "env_id": env_name(self.cfg.env),
            "checkpoint": checkpoints.get("last"),
            "best_checkpoint": checkpoints.get("best"),
            "error": None if self.status in ("solved", "finished") else error or None,
        }

    def summary(self) -> str:
        """Returns two lines: how the run ended, and the command to type next."""
        progress, mean = self.progress, self.progress.eval_value
        why = f" ({self.stop_reason})" if self.status == "interrupted" and self.stop_reason else ""
        done = f"{progress.env_step:,} env steps and {progress.wall_time:.1f} s"
        evaluation = "" if mean is None else f", evaluation {score_text(mean, progress.eval_value_std)}"
        run, goes_on = str(self.folder), self.status in ("interrupted", "failed")
        ended = f"{self.status}{why} after {done}{evaluation}\nrun: {run}"
        if goes_on and not checkpoints_of(self.folder):
            return ended
        if SCRIPT in self.config.trusted or self.given:  # no command has the parts of a notebook or script
            call = "SerialPipeline.resume" if goes_on else "load_policy"
            parts = "".join(f", {name}=..." for name in self.given if goes_on or name == "model")
            return f"{ended}   try: {call}({run!r}{parts}) in the notebook, shell or script with its classes"
        words = ["train", "--resume", run] if goes_on else ["eval", run, "-n", "100"]
        words += [word for module in self._imports.values() for word in ("--import", module)]
        return f"{ended}   try: {shlex.join(['ding-lite', *words])}"

    def state_dict(self) -> dict[str, Any]:
        """Returns the whole state of the run as a tree; only ``wall_time`` depends on the machine's speed.

        All ranks must call it. On rank 0 it contains the states of all ranks.

        Raises:
            CheckpointError: if the last iteration did not end.
        """
        if self._is_learning:
            raise CheckpointError("the last iteration did not end: resume the run from its checkpoints")
        parts = {name: getattr(self, name) for name in ("policy", "progress", "collector", "evaluator")}
        state = {name: {} if part is None else part.state_dict() for name, part in parts.items()}
        state["hooks"] = {name: dict(hook.state_dict()) for name, hook in self._stateful.items()}
        others = self.ranks.to_first(map_state(on_host, state))[1:] if self.ranks.size > 1 else []
        return {**state, "ranks": others, "wall_time": self.progress.wall_time}

    def load_state_dict(self, state: Mapping[str, Any], *, new_episodes: bool = False) -> list[str]:
        """Restores the whole state; the environments continue in the middle of their episodes.

        Args:
            state: from :meth:`state_dict`.
            new_episodes: begin new episodes, and forget stored rollouts, since the saved ones do not belong
                to these environments.

        Returns:
            at most one line for the user: why the open episodes are lost.

        Raises:
            Exception: of any kind, if a part is missing or does not fit.
        """
        ranks, of_ranks = self.ranks, [state, *state["ranks"]]
        if len(of_ranks) != ranks.size:
            raise CheckpointError(
                f"number of ranks {len(of_ranks)} -> {ranks.size}: resume the run with the old number "
                "(torchrun --nproc-per-node), or begin a new one from its weights (--init-from)"
            )
        self.progress.wall_time = float(state["wall_time"])
        state = of_ranks[ranks.rank]
        self.policy.load_state_dict(map_state(as_tensor, state["policy"]))
        self.progress.load_state_dict(state["progress"])
        lost = self.collector.load_state_dict(state["collector"], new_episodes=new_episodes)
        if self.evaluator is not None:
            self.evaluator.load_state_dict(state["evaluator"])
        for name, hook in self._stateful.items():
            if name in state["hooks"]:
                hook.load_state_dict(state["hooks"][name])
        if lost:
            self.policy.forget_open_episodes()
        if new_episodes:
            self.policy.forget_stored()
        mark = "" if new_episodes else "WARNING: "  # a warning if the user has not asked for it
        reasons = filter(None, ranks.from_all(lost))
        return [f"{mark}{why}. The run goes on with new episodes: {NOT_BIT_EQUAL}" for why in reasons][:1]


def _import_value(module: str) -> str:
    """Returns the value of --import for a module: its name, or its file outside of the working directory."""
    file, here = Path(getattr(sys.modules.get(module), "__file__", None) or module), Path.cwd()
    if "." in module or file.suffix != ".py" or file.parent == here or "site-packages" in file.parts:
        return module
    return str(file.relative_to(here) if file.is_relative_to(here) else file)


def serial_pipeline(
    config: AnyConfig,
    seed: int | None = None,
    env_setting: EnvSetting | None = None,
    model: torch.nn.Module | None = None,
    max_train_iter: int | None = None,
    max_env_step: int | None = None,
    **options: Any,
) -> Policy:
    """Trains a run to its end, shows the progress, and returns the policy.

    The arguments are those of :class:`SerialPipeline`.
    """
    options = {"display": display_for(sys.stdout), **options}
    pipeline = SerialPipeline(config, seed, env_setting, model, max_train_iter, max_env_step, **options)
    for _ in pipeline:
        pass
    return pipeline.policy


serial_pipeline_onpolicy = serial_pipeline  # the name that DI-engine's users know
