"""Trains Stable-Baselines3's PPO with its defaults and 8 environments; prints return and processor's seconds.

python -m systems.sb3_defaults ENV_ID STEPS SEED EPISODES FORM
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from typing import Any

import gymnasium as gym
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from systems.units import FORMS, make

PACKAGES = {"MiniGrid": "minigrid", "MinAtar": "minatar.gym"}


def environment(env_id: str, form: str) -> gym.Env[Any, Any]:
    """Returns the environment; of a MiniGrid its image, since the text of a mission has no network there."""
    for prefix, package in PACKAGES.items():
        if env_id.startswith(prefix):
            module = importlib.import_module(package)
            getattr(module, "register_envs", lambda: None)()
    if env_id.startswith("MiniGrid"):
        from minigrid.wrappers import ImgObsWrapper

        return ImgObsWrapper(gym.make(env_id))
    return make(env_id, **FORMS[form or "as it is"])


def main(env_id: str, steps: int, seed: int, episodes: int, form: str) -> None:
    """Trains and evaluates one seed."""
    torch.set_num_threads(1)
    envs = make_vec_env(lambda: environment(env_id, form), 8, seed=seed)
    model = PPO("MlpPolicy", envs, seed=seed, device="cpu")
    model.learn(steps)
    seconds = time.process_time()
    of_play = make_vec_env(lambda: environment(env_id, form), 1, seed=seed + 1)
    mean = evaluate_policy(model, of_play, episodes)[0]
    print(json.dumps({"return": float(mean), "cpu_s": round(seconds, 1)}))


if __name__ == "__main__":
    env_id, steps, seed, episodes, form = sys.argv[1:]
    main(env_id, int(steps), int(seed), int(episodes), form)
