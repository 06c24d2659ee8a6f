"""Advantages and value targets from rewards and values, one step at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass

from reference.recording import Step

TRACE_BOUND = 1.0  # c-bar and rho-bar of V-trace


@dataclass
class Credit:
    """Value, advantage and value target of one step, in raw units."""

    value: float
    advantage: float
    target: float


def assign(
    segment: list[Step],
    value: dict[tuple, float],
    next_value: dict[tuple, float],
    reward: dict[tuple, float],
    ratio: dict[tuple, float],
    *,
    gamma: float,
    gae_lambda: float,
    continues: bool = False,
) -> dict[tuple, Credit]:
    """Returns the credit of the valid steps of one environment, in their order, by their keys.

        delta_t  = r_t + gamma (1 - terminated_t) V(s_{t+1}) - V(s_t)
        A_t      = delta_t + gamma lambda (1 - done_t) c_{t+1} A_{t+1},    c = min(c-bar, rho)
        target_t = V(s_t) + min(rho-bar, rho_t) A_t

    With rho = 1 this is GAE (arXiv:1506.02438, eqs. 11 to 16). With rho = pi / mu the targets are those of
    V-trace (arXiv:1802.01561, eq. 1 and remark 2: c_i = lambda min(c-bar, rho_i)).

    Args:
        segment: rows of one environment; V(s_{t+1}) of the last row stands for all later rows.
        value, next_value: V(s_t), and V(s_{t+1}) of the same episode.
        reward: scaled.
        ratio: rho; a missing entry is 1.
        continues: whether returns continue over the ends of episodes (arXiv:1810.12894, section 2.3); then
            V(s_{t+1}) is that of the next valid step of the environment.
    """
    found: dict[tuple, Credit] = {}
    after = 0.0  # c_{t+1} A_{t+1}
    for step in reversed(segment):
        if not step.valid:
            after = after if continues else 0.0
            continue
        key = step.key
        future = 0.0 if step.terminated and not continues else next_value[key]
        delta = reward[key] + gamma * future - value[key]
        advantage = delta + (0.0 if step.done and not continues else gamma * gae_lambda * after)
        trace = min(TRACE_BOUND, ratio.get(key, 1.0))
        found[key] = Credit(value[key], advantage, value[key] + trace * advantage)
        after = trace * advantage
    return found


def nstep_target(
    segment: list[Step],
    start: int,
    next_value: dict[tuple, float],
    reward: dict[tuple, float],
    *,
    gamma: float,
    nstep: int,
) -> float:
    """Returns sum_{k<m} gamma^k r_{t+k} + gamma^m (1 - terminated) V(s_{t+m}) of the row ``start``.

    m is ``nstep``, or less where the episode or the segment ends earlier.
    """
    total = 0.0
    for k, step in enumerate(segment[start : start + nstep]):
        total += gamma**k * reward[step.key]
        if step.done or k == nstep - 1 or start + k == len(segment) - 1:
            if not step.terminated:
                total += gamma ** (k + 1) * next_value[step.key]
            return total
    raise AssertionError("the loop returns at the last row of the segment at the latest")


def normalized(advantages: list[float]) -> list[float]:
    """Returns (A - mean) / std with the population's std, or 0 where all advantages are equal."""
    mean = sum(advantages) / len(advantages)
    std = math.sqrt(sum((a - mean) ** 2 for a in advantages) / len(advantages))
    constant = std <= 1e-6 * abs(mean)
    return [0.0 if constant else (a - mean) / (std + 1e-8) for a in advantages]
