"""Credit assignment: advantages and value targets from rewards and values.

    delta_t  = r_t + gamma (1 - terminated_t) V(s_{t+1}) - V(s_t)
    A_t      = delta_t + gamma lambda (1 - done_t) c_{t+1} A_{t+1}
    target_t = V(s_t) + min(c_bar, rho_t) A_t

With c = rho = 1 this is GAE (arXiv:1506.02438, eq. 16). With rho = pi/mu and c = min(c_bar, rho) the
targets are those of V-trace (arXiv:1802.01561, eq. 1, with c_i = lambda min(c_bar, rho_i)). The weight of
a step multiplies its value target but not its advantage, because the surrogate loss multiplies the
advantage by the ratio already.

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
    *,
    gamma: float,
    gae_lambda: float,
    weight: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns ``(advantage, value_target)``.

    Source: arXiv:1506.02438, eq. 16; with ``weight`` arXiv:1802.01561, eq. 1.

    The value after a terminated step is 0. A truncated step bootstraps from ``next_value``, which must be
    the value of the last observation of the cut episode, not of the first one after the reset. Termination
    takes precedence where both flags are set.

    Args:
        reward: r_t, in the units of ``value``.
        value: V(s_t).
        next_value: V(s_{t+1}), where s_{t+1} belongs to the episode of s_t.
        terminated: whether the task ended at the step.
        truncated: whether the episode was cut at the step.
        gamma: discount per step.
        gae_lambda: 0 gives the one-step error, 1 the Monte-Carlo return minus the value.
        weight: min(c_bar, pi/mu) of each step for V-trace; None weighs each step with 1 (fresh data).

    Shapes:
        reward, value, next_value, weight: (T, B) float; terminated, truncated: (T, B) bool
        -> (T, B), (T, B)

    Raises:
        ValueError: if an argument is not (T, B), or the shapes differ.
    """
    tensors = [reward, value, next_value, terminated, truncated]
    if weight is not None:
        tensors.append(weight)
    shapes = {x.shape for x in tensors}
    if len(shapes) != 1 or reward.dim() != 2:
        raise ValueError(
            f"gae: all tensors must have one shape (T, B), got the shapes {sorted(map(tuple, shapes))}"
        )
    done = terminated | truncated
    delta = reward + gamma * next_value.masked_fill(terminated, 0.0) - value
    trace = gamma * gae_lambda * (~done).to(reward.dtype)
    if weight is not None:
        # trace_t multiplies A_{t+1}, so it includes the weight c_{t+1}.
        trace[:-1] *= weight[1:]

    advantage = delta
    _accumulate_backwards(advantage, trace)
    weighted = advantage if weight is None else weight * advantage
    return advantage, value + weighted


def following_rows(valid: Tensor) -> Tensor:
    """Returns the next valid row after each row; T, the place of the last observation, where there is none.

    Shapes:
        (T, B) bool -> (T, B) int64, from 1 to T
    """
    steps = len(valid)
    rows = torch.arange(steps, device=valid.device).unsqueeze(-1)
    rows = torch.where(valid, rows, steps)[1:]
    shifted = torch.cat([rows, rows.new_full((1, valid.shape[1]), steps)])
    return shifted.flip(0).cummin(0).values.flip(0)


