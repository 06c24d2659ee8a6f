"""PPO with rl-zoo's settings here and in Stable-Baselines3, over env steps and CPU time; writes RESULTS.md.

    python benchmarks/side_by_side.py                   every task; a stopped measurement continues
    python benchmarks/side_by_side.py CartPole-v1 ...   these tasks
    python benchmarks/side_by_side.py --seeds 2         two seeds of each, from 600 on
    python benchmarks/side_by_side.py --write           measure nothing: the table and the pictures

    ding_lite           the settings of rl-zoo, and the losses of Stable-Baselines3
    stable_baselines3   the settings of rl-zoo
    defaults            the settings of rl-zoo, and the value loss that is the default here
    out_of_the_box      what ``ding-lite train --env ID`` begins with

Each seed trains in one thread, in a process of its own. Greedy episodes are played every twentieth of the env
steps, and 100 at the end, by code outside of both libraries. Results are lines of side_by_side.csv.
"""

from __future__ import annotations

import json
from typing import Any

import harness
import numpy as np
from systems.curve import ARMS, POINTS
from systems.tasks import TASKS
from tables import Points, draw, measured_at, score_cell

from ding_lite.tools.statistics import probability_of_improvement

STORE = harness.HERE / "side_by_side.csv"
PICTURES = harness.HERE / "curves"
PEER = "stable_baselines3"
AXES = {"env_step": "env steps", "cpu_s": "CPU seconds"}


def sections() -> dict[str, list[str]]:
    """Returns the generated lines of RESULTS.md."""
    curves = stored()
    rows = [["task", "env steps", "arm", "return", "beats", "CPU seconds", "times"]]
    for env_id, task in TASKS.items():
        arms = {arm: curves[row] for arm in ARMS if (row := f"{env_id}.{arm}") in curves}
        final = {arm: np.array([seed[-1]["return"] for seed in seeds]) for arm, seeds in arms.items()}
        seconds = {arm: np.array([seed[-1]["cpu_s"] for seed in seeds]) for arm, seeds in arms.items()}
        for arm, values in final.items():
            cells = [
                env_id,
                f"{task.steps:,}",
                arm,
                score_cell([values], 1),
                "",
                f"{seconds[arm].mean():.0f}",
                "",
            ]
            if arm != PEER and PEER in final:
                cells[4] = f"{probability_of_improvement([values], [final[PEER]]):.2f}"
                cells[6] = f"{seconds[PEER].mean() / seconds[arm].mean():.2f}"
            rows.append(cells)
    seeds_of = {row: [seed[-1] for seed in seeds] for row, seeds in curves.items()}
    commits = ", ".join(dict.fromkeys(line["commit"] for seeds in seeds_of.values() for line in seeds))
    return {"side-by-side": [*harness.table(*rows), "", f"{measured_at(seeds_of)}; commits {commits}."]}


def stored() -> dict[str, list[list[dict[str, Any]]]]:
    """Returns the evaluations of each seed of each row that is measured to its end."""
    curves: dict[str, dict[float, list[dict[str, Any]]]] = {}
    for line in harness.read(STORE):
        curves.setdefault(line["row"], {}).setdefault(line["seed"], []).append(line)
    return {row: [seeds[seed] for seed in sorted(seeds)] for row, seeds in curves.items()}


def write() -> None:
    """Writes the table, and draws the curves over env steps and over CPU time."""
    harness.put(sections())
    curves = stored()
    for axis, label in AXES.items():
        panels: dict[str, dict[str, list[Points]]] = {}
        for row, seeds in curves.items():
            env_id, _, arm = row.partition(".")
            points = [tuple(np.array([[line[axis], line["return"]] for line in seed]).T) for seed in seeds]
            panels.setdefault(env_id, {})[arm] = points
        draw(panels, PICTURES / f"side_by_side_{axis}.png", x_label=label)


def main() -> None:
    """Measures what is missing, seed by seed, and writes table and pictures."""
    parser = harness.parser(__doc__, TASKS)
    parser.add_argument("--seeds", type=int, help="of each task (default: five or ten)")
    parser.add_argument("--arms", nargs="*", default=list(ARMS), choices=ARMS, help="measure these only")
    args = parser.parse_args()
    names = [] if args.write else args.rows or TASKS
    jobs = [
        (seed, name, arm) for name in names for seed in TASKS[name].seeds[: args.seeds] for arm in args.arms
    ]
    for seed, name, arm in sorted(jobs, key=lambda job: job[0]):
        place = {"row": f"{name}.{arm}", "seed": seed}
        if any(place.items() <= line.items() for line in harness.read(STORE)):
            continue
        here = harness.measured_here()
        output = harness.python(["-m", "systems.curve", arm, name, str(seed)]).output
        points = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        assert len(points) == POINTS, output
        harness.append(STORE, [place | point | here for point in points])
        print(f"{name} {arm} seed {seed}: {points[-1]}", flush=True)
    write()


if __name__ == "__main__":
    main()
