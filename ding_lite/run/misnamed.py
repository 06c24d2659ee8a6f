"""What is said about a path that is neither a run nor a checkpoint: the runs that may be meant."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

MAX_NAMES = 3  # runs in one message


def is_run(folder: Path) -> bool:
    """Returns whether a folder is that of a run, also of one that ended before its first checkpoint."""
    return (folder / "metrics.csv").is_file() or (folder / "ckpt").is_dir()


def runs_in(folder: Path) -> list[Path]:
    """Returns the runs in a folder and in the folders in it, the one that changed last first."""
    found = [path for pattern in ("*", "*/*") for path in folder.glob(pattern) if is_run(path)]
    return sorted(found, key=lambda run: run.stat().st_mtime, reverse=True)


def what_is_there(path: Path) -> str:
    """Returns which runs or checkpoints there are where none is named ``path``; "" if nothing is known."""
    if path.is_dir():
        return _in_folder(path)
    if path.exists():
        is_file_of_run = path.is_file() and is_run(path.parent)
        return f"{path} is a file; name its run, {path.parent}" if is_file_of_run else ""
    return f"there is no folder {path}{_alternatives(path)}"


def _in_folder(folder: Path) -> str:
    saved = sorted(file.parent.name for file in folder.glob("*/manifest.json"))
    if saved:
        return f"{folder} has the checkpoints {', '.join(saved)}; name one, such as {folder / saved[0]}"
    runs = runs_in(folder)
    if not runs:
        return ""
    count = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
    return f"{folder} holds {count}; name one, such as {runs[0]}"


def _alternatives(path: Path) -> str:
    """Returns what is beside a path that does not exist, or the newest runs in ``runs/``."""
    if path.parent.name == "ckpt":
        names = sorted(file.parent.name for file in path.parent.glob("*/manifest.json"))
        return f"; {path.parent} has {', '.join(names)}" if names else ""
    beside = runs_in(path.parent)
    of_seeds = [run for run in beside if re.fullmatch(rf"{re.escape(path.name)}_s\d+", run.name)]
    if of_seeds:
        return f"; {_listed(sorted(of_seeds, key=_seed_of))} exist, one run for each seed"
    runs = beside or runs_in(Path("runs"))
    close = difflib.get_close_matches(path.name, [run.name for run in runs], n=1, cutoff=0.8)
    if close:
        return f"; did you mean {next(run for run in runs if run.name == close[0])}?"
    if not runs:
        return "; `ding-lite runs FOLDER` lists the runs in a folder"
    return f"; the newest {'run is' if len(runs) == 1 else 'runs are'} {_listed(runs)}"


def _seed_of(run: Path) -> int:
    return int(run.name.rpartition("_s")[2])


def _listed(runs: list[Path]) -> str:
    more = f" and {len(runs) - MAX_NAMES} more" if len(runs) > MAX_NAMES else ""
    return ", ".join(map(str, runs[:MAX_NAMES])) + more
