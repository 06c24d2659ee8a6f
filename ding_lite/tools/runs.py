"""Reads the folders of runs: their metrics and configs, how they ended, and which belong together.

``find_runs`` finds run folders, ``read_run`` reads one, and ``list_runs`` describes each in a line for
``ding-lite runs``. ``seed_groups`` groups the seeds of each config, and ``labels`` names what distinguishes
configs. Neither torch nor matplotlib is imported.
"""

from __future__ import annotations

import csv
import glob
import io
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ding_lite.config.registry import env_name
from ding_lite.config.schema import leaves
from ding_lite.errors import ConfigError, error_text
from ding_lite.run.checkpoint import opened, read_json
from ding_lite.run.folder import is_locked, read_result

METRICS = "metrics.csv"  # a folder with it is a run folder
# Largest metrics.csv, in bytes: a million rows of 500 bytes, as a run of a billion steps may have.
LARGEST_CSV = 2**29
ENV_STEP = "env_step"  # the column of the horizontal axis
SCORE = "eval/episode_return_mean"
HEADLINE_KEYS = ("policy.type", "env.env_id")
# The order of other keys in labels, by the section: the first ones say most about a run.
SECTIONS = ("policy.learn.", "policy.", "env.", "")
# These keys may differ between the seeds of a group: a run may be resumed with a higher limit, and neither
# checkpoints nor logs change what is learned. The length of schedules is another key, schedule_env_step.
NOT_COMPARED = ("seed", "exp_name", "max_env_step", "max_train_iter", "checkpoint", "logger")
SCHEDULE_LENGTH = "policy.learn.schedule_env_step"
NOT_SET = "-"
NAMED = re.compile(r"([^=/\\]+)=(.+)", re.DOTALL)  # NAME=FOLDER
Settings = dict[str, Any]  # a config as ``{"path.of.key": value}``
LOG_TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")


class Run(NamedTuple):
    """The content of a run folder that is needed to draw and to compare it.

    Attributes:
        folder: of the run.
        config: its complete config; a run that was resumed with changes also has the values before them.
        columns: the env steps and the requested columns of metrics.csv, by name; each (N,), NaN where a
            cell is missing.
        status: how it ended; see :class:`ListedRun`.
        error: that ended the run; None if it did not fail.
    """

    folder: Path
    config: dict[str, Any]
    columns: dict[str, np.ndarray]
    status: str = "finished"
    error: str | None = None


class ListedRun(NamedTuple):
    """A run in one line; what is not known is None.

    Attributes:
        status: "solved", "finished", "interrupted" or "failed", as in result.json; "running" while a process
            locks the folder; "killed" if the run ended without a result; "unreadable" if a file is damaged.
        score: mean return of the last evaluation.
        env_step: of the last row of metrics.csv; 0 if there is none.
        started: when the run was started, as in log.txt.
        differs: its values of the keys that differ between the runs of its policy and environment.
        error: why the run failed or cannot be read.
    """

    folder: Path
    status: str
    score: float | None = None
    env_step: int = 0
    started: str | None = None
    policy: str | None = None
    env_id: str | None = None
    seed: int | None = None
    differs: dict[str, Any] = {}  # noqa: RUF012 - never changed
    error: str | None = None


# ------------------------------------------------------------------ finding


def find_runs(folder: Path) -> list[Path]:
    """Returns the run folders in ``folder`` at any depth, or ``folder`` itself if it is one."""
    run_folders = []
    for path, folders, files in os.walk(folder):
        folders[:] = sorted((name for name in folders if not name.startswith(".")), key=natural)
        if METRICS in files:
            run_folders.append(Path(path))
            folders.clear()
    return run_folders


def natural(text: object) -> list[tuple[int, int, str]]:
    """Returns a key that sorts numbers in a text by their value: run_2 before run_10."""
    parts = filter(None, re.split(r"([0-9]+)", str(text)))
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts]


def runs_of(*arguments: str | Path) -> list[Path]:
    """Returns the run folders that arguments name: run folders, folders with runs in them, or glob patterns.

    A run that is named twice is returned once. Files, which a pattern of the shell may match, are ignored.

    Raises:
        ConfigError: if an argument names no run.
    """
    unique: dict[Path, Path] = {}
    for argument in arguments:
        paths = [Path(argument)]
        if not paths[0].exists():  # a folder that exists is no pattern, whatever its name
            paths = [Path(name) for name in sorted(glob.glob(str(argument)), key=natural)]
        folders = [folder for path in paths for folder in find_runs(path)]
        if not folders and not Path(argument).is_file():
            raise ConfigError(f"{argument} is not a run and contains none: a run has a {METRICS}")
        for folder in folders:
            unique.setdefault(folder.resolve(), folder)
    return list(unique.values())


