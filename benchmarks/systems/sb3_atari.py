"""Trains Stable-Baselines3's PPO on an Atari game with rl-zoo's settings.

    python -m systems.sb3_atari ENV_ID SEED STEPS FOLDER

Prints the mean return of the last 100 games of training every 50,000 env steps, and at the end that of 100
games of the final policy; actions are sampled. The same command continues a training that was stopped, from
its last saved model and with new games.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecFrameStack

EVERY = 50_000  # env steps
SETTINGS: dict[str, Any] = dict(
    n_steps=128, n_epochs=4, batch_size=256, vf_coef=0.5, ent_coef=0.01, device="cpu"
)


class Report(BaseCallback):
    """Prints the returns and saves the model, between an update and the next rollout."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = file

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        if self.num_timesteps % EVERY < self.model.n_steps * self.model.n_envs:
            games = [game["r"] for game in self.model.ep_info_buffer or ()]
            mean = float(np.mean(games)) if games else None
            print(json.dumps({"env_step": self.num_timesteps, "return": mean}), flush=True)
            self.model.save(self.file)


def main(env_id: str, seed: int, steps: int, folder: Path) -> None:
    """Trains one seed to its end, and plays."""
    torch.set_num_threads(1)
    gym.register_envs(importlib.import_module("ale_py"))
    file = folder / f"{env_id}_{seed}.zip"
    envs = VecFrameStack(make_atari_env(env_id, 8, seed=seed), 4)
    if file.exists():
        model = PPO.load(file, envs, device="cpu")
    else:
        schedules = dict(learning_rate=lambda left: 2.5e-4 * left, clip_range=lambda left: 0.1 * left)
        model = PPO("CnnPolicy", envs, seed=seed, **schedules, **SETTINGS)
    model.learn(steps - model.num_timesteps, callback=Report(file), reset_num_timesteps=not file.exists())
    model.save(file)
    games = VecFrameStack(make_atari_env(env_id, 1, seed=seed + 10_000), 4)
    mean, std = evaluate_policy(model, games, 100, deterministic=False)
    print(json.dumps({"env_step": model.num_timesteps, "return": float(mean), "std": float(std)}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
