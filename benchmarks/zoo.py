"""PPO with rl-zoo's hyperparameters as keys, beside Stable-Baselines3 with the same; writes RESULTS.md.

    python benchmarks/zoo.py              every row; a stopped measurement continues
    python benchmarks/zoo.py CartPole-v1  one row

Each seed trains in one thread. The final policy plays 20 greedy episodes from start states of its own.
Results are in zoo.json (remove a row there to measure it again).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import report

STORE = report.HERE / "zoo.json"
RUNS = Path("runs") / "zoo"
EPISODES = 20
# Of Student's t, for the 95 % interval of a mean of so many seeds.
QUANTILE = {5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
FAR_APART = (0, 1_000, 20_000, 300_000, 4_000_000)


class Row(NamedTuple):
    """rl-zoo's settings of a task, in the names of Stable-Baselines3.

    Attributes:
        steps: of the environments; the schedules end with them.
        linear: whether learning rate and clip range fall to 0.
        normalize: whether observations and rewards are scaled.
        keys: further keys of ding_lite.
    """

    steps: int
    envs: int
    sb3: dict[str, Any]
    linear: bool = False
    normalize: bool = False
    keys: tuple[str, ...] = ()
    seeds: tuple[int, ...] = FAR_APART


def _settings(n_steps: int, gamma: float, gae_lambda: float, n_epochs: int, **others: Any) -> dict[str, Any]:
    own = dict(n_steps=n_steps, gamma=gamma, gae_lambda=gae_lambda, n_epochs=n_epochs)
    defaults = dict(
        batch_size=64, learning_rate=3e-4, clip_range=0.2, ent_coef=0.0, vf_coef=0.5, max_grad_norm=0.5
    )
    return defaults | own | others


ROWS = {
    "CartPole-v1": Row(
        50_000,
        8,
        _settings(32, 0.98, 0.8, 20, batch_size=256, learning_rate=1e-3),
        linear=True,
        seeds=tuple(range(300, 310)),
    ),
    "Acrobot-v1": Row(100_000, 16, _settings(256, 0.99, 0.94, 4), normalize=True),
    "Pendulum-v1": Row(100_000, 4, _settings(1024, 0.9, 0.95, 10, learning_rate=1e-3)),
    "LunarLander-v3": Row(300_000, 16, _settings(1024, 0.999, 0.98, 4, ent_coef=0.01)),
    "Hopper-v5": Row(
        100_000,
        1,
        _settings(
            512,
            0.999,
            0.99,
            5,
            batch_size=32,
            learning_rate=9.80828e-5,
            ent_coef=0.00229519,
            vf_coef=0.835671,
            max_grad_norm=0.7,
        ),
        normalize=True,
        keys=(
            *("policy.model.encoder_hidden_size_list=[256,256]", "policy.model.activation=relu"),
            *("policy.model.init=torch", f"policy.model.initial_sigma_value={math.exp(-2)}"),
        ),
    ),
}


def keys_of(row: Row) -> list[str]:
    """Returns the keys that have the meaning of the settings of Stable-Baselines3."""
    sb3 = row.sb3
    keys = {
        "max_env_step": row.steps,
        "env.collector_env_num": row.envs,
        "policy.collect.n_sample": row.envs * sb3["n_steps"],
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
    if row.linear:
        keys |= {"policy.learn.lr_schedule": "linear", "policy.learn.clip_schedule": "linear"}
    if row.normalize:
        keys |= {"policy.normalize.obs": True, "policy.normalize.reward": True}
        keys |= {"policy.normalize.reward_clip": 10.0}
    return [*(f"{key}={value}" for key, value in keys.items()), *row.keys]


def ours(env_id: str, row: Row, seed: int) -> float:
    """Returns the mean return after training by the command line."""
    folder = RUNS / f"{env_id}_{seed}"
    cli = [sys.executable, "-m", "ding_lite"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    shutil.rmtree(folder, ignore_errors=True)  # of a measurement that was stopped
    start = ["--env", env_id, "--policy", "ppo", "-s", str(seed), "--exp-name", str(folder)]
    subprocess.run([*cli, "train", "-q", *start, *keys_of(row)], check=True, env=environment)
    play = [
        *cli,
        "eval",
        str(folder / "ckpt" / "last.safetensors"),
        "-n",
        str(EPISODES),
        "-s",
        str(seed + 1),
        "--json",
    ]
    done = subprocess.run(play, check=True, env=environment, stdout=subprocess.PIPE, text=True)
    return float(json.loads(done.stdout)["mean"])


def theirs(env_id: str, row: Row, seed: int) -> float:
    """Returns the mean return after training with Stable-Baselines3."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import VecNormalize

    torch.set_num_threads(1)
    no_images = {"render_mode": None}
    envs: Any = make_vec_env(env_id, row.envs, seed=seed, env_kwargs=no_images)
    of_play: Any = make_vec_env(env_id, 1, seed=seed + 1, env_kwargs=no_images)
    if row.normalize:
        envs = VecNormalize(envs, gamma=row.sb3["gamma"])
        of_play = VecNormalize(of_play, training=False, norm_reward=False)
    network: dict[str, Any] = {}
    if row.keys:
        widths = dict(pi=[256, 256], vf=[256, 256])
        network = dict(log_std_init=-2, ortho_init=False, activation_fn=torch.nn.ReLU, net_arch=widths)
    settings = dict(row.sb3)
    if row.linear:
        rate, clip = settings["learning_rate"], settings["clip_range"]
        settings |= dict(learning_rate=lambda left: left * rate, clip_range=lambda left: left * clip)
    model = PPO("MlpPolicy", envs, **settings, policy_kwargs=network, seed=seed, device="cpu")
    model.learn(row.steps)
    if row.normalize:
        of_play.obs_rms = envs.obs_rms
    mean, _ = evaluate_policy(model, of_play, EPISODES, deterministic=True)
    return float(mean)  # type: ignore[arg-type]


LIBRARIES = {"ding_lite": ours, "stable_baselines3": theirs}


def table(stored: dict[str, Any]) -> list[str]:
    """Returns the table: the 95 % interval of the mean over the seeds, by Student's t."""
    lines = [
        "| task | env steps | library | mean | 95 % interval | return of each seed |",
        "|---|---|---|---|---|---|",
    ]
    for env_id, row in ROWS.items():
        for library in LIBRARIES:
            values = list(stored.get(env_id, {}).get(library, {}).values())
            if len(values) in QUANTILE:
                middle = fmean(values)
                half = QUANTILE[len(values)] * stdev(values) / math.sqrt(len(values))
                each = ", ".join(f"{value:,.1f}" for value in values)
                lines.append(
                    f"| {env_id} | {row.steps:,} | {library} | **{middle:,.1f}** "
                    f"| {middle - half:,.1f} to {middle + half:,.1f} | {each} |"
                )
    return lines


def main() -> None:
    """Measures what is missing, and writes the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(ROWS)}")
    names = parser.parse_args().rows or ROWS
    stored: dict[str, Any] = json.loads(STORE.read_text()) if STORE.exists() else {}
    for env_id in names:
        row = ROWS[env_id]
        for seed in row.seeds:
            for library, train in LIBRARIES.items():
                results = stored.setdefault(env_id, {}).setdefault(library, {})
                if str(seed) in results:
                    continue
                results[str(seed)] = train(env_id, row, seed)
                print(f"{env_id} {library} seed {seed}: {results[str(seed)]:.1f}", flush=True)
                report.store(STORE, stored)
        report.put("zoo", table(stored))


if __name__ == "__main__":
    main()
