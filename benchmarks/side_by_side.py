"""PPO with rl-zoo's settings here and in other libraries, over env steps and CPU time; writes RESULTS.md.

    python benchmarks/side_by_side.py                   every task; a stopped measurement continues
    python benchmarks/side_by_side.py CartPole-v1 ...   these tasks
    python benchmarks/side_by_side.py --seeds 2         two seeds of each, from 600 on
    python benchmarks/side_by_side.py --write           measure nothing: the table and the pictures

    ding_lite           the settings of rl-zoo, and the losses of Stable-Baselines3
    stable_baselines3   the settings of rl-zoo
    defaults            the settings of rl-zoo, and the value loss that is the default here
    out_of_the_box      what ``ding-lite train --env ID`` begins with
    tianshou            the settings of rl-zoo, where they scale neither observations nor rewards

Each seed trains in one thread, in a process of its own. Greedy episodes are played every twentieth of the env
steps, and 100 at the end, by code outside of all libraries. Results are lines of side_by_side.csv.
"""

from __future__ import annotations

import json
from typing import Any

import harness
import numpy as np
from systems.curve import ARMS, POINTS
from systems.tasks import TASKS
from tables import Points, beats, draw, measured_at, score_cell

STORE = harness.HERE / "side_by_side.csv"
PICTURES = harness.HERE / "curves"
OURS, PEER = "ding_lite", "stable_baselines3"
AXES = {"env_step": "env steps", "cpu_s": "CPU seconds"}


def sections() -> dict[str, list[str]]:
    """Returns the generated lines of RESULTS.md."""
    curves = stored()
    rows = [["task", "env steps", "seeds", *ARMS, f"CPU seconds: {OURS} / {PEER}", "times less"]]
    for env_id, task in TASKS.items():
        final, seconds = (
            {arm: np.array([seed[-1][name] for seed in curves.get(f"{env_id}.{arm}", ())]) for arm in ARMS}
            for name in ("return", "cpu_s")
        )
        if not final[PEER].size:
            continue
        returns = [
            score_cell([values], 1) + (beats(values, final[PEER]) if arm != PEER else "")
            if values.size
            else ""
            for arm, values in final.items()
        ]
        seeds = " / ".join(str(len(values)) for values in final.values())
        ours, peer = seconds[OURS].mean(), seconds[PEER].mean()
        rows.append(
            [env_id, f"{task.steps:,}", seeds, *returns, f"{ours:.0f} / {peer:.0f}", f"{peer / ours:.2f}"]
        )
    if not curves:
        return {"side-by-side": []}
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
        (seed, name, arm)
        for name in names
        for seed in TASKS[name].seeds[: args.seeds]
        for arm in args.arms
        if arm != "tianshou" or not TASKS[name].normalize
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
