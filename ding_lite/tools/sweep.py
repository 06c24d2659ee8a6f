"""A sweep: searches the values of config keys that give the highest score, with Optuna.

A trial trains one set of values with each seed, one after the other; its score is the mean of their last
evaluations. Trials whose evaluations stay below the median of the others are pruned. Several processes share
one storage. They use ``study.ask`` and ``study.tell``, because ``study.optimize`` would mark a trial that
Ctrl-C has ended as failed. The folder of a sweep has:

sweep.json      what is searched              trial_000_s0/ ...  one run folder for each trial and seed
sweep.journal   Optuna's storage              best.py            the best config; it can be trained
log.txt         the lines of the sweep

A sweep that was killed continues: open trials are resumed from the checkpoints of their runs.

    policy.learn.learning_rate = log(1e-5, 1e-2)      a number, uniform in its logarithm
    policy.learn.entropy_weight = uniform(0, 0.02)    a number
    policy.learn.epoch_per_collect = int(2, 10)       a whole number, both ends included
    policy.learn.batch_size = choice(64, 128, 256)    one of these values
"""

from __future__ import annotations

import ast
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from math import nextafter
from pathlib import Path
from typing import Any, TypeAlias

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from ding_lite.config.compile import Config, compile_config, parse_overrides, python_source
from ding_lite.errors import ConfigError, DingLiteError
from ding_lite.rl.seeding import integer_seed
from ding_lite.run.checkpoint import checkpoints_of, read_json, write_whole
from ding_lite.run.display import score_text
from ding_lite.run.folder import ENDED, is_locked, read_result
from ding_lite.run.pipeline import SerialPipeline
from ding_lite.run.resources import keep_freed_memory
from ding_lite.tools.runs import SCORE, short_names, short_text

STUDY = "sweep"  # its name in the storage
WARM_UP = 0.2  # share of a run's env steps before which a trial is not pruned
SECONDS_TO_FREE = 30.0  # in which the workers of a killed sweep save and end
EXPECTED = "expected uniform(a, b), log(a, b), int(a, b) or choice(a, b, ...)"

Distribution: TypeAlias = CategoricalDistribution | FloatDistribution | IntDistribution
Space = dict[str, Distribution]  # by the path of the key
KINDS: dict[str, Callable[..., Distribution]] = {
    "choice": lambda *texts: CategoricalDistribution(texts),
    "int": lambda a, b: IntDistribution(int(a), int(b)),
    "uniform": lambda a, b: FloatDistribution(float(a), float(b)),
    "log": lambda a, b: FloatDistribution(float(a), float(b), log=True),
}


# ------------------------------------------------------------------ the search space


def search_space(searches: Sequence[str]) -> Space:
    """Returns the search space of ``["key.path=log(1, 2)", ...]``.

    Raises:
        ConfigError: if there is none, or for a key whose values cannot be read.
    """
    if not searches:
        raise ConfigError("no search space: give --search 'policy.learn.learning_rate=log(1e-5,1e-2)'")
    space = {}
    for search in searches:
        key, _, values = search.partition("=")
        if key in ("seed", "exp_name"):
            raise ConfigError(f"the search space: the sweep sets {key} itself; give seeds as -s 0,1,2")
        if key in space:
            raise ConfigError(f"the search space: {key} is given twice")
        try:
            space[key] = _distribution(values.strip())
        except (ValueError, TypeError, SyntaxError, AttributeError, KeyError) as fault:
            raise ConfigError(f"the search space: {key}: {EXPECTED}, got {values!r} ({fault!r})") from fault
    return space


def _distribution(text: str) -> Distribution:
    """Returns the distribution of a text such as "log(1e-5, 1e-2)"; choices are texts, as in an override."""
    call: Any = ast.parse(text, mode="eval").body
    named = {argument.arg: argument.value for argument in call.keywords}  # none is known
    return KINDS[call.func.id](*(ast.get_source_segment(text, value) for value in call.args), **named)


