"""A sweep: searches the values of config keys that give the highest score, with Optuna.

A trial trains one set of values with each seed, one after the other; its score is the mean of their last
evaluations. Trials whose evaluations stay below the median of the others are pruned. Several processes work
on one storage, each by ``study.optimize``. The folder of a sweep has:

sweep.json      what is searched              trial_000_s0/ ...  one run folder for each trial and seed
sweep.journal   Optuna's storage              best.py            the best config; it can be trained
log.txt         the lines of the sweep        history.png        scores; importance.png: of the keys

A sweep that was killed continues: open trials are resumed from the checkpoints of their runs.

    policy.learn.learning_rate = log(1e-5, 1e-2)      a number, uniform in its logarithm
    policy.learn.entropy_weight = uniform(0, 0.02)    a number
    policy.learn.epoch_per_collect = int(2, 10)       a whole number, both ends included
    policy.learn.batch_size = choice(64, 128, 256)    one of these values; in a config file also a list
"""

from __future__ import annotations

import ast
import json
import operator
import shutil
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ding_lite.config.compile import LITERALS, Config, python_source, without_sources
from ding_lite.config.values import decode
from ding_lite.errors import ConfigError, DingLiteError
from ding_lite.rl.seeding import integer_seed
from ding_lite.run.checkpoint import checkpoints_of, write_whole
from ding_lite.run.display import score_text
from ding_lite.run.folder import ENDED, is_locked, read_result
from ding_lite.run.pipeline import SerialPipeline
from ding_lite.run.signals import EXIT_CODES
from ding_lite.tools.runs import SCORE, SWEEP_FILE, short_names, short_text

try:
    import optuna
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
    from optuna.storages.journal import JournalFileBackend
    from optuna.trial import FrozenTrial, TrialState
except ImportError as error:
    raise ConfigError('a sweep needs Optuna: pip install "ding_lite[sweep]"') from error

STUDY = "sweep"  # its name in the storage
STARTUP_TRIALS = 5  # trials that must have ended before one is pruned
WARM_UP = 0.2  # share of a run's env steps before which a trial is not pruned
SECONDS_TO_FREE = 30.0  # for the workers of a sweep that was killed to save and end
EXPECTED = "expected uniform(a, b), log(a, b), int(a, b) or choice(a, b, ...)"
# Keys that the sweep sets itself for each run.
OWN_KEYS = ("seed", "exp_name")

Space = dict[str, optuna.distributions.BaseDistribution]  # by the path of the key


# ------------------------------------------------------------------ the search space


def search_space(searches: Mapping[str, Any]) -> Space:
    """Returns the search space of ``{"key.path": "log(1, 2)"}``; a list is a choice.

    Raises:
        ConfigError: for a key whose values cannot be read.
    """
    if not searches:
        raise ConfigError(
            "no search space: give --search 'policy.learn.learning_rate=log(1e-5,1e-2)', or a dict in the "
            "config file, sweep = dict(search={'policy.learn.learning_rate': 'log(1e-5, 1e-2)'})"
        )
    space = {}
    for key, spec in searches.items():
        if key in OWN_KEYS:
            raise ConfigError(f"the search space: the sweep sets {key} itself; give seeds as -s 0,1,2")
        try:
            space[key] = _distribution(spec)
        except (ValueError, TypeError, SyntaxError) as fault:
            raise ConfigError(f"the search space: {key}: {EXPECTED}, got {spec!r} ({fault})") from fault
    return space


def _distribution(spec: Any) -> optuna.distributions.BaseDistribution:
    if isinstance(spec, (list, tuple)):
        return CategoricalDistribution([_stored(choice) for choice in spec])
    call = ast.parse(str(spec).strip(), mode="eval").body
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise ValueError("no call")
    arguments: list[Any] = [
        LITERALS.get(node.id.lower(), node.id) if isinstance(node, ast.Name) else ast.literal_eval(node)
        for node in call.args
    ]
    match call.func.id:
        case "choice":
            return CategoricalDistribution([_stored(choice) for choice in arguments])
        case "int":
            return IntDistribution(*map(operator.index, arguments))
        case "log" | "uniform" as kind:
            return FloatDistribution(*map(float, arguments), log=kind == "log")
    raise ValueError(f"no {call.func.id}")


def _stored(choice: Any) -> Any:
    """Returns a choice as the storage has it, which takes neither lists nor dicts."""
    return choice if isinstance(choice, (str, int, float, type(None))) else json.dumps(choice)


def first_values(space: Space) -> dict[str, Any]:
    """Returns the first choice or the lowest value of each key: a config that accepts them has these keys."""
    first: dict[str, Any] = {}
    for key, of_key in space.items():
        if isinstance(of_key, CategoricalDistribution):
            first[key] = of_key.choices[0]
        elif isinstance(of_key, (FloatDistribution, IntDistribution)):
            first[key] = of_key.low
    return values_of(first, space)


