"""PPO with rl-zoo's hyperparameters as keys, beside Stable-Baselines3 with the same; writes RESULTS.md.

    python benchmarks/zoo.py                    every row; a stopped measurement continues
    python benchmarks/zoo.py CartPole-v1 ...    these rows
    python benchmarks/zoo.py --write            measure nothing: the table of what is stored

Each seed trains in one thread. The final policy plays 20 greedy episodes from start states of its own.
Results are lines of learning.csv.
"""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import harness
from systems.tasks import SOLVED, TASKS, TO_SOLVE, Task

RUNS = Path("runs") / "zoo"
EPISODES = 20
LIBRARIES = ("ding_lite", "stable_baselines3")
STORE = harness.HERE / "learning.csv"


def keys_of(task: Task) -> list[str]:
    """Returns the keys that have the meaning of the settings of Stable-Baselines3."""
    sb3 = task.sb3
    keys = {
        "max_env_step": task.steps,
        "env.collector_env_num": task.envs,
        "policy.collect.n_sample": task.envs * sb3["n_steps"],
        "policy.collect.discount_factor": sb3["gamma"],
        "policy.collect.gae_lambda": sb3["gae_lambda"],
        "policy.learn.epoch_per_collect": sb3["n_epochs"],
        "policy.learn.batch_size": sb3["batch_size"],
        "policy.learn.learning_rate": sb3["learning_rate"],
        "policy.learn.clip_ratio": sb3["clip_range"],
        "policy.learn.entropy_weight": sb3["ent_coef"],
        "policy.learn.value_weight": 2 * sb3["vf_coef"],  # of 0.5 mse; there of mse
        "policy.learn.grad_clip_value": sb3["max_grad_norm"],
        "policy.eval.eval_freq": 0,
    }
    if task.linear:
        keys |= {"policy.learn.lr_schedule": "linear", "policy.learn.clip_schedule": "linear"}
    if task.normalize:
        keys |= {"policy.normalize.obs": True, "policy.normalize.reward": True}
        keys |= {"policy.normalize.reward_clip": 10.0}
    return [*(f"{key}={value}" for key, value in keys.items()), *task.keys]


def train(env_id: str, task: Task, seed: str, folder: str, *keys: str) -> list[str]:
    """Returns the arguments of Python that train by the command line."""
    how = ["--env", env_id, "--policy", "ppo", "--plain", "-s", seed, "--exp-name", folder]
    return ["-m", "ding_lite", "train", "-q", *how, *keys_of(task), *keys]


def solve(seed: str, folder: str) -> list[str]:
    """Returns the arguments of Python that solve CartPole-v1."""
    env = [f"env.n_evaluator_episode={SOLVED['episodes']}", f"env.stop_value={SOLVED['value']}"]
    keys = [*env, f"policy.eval.eval_freq={SOLVED['every']}", "env.evaluator_env_num=8"]
    return train("CartPole-v1", TO_SOLVE, seed, folder, *keys)


def mean_return(library: str, env_id: str, seed: int) -> float:
    """Returns the mean return of the final policy of one seed."""
    task = TASKS[env_id]
    if library == "stable_baselines3":
        from systems.sb3 import zoo_return

        return zoo_return(env_id, task, seed, EPISODES)
    folder = RUNS / f"{env_id}_{seed}"
    shutil.rmtree(folder, ignore_errors=True)  # of a measurement that was stopped
    harness.python(train(env_id, task, str(seed), str(folder)))
    play = ["eval", str(folder / "ckpt" / "last"), "-n", str(EPISODES), "-s", str(seed + 1), "--json"]
    return float(json.loads(harness.python(["-m", "ding_lite", *play]).output)["mean"])


def sections() -> dict[str, list[str]]:
    """Returns the generated lines of RESULTS.md."""
    from learning import stored  # here, since throughput.py needs only the keys of this module
    from rows import Comparison, Row
    from tables import comparison_table

    arms = {f"{env_id}.{library}": Row("") for env_id in TASKS for library in LIBRARIES}
    return {"zoo": comparison_table(Comparison(arms, baseline="stable_baselines3"), stored())}


def main() -> None:
    """Measures what is missing, and writes the table."""
    args = harness.parser(__doc__, TASKS).parse_args()
    for env_id in [] if args.write else args.rows or TASKS:
        for seed in TASKS[env_id].seeds:
            for library in LIBRARIES:
                place = {"row": f"{env_id}.{library}", "seed": seed}
                if any(place.items() <= line.items() for line in harness.read(STORE)):
                    continue
                here, began = harness.measured_here(), time.monotonic()
                found = mean_return(library, env_id, seed)
                took = round(time.monotonic() - began, 2)
                line = {**place, "env_step": TASKS[env_id].steps, "return": found, "wall_time_s": took}
                harness.append(STORE, [line | here])
                print(f"{env_id} {library} seed {seed}: {found:.1f}", flush=True)
    harness.put(sections())


if __name__ == "__main__":
    main()