def values_of(params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of the keys in a trial, parsed as on the command line."""
    return parse_overrides([f"{key}={value}" for key, value in params.items()])


def first_values(space: Space) -> dict[str, Any]:
    """Returns the first choice or the lowest value of each key, to check that a config has these keys.

    Of ``uniform`` and ``log`` it is the next number, since a whole one would also pass as an int.
    """
    first: dict[str, Any] = {}
    for key, values in space.items():
        first[key] = values.choices[0] if isinstance(values, CategoricalDistribution) else values.low
        if isinstance(values, FloatDistribution):
            first[key] = nextafter(values.low, values.high)
    return values_of(first)


def assignments(values: Mapping[str, Any]) -> str:
    """Returns values as text, with short names of the keys: "learning_rate=0.001, batch_size=64"."""
    names = short_names(values)
    return ", ".join(f"{names[key]}={short_text(value)}" for key, value in values.items())


# ------------------------------------------------------------------ the study


def storage_of(folder: Path) -> optuna.storages.BaseStorage:
    """Returns the storage of a sweep: a file to which processes of several machines may write."""
    return optuna.storages.JournalStorage(JournalFileBackend(str(folder / "sweep.journal")))


def open_study(folder: Path) -> optuna.Study:
    """Opens the storage in the folder of a sweep, and creates it where it is missing."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna.create_study(
        study_name=STUDY,
        storage=storage_of(folder),
        direction="maximize",
        load_if_exists=True,
    )


def begin(folder: Path, searched: Mapping[str, Any], *, resume: bool) -> None:
    """Creates the folder of a sweep, or checks that it is the one to continue.

    Args:
        folder: of the sweep.
        searched: JSON data that says what is searched.
        resume: continue the sweep in ``folder``.

    Raises:
        ConfigError: if the folder exists (is missing, with ``resume``), or searches something else.
    """
    file = folder / "sweep.json"
    text = json.dumps(searched, indent=2) + "\n"
    if resume != folder.exists():
        raise ConfigError(
            f"{folder} {'does not exist' if resume else 'exists'}: --resume continues a sweep, and "
            "--exp-name names another folder"
        )
    if not resume:
        folder.mkdir(parents=True)
        write_whole(file, text)
    elif file.read_text() != text:
        raise ConfigError(
            f"the sweep in {folder} searches something else, as {file} says: repeat its command with "
            "--resume; only --jobs and --ray may differ, and --trials"
        )


def reopen(folder: Path) -> int:
    """Makes the open trials of an ended sweep wait for a worker; returns the number of finished trials."""
    deadline = time.monotonic() + SECONDS_TO_FREE
    while any(map(is_locked, folder.glob("trial_*"))) and time.monotonic() < deadline:
        time.sleep(0.1)
    study, storage = open_study(folder), storage_of(folder)
    study_id = storage.get_study_id_from_name(STUDY)
    for trial in study.get_trials(states=(TrialState.RUNNING,)):
        trial_id = storage.get_trial_id_from_study_id_trial_number(study_id, trial.number)
        storage.set_trial_state_values(trial_id, TrialState.WAITING)
    return sum(trial.state.is_finished() for trial in study.get_trials())


def run_folder(folder: Path, number: int, seed: int) -> Path:
    """Returns the run folder of a trial and a seed."""
    return folder / f"trial_{number:03}_s{seed}"


