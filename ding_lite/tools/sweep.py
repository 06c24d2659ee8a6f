"""A sweep: searches the values of config keys that give the highest score, with Optuna.

A trial trains one set of values with each seed; its score is the mean of the seeds' last evaluations. Trials
that stay behind the others at their evaluations are pruned. The folder of a sweep has:

sweep.db      Optuna's storage (SQLite)      trial_000_s0/ ...  one run folder for each trial and seed
sweep.json    what is searched               best.py            the best config; it can be trained
log.txt       messages, with times           sweep.png          history and importance

Everything that a sweep needs to continue is in its storage and its run folders, so one that was killed
continues: open trials are resumed from the checkpoints of their runs.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from ding_lite.config.compile import DERIVED, Config, differences
from ding_lite.config.schema import leaves
from ding_lite.config.values import decode
from ding_lite.errors import CheckpointError, ConfigError
from ding_lite.rl.seeding import integer_seed
from ding_lite.run.checkpoint import checkpoints_of, write_whole
from ding_lite.run.display import score_text
from ding_lite.run.folder import is_locked, locked
from ding_lite.tools.runs import SWEEP_FILE, short_names
from ding_lite.tools.search import SearchSpace, Values
from ding_lite.tools.several import Crew, Training

try:
    import optuna
    from optuna.trial import TrialState
except ImportError as error:
    raise ConfigError('a sweep needs Optuna: pip install "ding_lite[sweep]"') from error

STUDY = "sweep"  # its name in the storage
STARTUP_TRIALS = 5  # trials that must have ended before one is pruned
WARM_UP = 0.2  # part of the longest complete trial, before which a trial is not pruned
SECONDS_TO_FREE = 30.0  # for runs of a sweep that was killed to save and end
STATES = {
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
    TrialState.RUNNING: "open",
    TrialState.WAITING: "open",
}


@dataclass
class Trial:
    """One set of values, with a run for each seed.

    Attributes:
        number: of the trial.
        runs: one for each seed.
        reported: evaluations that Optuna knows, by their env steps.
        ending: "" while it goes on, else "pruned" or "failed".
    """

    number: int
    optuna: optuna.Trial
    runs: list[Training]
    reported: set[int] = field(default_factory=set)
    ending: str = ""


class Sweep:
    """Searches; :meth:`run` does the work.

    Args:
        folder: of the sweep.
        config: that the values are laid over.
        space: keys and their values.
        seeds: that each trial trains with.
        arguments: of ``ding-lite`` that train the config, beginning with ``train``.
        crew: trains the runs.
        resume: continue the sweep in ``folder``.

    Raises:
        ConfigError: if the folder exists (is missing, with ``resume``), belongs to a sweep of something else,
            or is in use.
    """

    def __init__(
        self,
        folder: Path,
        config: Config,
        space: SearchSpace,
        seeds: Sequence[int],
        arguments: Sequence[str],
        crew: Crew,
        *,
        resume: bool = False,
    ) -> None:
        self.folder = folder
        self.config = config
        self.space = space
        self.seeds = tuple(seeds)
        self.arguments = list(arguments)
        self._crew = crew
        self._log = self._open_folder(resume)
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        optuna.logging.disable_propagation()
        storage = optuna.storages.RDBStorage(f"sqlite:///{folder.absolute() / 'sweep.db'}")
        self.study = optuna.create_study(
            study_name=STUDY, storage=storage, direction="maximize", load_if_exists=True
        )
        # Another stream after each interruption: the same one would propose the first values again.
        seed = integer_seed(config.values.seed, "sweep", len(self.trials()))
        self.study.sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
        self.study.pruner = optuna.pruners.MedianPruner(n_startup_trials=STARTUP_TRIALS)
        self._open: dict[str, Trial] = {}  # by the names of their runs

    def trials(self) -> list[optuna.trial.FrozenTrial]:
        """Returns all trials, in their order."""
        return self.study.get_trials(deepcopy=False)

    def values_of(self, trial: optuna.trial.FrozenTrial) -> dict[str, Any]:
        """Returns the values of the keys in a trial."""
        return {key: self._value(key, trial.params[key]) for key in self.space if key in trial.params}

    def _value(self, key: str, stored: Any) -> Any:
        values = self.space[key]
        return values.labels()[stored] if values.choices else stored

    # ------------------------------------------------------------------ the folder

    def _open_folder(self, resume: bool) -> TextIO:
        file = self.folder / SWEEP_FILE
        searched = {
            "search": {key: str(values) for key, values in self.space.items()},
            "seeds": list(self.seeds),
            **self.config.as_json(),
        }
        if resume:
            try:
                saved = json.loads(file.read_bytes())
            except (OSError, ValueError) as error:
                raise ConfigError(f"--resume: {self.folder} is not the folder of a sweep: {error}") from error
            self._refuse_changes(saved, searched)
            return self._claimed()
        if "?" in str(self.folder.absolute()):
            raise ConfigError(
                f"sweep folder {self.folder}: SQLite takes no '?' in a path; choose another name"
            )
        try:
            self.folder.mkdir(parents=True)
        except FileExistsError as error:
            raise ConfigError(
                f"sweep folder {self.folder} exists; choose another --exp-name, continue the sweep with "
                "--resume, or remove the folder"
            ) from error
        except OSError as error:
            raise ConfigError(f"sweep folder {self.folder} cannot be created: {error}") from error
        log = self._claimed()
        write_whole(file, json.dumps(searched, indent=2) + "\n")
        return log

    def _claimed(self) -> TextIO:
        self._files = ExitStack()
        self._files.enter_context(locked(self.folder))
        return self._files.enter_context(open(self.folder / "log.txt", "a"))

    def _refuse_changes(self, saved: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
        saved, asked = decode(saved), decode(asked)
        changes = [
            f"{path.removeprefix('config.')}: {old!r} -> {new!r}"
            for path, old, new in differences(_compared(saved, asked), _compared(asked, saved))
        ]
        if changes:
            raise ConfigError(
                "\n  ".join([f"the sweep in {self.folder} searches something else:", *changes])
                + "\nRepeat its command with --resume; only --trials, --jobs and --ray may differ"
            )

    def _say(self, text: str) -> None:
        """Shows a line, and writes it to log.txt."""
        self._crew.board.say(text)
        self._log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {text}\n")
        self._log.flush()

    def close(self) -> None:
        """Releases the folder."""
        self._files.close()

    # ------------------------------------------------------------------ the search

    def run(self, trials: int) -> None:
        """Searches until there are ``trials`` trials in all, or the crew is stopped; open trials first."""
        states = [STATES[trial.state] for trial in self.trials()]
        if states:
            is_open = states.count("open")
            more = f", {is_open} open" if is_open else ""
            self._say(f"{len(states) - is_open} of {max(trials, len(states))} trials are done{more}")
        self._crew.train(self._runs(trials), self._on_evaluation, self._on_end)

    def _runs(self, trials: int) -> Iterator[Training]:
        """Yields the runs of open trials, then those of new ones; a trial that has ended starts no more."""
        for frozen in self.trials():
            if not frozen.state.is_finished():
                yield from self._runs_of(optuna.Trial(self.study, frozen._trial_id))
        while len(self.trials()) < trials:
            yield from self._runs_of(self.study.ask())

    def _runs_of(self, trial: optuna.Trial) -> Iterator[Training]:
        # An open trial keeps the values that it has.
        values = {key: self._value(key, _suggested(trial, key, self.space[key])) for key in self.space}
        runs = [self._training(trial.number, seed, values) for seed in self.seeds]
        reported = set(self.trials()[trial.number].intermediate_values)
        opened = Trial(trial.number, trial, runs, reported)
        self._open |= {run.name: opened for run in runs}
        self._say(f"trial {trial.number}: {assignments(values)}")
        for run in runs:
            if not opened.ending:
                yield run

    def _training(self, number: int, seed: int, values: Mapping[str, Any]) -> Training:
        folder = self.run_folder(number, seed)
        if folder.exists():
            _wait_until_free(folder)
        if checkpoints_of(folder):
            option = "--resume"
        else:  # killed before its first checkpoint
            shutil.rmtree(folder, ignore_errors=True)
            option = "--exp-name"
        overrides = [f"{key}={value!r}" for key, value in values.items()]
        arguments = [*self.arguments, *overrides, "-s", str(seed), option, str(folder)]
        name = f"trial {number}, seed {seed}"
        return Training(name, seed, folder, arguments, self.config.values.max_env_step)

    def _on_evaluation(self, run: Training) -> None:
        """Reports to Optuna what all seeds of the trial that have started have reached; prunes the trial."""
        trial = self._open[run.name]
        freq = self.config.values.policy.eval.eval_freq or 1
        started = [other for other in trial.runs if other.status != "not started"]
        for step in sorted({at // freq * freq for at, _ in run.evaluations} - trial.reported):
            values = [_value_at(other, step, freq) for other in started]
            known = [value for value in values if value is not None]
            if trial.ending or len(known) < len(started):
                return
            trial.reported.add(step)
            trial.optuna.report(sum(known) / len(known), step)
            is_over = all(other.code is not None for other in trial.runs)
            if not is_over and step >= self._warm_up() and trial.optuna.should_prune():
                self._end(trial, "pruned")

    def _warm_up(self) -> float:
        """Returns the env step before which no trial is pruned; runs may be limited by other units."""
        lengths = (trial.last_step for trial in self.ranked())
        return WARM_UP * max((length for length in lengths if length is not None), default=0)

    def _end(self, trial: Trial, ending: str) -> None:
        trial.ending = ending
        for run in trial.runs:
            run.stop("SIGTERM", ending if ending == "pruned" else "")

    def _on_end(self, run: Training) -> None:
        trial = self._open[run.name]
        if run.is_complete and run.score is None:
            run.error = "it has no evaluation with a finite mean return"
        if run.score is None and run.status != "pruned" and not self._crew.stopped_by:
            self._end(trial, "failed")
        if any(other.is_running for other in trial.runs) or self._crew.stopped_by:
            return  # a stopped trial stays open, so that it is continued
        scores = [other.score for other in trial.runs if other.score is not None]
        if len(scores) == len(trial.runs):
            self.study.tell(trial.number, sum(scores) / len(scores))
            self._say(f"trial {trial.number}: score {score_text(sum(scores) / len(scores))}")
        elif trial.ending:
            state = TrialState.PRUNED if trial.ending == "pruned" else TrialState.FAIL
            self.study.tell(trial.number, state=state)
            errors = [other.error for other in trial.runs if other.error]
            self._say(f"trial {trial.number}: {': '.join([trial.ending, *errors[:1]])}")

    def ranked(self) -> list[optuna.trial.FrozenTrial]:
        """Returns the complete trials, that with the highest score first."""
        complete = [trial for trial in self.trials() if trial.state == TrialState.COMPLETE]
        return sorted(complete, key=lambda trial: -float(trial.value or 0.0))

    def best(self) -> optuna.trial.FrozenTrial | None:
        """Returns the trial with the highest score; None if no trial is complete."""
        return next(iter(self.ranked()), None)

    def run_folder(self, number: int, seed: int) -> Path:
        """Returns the folder of the run of a trial with a seed."""
        return self.folder / f"trial_{number:03}_s{seed}"


def _compared(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what a sweep searches, as its file has it, for a comparison with that of another one.

    Keys of the config that no user wrote and that the other one lacks are left out: another version of the
    library does not have them.
    """
    known, source = dict(leaves(other["config"])), one.get("source", {})
    config = {
        path: value
        for path, value in leaves(one["config"])
        if path in known or source.get(path) not in DERIVED
    }
    return {"search": one["search"], "seeds": one["seeds"], "config": config}


