"""Reads the folders of runs: their metrics and configs, how they ended, and which belong together.

``find_runs`` finds run folders, ``read_run`` reads one, and ``list_runs`` describes each in a line for
``ding-lite runs``. ``independent`` groups the seeds of each config, and ``group_runs`` labels the groups.
Neither torch nor matplotlib is imported.
"""

from __future__ import annotations

import csv
import glob
import io
import json
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ding_lite.config.registry import env_name
from ding_lite.config.schema import leaves
from ding_lite.errors import ConfigError
from ding_lite.run.folder import ENDED, is_locked, read_result

RUN_FILES = ("log.txt", "metrics.csv", "result.json")  # a folder with one of them is that of a run
SWEEP_FILE = "sweep.json"  # a folder with it has the runs of a sweep in it, beside a log.txt of its own
ENV_STEP = "env_step"  # the column of the horizontal axis
SCORE, SPREAD = "eval/episode_return_mean", "eval/episode_return_std"
SCORE_COLUMNS = frozenset({SCORE, SPREAD, "time/wall_s"})
HEADLINE_KEYS = ("policy.type", "env.env_id")
# The order in which other keys are chosen for labels, by the section: the first ones say most about a run.
SECTIONS = ("policy.learn.", "policy.", "env.", "")
# They may differ between the seeds of a group: a run may be resumed with a higher limit, and neither
# checkpoints nor logs change what is learned. Schedules have a length of their own, schedule_env_step.
NOT_COMPARED = ("seed", "exp_name", "max_env_step", "max_train_iter", "checkpoint", "logger")
SCHEDULE_LENGTH = "policy.learn.schedule_env_step"
OWN_NAMES = "env.kwargs."  # its keys are the environment's
LONG_NUMBER = 8  # characters
MAX_LINE = 1000  # characters that are read of a first line
LOG_TIME = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)  ")


class Run(NamedTuple):
    """The content of a run folder that is needed to draw and to compare it.

    Attributes:
        folder: of the run.
        config: its complete config.
        x: (N,) env steps, one for each row of metrics.csv; NaN if missing.
        columns: the columns that were asked for, by name; each (N,), NaN where a cell is missing.
    """

    folder: Path
    config: dict[str, Any]
    x: np.ndarray
    columns: dict[str, np.ndarray]


class Group(NamedTuple):
    """Runs of one config, one for each seed, with their label in the legend."""

    runs: list[Run]
    label: str


class ListedRun(NamedTuple):
    """A run in one line; what is not known is None.

    Attributes:
        folder: of the run.
        status: "solved", "finished", "interrupted" or "failed", as in result.json; "running" while a process
            holds the folder; "killed" if the run ended without a result; "unreadable" if a file is damaged.
        score: mean return of the last evaluation.
        score_std: standard deviation over its episodes.
        best_score: highest mean return of an evaluation, of those of the newest task.
        env_step: of the last row of metrics.csv; 0 if there is none.
        max_env_step: limit of the run.
        started: when the run was started, as in log.txt.
        wall_time_s: seconds of training.
        policy, env_id, seed: of the config.
        differs: its values of the keys in which the runs of its policy and environment differ; those that
            distinguish the most runs come first.
        error: why the run failed or cannot be read.
    """

    folder: Path
    status: str
    score: float | None = None
    score_std: float | None = None
    best_score: float | None = None
    env_step: int = 0
    max_env_step: int | None = None
    started: str | None = None
    wall_time_s: float | None = None
    policy: str | None = None
    env_id: str | None = None
    seed: int | None = None
    differs: dict[str, Any] = {}  # noqa: RUF012 - never changed
    error: str | None = None


# ------------------------------------------------------------------ finding


def find_runs(folder: Path) -> list[Path]:
    """Returns the run folders in ``folder`` at any depth, or ``folder`` itself if it is one.

    The folder of a sweep is no run: its trials are. Links are followed; a folder with two names is one run.
    """
    found, seen = [], set()
    for path, folders, files in os.walk(folder, followlinks=True):
        if (place := os.path.realpath(path)) in seen:
            folders.clear()
            continue
        seen.add(place)
        folders[:] = sorted((name for name in folders if not name.startswith(".")), key=natural)
        folders.sort(key=lambda name: os.path.islink(os.path.join(path, name)))  # links last
        if SWEEP_FILE not in files and not set(RUN_FILES).isdisjoint(files):
            found.append(Path(path))
            folders.clear()
    return found


