"""Schedules of coefficients over training.

:class:`Schedules` has the state that they depend on. Checkpoints store it, so a resumed run continues them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ding_lite.errors import ContractError

ADAPTIVE = "adaptive"  # for the learning rate only, which adapted_rate changes
LOWEST, HIGHEST = 1e-5, 1e-2  # bounds of the learning rates that adapted_rate returns


def schedule(kind: str, progress: float, final: float = 0.0) -> float:
    """Returns the factor that multiplies the initial value: 1 at progress 0, ``final`` at progress 1.

    Args:
        kind: ``"constant"`` and ``"adaptive"`` (always 1), ``"linear"``, or ``"cosine"`` (half a period,
            arXiv:1608.03983, eq. 5 without restarts).
        progress: fraction of the schedule that is done, clamped to 0 .. 1.
        final: the factor at the end.
    """
    if kind in ("constant", ADAPTIVE):
        return 1.0
    progress = min(max(progress, 0.0), 1.0)
    if kind == "linear":
        return 1.0 + (final - 1.0) * progress
    return final + (1.0 - final) * 0.5 * (1.0 + math.cos(math.pi * progress))


def adapted_rate(rate: float, kl: float, desired_kl: float) -> float:
    """Returns the next pass's learning rate, adapted to bring the KL to the old policy near ``desired_kl``.

        rate / 1.5  if kl > 2 desired_kl        1.5 rate  if 1e-7 < kl < desired_kl / 2     else rate

    within 1e-5 .. 1e-2 (arXiv:2109.11978, appendix; rsl_rl does so before each minibatch). A KL below 1e-7
    is rounding: the policy has not moved.

    Args:
        rate: learning rate of the pass.
        kl: mean KL(pi_old || pi) of the pass, in nats; with nan the rate stays.
        desired_kl: in nats.
    """
    if kl > 2 * desired_kl:
        return max(LOWEST, rate / 1.5)
    if 1e-7 < kl < desired_kl / 2:
        return min(HIGHEST, 1.5 * rate)
    return rate


class Schedules:
    """The schedules of a policy, and the state that they depend on.

    Args:
        learn: the section ``policy.learn``.

    Attributes:
        env_step: fresh valid transitions that the policy has learned from.
        iteration: number of rollouts that the policy has learned from.
        learning_rate: the rate that the schedule multiplies; scripts and the adaptive schedule may set it.
    """

    def __init__(self, learn: Any) -> None:
        self.learn = learn
        self.env_step = self.iteration = 0
        self.learning_rate: float = learn.learning_rate

    def set_learning_rate(self, value: float) -> None:
        """Sets the rate that the schedule multiplies from now on.

        Raises:
            ContractError: if it is negative or not finite.
        """
        if not 0 <= value < math.inf:
            raise ContractError(f"learning_rate: expected a finite number at least 0, got {value}")
        self.learning_rate = float(value)

    def factor(self, name: str) -> float:
        """Returns the factor of a schedule in this iteration: "lr", "clip" or "entropy"."""
        total, final = self.learn.schedule_env_step, self.learn.lr_final if name == "lr" else 0.0
        return schedule(self.learn[f"{name}_schedule"], self.env_step / total if total else 0.0, final)

    @property
    def rate(self) -> float:
        """The learning rate now."""
        return self.learning_rate * self.factor("lr")

    def state_dict(self) -> dict[str, Any]:
        counters = {"env_step": self.env_step, "iteration": self.iteration}
        return {**counters, "learning_rate": self.learning_rate, "configured": self.learn.learning_rate}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.env_step, self.iteration = int(state["env_step"]), int(state["iteration"])
        # If the config of the resumed run has another learning rate, the run starts from that rate.
        if state["configured"] == self.learn.learning_rate:
            self.learning_rate = float(state["learning_rate"])