def assignments(values: Mapping[str, Any]) -> str:
    """Returns values as text, with short names of the keys: "learning_rate=0.001, batch_size=64"."""
    names = short_names(values)
    texts = (
        f"{names[key]}={f'{value:.3g}' if isinstance(value, float) else value}"
        for key, value in values.items()
    )
    return ", ".join(texts)


def _value_at(run: Training, step: int, freq: int) -> float | None:
    """Returns the last evaluation that was due up to ``step``; None if the run has not come so far.

    A run that has ended before keeps its last evaluation.
    """
    due = [(at // freq * freq, value) for at, value in run.evaluations]
    has_come = run.code is not None or any(at >= step for at, _ in due)
    return next((value for at, value in reversed(due) if at <= step), None) if has_come else None


def _suggested(trial: optuna.Trial, key: str, values: Values) -> Any:
    """Returns Optuna's value of a key, as its storage has it."""
    if values.kind == "choice":
        return trial.suggest_categorical(key, list(values.labels()))
    if values.kind == "int":
        return trial.suggest_int(key, int(values.low), int(values.high))
    return trial.suggest_float(key, values.low, values.high, log=values.kind == "log")


def _wait_until_free(folder: Path) -> None:
    """Waits for a run whose sweep was killed to save and end.

    Raises:
        CheckpointError: if it still runs after ``SECONDS_TO_FREE``.
    """
    deadline = time.monotonic() + SECONDS_TO_FREE
    while is_locked(folder):
        if time.monotonic() > deadline:
            raise CheckpointError(f"run folder {folder} is in use by another process")
        time.sleep(0.1)
