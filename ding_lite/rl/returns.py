"""Credit assignment: advantages and value targets from rewards and values.

    delta_t  = r_t + gamma (1 - terminated_t) V(s_{t+1}) - V(s_t)
    A_t      = delta_t + gamma lambda (1 - done_t) c_{t+1} A_{t+1}
    target_t = V(s_t) + c_t A_t

On fresh data c = 1: GAE (arXiv:1506.02438, eq. 16). With c = min(1, pi/mu) the targets are V-trace's
(arXiv:1802.01561, eq. 1). The weight of a step scales its target but not its advantage, which the surrogate
loss multiplies by the ratio.

Shapes: T steps, B environments, N samples. Rewards, values, advantages and targets share one unit.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


@torch.no_grad()
def gae(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    valid: Tensor | None = None,
    *,
    gamma: float,
    gae_lambda: float,
    weight: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns ``(advantage, value_target)``.

    After a terminated step the value is 0. A truncated step bootstraps from ``next_value`` and ends the
    trace; so does the last step of a segment, which the caller marks as truncated. For returns that continue
    over the ends of episodes (arXiv:1810.12894, section 2.3), both flags are False everywhere, and
    ``next_value`` is the value at :func:`following_rows`.

    Args:
        reward: r_t.
        value: V(s_t).
        next_value: V(s_{t+1}); at a truncation s_{t+1} is the last observation of the truncated episode.
        terminated: the task ended with the step; takes precedence over ``truncated``.
        truncated: the episode was cut after the step.
        valid: False for rows that are not steps: their contents are ignored, their results are 0, and the
            trace passes through them.
        gamma: discount per step.
        gae_lambda: 0 gives the one-step error, 1 the Monte-Carlo return minus the value.
        weight: c_t = min(1, pi/mu) of each step, for V-trace; None on fresh data.

    Shapes:
        (T, B) each -> (T, B), (T, B)
    """
    advantage = reward + gamma * next_value.masked_fill(terminated, 0.0) - value
    trace = gamma * gae_lambda * (~(terminated | truncated)).to(reward.dtype)
    if valid is not None:  # delta is 0 and the trace 1, so the advantage of the next row passes through
        advantage, trace = advantage.masked_fill(~valid, 0.0), trace.masked_fill(~valid, 1.0)
        weight = None if weight is None else weight.masked_fill(~valid, 1.0)
    if weight is not None:
        trace[:-1] *= weight[1:]  # trace_t multiplies A_{t+1}
    # NumPy adds a row in a fraction of the time of a torch call, on the CPU or on a GPU.
    on_host = advantage.cpu().numpy()
    rows, traces = list(on_host), list(trace.cpu().numpy())
    with np.errstate(all="ignore"):  # no warnings, as in torch; the learner checks for nan and inf
        for t in reversed(range(len(rows) - 1)):
            rows[t] += traces[t] * rows[t + 1]  # in place, in on_host
    advantage = torch.from_numpy(on_host).to(advantage.device)
    target = value + (advantage if weight is None else weight * advantage)
    if valid is not None:
        advantage, target = advantage.masked_fill(~valid, 0.0), target.masked_fill(~valid, 0.0)
    return advantage, target


def following_rows(valid: Tensor) -> Tensor:
    """Returns the index of the next valid row after each row, or T, the last observation, if there is none.

    Shapes:
        (T, B) bool -> (T, B) int64, from 1 to T
    """
    steps = len(valid)
    rows = torch.arange(1, steps + 1, device=valid.device).unsqueeze(-1).expand(valid.shape)
    rows = torch.cat([rows[:-1].where(valid[1:], steps), rows[-1:]])
    return rows.flip(0).cummin(0).values.flip(0)


@torch.no_grad()
def nstep_return(
    reward: Tensor, next_value: Tensor, terminated: Tensor, truncated: Tensor, *, gamma: float, nstep: int
) -> Tensor:
    """Returns sum_{k<m} gamma^k r_{t+k} + gamma^m V(s_{t+m}) (Sutton and Barto, 2nd edition, eq. 12.1).

    m is ``nstep``, or less where the episode or the rollout ends earlier. After a termination V(s_{t+m}) is
    0. For the arguments see :func:`gae`.

    Shapes:
        (T, B) each -> (T, B)
    """
    result = one_step = reward + gamma * next_value.masked_fill(terminated, 0.0)
    continues = ~(terminated | truncated)[:-1]
    for _ in range(min(nstep, len(reward)) - 1):
        longer = torch.where(continues, reward[:-1] + gamma * result[1:], one_step[:-1])
        result = torch.cat([longer, one_step[-1:]])
    return result


def normalize_advantage(advantage: Tensor, scale: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """Returns (A - mean) / (std + 1e-8), or 0 where the advantages are constant.

    The std is the population's, so that a single sample gives 0 and not nan. Advantages whose std is at most
    1e-6 times their mean count as constant: their spread is rounding error.

    Args:
        advantage: A, (N,), or (K, N) of K minibatches.
        scale: std and mean of a larger set of samples; None: they are computed from ``advantage``.
    """
    std, mean = torch.std_mean(advantage, -1, correction=0, keepdim=True) if scale is None else scale
    return (advantage - mean) / torch.where(std <= 1e-6 * mean.abs(), torch.inf, std + 1e-8)


@torch.no_grad()
def explained_variance(value: Tensor, target: Tensor) -> Tensor:
    """Returns 1 - Var(target - value) / Var(target): 1 is a perfect prediction, 0 as good as the mean.

    The result is 0 where the targets are constant, that is, where their std is at most 1e-6 times their
    mean: there is no variance to explain.

    Shapes:
        (N,), (N,) -> ()
    """
    size = target.abs().amax().clamp_min(1.0)  # the square of a large target overflows float32
    value, target = value / size, target / size
    variance = target.var(correction=0)
    ratio = 1 - (target - value).var(correction=0) / variance.clamp_min(torch.finfo(variance.dtype).tiny)
    return torch.where(variance.sqrt() <= 1e-6 * target.mean().abs(), 0.0, ratio)