def natural(text: object) -> list[tuple[int, int, str]]:
    """Returns a key that sorts numbers in a text by their value: run_2 before run_10."""
    parts = filter(None, re.split(r"([0-9]+)", str(text)))
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts]


def without_files(arguments: Sequence[str | Path]) -> list[str | Path]:
    """Returns the arguments without the files that a pattern of the shell gives beside folders."""
    return [argument for argument in arguments if not Path(argument).is_file()] or list(arguments)


def runs_of(argument: str | Path, hint: str = "") -> list[Path]:
    """Returns the run folders that an argument names: a run, a folder with runs in it, or a pattern of those.

    Args:
        argument: of the command line.
        hint: the end of the message if nothing has this name.

    Raises:
        ConfigError: if there are none.
    """
    path = Path(argument)
    places = [path] if path.exists() else [Path(name) for name in sorted(glob.glob(str(path)), key=natural)]
    if not places:
        problem = "no folder matches" if glob.has_magic(str(path)) else "there is no run folder"
        raise ConfigError(f"{problem} {path}{hint}")
    found = [folder for place in places for folder in find_runs(place)]
    if not found:
        for place in places:
            _refuse_unreadable(place)
        raise ConfigError(
            f"{path} is not a run folder and has none in it: none of {', '.join(RUN_FILES)} is there"
        )
    return found


def _refuse_unreadable(folder: Path) -> None:
    """Refuses a folder whose files may not be looked at, which would seem to be empty."""
    if os.path.isdir(folder) and not os.access(folder, os.R_OK | os.X_OK):
        raise ConfigError(f"the folder {folder} cannot be read: permission denied")


# ------------------------------------------------------------------ reading


def read_run(folder: Path, wanted: Collection[str] = SCORE_COLUMNS) -> Run:
    """Reads a run folder.

    Args:
        folder: of the run.
        wanted: names of other columns to read, as far as the file has them.

    Raises:
        ConfigError: if the folder is not that of a run, or cannot be read.
    """
    if not folder.is_dir():
        raise ConfigError(f"there is no run folder {folder}")
    metrics = folder / "metrics.csv"
    if not os.path.lexists(metrics):
        raise ConfigError(f"{folder} is not the folder of a whole run: it has no metrics.csv")
    columns = _read_columns(metrics, {*wanted, ENV_STEP})
    return Run(folder, read_config_of(folder), columns[ENV_STEP], columns)


