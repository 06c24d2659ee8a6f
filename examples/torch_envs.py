"""CartPole and Pendulum in torch, thousands of copies in one call: the form of a simulator on a GPU.

    ding-lite train -c examples/torch_envs.py
    ding-lite train -c examples/torch_envs.py env.collector_env_num=16384 env.kwargs.device=cuda

A vector environment of tensors has ``num_envs``, the two spaces of one environment, its autoreset mode in
``metadata``, and ``reset`` and ``step``, which return tensors (N, ...) on one device. ``info["final_obs"]``
has the observations of all environments before the reset; only the rows of truncated episodes are read. Its
shape depends on no values, so no step waits for the device.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from torch import Tensor


class TorchEnv:
    """N environments whose state is one tensor (N, S).

    Args:
        num_envs: N.
        device: on which all tensors are.
        autoreset: what follows an episode's end: ``"SAME_STEP"``, ``"NEXT_STEP"`` or ``"DISABLED"``.
        max_episode_steps: steps after which an episode is truncated; None: the limit of gymnasium.
    """

    single_observation_space: spaces.Space
    single_action_space: spaces.Space
    max_episode_length: int

    def __init__(
        self,
        num_envs: int,
        device: str = "cpu",
        autoreset: str = "SAME_STEP",
        max_episode_steps: int | None = None,
    ) -> None:
        self.num_envs, self.device = num_envs, torch.device(device)
        self.metadata = {"autoreset_mode": AutoresetMode[autoreset]}
        self.max_episode_length = max_episode_steps or self.max_episode_length
        self.generator = torch.Generator(self.device)
        self.episode_length_buf = torch.zeros(num_envs, dtype=torch.long, device=self.device)
        self.done = torch.zeros(num_envs, dtype=torch.bool, device=self.device)
        self.state = self.first_states()

    def first_states(self) -> Tensor:
        """Returns states (N, S) that episodes begin in."""
        raise NotImplementedError

    def physics(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the next states (N, S), the rewards (N,), and whether each task has ended (N,)."""
        raise NotImplementedError

    def observe(self, state: Tensor) -> Tensor:
        """Returns the observations (N, D) of states."""
        raise NotImplementedError

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Tensor, dict]:
        """Begins an episode in each environment, or in those where ``options["reset_mask"]`` (N,) is True."""
        if seed is not None:
            self.generator.manual_seed(seed)
        mask = (options or {}).get("reset_mask")
        self._begin(torch.ones_like(self.done) if mask is None else mask)
        return self.observe(self.state), {}

    def _begin(self, where: Tensor) -> None:
        """Begins an episode in the environments where ``where`` (N,) is True."""
        self.state = torch.where(where[:, None], self.first_states(), self.state)
        self.episode_length_buf = self.episode_length_buf.masked_fill(where, 0)
        self.done = self.done.masked_fill(where, False)

    def step(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Any]]:
        mode, waiting = self.metadata["autoreset_mode"], self.done
        self.state, reward, terminated = self.physics(self.state, action)
        self.episode_length_buf = self.episode_length_buf + 1
        truncated = self.episode_length_buf >= self.max_episode_length
        if mode is AutoresetMode.NEXT_STEP:  # the step after an end begins an episode, and ignores the action
            self._begin(waiting)
            reward = reward.masked_fill(waiting, 0.0)
            terminated, truncated = terminated & ~waiting, truncated & ~waiting
        self.done = terminated | truncated
        info = {}
        if mode is AutoresetMode.SAME_STEP:
            info["final_obs"] = self.observe(self.state)
            self._begin(self.done)
        return self.observe(self.state), reward, terminated, truncated, info

    def get_state(self) -> dict[str, Tensor]:
        """Returns everything that the next steps depend on, for checkpoints."""
        return {
            "state": self.state.clone(),
            "lengths": self.episode_length_buf.clone(),
            "done": self.done.clone(),
            "generator": self.generator.get_state(),
        }

    def set_state(self, state: dict[str, Tensor]) -> Tensor:
        """Restores a state, whose tensors are on the CPU, and returns the observations."""
        self.state, self.episode_length_buf, self.done = (
            state[name].to(self.device) for name in ("state", "lengths", "done")
        )
        self.generator.set_state(state["generator"])
        return self.observe(self.state)


class CartPole(TorchEnv):
    """CartPole-v1 of gymnasium."""

    single_observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    single_action_space = spaces.Discrete(2)
    max_episode_length = 500

    def first_states(self) -> Tensor:
        return torch.rand(self.num_envs, 4, generator=self.generator, device=self.device) * 0.1 - 0.05

    def physics(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, x_dot, theta, theta_dot = state.unbind(1)
        force = action * 20.0 - 10.0
        sin, cos = theta.sin(), theta.cos()
        pull = (force + 0.05 * theta_dot.square() * sin) / 1.1
        theta_acc = (9.8 * sin - cos * pull) / (0.5 * (4.0 / 3.0 - 0.1 * cos.square() / 1.1))
        x_acc = pull - 0.05 * theta_acc * cos / 1.1
        change = torch.stack([x_dot, x_acc, theta_dot, theta_acc], 1)
        state = state + 0.02 * change
        terminated = (state[:, 0].abs() > 2.4) | (state[:, 2].abs() > 12 * math.pi / 180)
        return state, torch.ones_like(x), terminated

    def observe(self, state: Tensor) -> Tensor:
        return state


class Pendulum(TorchEnv):
    """Pendulum-v1 of gymnasium."""

    single_observation_space = spaces.Box(-np.array([1, 1, 8], np.float32), np.array([1, 1, 8], np.float32))
    single_action_space = spaces.Box(-2.0, 2.0, (1,))
    max_episode_length = 200

    def first_states(self) -> Tensor:
        uniform = torch.rand(self.num_envs, 2, generator=self.generator, device=self.device) * 2 - 1
        return uniform * uniform.new_tensor([math.pi, 1.0])

    def physics(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        theta, speed = state.unbind(1)
        torque = action.squeeze(1).clamp(-2.0, 2.0)
        angle = torch.remainder(theta + math.pi, 2 * math.pi) - math.pi
        reward = -(angle.square() + 0.1 * speed.square() + 0.001 * torque.square())
        speed = (speed + (15.0 * theta.sin() + 3.0 * torque) * 0.05).clamp(-8.0, 8.0)
        state = torch.stack([theta + speed * 0.05, speed], 1)
        return state, reward, torch.zeros_like(theta, dtype=torch.bool)

    def observe(self, state: Tensor) -> Tensor:
        theta, speed = state.unbind(1)
        return torch.stack([theta.cos(), theta.sin(), speed], 1)


config = dict(
    exp_name="torch_pendulum",
    max_env_step=1_000_000,
    env=dict(
        type=Pendulum,
        manager=dict(type="vector"),
        collector_env_num=1024,
        evaluator_env_num=16,
        init_at_random_ep_len=True,  # else all environments are at the same step of their episodes
        stop_value=-200.0,
    ),
    policy=dict(
        normalize=dict(obs=True),
        collect=dict(n_step=8, discount_factor=0.9),
        learn=dict(learning_rate=2e-3, batch_size=1024, epoch_per_collect=8),
        eval=dict(eval_freq=50_000),
    ),
)
