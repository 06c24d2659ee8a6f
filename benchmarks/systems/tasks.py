"""rl-zoo's settings of some tasks, for zoo.py and for the measured systems."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

FAR_APART = (0, 1_000, 20_000, 300_000, 4_000_000)


class Task(NamedTuple):
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
    common = dict(
        batch_size=64, learning_rate=3e-4, clip_range=0.2, ent_coef=0.0, vf_coef=0.5, max_grad_norm=0.5
    )
    return common | own | others


CARTPOLE = _settings(32, 0.98, 0.8, 20, batch_size=256, learning_rate=1e-3)
HOPPER = dict(
    batch_size=32, learning_rate=9.80828e-5, ent_coef=0.00229519, vf_coef=0.835671, max_grad_norm=0.7
)
TASKS = {
    "CartPole-v1": Task(50_000, 8, CARTPOLE, linear=True, seeds=tuple(range(300, 310))),
    "Acrobot-v1": Task(100_000, 16, _settings(256, 0.99, 0.94, 4), normalize=True),
    "Pendulum-v1": Task(100_000, 4, _settings(1024, 0.9, 0.95, 10, learning_rate=1e-3)),
    "LunarLander-v3": Task(300_000, 16, _settings(1024, 0.999, 0.98, 4, ent_coef=0.01)),
    "Hopper-v5": Task(
        100_000,
        1,
        _settings(512, 0.999, 0.99, 5, **HOPPER),
        normalize=True,
        keys=(
            *("policy.model.encoder_hidden_size_list=[256,256]", "policy.model.activation=relu"),
            *("policy.model.init=torch", f"policy.model.initial_sigma_value={math.exp(-2)}"),
        ),
    ),
}

# The row "solve" of throughput.py: so many greedy episodes every so many env steps. Solved is a mean of the
# value that as many more episodes confirm.
SOLVED = dict(every=5_120, episodes=16, value=475)
TO_SOLVE = TASKS["CartPole-v1"]._replace(steps=100_000)
