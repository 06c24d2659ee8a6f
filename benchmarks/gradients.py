"""Microseconds of one gradient step of PPO, by each way to compute its gradient, by turns.

    python benchmarks/gradients.py

autograd: torch alone. NumPy layers, any loss: NumPy runs the linear layers, and torch the loss above them.
NumPy layers and slopes: PPO's own clipped loss, whose slopes are in NumPy, too. A step is the gradient,
its clip and Adam. Each number is the median of the rounds' lower quartiles.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median, quantiles
from timeit import repeat
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from harness import table

from ding_lite import PPOPolicy
from ding_lite.config.compile import compile_config
from ding_lite.data.rollout import as_rollout
from ding_lite.fast.gradients import ByAutograd

ROUNDS, STEPS = 9, 200
TASKS = {
    "CartPole, 256 samples": (4, gym.spaces.Discrete(2), 256),
    "HalfCheetah, 64 samples": (17, gym.spaces.Box(-1, 1, (6,), np.float32), 64),
}


def ways_of(size: int, space: gym.Space, samples: int) -> dict[str, Callable[[], Any]]:
    """Returns what takes one step, by the name of the way."""
    options = {"learn": {"batch_size": samples}, "collect": {"n_sample": samples}}
    cfg = compile_config({"env": {"env_id": "CartPole-v1"}, "policy": options}).values.policy
    policy = PPOPolicy(cfg, gym.spaces.Box(-1, 1, (size,), np.float32), space)
    flags = torch.zeros(samples, 1, dtype=torch.bool)
    fields = {
        "obs": torch.randn(samples, 1, size),
        "action": torch.stack([torch.as_tensor(space.sample()) for _ in range(samples)])[:, None],
        "log_prob": torch.full((samples, 1), -1.0),
        "reward": torch.randn(samples, 1),
        "terminated": flags,
        "truncated": flags,
        "valid": ~flags,
        "last_obs": torch.randn(1, size),
    }
    rollout = policy.collect_mode.get_train_sample(as_rollout(fields))
    batch = next(policy.minibatches(rollout).batches)
    own, any_loss = policy.objective, policy.objective._replace(slopes=None)
    optimizer, tensors = policy.optimizer, {}
    gradients = {
        "autograd": ByAutograd(own, policy.model, optimizer.parameters),
        "NumPy layers, any loss": optimizer.gradient_of(any_loss),
        "NumPy layers and slopes": optimizer.gradient_of(own),
    }
    return {
        name: lambda g=gradient: optimizer._step(g(batch), policy.learning_rate, tensors)
        for name, gradient in gradients.items()
    }


def main() -> None:
    """Prints the table."""
    torch.set_num_threads(1)
    rows: dict[str, list[str]] = {"step": list(TASKS)}
    for task in TASKS.values():
        ways, found = ways_of(*task), {}
        for _ in range(ROUNDS):
            for name, step in ways.items():
                found.setdefault(name, []).append(quantiles(repeat(step, number=1, repeat=STEPS), n=4)[0])
        for name, quartiles in found.items():
            rows.setdefault(name, []).append(f"{1e6 * median(quartiles):.0f}")
    print("\n".join(table(*([name, *numbers] for name, numbers in rows.items()))))


if __name__ == "__main__":
    main()
