"""Credit assignment: from rewards and values to advantages and value targets.

    delta_t  = r_t + gamma (1 - terminated_t) V(s_{t+1}) - V(s_t)
    A_t      = delta_t + gamma lambda (1 - done_t) c_{t+1} A_{t+1}
    target_t = V(s_t) + min(c_bar, rho_t) A_t

With c = rho = 1 this is GAE (arXiv:1506.02438, eq. 16). With rho = pi/mu and c = min(c_bar, rho) the
targets are those of V-trace (arXiv:1802.01561, eq. 1, with c_i = lambda min(c_bar, rho_i)). A step's
own weight reaches its target but not its advantage: the surrogate loss brings it in, once.
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
    ignore_done: bool = False,
) -> tuple[Tensor, Tensor]:
    """Returns ``(advantage, value_target)``.

    A terminated step has no future. A truncated step bootstraps from ``next_value``, which must be
    the value of the observation the episode was cut at, not of the one after the reset. Where both
    flags are set, termination wins. ``ignore_done`` takes every termination for a truncation.

    Args:
        reward: in the units of ``value``.
        weight: min(c_bar, pi/mu) of each step for V-trace; none is 1, fresh data.
        gamma: discount per step.
        gae_lambda: 0 is the one-step error, 1 the Monte-Carlo return less the value.
        ignore_done: bootstrap where the task ended too; the trace is cut all the same.

    Shapes:
        every argument and both results: (T, B)

    Raises:
        ValueError: if the shapes differ.
    """
    given = (reward, value, next_value, terminated, truncated, *(() if weight is None else (weight,)))
    shapes = {x.shape for x in given}
    if len(shapes) != 1 or reward.dim() != 2:
        raise ValueError(f"gae: every argument is (T, B), got {sorted(map(tuple, shapes))}")
    done = terminated | truncated
    bootstrap = torch.ones_like(reward) if ignore_done else (~terminated).to(reward.dtype)
    delta = reward + gamma * bootstrap * next_value - value
    carry = gamma * gae_lambda * (~done).to(reward.dtype)
    if weight is not None:
        # carry_t multiplies c_{t+1} A_{t+1}.
        carry[:-1] *= weight[1:]

    advantage = delta
    _carry_back(advantage, carry)
    own = advantage if weight is None else weight * advantage
    return advantage, value + own


def _carry_back(advantage: Tensor, carry: Tensor) -> None:
    """Adds carry_t A_{t+1} to each A_t, from the end on, in place. Shapes: (T, B)."""
    if _is_array(advantage):  # a call of NumPy costs a fraction of torch's, and it takes one or two a step
        rows, carries = list(advantage.numpy()), list(carry.numpy())
        with np.errstate(all="ignore"):  # as torch; the learner looks for what is not finite
            for t in reversed(range(len(rows) - 1)):
                rows[t] += carries[t] * rows[t + 1]
        return
    of_device, carried = advantage.unbind(0), carry.unbind(0)
    for t in reversed(range(len(of_device) - 1)):
        of_device[t].addcmul_(carried[t], of_device[t + 1])


def _is_array(x: Tensor) -> bool:
    """Returns whether NumPy can work on a tensor's memory."""
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
    ignore_done: bool = False,
) -> Tensor:
    """Returns sum_{k<m} gamma^k r_{t+k} + gamma^m V(s_{t+m}): Sutton and Barto, eq. 12.1.

    m is ``nstep``, or less where the episode or the rollout ends before; a terminated episode has no
    V(s_{t+m}). The arguments are those of :func:`gae`.

    Shapes:
        every argument and the result: (T, B)
    """
    bootstrap = torch.ones_like(reward) if ignore_done else (~terminated).to(reward.dtype)
    one_step = reward + gamma * bootstrap * next_value
    goes_on = ~(terminated | truncated)
    goes_on[-1] = False
    result = one_step
    for _ in range(nstep - 1):
        longer = one_step.clone()
        longer[:-1] = torch.where(goes_on[:-1], reward[:-1] + gamma * result[1:], one_step[:-1])
        result = longer
    return result


@torch.no_grad()
def explained_variance(value: Tensor, target: Tensor) -> Tensor:
    """Returns 1 - Var(target - value) / Var(target): 1 is perfect, 0 no better than the mean.

    A constant target gives 0: there is no variance to explain. So does one whose spread is within the
    rounding error of its mean.

    Shapes:
        value, target: (N,) -> ()
    """
    size = target.abs().amax().clamp_min(1.0)  # the square of a large one is beyond float32
    value, target = value / size, target / size
    variance = target.var(correction=0)
    unexplained = (target - value).var(correction=0)
    ratio = 1 - unexplained / variance.clamp_min(torch.finfo(variance.dtype).tiny)
    constant = variance.sqrt() <= 1e-6 * target.mean().abs()
    return torch.where(constant, torch.zeros_like(variance), ratio)
