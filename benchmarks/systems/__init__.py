"""The measured systems, a module each, and the work that all of them do.

A system is a function ``(work, steps) -> Done``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, NamedTuple

HIDDEN = [64, 64]  # layer widths of policy and value network, for vectors


class Skipped(Exception):
    """A system cannot run here; the message is the reason."""


@dataclass(frozen=True)
class Work:
    """One task, equal for all systems.

    Args:
        name: of the task.
        env_id: id of gymnasium or EnvPool.
        envs, rollout: number of environments, and steps of each between two updates.
        epochs, batch: passes over a rollout, and samples per minibatch; 0: no learning.
        learning_rate: of Adam.
        parameters: required number of parameters; None: not checked.
        lstm: units of an LSTM before the layers; 0: none. Gradients go back through whole rollouts.
        aux_freq, aux_epochs, aux_batch: PPG's auxiliary phase.
        all_cores: whether torch uses all cores or one.
        keys: of ding_lite, for what the numbers leave open.
    """

    name: str
    env_id: str
    envs: int
    rollout: int
    epochs: int = 0
    batch: int = 0
    learning_rate: float = 3e-4
    parameters: int | None = None
    lstm: int = 0
    aux_freq: int = 0
    aux_epochs: int = 0
    aux_batch: int = 0
    all_cores: bool = False
    keys: str = ""

    @property
    def samples(self) -> int:
        """Samples between two updates."""
        return self.envs * self.rollout

    @property
    def threads(self) -> int:
        """Torch's threads."""
        return (os.cpu_count() or 1) if self.all_cores else 1

    def iterations(self, steps: int) -> int:
        """Returns the number of whole rollouts that cover ``steps``."""
        return -(-steps // self.samples)

    def updates(self, env_steps: int) -> float:
        """Returns the number of optimiser steps for a number of env steps."""
        policy = self.epochs * env_steps / self.batch if self.epochs else 0.0
        if not self.aux_epochs:
            return policy
        phases = self.iterations(env_steps) // self.aux_freq
        return policy + phases * self.aux_epochs * self.aux_freq * self.samples / self.aux_batch


class Done(NamedTuple):
    """The work of a process: valid transitions, optimiser steps, and number of trained parameters."""

    env_steps: int
    updates: int = 0
    parameters: int | None = None


def faults(work: Work, steps: int, done: Done) -> list[str]:
    """Returns the differences between the work that was asked for and the work that was done."""
    differences = []
    if work.parameters is not None and done.parameters not in (None, work.parameters):
        differences.append(f"{done.parameters:,} parameters, expected {work.parameters:,}")
    if not steps * 0.99 - work.samples <= done.env_steps <= steps * 1.05 + work.samples:
        differences.append(f"{done.env_steps:,} env steps, expected {steps:,}")
    expected = work.updates(done.env_steps)
    if done.parameters is not None and not 0.9 <= done.updates / max(expected, 1) <= 1.1:
        differences.append(f"{done.updates:,} updates, expected {expected:,.0f}")
    return differences


class UpdateCounter:
    """Counts the steps of all torch optimisers from its creation on."""

    def __init__(self) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self.count = 0
        register_optimizer_step_post_hook(self._stepped)

    def _stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.count += 1