def read_config_of(folder: Path) -> dict[str, Any]:
    """Returns the config that a run folder has.

    Raises:
        ConfigError: if it cannot be read.
    """
    file = folder / "config.json"
    try:
        return dict(json.loads(file.read_bytes())["config"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(f"cannot read the config in {file}: {error!r}") from error


def _read_columns(path: Path, wanted: set[str]) -> dict[str, np.ndarray]:
    """Returns the ``wanted`` columns of a CSV file, as far as it has them; other columns may be text.

    A last line without its end is left out: a crash has torn it, or it is being written.
    """
    # An invalid byte becomes a replacement character, which is then reported with its line.
    try:
        text = path.read_bytes().decode("utf-8-sig", errors="replace")
    except OSError as error:
        raise ConfigError(f"cannot read the metrics of a run: {error}") from error
    reader = csv.reader(io.StringIO(text[: text.rfind("\n") + 1]))
    header = next(reader, [])
    if ENV_STEP not in header:
        raise ConfigError(f"{path} has no column {ENV_STEP!r}; it has: {', '.join(header) or 'none'}")
    places = {name: place for place, name in enumerate(header) if name in wanted}
    values: dict[str, list[float]] = {name: [] for name in places}
    last = -np.inf
    try:
        for row in filter(None, reader):
            if len(row) != len(header):
                raise ValueError(f"{len(row)} cells where the header has {len(header)}")
            for name, place in places.items():
                values[name].append(float(row[place]) if row[place].strip() else np.nan)
            # Two runs in one file; their curve could not be interpolated.
            if values[ENV_STEP][-1] < last:
                raise ValueError(f"{ENV_STEP} goes back from {last:g} to {values[ENV_STEP][-1]:g}")
            last = max(last, values[ENV_STEP][-1])  # unchanged if the cell is missing (NaN)
    except (ValueError, csv.Error) as error:
        raise ConfigError(f"{path}, line {reader.line_num}: {error}") from error
    return {name: np.asarray(column, dtype=np.float64) for name, column in values.items()}


def points_of(run: Run, column: str, spread: str = "") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns x, a column and its spread, without the rows where x or the column is missing."""
    missing = np.full_like(run.x, np.nan)
    y, width = (run.columns.get(name, missing) for name in (column, spread))
    there = np.isfinite(run.x) & np.isfinite(y)
    return run.x[there], y[there], width[there]


def last_step(run: Run) -> int:
    """Returns the last value of the horizontal axis; 0 if there is none."""
    there = run.x[np.isfinite(run.x)]
    return int(there[-1]) if len(there) else 0


def env_of(config: Mapping[str, Any]) -> str:
    """Returns the environment's id in a run's config, or the name of its type."""
    return env_name(config.get("env", {}))


def status_of(run: Run) -> tuple[str, str | None]:
    """Returns the status of a run (see :class:`ListedRun`) and the error that ended it.

    Raises:
        ConfigError: if result.json cannot be read, or metrics.csv has lost the last rows of the run.
    """
    file = run.folder / "result.json"
    if is_locked(run.folder):
        return "running", None
    try:
        result = json.loads(file.read_bytes())
        status, error, env_step = str(result["status"]), result["error"], int(result["env_step"])
    except FileNotFoundError:
        return "killed", None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as fault:
        raise ConfigError(f"cannot read {file}: {fault!r}") from fault
    last = last_step(run)
    if status in ENDED and last < env_step:
        metrics = run.folder / "metrics.csv"
        raise ConfigError(f"{metrics} has lost rows: it ends at {last:,} env steps, the run at {env_step:,}")
    # The result is that of an earlier session if the run was resumed since.
    return ("killed", None) if last > env_step else (status, error)


def _listed(folder: Path) -> tuple[ListedRun, dict[str, Any]]:
    """Returns a run in one line, and its settings; without settings if the run cannot be read."""
    line = ListedRun(folder, "unreadable", started=_started(folder))
    try:
        config = read_config_of(folder)
        line = line._replace(
            policy=str(config["policy"]["type"]),
            env_id=env_of(config),
            seed=config["seed"],
            max_env_step=config["max_env_step"],
        )
        run = read_run(folder)
        status, error = status_of(run)
    except (ConfigError, KeyError, TypeError, AttributeError) as fault:
        reason = str(fault) if isinstance(fault, ConfigError) else f"the config has no {fault}"
        return line._replace(error=reason), {}
    _, scores, spreads = points_of(run, SCORE, SPREAD)
    _, seconds, _ = points_of(run, "time/wall_s")
    line = line._replace(
        status=status,
        error=error,
        env_step=last_step(run),
        score=float(scores[-1]) if len(scores) else None,
        score_std=float(spreads[-1]) if len(scores) and np.isfinite(spreads[-1]) else None,
        best_score=_best_score(run, status, scores),
        wall_time_s=float(seconds[-1]) if len(seconds) else None,
    )
    return line, settings_of(config)


def _best_score(run: Run, status: str, scores: np.ndarray) -> float | None:
    """Returns the score of a run's best checkpoint, or before its end the best of its evaluations.

    A change of the task in the middle of a run leaves the scores before it out of its result.
    """
    best = None if status in ("running", "killed") else read_result(run.folder).get("best_eval_value")
    if isinstance(best, (int, float)):
        return float(best)
    return float(scores.max()) if len(scores) else None


def _started(folder: Path) -> str | None:
    """Returns the time of the first line of a run's log, or None."""
    match = LOG_TIME.match(first_line(folder / "log.txt"))
    return match[1] if match else None


def first_line(file: Path) -> str:
    """Returns the first line of a file in a run's folder; "" if there is none."""
    try:
        with open(file, encoding="utf-8", errors="replace") as stream:
            return stream.readline(MAX_LINE)
    except OSError:
        return ""


ORDERS: dict[str, Callable[[ListedRun], Any]] = {  # from the largest down, but names
    "started": lambda run: run.started or "",
    "score": lambda run: -np.inf if run.score is None else run.score,
    "steps": lambda run: run.env_step,
    "name": lambda run: natural(run.folder),
}


def list_runs(folder: Path, order: str = "started") -> list[ListedRun]:
    """Returns all runs in a folder, at any depth, with the keys in which they differ.

    Args:
        folder: with runs in it, or a run.
        order: "started" (newest first), "score" (highest first), "steps" (most first), or "name".

    Raises:
        ConfigError: if the folder does not exist.
    """
    if not os.path.isdir(folder):
        raise ConfigError(f"there is no folder {folder}")
    _refuse_unreadable(folder)
    lines = [_listed(path) for path in find_runs(folder)]
    by_task: dict[tuple[str | None, str | None], list[dict[str, Any]]] = {}
    for run, settings in lines:
        if settings:
            by_task.setdefault((run.policy, run.env_id), []).append(settings)
    keys = {task: differing_keys(alike) for task, alike in by_task.items()}
    runs = []
    for run, settings in lines:
        shown = keys[run.policy, run.env_id] if settings else []
        runs.append(run._replace(differs={key: settings[key] for key in shown if key in settings}))
    by_name = sorted(runs, key=ORDERS["name"])
    return by_name if order == "name" else sorted(by_name, key=ORDERS[order], reverse=True)


# ------------------------------------------------------------------ grouping


def same_config(runs: Sequence[Run]) -> list[list[Run]]:
    """Groups the runs whose configs differ only in ``NOT_COMPARED``, such as in the seed."""
    by_config: dict[str, list[Run]] = {}
    for run in runs:
        by_config.setdefault(repr(sorted(settings_of(run.config).items())), []).append(run)
    return list(by_config.values())


def independent(runs: Sequence[Run]) -> list[list[Run]]:
    """Groups the runs of each config; if a seed occurs twice, those of each launch.

    Two runs of a config with the same seed are not independent samples, for example before and after a change
    of the code. The seeds of one launch have folders of one name, see :func:`launch_of`.
    """
    members: list[list[Run]] = []
    for alike in same_config(runs):
        if not repeated_seeds(alike):
            members.append(alike)
            continue
        launches: dict[str, list[Run]] = {}
        for run in alike:
            launches.setdefault(launch_of(run), []).append(run)
        for launch in launches.values():
            members += [[run] for run in launch] if repeated_seeds(launch) else [launch]
    return members


def launch_of(run: Run) -> str:
    """Returns the name that the seeds of one command share: runs/mine of runs/mine_s0 and runs/mine_s1."""
    return str(run.folder).removesuffix(f"_s{run.config.get('seed')}")


def repeated_seeds(runs: Sequence[Run]) -> bool:
    """Returns whether two of the runs have the same seed."""
    return len({repr(run.config.get("seed")) for run in runs}) < len(runs)


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Groups the seeds of each config (:func:`independent`), and labels the groups by what differs."""
    members = independent(runs)
    settings = [settings_of(group[0].config) for group in members]
    if len(members) > 1:
        keys = distinguishing_keys([settings])
        others = other_keys([settings], keys)
        descriptions = [[*describe(flat, keys), *others] for flat in settings]
    else:
        descriptions = [shared(settings)]
    names = names_of_groups(members)
    groups = []
    for group, parts, name in zip(members, descriptions, names, strict=True):
        ambiguous = [name] if descriptions.count(parts) > 1 or not parts else []
        seeds = f"n={len(group)} seeds" if len(group) > 1 else f"seed {group[0].config.get('seed')}"
        groups.append(Group(group, ", ".join([*parts, *ambiguous, seeds])))
    return groups


def names_of_groups(groups: Sequence[Sequence[Run]]) -> list[str]:
    """Returns the name of the launch or of the folder of each group, without the path that all share."""
    return relative_names(
        [Path(launch_of(group[0])) if len(group) > 1 else group[0].folder for group in groups]
    )


def relative_names(folders: Sequence[Path]) -> list[str]:
    """Returns the paths of the folders, without the path that all have in common."""
    paths = [folder.resolve() for folder in folders]
    top = os.path.commonpath([path.parent for path in paths])
    return [os.path.relpath(path, top) for path in paths]


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the config as ``{"path.of.key": value}``, without the keys that may differ inside a group.

    An environment that has no id, such as a class, has the name of its type as ``env.env_id``.
    """
    compared = {key: value for key, value in config.items() if key not in NOT_COMPARED}
    # An empty dict is no value: {} and {"mask": True} differ in one key, kwargs.mask.
    settings = {path: value for path, value in leaves(compared) if value != {}}
    if all(value == "constant" for path, value in settings.items() if path.endswith("_schedule")):
        settings.pop(SCHEDULE_LENGTH, None)  # it follows from the limit, and nothing from it
    return {**settings, "env.env_id": env_of(config)}


def shared(settings: Sequence[dict[str, Any]]) -> list[str]:
    """Returns the policy and the environment; each only if it is the same in all ``settings``."""
    first, *others = settings
    agreed = [key for key in HEADLINE_KEYS if all(other.get(key) == first.get(key) for other in others)]
    return [str(first[key]) for key in agreed if first.get(key)]


def distinguishing_keys(tasks: Sequence[Sequence[dict[str, Any]]]) -> list[str]:
    """Returns the keys whose values distinguish the configs of each task from each other.

    The policy and the environment come first, if they are not the same in all configs. Then come the first
    keys that distinguish further configs, in the order of ``SECTIONS``: a key that follows from those before
    it would only make a label longer.

    Args:
        tasks: the settings of the configs that are to be distinguished, for each task.
    """
    every_key = dict.fromkeys(key for task in tasks for settings in task for key in settings)
    by_section = sorted(every_key, key=lambda key: [not key.startswith(section) for section in SECTIONS])
    keys: list[str] = []

    def classes(chosen: Sequence[str]) -> int:
        """Returns how many configs the chosen keys distinguish, summed over the tasks."""
        return sum(len({repr([flat.get(key) for key in chosen]) for flat in task}) for task in tasks)

    for key in dict.fromkeys([*HEADLINE_KEYS, *by_section]):
        varies = key in HEADLINE_KEYS and len({repr(flat.get(key)) for task in tasks for flat in task}) > 1
        if varies or classes([*keys, key]) > classes(keys):
            keys.append(key)
    return keys


def differing_keys(settings: Sequence[dict[str, Any]]) -> list[str]:
    """Returns the keys in which configs differ; first those of :func:`distinguishing_keys`."""
    first = distinguishing_keys([settings])
    values: dict[str, list[str]] = {}
    for flat in settings:
        for key, value in flat.items():
            values.setdefault(key, []).append(repr(value))

    def differ(key: str) -> bool:
        # Another key that some configs lack is one that their version of the library did not have.
        is_missing = key.startswith(OWN_NAMES) and len(values[key]) < len(settings)
        return is_missing or len(set(values[key])) > 1

    return [*first, *(key for key in values if key not in first and differ(key))]


def other_keys(tasks: Sequence[Sequence[dict[str, Any]]], keys: Sequence[str]) -> list[str]:
    """Returns a text about the keys that differ beside ``keys``, such as ["+2 keys"]; empty without any.

    Only configs of the same policy and environment count: others differ in what follows from these.

    Args:
        tasks: as for :func:`distinguishing_keys`.
        keys: those that a label shows.
    """
    alike: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for place, task in enumerate(tasks):
        for settings in task:
            headline = repr([settings.get(key) for key in HEADLINE_KEYS])
            alike.setdefault((place, headline), []).append(settings)
    differing = {key for settings in alike.values() for key in differing_keys(settings)}
    count = len(differing.difference(keys))
    return [f"+{count} key{'s' if count > 1 else ''}"] if count else []


def describe(settings: dict[str, Any], keys: Sequence[str]) -> list[str]:
    """Returns the values of the keys as texts, such as ["ppo", "clip_ratio=0.1"].

    Numbers with many digits, such as those of a sweep, are rounded to four.
    """
    return [
        ("" if key in HEADLINE_KEYS else f"{name}=") + _short(settings.get(key, "not set"))
        for key, name in short_names(keys).items()
    ]


def short_names(keys: Collection[str]) -> dict[str, str]:
    """Returns the last part of each key; with its section where the part alone could mean another key.

    ``env.manager.type`` is ``manager.type``: several sections have a key ``type``.
    """
    last = [key.rpartition(".")[2] for key in keys]
    return {
        key: ".".join(key.split(".")[-2:]) if name == "type" or last.count(name) > 1 else name
        for key, name in zip(keys, last, strict=True)
    }


def _short(value: Any) -> str:
    text = str(value)
    return f"{value:.4g}" if isinstance(value, float) and len(text) > LONG_NUMBER else text