# ------------------------------------------------------------------ reading


def read_run(folder: Path, wanted: Collection[str] = (SCORE,)) -> Run:
    """Reads a run folder.

    Args:
        folder: of the run.
        wanted: names of columns to read beside the env steps; columns that the file lacks are ignored.

    Raises:
        ConfigError: if a file of the run cannot be read.
    """
    file = folder / "config.json"
    try:
        settings = read_json(file)
        config = {**settings["config"], **settings.get("former", {})}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(f"cannot read the config in {file}: {error!r}") from error
    run = Run(folder, config, _read_columns(folder / METRICS, {*wanted, ENV_STEP}))
    result = read_result(folder)
    if is_locked(folder):
        return run._replace(status="running")
    if "status" not in result or last_step(run) > result.get("env_step", 0):  # a resumed run was killed
        return run._replace(status="killed")
    return run._replace(status=str(result["status"]), error=result.get("error"))


def readable(folders: Sequence[str | Path], columns: Sequence[str], left_out: list[str]) -> list[Run]:
    """Reads the runs that have numbers in one of the columns, and adds a line on each other run to a list.

    Args:
        folders: see :func:`runs_of`.
        columns: of metrics.csv.
        left_out: the list that gets a line for each run that is not returned.
    """
    runs = []
    for folder in runs_of(*folders):
        try:
            run = read_run(folder, {*columns, SCORE})
        except ConfigError as error:
            left_out.append(f"Left out, since it cannot be read: {error}")
            continue
        if any(len(points_of(run, column)[0]) for column in columns):
            runs.append(run)
        else:
            left_out.append(f"Left out, since it has no {' or '.join(columns)}: {folder} ({run.status})")
    return runs


def _read_columns(path: Path, wanted: set[str]) -> dict[str, np.ndarray]:
    """Returns the ``wanted`` columns that a CSV file has; other columns may be text.

    A last line without a line end is ignored: a crash cut it, or it is being written.
    """
    try:
        with opened(path, largest=LARGEST_CSV) as stream:
            text = stream.read().decode("utf-8-sig", errors="replace")
    except OSError as error:
        raise ConfigError(f"cannot read the metrics of a run: {error}") from error
    reader = csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1]))
    names = wanted.intersection(reader.fieldnames or []) | {ENV_STEP}  # empty file: the run failed at once
    try:
        rows = [[float(row[name] or np.nan) for name in names] for row in reader]
    except (ValueError, KeyError, csv.Error) as error:
        raise ConfigError(f"{path}, line {reader.line_num}: {error!r}") from error
    columns = dict(zip(names, np.array(rows, np.float64).reshape(-1, len(names)).T, strict=True))
    steps = columns[ENV_STEP]
    if (np.diff(steps[np.isfinite(steps)]) < 0).any():  # two runs in one file: no curve goes through them
        raise ConfigError(f"{path}: {ENV_STEP} decreases")
    return columns


