"""What a sweep leaves for its user: a table, a picture, and the best config as a file that can be trained."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ding_lite.config.compile import python_source, without_sources
from ding_lite.config.values import decode
from ding_lite.errors import ConfigError
from ding_lite.run.checkpoint import write_whole
from ding_lite.run.display import score_text
from ding_lite.tools.plot import new_figure, save
from ding_lite.tools.statistics import MIN_RUNS
from ding_lite.tools.sweep import STATES, Sweep, assignments
from ding_lite.tools.table import aligned

try:  # before the search, not after it
    from matplotlib.ticker import MaxNLocator
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
    from optuna.trial import FrozenTrial, TrialState
except ImportError as error:
    raise ConfigError('a sweep needs Optuna and matplotlib: pip install "ding_lite[sweep]"') from error

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN = 10  # best trials in the table
# PED-ANOVA compares the best tenth of the trials with all of them, and Optuna advises to have five in it.
ENOUGH_TRIALS = 50
MARKS = {
    TrialState.COMPLETE: ("o", "#0072B2", "complete"),
    TrialState.PRUNED: ("x", "0.6", "pruned, at its last evaluation"),
}


def importances(sweep: Sweep) -> dict[str, float]:
    """Returns how much of the score each key explains, the largest first (PED-ANOVA, arXiv:2304.10255).

    Empty if the trials are too few or too alike to tell.
    """
    if len({trial.value for trial in sweep.ranked()}) < 2 or len(sweep.space) < 2:
        return {}
    found = get_param_importances(sweep.study, evaluator=PedAnovaImportanceEvaluator())
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def sweep_report(sweep: Sweep, best_config: Path | None) -> dict[str, Any]:
    """Returns what became of the trials, as JSON data.

    Args:
        sweep: that has ended.
        best_config: what :func:`write_best` has written.
    """
    best = sweep.best()
    return {
        "folder": str(sweep.folder),
        "seeds": list(sweep.seeds),
        "best": None if best is None else best.number,
        "best_score": None if best is None else best.value,
        "best_config": None if best_config is None else str(best_config),
        "importances": importances(sweep),
        "trials": [
            {
                "trial": trial.number,
                "state": STATES[trial.state],
                "score": trial.value if trial.state == TrialState.COMPLETE else None,
                "values": sweep.values_of(trial),
            }
            for trial in sweep.trials()
        ],
    }


def sweep_table(sweep: Sweep) -> str:
    """Returns the best trials as a table, the importance of the keys, and the command to type next."""
    trials, ranked = sweep.trials(), sweep.ranked()
    rows = [["trial", "score", "values"]]
    for trial in ranked[:SHOWN]:
        rows.append([str(trial.number), score_text(trial.value), assignments(sweep.values_of(trial))])
    states = [STATES[trial.state] for trial in trials]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    lines = aligned(rows, right=range(1, len(rows[0]) - 1)) if ranked else []
    lines.append(f"{len(trials)} trials: {counts}")
    shares = importances(sweep)
    if shares:
        lines.append(
            "importance: "
            + ", ".join(f"{key} {100 * x:.0f} %" for key, x in shares.items())
            + caution(len(ranked))
        )
    return "\n".join(lines)


def caution(trials: int) -> str:
    """Returns what to keep in mind about the importance of keys, if so many trials are too few; else ""."""
    if trials >= ENOUGH_TRIALS:
        return ""
    return f" (a rough guess: from {trials} trials, of which it compares the best tenth with all)"


def write_best(sweep: Sweep) -> Path | None:
    """Writes the config of the best trial to ``best.py`` and returns the file.

    Returns None if no trial has a score, or if the run folder of the best one has been removed.

    It has every key that differs from its default, also those that the command line set or that were derived
    from others, so that it trains as the trial did.
    """
    best = sweep.best()
    if best is None:
        return None
    origin = _config_of(sweep, best)
    file = sweep.folder / "best.py"
    if not origin.is_file():
        file.unlink(missing_ok=True)  # of a trial that was the best before
        return None
    saved = decode(json.loads(origin.read_bytes()))
    config = without_sources(saved["config"], saved["source"], ("default",))
    config["exp_name"] = f"{sweep.config.values.exp_name}_best"
    comments = [
        f"The best of {len(sweep.trials())} trials: trial {best.number}, score {score_text(best.value)} over "
        f"the seeds {', '.join(map(str, sweep.seeds))}.",
        assignments(sweep.values_of(best)),
    ]
    write_whole(file, python_source(config, comments))
    return file


def _config_of(sweep: Sweep, trial: FrozenTrial) -> Path:
    """Returns config.json of the first run of a trial."""
    return sweep.run_folder(trial.number, sweep.seeds[0]) / "config.json"


def best_command(sweep: Sweep, imports: list[str]) -> str:
    """Returns the command that trains the best config with seeds that the sweep has not used.

    They are as many as those of the sweep, and enough for an interval: the score of the best trial is a
    lucky one in part.

    Args:
        sweep: that has a best config.
        imports: options of :func:`imports_of_best`.
    """
    first = max(sweep.seeds) + 1
    seeds = range(first, first + max(len(sweep.seeds), MIN_RUNS))
    words = ["ding-lite", "train", "-c", str(sweep.folder / "best.py"), "-s", *map(str, seeds)]
    return shlex.join(words + imports)


def imports_of_best(sweep: Sweep) -> list[str]:
    """Returns the options that find the user's classes for best.py, as the best run has noted them.

    A config file that defines some itself is imported, since best.py stands in its place.
    """
    best = sweep.best()
    assert best is not None
    saved = json.loads(_config_of(sweep, best).read_bytes()).get("imports", [])
    return ["--import" if word == "-c" else word for word in saved]


def draw_sweep(sweep: Sweep) -> Path | None:
    """Draws the scores of the trials and the importance of the keys to ``sweep.png``; returns the file.

    Returns None if no trial has a score.

    Raises:
        ConfigError: if the file cannot be written.
    """
    if sweep.best() is None:
        return None
    shares = importances(sweep)
    figure = new_figure(9.0 if shares else 5.0, 3.2)
    panels = figure.subplots(1, 2 if shares else 1, squeeze=False, width_ratios=[3, 2] if shares else None)[0]
    _draw_history(panels[0], sweep.trials())
    if shares:
        _draw_importances(panels[1], shares)
    file = sweep.folder / "sweep.png"
    save(figure, file, tight=False)
    return file


def _draw_history(axes: Axes, trials: list[FrozenTrial]) -> None:
    for state, (marker, color, label) in MARKS.items():
        points = [(t.number, t.value) for t in trials if t.state == state and t.value is not None]
        if points:
            x, y = zip(*points, strict=True)
            axes.scatter(x, y, marker=marker, color=color, s=18, label=label, zorder=3)
    steps: list[tuple[int, float]] = []
    for trial in trials:
        if trial.state == TrialState.COMPLETE and trial.value is not None:
            steps.append((trial.number, max(trial.value, steps[-1][1] if steps else trial.value)))
    numbers, best = zip(*[*steps, (trials[-1].number, steps[-1][1])], strict=True)
    axes.step(numbers, best, where="post", color="#D55E00", linewidth=1.5, label="best so far", zorder=2)
    axes.set_xlabel("Trial", fontsize=9)
    axes.set_title("Score: mean return of the last evaluation", fontsize=10, loc="left")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_axisbelow(True)
    axes.grid(color="0.9", linewidth=0.6)
    axes.legend(fontsize=8, frameon=False)
    _format(axes)


def _draw_importances(axes: Axes, shares: dict[str, float]) -> None:
    names = [key.removeprefix("policy.") for key in reversed(shares)]
    bars = axes.barh(names, [100 * share for share in reversed(shares.values())], color="#0072B2", height=0.6)
    axes.bar_label(bars, fmt="%.0f %%", fontsize=8, padding=3)
    axes.set_xlim(0, 115)
    axes.set_title("Importance (PED-ANOVA)", fontsize=10, loc="left")
    axes.set_xlabel("Per cent", fontsize=9)
    _format(axes)


def _format(axes: Axes) -> None:
    axes.tick_params(labelsize=8, length=3)
    axes.spines[["top", "right"]].set_visible(False)