@torch.no_grad()
def continuing_gae(
    reward: Tensor,
    value: Tensor,
    last_value: Tensor,
    valid: Tensor,
    *,
    gamma: float,
    gae_lambda: float,
    weight: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns ``(advantage, value_target)`` of returns that continue over the ends of episodes.

    Source: arXiv:1810.12894, section 2.3; otherwise as :func:`gae`. The step after the last one of an episode
    is the first one of the next. Rows that are not valid are left out.

    Args:
        reward: r_t, in the units of ``value``.
        value: V(s_t).
        last_value: V of the observation after the last row.
        valid: whether a row is a step of an episode; advantage and target of other rows are 0.
        gamma: discount per step.
        gae_lambda: 0 gives the one-step error, 1 the return minus the value.
        weight: min(c_bar, pi/mu) of each step for V-trace; None weighs each step with 1 (fresh data).

    Shapes:
        reward, value, weight: (T, B) float; last_value: (B,); valid: (T, B) bool -> (T, B), (T, B)
    """
    advantage, target = torch.zeros_like(reward), torch.zeros_like(reward)
    # Of the step that follows: V, and A times its weight.
    next_value, next_advantage = last_value, torch.zeros_like(last_value)
    for t in reversed(range(len(reward))):
        delta = reward[t] + gamma * next_value - value[t]
        found = delta + gamma * gae_lambda * next_advantage
        weighted = found if weight is None else weight[t] * found
        advantage[t] = torch.where(valid[t], found, 0.0)
        target[t] = torch.where(valid[t], value[t] + weighted, 0.0)
        next_advantage = torch.where(valid[t], weighted, next_advantage)
        next_value = torch.where(valid[t], value[t], next_value)
    return advantage, target


def _accumulate_backwards(advantage: Tensor, trace: Tensor) -> None:
    """Adds trace_t A_{t+1} to A_t in place, from the second last row to the first.

    Shapes:
        (T, B), (T, B)
    """
    if _numpy_can_view(advantage):
        # The loop makes one or two calls per row, and a NumPy call costs a fraction of a torch call.
        rows = list(advantage.numpy())
        traces = list(trace.numpy())
        with np.errstate(all="ignore"):  # as torch; the learner checks for values that are not finite
            for t in reversed(range(len(rows) - 1)):
                rows[t] += traces[t] * rows[t + 1]
        return
    tensor_rows = advantage.unbind(0)
    tensor_traces = trace.unbind(0)
    for t in reversed(range(len(tensor_rows) - 1)):
        tensor_rows[t].addcmul_(tensor_traces[t], tensor_rows[t + 1])


def _numpy_can_view(x: Tensor) -> bool:
    """Returns whether NumPy can compute on the memory of a tensor."""
    return x.is_cpu and x.dtype in (torch.float32, torch.float64)


@torch.no_grad()
def nstep_return(
    reward: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    *,
    gamma: float,
    nstep: int,
) -> Tensor:
    """Returns sum_{k<m} gamma^k r_{t+k} + gamma^m V(s_{t+m}) (Sutton and Barto, 2nd edition, eq. 12.1).

    m is ``nstep``, or less where the episode or the rollout ends earlier. After a termination V(s_{t+m}) is
    0. The other arguments are those of :func:`gae`.

    Args:
        nstep: largest number of rewards in a target, at least 1.

    Shapes:
        reward, next_value: (T, B) float; terminated, truncated: (T, B) bool -> (T, B)
    """
    one_step = reward + gamma * next_value.masked_fill(terminated, 0.0)
    continues = ~(terminated | truncated)[:-1]
    result = one_step
    for _ in range(min(nstep, len(reward)) - 1):  # no episode of the rollout is longer
        longer = one_step.clone()
        longer[:-1] = torch.where(continues, reward[:-1] + gamma * result[1:], one_step[:-1])
        result = longer
    return result


@torch.no_grad()
def explained_variance(value: Tensor, target: Tensor) -> Tensor:
    """Returns 1 - Var(target - value) / Var(target): 1 is a perfect prediction, 0 as good as the mean.

    The result is 0 where the targets are constant, that is, where their std is at most 1e-6 times their
    mean: there is no variance to explain.

    Shapes:
        value, target: (N,) -> ()
    """
    # The square of a large target overflows float32.
    size = target.abs().amax().clamp_min(1.0)
    value = value / size
    target = target / size
    variance = target.var(correction=0)
    unexplained = (target - value).var(correction=0)
    ratio = 1 - unexplained / variance.clamp_min(torch.finfo(variance.dtype).tiny)
    constant = variance.sqrt() <= 1e-6 * target.mean().abs()
    return torch.where(constant, torch.zeros_like(variance), ratio)
