"""What a system is asked to do, and what it says that it did. Imported by the measured processes too."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any


class Skipped(Exception):
    """A system cannot run here; the message is the reason, for the table."""


@dataclass(frozen=True)
class Work:
    """One task, the same for all systems.

    Args:
        name: of the task; systems keep what is their own by it.
        env_id: of gymnasium, or of EnvPool.
        envs, rollout: environments, and steps of each between two updates.
        epochs, batch: passes over a rollout, and samples in a minibatch; 0: nothing is learned.
        learning_rate: of Adam.
        parameters: that a system must have; None: it is not looked at.
        hidden: widths of the layers of policy and value network, where observations are vectors.
        aux_freq, aux_epochs, aux_batch: PPG's auxiliary phase.
        all_cores: give torch every core, or one.
    """

    name: str
    env_id: str
    envs: int
    rollout: int
    epochs: int = 0
    batch: int = 0
    learning_rate: float = 3e-4
    parameters: int | None = None
    hidden: tuple[int, ...] = (64, 64)
    aux_freq: int = 0
    aux_epochs: int = 0
    aux_batch: int = 0
    all_cores: bool = False

    @property
    def samples(self) -> int:
        """Samples between two updates."""
        return self.envs * self.rollout

    @property
    def threads(self) -> int:
        """Torch's threads."""
        return cores() if self.all_cores else 1

    def iterations(self, steps: int) -> int:
        """Returns how many whole rollouts ``steps`` are."""
        return -(-steps // self.samples)

    def updates(self, env_steps: int) -> float:
        """Returns how many optimiser steps belong to so many env steps."""
        policy = self.epochs * env_steps / self.batch if self.epochs else 0.0
        return policy + (self.aux_epochs * env_steps / self.aux_batch if self.aux_epochs else 0.0)


@dataclass(frozen=True)
class Done:
    """What a process did: valid transitions, optimiser steps, and the parameters it trained."""

    env_steps: int
    updates: int = 0
    parameters: int | None = None


@dataclass(frozen=True)
class System:
    """A function ``module:function(work, steps, **options) -> Done``, and two lengths to run it at."""

    function: str
    work: Work
    lengths: tuple[int, int]
    options: dict[str, Any] = field(default_factory=dict)


def cores() -> int:
    """Returns how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def faults(work: Work, steps: int, done: Done) -> list[str]:
    """Returns in what a system did other work than it was asked to."""
    found = []
    if work.parameters is not None and done.parameters not in (None, work.parameters):
        found.append(f"{done.parameters:,} parameters, expected {work.parameters:,}")
    if not steps * 0.99 - work.samples <= done.env_steps <= steps * 1.05 + work.samples:
        found.append(f"{done.env_steps:,} env steps, expected {steps:,}")
    expected = work.updates(done.env_steps)
    if done.parameters is not None and not 0.9 <= done.updates / max(expected, 1) <= 1.1:
        found.append(f"{done.updates:,} updates, expected {expected:,.0f}")
    return found
