"""Trains Stable-Baselines3's PPO with its defaults, or with rl-zoo's settings of the task.

    python -m systems.sb3_defaults ARM ENV_ID STEPS SEED EPISODES FORM

ARM is stable_baselines3, with 8 environments, stable_baselines3_1_env or rl-zoo. Prints the env steps of
training, the mean return of greedy episodes of the final policy, and the processor's seconds until the end of
training.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import gymnasium as gym
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from systems.sb3 import zoo_model
from systems.tasks import TUNED, register
from systems.units import FORMS, make


def environment(env_id: str, form: str) -> gym.Env[Any, Any]:
    """Returns the environment; of a MiniGrid its image, since the text of a mission has no network there."""
    register(env_id)
    if env_id.startswith("MiniGrid"):
        from minigrid.wrappers import ImgObsWrapper

        return ImgObsWrapper(gym.make(env_id))
    return make(env_id, **FORMS[form or "as it is"])


def main(arm: str, env_id: str, steps: int, seed: int, episodes: int, form: str) -> None:
    """Trains and evaluates one seed."""
    torch.set_num_threads(1)
    task = TUNED[env_id] if arm == "rl-zoo" else None
    number = task.envs if task else 1 if arm.endswith("_1_env") else 8
    envs: VecEnv = make_vec_env(lambda: environment(env_id, form), number, seed=seed)
    of_play: VecEnv = make_vec_env(lambda: environment(env_id, form), 1, seed=seed + 10_000)
    if task and task.normalize:
        envs = VecNormalize(envs, gamma=task.sb3["gamma"])
        of_play = VecNormalize(of_play, training=False, norm_reward=False)
        of_play.obs_rms = envs.obs_rms
    if task:
        model = zoo_model(envs, task, seed, **task.tuned)
    else:
        # The codes of MiniGrid's cells are 0 to 10, which a division by 255, as of pixels, would hide.
        kwargs = dict(normalize_images=False) if env_id.startswith("MiniGrid") else {}
        model = PPO("MlpPolicy", envs, seed=seed, device="cpu", policy_kwargs=kwargs)
    model.learn(steps)
    seconds = time.process_time()
    mean = evaluate_policy(model, of_play, episodes)[0]
    print(json.dumps({"env_step": model.num_timesteps, "return": float(mean), "cpu_s": round(seconds, 1)}))


if __name__ == "__main__":
    arm, env_id, steps, seed, episodes, form = sys.argv[1:]
    main(arm, env_id, int(steps), int(seed), int(episodes), form)
