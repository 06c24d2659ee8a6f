"""rl-zoo's settings of some tasks, in the names of Stable-Baselines3 and as keys of ding_lite."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple


class Task(NamedTuple):
    """rl-zoo's settings of a task, in the names of Stable-Baselines3.

    Attributes:
        steps: of the environments; the schedules end with them.
        linear: whether learning rate and clip range fall to 0.
        normalize: whether observations and rewards are scaled.
        others: further keys of ding_lite.
        tuned: further arguments of rl-zoo that ding_lite does not have; only the row "rl-zoo" has them.
    """

    steps: int
    envs: int
    sb3: dict[str, Any]
    linear: bool = False
    normalize: bool = False
    others: Mapping[str, Any] = MappingProxyType({})
    seeds: range = range(600, 610)
    tuned: Mapping[str, Any] = MappingProxyType({})

    def keys(self) -> dict[str, Any]:
        """Returns the keys of ding_lite that have the meaning of these settings."""
        sb3 = self.sb3
        keys: dict[str, Any] = {
            "max_env_step": self.steps,
            "env.collector_env_num": self.envs,
            "policy.collect.n_sample": self.envs * sb3["n_steps"],
            "policy.collect.discount_factor": sb3["gamma"],
            "policy.collect.gae_lambda": sb3["gae_lambda"],
            "policy.learn.epoch_per_collect": sb3["n_epochs"],
            "policy.learn.batch_size": sb3["batch_size"],
            "policy.learn.learning_rate": sb3["learning_rate"],
            "policy.learn.clip_ratio": sb3["clip_range"],
            "policy.learn.entropy_weight": sb3["ent_coef"],
            "policy.learn.value_weight": 2 * sb3["vf_coef"],  # of 0.5 mse; there of mse
            "policy.learn.grad_clip_value": sb3["max_grad_norm"],
            "policy.learn.value_norm": False,
            "policy.eval.eval_freq": 0,
        }
        if self.linear:
            keys |= {"policy.learn.lr_schedule": "linear", "policy.learn.clip_schedule": "linear"}
        if self.normalize:
            keys |= {"policy.normalize.obs": True, "policy.normalize.reward": True}
            keys |= {"policy.normalize.reward_clip": 10.0}
        return keys | self.others


def _settings(n_steps: int, gamma: float, gae_lambda: float, n_epochs: int, **others: Any) -> dict[str, Any]:
    own = dict(n_steps=n_steps, gamma=gamma, gae_lambda=gae_lambda, n_epochs=n_epochs)
    common = dict(
        batch_size=64, learning_rate=3e-4, clip_range=0.2, ent_coef=0.0, vf_coef=0.5, max_grad_norm=0.5
    )
    return common | own | others


CARTPOLE = _settings(32, 0.98, 0.8, 20, batch_size=256, learning_rate=1e-3)
HOPPER = dict(
    batch_size=32, learning_rate=9.80828e-5, ent_coef=0.00229519, vf_coef=0.835671, max_grad_norm=0.7
)
HALFCHEETAH = dict(
    learning_rate=2.0633e-5, clip_range=0.1, ent_coef=0.000401762, vf_coef=0.58096, max_grad_norm=0.8
)
WIDE = {  # of policy_kwargs
    "policy.model.encoder_hidden_size_list": [256, 256],
    "policy.model.activation": "relu",
    "policy.model.init": "torch",
    "policy.model.initial_sigma_value": math.exp(-2),
}
FIVE = range(600, 605)
# rl-zoo has no settings for MinAtar: those for Atari, with the networks for vectors.
FLAT = {"policy.model.encoder.type": "mlp", "policy.model.encoder_hidden_size_list": [64, 64]}
FLAT |= {"policy.model.activation": "tanh", "policy.model.share_encoder": False}
ATARI = _settings(128, 0.99, 0.95, 4, batch_size=256, learning_rate=2.5e-4, clip_range=0.1, ent_coef=0.01)
TASKS = {
    "CartPole-v1": Task(50_000, 8, CARTPOLE, linear=True),
    "Acrobot-v1": Task(200_000, 16, _settings(256, 0.99, 0.94, 4), normalize=True),
    "Pendulum-v1": Task(
        100_000,
        4,
        _settings(1024, 0.9, 0.95, 10, learning_rate=1e-3),
        tuned=dict(use_sde=True, sde_sample_freq=4),
    ),
    "LunarLander-v3": Task(500_000, 16, _settings(1024, 0.999, 0.98, 4, ent_coef=0.01)),
    "Hopper-v5": Task(1_000_000, 1, _settings(512, 0.999, 0.99, 5, **HOPPER), False, True, WIDE, FIVE),
    "HalfCheetah-v5": Task(
        1_000_000, 1, _settings(512, 0.98, 0.92, 20, **HALFCHEETAH), False, True, WIDE, FIVE
    ),
}
PACKAGES = {"MiniGrid": "minigrid", "MinAtar": "minatar.gym"}


def register(env_id: str) -> None:
    """Registers the environments of the package that has ``env_id``."""
    for prefix, package in PACKAGES.items():
        if env_id.startswith(prefix):
            getattr(importlib.import_module(package), "register_envs", lambda: None)()


def _mujoco(n_steps: int, gamma: float, gae_lambda: float, learning_rate: float, **others: Any) -> Task:
    """Returns rl-zoo's settings of a MuJoCo task with networks of 64 units, without its entropy of 1e-7."""
    settings = _settings(n_steps, gamma, gae_lambda, 5, learning_rate=learning_rate, **others)
    return Task(0, 1, settings, normalize=True)


CONTINUOUS = dict(
    batch_size=256, learning_rate=7.77e-5, ent_coef=0.00429, clip_range=0.1, vf_coef=0.19, max_grad_norm=5
)
# Tasks that only the row "rl-zoo" trains, for env steps of its own. MiniGrid's are those of its image.
TUNED = TASKS | {
    "MountainCar-v0": Task(0, 16, _settings(16, 0.99, 0.98, 4), normalize=True),
    "MountainCarContinuous-v0": Task(
        0,
        1,
        _settings(8, 0.9999, 0.9, 10, **CONTINUOUS),
        normalize=True,
        tuned=dict(use_sde=True, policy_kwargs=dict(log_std_init=-3.29, ortho_init=False)),
    ),
    "MiniGrid-DoorKey-5x5-v0": Task(
        0, 8, _settings(128, 0.99, 0.95, 10, learning_rate=2.5e-4), normalize=True
    ),
    "LunarLanderContinuous-v3": TASKS["LunarLander-v3"],
    "InvertedPendulum-v5": _mujoco(
        32, 0.999, 0.9, 2.22425e-4, clip_range=0.4, max_grad_norm=0.3, vf_coef=0.19816
    ),
    "Reacher-v5": _mujoco(
        512, 0.9, 1.0, 1.04019e-4, batch_size=32, clip_range=0.3, max_grad_norm=0.9, vf_coef=0.950368
    ),
}

TASKS["MinAtar/Breakout-v1"] = Task(1_000_000, 8, ATARI, linear=True, others=FLAT, seeds=FIVE)

# The row "solve" of throughput.py: so many greedy episodes every so many env steps. Solved is a mean of the
# value that as many more episodes confirm.
SOLVED = dict(every=5_120, episodes=16, value=475)
TO_SOLVE = TASKS["CartPole-v1"]._replace(steps=100_000)