def points_of(run: Run, column: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the env steps and a column, without the rows where one of the two is missing."""
    x = run.columns[ENV_STEP]
    y = run.columns.get(column, np.full_like(x, np.nan))
    finite = np.isfinite(x) & np.isfinite(y)
    return x[finite], y[finite]


def last_step(run: Run) -> int:
    """Returns the last env step in metrics.csv; 0 if there is none."""
    steps, _ = points_of(run, ENV_STEP)
    return int(steps[-1]) if len(steps) else 0


def env_of(config: Mapping[str, Any]) -> str:
    """Returns the environment's id in a run's config, or the name of its type."""
    return env_name(config.get("env", {}))


def list_runs(folder: Path) -> list[ListedRun]:
    """Returns all runs in a folder, at any depth, the newest first, with the keys in which they differ.

    Raises:
        ConfigError: if the folder does not exist.
    """
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}")
    described = [_listed(path) for path in find_runs(folder)]
    alike: dict[Any, list[list[Settings]]] = defaultdict(list)  # by policy and environment
    for run, settings in described:
        alike[run.policy, run.env_id].append([settings])
    keys = {kind: differing(runs) for kind, runs in alike.items()}
    runs = []
    for run, settings in described:
        differs = {key: settings[key] for key in keys[run.policy, run.env_id] if key in settings}
        runs.append(run._replace(differs=differs))
    return sorted(runs, key=lambda run: run.started or "", reverse=True)


def _listed(folder: Path) -> tuple[ListedRun, Settings]:
    """Returns a run in one line, and its settings; without settings if the run cannot be read."""
    try:
        with opened(folder / "log.txt") as stream:
            started = LOG_TIME.match(stream.readline(1000).decode(errors="replace"))
    except OSError:
        started = None
    line = ListedRun(folder, "unreadable", started=started and started[0])
    try:
        run = read_run(folder)
        settings, seed = settings_of(run.config), run.config["seed"]
        policy = settings["policy.type"]
    except (ConfigError, KeyError, TypeError, AttributeError) as fault:
        return line._replace(error=error_text(fault)), {}
    _, scores = points_of(run, SCORE)
    line = line._replace(
        status=run.status,
        score=float(scores[-1]) if len(scores) else None,
        env_step=last_step(run),
        policy=policy,
        env_id=settings["env.env_id"],
        seed=seed,
        error=run.error,
    )
    return line, settings


# ------------------------------------------------------------------ grouping


def settings_of(config: Mapping[str, Any]) -> Settings:
    """Returns the values of the keys of a config, without those that may differ inside a group.

    An environment without an id, such as a class, gets the name of its type as ``env.env_id``.
    """
    compared = {key: value for key, value in config.items() if key not in NOT_COMPARED}
    # An empty dict is no value: {} and {"mask": True} differ in one key, kwargs.mask.
    settings = {path: value for path, value in leaves(compared) if value != {}}
    if all(x in ("constant", "adaptive") for path, x in settings.items() if path.endswith("_schedule")):
        settings.pop(SCHEDULE_LENGTH, None)  # it is derived from the limit and has no effect
    return {**settings, "env.env_id": env_of(config)}


def config_text(run: Run) -> str:
    """Returns the :func:`settings_of` a run as text, which is the same for all runs of a group."""
    return repr(sorted(settings_of(run.config).items()))


def launch_of(run: Run) -> str:
    """Returns the name that the seeds of one command share: runs/mine for runs/mine_s0 and runs/mine_s1."""
    return str(run.folder).removesuffix(f"_s{run.config.get('seed')}")


def repeated(runs: Sequence[Run]) -> list[Run]:
    """Returns the runs that share config and seed with another run: they are not independent samples."""
    samples = [(config_text(run), repr(run.config.get("seed"))) for run in runs]
    count = Counter(samples)
    return [run for run, sample in zip(runs, samples, strict=True) if count[sample] > 1]


def seed_groups(
    runs: Sequence[Run],
    by: Sequence[Callable[[Run], object]] = (config_text, launch_of, lambda run: run.folder),
) -> list[list[Run]]:
    """Groups runs by config; if a seed occurs twice, also by launch, or, if it still does, run by run.

    A seed may occur twice, for example, before and after a change of the code.
    """
    together: dict[object, list[Run]] = defaultdict(list)
    for run in runs:
        together[by[0](run)].append(run)
    groups: list[list[Run]] = []
    for alike in together.values():
        groups += seed_groups(alike, by[1:]) if repeated(alike) else [alike]
    return groups


def grouped(
    arguments: Sequence[str | Path],
    columns: Sequence[str],
    left_out: list[str],
    named_keys: Sequence[str] = HEADLINE_KEYS,
) -> dict[str, list[Run]]:
    """Returns the named groups of runs, and the :func:`seed_groups` of all other runs, as named first.

    Args:
        arguments: as for :func:`runs_of`. ``NAME=FOLDER`` puts the runs into the group NAME instead; a name
            may occur repeatedly. If labels do not name environments, groups with the same label are merged.
        columns, left_out: as for :func:`readable`.
        named_keys: as for :func:`labels`, which labels the other groups.

    Raises:
        ConfigError: if there is no run, or a named group has a seed of a config twice or the name of another
            group.
    """
    folders: dict[str, list[str]] = {}
    for argument in map(str, arguments):
        match = None if Path(argument).exists() else NAMED.fullmatch(argument)
        name, folder = match.groups() if match else ("", argument)
        folders.setdefault(name, []).append(folder)
    groups: dict[str, list[Run]] = {}
    for name, paths in folders.items():
        runs = readable(paths, columns, left_out)
        if name and (same := repeated(runs)):
            raise ConfigError(
                f"group {name}: runs of the same config and seed are not independent samples: "
                f"{', '.join(str(run.folder) for run in same)}. Put them into groups of different names"
            )
        parts = [runs] if name else seed_groups(runs)
        for label, part in zip([name] if name else labels(parts, named_keys), parts, strict=True):
            if not name and label in folders:
                raise ConfigError(f"another group is labelled {label} by its config: choose another name")
            groups.setdefault(label, []).extend(part)
    groups = {name: runs for name, runs in groups.items() if runs}
    if not groups:
        raise ConfigError("\n  ".join([f"no run has {' or '.join(columns)}.", *left_out]))
    return groups


def shared(settings: Sequence[Settings], keys: Sequence[str] = HEADLINE_KEYS) -> str:
    """Returns the policy and the environment as text, each only if it is the same in all ``settings``."""
    values = [{flat.get(key) for flat in settings} for key in keys]
    return ", ".join(str(*texts) for texts in values if len(texts) == 1 and texts != {None})


def differing(groups: Sequence[Sequence[Settings]]) -> dict[str, list[str]]:
    """Returns the keys in which groups of settings differ, with the values of each group as text.

    The keys are in the order of :func:`labels`: the first ones say most about a run.
    """

    def order(key: str) -> list[bool]:
        return [key != headline for headline in HEADLINE_KEYS] + [not key.startswith(s) for s in SECTIONS]

    differences = {}
    for key in sorted({key: None for group in groups for flat in group for key in flat}, key=order):
        texts = [" / ".join(dict.fromkeys(str(flat.get(key, NOT_SET)) for flat in group)) for group in groups]
        if len(set(texts)) > 1:
            differences[key] = texts
    return differences


def labels(groups: Sequence[Sequence[Run]], named_keys: Sequence[str] = HEADLINE_KEYS) -> list[str]:
    """Returns labels that distinguish the groups of runs in each environment, such as "ppg, width=64".

    The policy and the environment come first, if they are not the same in all groups. Then come the first
    keys that distinguish further groups, in the order of ``SECTIONS``: a key that follows from those before
    it would only make a label longer. Groups of equal configs are distinguished by their folders.

    Args:
        groups: each of one config.
        named_keys: the ``HEADLINE_KEYS`` in the labels; without "env.env_id", a label may occur once in each
            environment.
    """
    settings = [settings_of(group[0].config) for group in groups]

    def classes(chosen: Sequence[str]) -> int:
        """Returns how many groups the chosen keys distinguish in all environments."""
        return len({repr([flat.get(key) for key in ("env.env_id", *chosen)]) for flat in settings})

    keys: list[str] = []
    for key in differing([[flat] for flat in settings]):
        if key in named_keys or classes([*keys, key]) > classes(keys):
            keys.append(key)
    prefixes = {key: "" if key in HEADLINE_KEYS else f"{name}=" for key, name in short_names(keys).items()}
    texts = [
        ", ".join(f"{prefix}{short_text(flat.get(key, NOT_SET))}" for key, prefix in prefixes.items())
        for flat in settings
    ]
    pairs = [(flat["env.env_id"], text) for flat, text in zip(settings, texts, strict=True)]
    paths = [Path(launch_of(group[0]) if len(group) > 1 else group[0].folder).resolve() for group in groups]
    top = os.path.commonpath([path.parent for path in paths]) if paths else ""
    names = []
    for pair, flat, path in zip(pairs, settings, paths, strict=True):
        parts = [pair[1], os.path.relpath(path, top) if pairs.count(pair) > 1 else ""]
        names.append(", ".join(filter(None, parts)) or shared([flat], named_keys))
    return names


def short_names(keys: Collection[str]) -> dict[str, str]:
    """Returns the last part of each key, with its section if the part alone could mean another key.

    ``env.manager.type`` is ``manager.type``: several sections have a key ``type``.
    """
    last = [key.rpartition(".")[2] for key in keys]
    return {
        key: ".".join(key.split(".")[-2:]) if name == "type" or last.count(name) > 1 else name
        for key, name in zip(keys, last, strict=True)
    }


def short_text(value: Any) -> str:
    """Returns a value as text; numbers with many digits, such as those of a sweep, are rounded to four."""
    text = str(value)
    return f"{value:.4g}" if isinstance(value, float) and len(text) > 8 else text
