"""``ding-lite train --env ID`` beside Stable-Baselines3, with its defaults and tuned; writes RESULTS.md.

    python benchmarks/out_of_the_box.py             every task; a stopped measurement continues
    python benchmarks/out_of_the_box.py Taxi-v4 ... these tasks
    python benchmarks/out_of_the_box.py --write     measure nothing: the tables of what is stored

Each seed trains in one thread, in a process of its own. Stable-Baselines3 has 8 environments, as ding_lite
has, and one, as its examples have; "rl-zoo": Stable-Baselines3 with rl-zoo's settings of the task. The final
policy plays 40 greedy episodes. Results are lines of out_of_the_box.csv; env_step is what was trained, since
Stable-Baselines3 ends a rollout that it has begun.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import harness
import numpy as np
from systems.tasks import TUNED
from systems.units import FORMS
from tables import measured_at, score_cell

from ding_lite.run.settings import config_for

STORE = harness.HERE / "out_of_the_box.csv"
SEEDS = range(700, 705)  # settings and defaults were chosen on seeds below, 600 and 601 among them
OF_PEERS = range(600, 605)
EPISODES = 40
OURS, PEER, ONE_ENV, ZOO = "ppo", "stable_baselines3", "stable_baselines3_1_env", "rl-zoo"
TITLES = {
    PEER: "Stable-Baselines3, 8 environments",
    ONE_ENV: "Stable-Baselines3, 1 environment",
    ZOO: "rl-zoo's settings",
}
PEERS = tuple(TITLES)
OTHERS = ("ppg", "ppo_offpolicy", "ppg_offpolicy")


class Task(NamedTuple):
    """A task that is trained for so many env steps, by these arms, in the units of a form."""

    env_id: str
    steps: int
    arms: tuple[str, ...] = (OURS, PEER, ONE_ENV)
    form: str = ""


ALL = (OURS, PEER, ONE_ENV, *OTHERS)
TASKS = {
    task.env_id: task
    for task in (
        Task("CartPole-v1", 50_000, ALL),
        Task("Pendulum-v1", 100_000, ALL),
        Task("Acrobot-v1", 100_000, ALL),
        Task("FrozenLake-v1", 100_000, ALL),
        Task("MiniGrid-DoorKey-5x5-v0", 100_000, ALL),
        Task("InvertedPendulum-v5", 100_000, ALL),
        Task("MountainCarContinuous-v0", 100_000, ALL),
        Task("MountainCar-v0", 200_000, ALL),
        Task("Reacher-v5", 200_000),
        Task("LunarLander-v3", 300_000),
        Task("LunarLanderContinuous-v3", 300_000),
        Task("Hopper-v5", 300_000),
        Task("HalfCheetah-v5", 300_000),
        Task("Taxi-v4", 300_000),
        Task("MinAtar/Breakout-v1", 300_000),
    )
}
UNSEEN = {  # no default and no setting was chosen on them
    env_id: Task(env_id, steps, (OURS, PEER) if env_id != "Blackjack-v1" else (OURS,))
    for env_id, steps in (
        ("Blackjack-v1", 100_000),
        ("Pusher-v5", 200_000),
        ("HumanoidStandup-v5", 100_000),
        ("MiniGrid-LavaGapS5-v0", 100_000),
        ("MiniGrid-DistShift1-v0", 100_000),
        ("MiniGrid-Unlock-v0", 100_000),
        ("MiniGrid-Fetch-5x5-N2-v0", 100_000),
        ("MinAtar/Freeway-v1", 200_000),
    )
}
IN_UNITS = (
    ("Pendulum-v1", 100_000),
    ("Acrobot-v1", 100_000),
    ("LunarLanderContinuous-v3", 200_000),
    ("Hopper-v5", 200_000),
)
OTHER_UNITS = {
    f"{env_id}, {form}": Task(env_id, steps, (OURS, PEER), form)
    for env_id, steps in IN_UNITS
    for form in FORMS
    if env_id != "Acrobot-v1" or not form.startswith("actions")
}
EVERY = TASKS | UNSEEN | OTHER_UNITS


def measure(task: Task, arm: str, seed: int) -> dict[str, float]:
    """Returns the mean return of the final policy, and the seconds that training took of the processor."""
    folder = tempfile.mkdtemp()
    words = [arm, task.env_id, str(task.steps), str(seed), str(EPISODES), task.form, folder]
    try:
        if arm in PEERS:
            done = harness.python(["-m", "systems.sb3_defaults", *words[:-1]])
            return json.loads(done.output.splitlines()[-1])
        env = ["--env", task.env_id] if not task.form else ["--env", "systems.units:make"]
        keys = [f"max_env_step={task.steps}", "policy.eval.eval_freq=0", "logger.trackers=[]"]
        if task.form:
            keys.append(f"env.kwargs={json.dumps({'env_id': task.env_id} | FORMS[task.form])}")
        run = str(Path(folder) / "run")
        train = ["train", "-q", *env, "--policy", arm, "-s", str(seed), "--exp-name", run, *keys]
        done = harness.python(["-m", "ding_lite", *train])
        trusted = ["--import", "systems.units"] if task.form else []
        play = ["eval", f"{run}/ckpt/last", "-n", str(EPISODES), "-s", str(seed + 1), "--json", *trusted]
        result = json.loads(harness.python(["-m", "ding_lite", *play]).output)
        trained = json.loads(Path(run, "result.json").read_text())["env_step"]
        return {"env_step": trained, "return": result["mean"], "cpu_s": round(done.cpu_seconds, 1)}
    finally:
        shutil.rmtree(folder)


def settings_of(env_id: str) -> str:
    """Returns the name of the settings that ``train --env ID`` begins with: of the task, or of a kind."""
    return f"`{config_for(env_id).source['policy.type']}`"


def sections() -> dict[str, list[str]]:
    """Returns the generated lines of RESULTS.md."""
    lines = harness.read(STORE)

    def column(task: str, arm: str, name: str = "return") -> np.ndarray:
        return np.array([line[name] for line in lines if line["row"] == f"{task}.{arm}"])

    def cell(task: str, arm: str) -> str:
        values = column(task, arm)
        return score_cell([values], 1 if abs(values).max() > 1 else 3) if values.size else ""

    def seconds(task: str, arms: Iterable[str] = (OURS, *PEERS)) -> str:
        every = [column(task, arm, "cpu_s") for arm in arms if arm not in OTHERS]
        return " / ".join(f"{times.mean():.0f}" if times.size else "-" for times in every)

    def measured(tasks: dict[str, Task]) -> str:
        seeds_of = {name: [line for line in lines if line["row"].startswith(f"{name}.")] for name in tasks}
        commits = ", ".join(dict.fromkeys(line["commit"] for seeds in seeds_of.values() for line in seeds))
        return f"{measured_at(seeds_of)}; commits {commits}."

    def table(tasks: dict[str, Task], arms: dict[str, str]) -> list[str]:
        rows = [["task", "our settings", "env steps", *arms.values(), "CPU seconds"]]
        for name, task in tasks.items():
            returns = [cell(name, arm) for arm in arms]
            rows.append([name, settings_of(task.env_id), f"{task.steps:,}", *returns, seconds(name, arms)])
        return [*harness.table(*rows), "", measured(tasks)]

    every = {OURS: "`ppo`", **TITLES, **{arm: f"`{arm}`" for arm in OTHERS}}
    in_units = [["task", "library", "seeds", *FORMS]]
    for env_id, _ in IN_UNITS:
        for title, arm in (("ding_lite", OURS), ("Stable-Baselines3", PEER)):
            returns = [column(f"{env_id}, {form}", arm) / FORMS[form].get("reward", 1.0) for form in FORMS]
            if seeds := [values.size for values in returns if values.size]:
                cells = [score_cell([values], 0) if values.size else "" for values in returns]
                in_units.append([env_id, title, str(min(seeds)), *cells])
    tables = {
        "out-of-the-box": table(TASKS, every),
        "unseen": table(UNSEEN, {arm: every[arm] for arm in (OURS, PEER)}),
        "units": [*harness.table(*in_units), "", measured(OTHER_UNITS)],
        "readme-units": harness.table(*in_units),
    }
    short = [["task", "our settings", "env steps", "ding_lite", *TITLES.values(), "seeds", "CPU seconds"]]
    for name, task in TASKS.items():
        returns = [cell(name, arm) for arm in (OURS, *PEERS)]
        seeds = " / ".join(str(column(name, arm).size) for arm in (OURS, *PEERS))
        short.append([name, settings_of(task.env_id), f"{task.steps:,}", *returns, seeds, seconds(name)])
    return tables | {"readme-out-of-the-box": harness.table(*short)}


def main() -> None:
    """Measures what is missing, seed by seed, and writes the tables."""
    parser = harness.parser(__doc__, EVERY)
    arms = (*ALL, ZOO)
    parser.add_argument("--arms", nargs="*", default=arms, choices=arms, help="measure these only")
    args = parser.parse_args()
    rounds = [] if args.write else range(len(SEEDS))
    for number in rounds:
        for name in args.rows or EVERY:
            task = EVERY[name]
            tuned = [ZOO] if name in TUNED else []
            for arm in (arm for arm in (*task.arms, *tuned) if arm in args.arms):
                seed = (OF_PEERS if arm in PEERS else SEEDS)[number]
                place = {"row": f"{name}.{arm}", "seed": seed}
                if any(place.items() <= line.items() for line in harness.read(STORE)):
                    continue
                here, result = harness.measured_here(), measure(task, arm, seed)
                harness.append(STORE, [place | result | here])
                print(f"{name} {arm} seed {seed}: {result['return']:.1f}", flush=True)
    harness.put(sections())


if __name__ == "__main__":
    main()