def values_of(params: Mapping[str, Any], space: Space) -> dict[str, Any]:
    """Returns the values of the keys in a trial."""
    values = {}
    for key in space:
        value = params.get(key)
        is_tree = isinstance(value, str) and value.startswith(("[", "{"))
        values[key] = json.loads(value) if is_tree else value  # type: ignore[arg-type]
    return values


def assignments(values: Mapping[str, Any]) -> str:
    """Returns values as text, with short names of the keys: "learning_rate=0.001, batch_size=64"."""
    names = short_names(values)
    return ", ".join(f"{names[key]}={short_text(value)}" for key, value in values.items())


# ------------------------------------------------------------------ the study


def storage_of(folder: Path) -> optuna.storages.BaseStorage:
    """Returns the storage of a sweep: a file that processes of several machines may write to."""
    return optuna.storages.JournalStorage(JournalFileBackend(str(folder / "sweep.journal")))


def open_study(folder: Path, seed: int = 0) -> optuna.Study:
    """Opens the storage in the folder of a sweep, and creates it where it is missing.

    Args:
        folder: of the sweep.
        seed: of the sampler; each process needs another one, or all propose the same first values.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna.create_study(
        study_name=STUDY,
        storage=storage_of(folder),
        sampler=optuna.samplers.TPESampler(seed=seed, constant_liar=True),
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
    file = folder / SWEEP_FILE
    text = json.dumps(searched, indent=2) + "\n"
    try:
        if not resume:
            folder.mkdir(parents=True)
            write_whole(file, text)
        elif file.read_text() != text:
            raise ConfigError(
                f"the sweep in {folder} searches something else, as {file} says: repeat its command with "
                "--resume; only --jobs and --ray may differ, and --trials"
            )
    except OSError as fault:
        raise ConfigError(
            f"{folder} cannot be the folder of {'this' if resume else 'a new'} sweep: {fault}; --exp-name "
            "names another one, and --resume continues one"
        ) from fault


def reopen(folder: Path) -> int:
    """Lets the open trials of a sweep that was ended wait for a worker; returns how many have ended."""
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
    """Returns the folder of the run of a trial with a seed."""
    return folder / f"trial_{number:03}_s{seed}"


class Worker:
    """A process of a sweep; several work on the same folder.

    Args:
        folder: of the sweep.
        space: keys and their values.
        seeds: that each trial trains with.
        config_with: returns the complete config with the values of a trial.
        say: called with a line for each event.
    """

    def __init__(
        self,
        folder: Path,
        space: Space,
        seeds: Sequence[int],
        config_with: Callable[[Mapping[str, Any]], Config],
        say: Callable[[str], Any] = print,
    ) -> None:
        self.folder, self.space, self.seeds = folder, space, seeds
        self._config_with, self._say = config_with, say

    def work(self, trials: int, number: int) -> None:
        """Trains trials until there are ``trials`` of all workers.

        Args:
            trials: in all.
            number: of this worker, for the seed of its sampler.

        Raises:
            SystemExit: at a signal, when the run is saved; the trial stays open.
        """
        config = self._config_with({})
        study = open_study(self.folder)
        # Another stream after each interruption: the same one would propose the first values again.
        seed = integer_seed(config.values.seed, "sweep", len(study.get_trials()), number)
        study.sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
        freq = config.values.policy.eval.eval_freq or config.values.max_env_step
        study.pruner = optuna.pruners.MedianPruner(
            n_startup_trials=STARTUP_TRIALS, n_warmup_steps=int(WARM_UP * config.values.max_env_step / freq)
        )
        begun = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL, TrialState.RUNNING)
        enough = optuna.study.MaxTrialsCallback(trials, states=begun)
        study.optimize(self._objective, callbacks=[enough], catch=(DingLiteError,))

    def _objective(self, trial: optuna.Trial) -> float:
        """Returns the score of a trial; Optuna gives an open one its values again."""
        for key, of_key in self.space.items():
            match of_key:
                case CategoricalDistribution():
                    trial.suggest_categorical(key, of_key.choices)
                case IntDistribution():
                    trial.suggest_int(key, of_key.low, of_key.high)
                case FloatDistribution():
                    trial.suggest_float(key, of_key.low, of_key.high, log=of_key.log)
        values = values_of(trial.params, self.space)
        self._say(f"trial {trial.number}: {assignments(values)}")
        scores: list[float] = []
        try:
            config = self._config_with(values)
            for seed in self.seeds:
                scores.append(self._score(trial, config, seed, scores))
        except DingLiteError as fault:
            self._say(f"trial {trial.number}: failed: {fault}")
            raise
        except optuna.TrialPruned:
            self._say(f"trial {trial.number}: pruned")
            raise
        except KeyboardInterrupt as fault:  # Optuna would call it a failure of the trial, which stays open
            raise SystemExit(EXIT_CODES.get(str(fault), EXIT_CODES["SIGINT"])) from fault
        score = sum(scores) / len(scores)
        self._say(f"trial {trial.number}: score {score_text(score)}")
        return score

    def _score(self, trial: optuna.Trial, config: Config, seed: int, earlier: Sequence[float]) -> float:
        """Trains a trial with a seed, or continues it, and returns the mean return of the last evaluation.

        Args:
            trial: it is told the mean of this seed's evaluations and the scores of the earlier ones.
            config: of the run.
            seed: of the run.
            earlier: the scores of the trial's seeds before this one.
        """
        folder = run_folder(self.folder, trial.number, seed)
        if read_result(folder).get("status") not in ENDED:
            if checkpoints_of(folder):
                pipeline = SerialPipeline.resume(folder, trust=config.trusted, own_process=True)
            else:  # new, or killed before its first checkpoint
                shutil.rmtree(folder, ignore_errors=True)
                pipeline = SerialPipeline(config, seed=seed, folder=folder, own_process=True)
            freq = config.values.policy.eval.eval_freq or config.values.max_env_step
            offset = len(earlier) * (config.values.max_env_step // freq + 1)
            with pipeline:
                for progress in pipeline:
                    if SCORE not in progress.metrics:
                        continue
                    value = float(progress.metrics[SCORE])
                    step = offset + progress.env_step // freq
                    if step not in trial.study.trials[trial.number].intermediate_values:
                        trial.report((sum(earlier) + value) / (len(earlier) + 1), step)
                    self._say(
                        f"trial {trial.number}, seed {seed}: {progress.env_step:,} steps  {score_text(value)}"
                    )
                    if trial.should_prune():
                        raise optuna.TrialPruned
        score = read_result(folder).get("eval_value")
        if score is None:
            raise ConfigError(f"{folder} has no evaluation with a finite mean return")
        return float(score)


# ------------------------------------------------------------------ the report


def report(folder: Path, space: Space, seeds: Sequence[int]) -> dict[str, Any]:
    """Writes best.py and the pictures of a sweep, and returns what became of its trials, as JSON data.

    ``importances`` says how much of the score each key explains (PED-ANOVA, arXiv:2304.10255): a rough guess
    with fewer than 50 trials.
    """
    study = open_study(folder)
    ranked = sorted(
        study.get_trials(states=(TrialState.COMPLETE,)), key=lambda trial: -float(trial.value or 0)
    )
    importances: dict[str, float] = {}
    if len({trial.value for trial in ranked}) > 1 and len(space) > 1:
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        importances = dict(optuna.importance.get_param_importances(study, evaluator=evaluator))
    best = ranked[0] if ranked else None
    best_config = best and _write_best(folder, best, space, seeds)
    if best is not None:
        _draw(folder, study, has_importances=bool(importances))
    return {
        "folder": str(folder),
        "seeds": list(seeds),
        "best": best and best.number,
        "best_score": best and best.value,
        "best_config": best_config and str(best_config),
        "importances": importances,
        "trials": [
            {
                "trial": trial.number,
                "state": "open" if not trial.state.is_finished() else trial.state.name.lower(),
                "score": trial.value if trial.state == TrialState.COMPLETE else None,
                "values": values_of(trial.params, space),
            }
            for trial in study.get_trials()
        ],
    }


def _write_best(folder: Path, best: FrozenTrial, space: Space, seeds: Sequence[int]) -> Path:
    """Writes the config of the best trial, with every key that differs from its default, to best.py.

    So it trains as the trial did, also by what the command line set or what was derived from other keys.
    """
    saved = decode(json.loads((run_folder(folder, best.number, seeds[0]) / "config.json").read_text()))
    config = without_sources(saved["config"], saved["source"], ("default",))
    config["exp_name"] = f"{folder.name}_best"
    file = folder / "best.py"
    comment = (
        f"Trial {best.number}, score {score_text(best.value)} over the seeds {', '.join(map(str, seeds))}."
    )
    write_whole(file, python_source(config, [comment, assignments(values_of(best.params, space))]))
    return file


def _draw(folder: Path, study: optuna.Study, *, has_importances: bool) -> None:
    """Draws the scores of the trials and the importance of the keys, as Optuna does."""
    import matplotlib as mpl

    mpl.use("agg")
    from optuna.visualization.matplotlib import plot_optimization_history, plot_param_importances

    with warnings.catch_warnings(action="ignore", category=optuna.exceptions.ExperimentalWarning):
        drawings = {"history": plot_optimization_history(study, target_name="Score")}
        if has_importances:
            evaluator = optuna.importance.PedAnovaImportanceEvaluator()
            drawings["importance"] = plot_param_importances(study, evaluator=evaluator)
    for name, axes in drawings.items():
        axes.figure.savefig(folder / f"{name}.png", dpi=150, bbox_inches="tight")