@dataclass
class Worker:
    """A process of a sweep; several work on the same folder.

    Attributes:
        folder: of the sweep.
        space: keys and their values.
        seeds: that each trial trains with.
        config_with: returns the complete config with the values of a trial.
        say: called with a line for each event.
    """

    folder: Path
    space: Space
    seeds: Sequence[int]
    config_with: Callable[[Mapping[str, Any]], Config]
    say: Callable[[str], Any] = print

    def work(self, trials: int, number: int) -> None:
        """Trains trials until all workers together have ``trials``; a signal leaves the last trial open.

        Args:
            trials: of all workers together.
            number: of this worker, for the seed of its sampler.
        """
        config = self.config_with({})
        study = open_study(self.folder)
        # Each process, and each one after an interruption, has another stream; else values would repeat.
        seed = integer_seed(config.values.seed, "sweep", len(study.get_trials()), number)
        study.sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
        freq = config.values.policy.eval.eval_freq or config.values.max_env_step
        warm_up = int(WARM_UP * config.values.max_env_step / freq)
        study.pruner = optuna.pruners.MedianPruner(n_warmup_steps=warm_up)
        while sum(trial.state != TrialState.WAITING for trial in study.get_trials()) < trials:
            trial = study.ask(dict(self.space))  # an open trial with its values, or a new trial
            values = values_of(trial.params)
            self.say(f"trial {trial.number}: {assignments(values)}")
            try:
                with_values = self.config_with(values)
                for note in with_values.notes:
                    if note.startswith(tuple(values)):  # such as that a key has no effect
                        self.say(f"trial {trial.number}: {note}")
                score = self._score(trial, with_values)
            except optuna.TrialPruned:
                study.tell(trial, state=TrialState.PRUNED)
                self.say(f"trial {trial.number}: pruned")
            except DingLiteError as fault:
                study.tell(trial, state=TrialState.FAIL)
                self.say(f"trial {trial.number}: failed: {fault}")
            else:
                study.tell(trial, score)
                self.say(f"trial {trial.number}: score {score_text(score)}")

    def _score(self, trial: optuna.Trial, config: Config) -> float:
        """Trains a trial with each seed, or continues it, and returns the mean of the last evaluations."""
        keep_freed_memory()
        scores: list[float] = []
        for seed in self.seeds:
            folder = run_folder(self.folder, trial.number, seed)
            if read_result(folder).get("status") not in ENDED:
                self._train(trial, config, seed, folder, scores)
            score = read_result(folder).get("eval_value")
            if score is None:
                raise ConfigError(f"{folder} has no evaluation with a finite mean return")
            scores.append(float(score))
        return sum(scores) / len(scores)

    def _train(
        self, trial: optuna.Trial, config: Config, seed: int, folder: Path, earlier: Sequence[float]
    ) -> None:
        """Trains a trial with a seed; reports the mean of each evaluation and the ``earlier`` scores."""
        if checkpoints_of(folder):
            pipeline = SerialPipeline.resume(folder, trust=config.trusted)
        else:  # new, or killed before its first checkpoint
            shutil.rmtree(folder, ignore_errors=True)
            pipeline = SerialPipeline(config, seed=seed, folder=folder)
        freq = config.values.policy.eval.eval_freq or config.values.max_env_step
        offset = len(earlier) * (config.values.max_env_step // freq + 1)
        with closing(pipeline):  # not the pipeline's own block, to which TrialPruned is a failure
            for progress in pipeline:
                if SCORE in progress.metrics:
                    value = float(progress.metrics[SCORE])
                    line = f"{progress.env_step:,} steps  {score_text(value)}"
                    self.say(f"trial {trial.number}, seed {seed}: {line}")
                    mean = (sum(earlier) + value) / (len(earlier) + 1)
                    trial.report(mean, offset + progress.env_step // freq)
                    if trial.should_prune():
                        raise optuna.TrialPruned


# ------------------------------------------------------------------ the report


def report(folder: Path, seeds: Sequence[int]) -> dict[str, Any]:
    """Writes best.py, and returns the states and scores of the trials of a sweep, as JSON data."""
    trials = open_study(folder).get_trials()
    complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    best = max(complete, key=lambda trial: float(trial.value or 0), default=None)
    return {
        "folder": str(folder),
        "seeds": list(seeds),
        "best": best and best.number,
        "best_score": best and best.value,
        "best_config": best and str(_write_best(folder, best, seeds)),
        "trials": [
            {
                "trial": trial.number,
                "state": trial.state.name.lower() if trial.state.is_finished() else "open",
                "score": trial.value if trial.state == TrialState.COMPLETE else None,
                "values": values_of(trial.params),
            }
            for trial in trials
        ],
    }


def _write_best(folder: Path, best: FrozenTrial, seeds: Sequence[int]) -> Path:
    """Writes the keys of the best trial's config that are not defaults to best.py."""
    config = compile_config(read_json(run_folder(folder, best.number, seeds[0]) / "config.json")).written()
    config["exp_name"] = f"{folder.name}_best"
    file = folder / "best.py"
    comment = (
        f"Trial {best.number}, score {score_text(best.value)} over the seeds {', '.join(map(str, seeds))}."
    )
    write_whole(file, python_source(config, [comment, assignments(values_of(best.params))]))
    return file
